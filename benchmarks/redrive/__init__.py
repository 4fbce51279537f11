"""Put a million dead letters back in line, while workers are killed and others drain beside it."""
