"""What commands on tasks share."""
