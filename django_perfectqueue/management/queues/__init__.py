"""What commands on queues, shares and limits share."""
