"""What the workers of each peer run."""
