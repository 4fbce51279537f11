"""What waits in memory until it is written."""
