"""Memory that the processes of a worker share."""
