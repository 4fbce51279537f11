"""Several hosts, several servers: what a test of one machine can show of a fleet."""
