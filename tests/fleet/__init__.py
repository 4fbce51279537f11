"""Several hosts, several servers: what a test of one machine can tell of a fleet."""
