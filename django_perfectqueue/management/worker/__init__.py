"""What pq_worker does before its processes start."""
