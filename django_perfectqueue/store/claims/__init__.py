"""Take the tasks whose turn it is."""
