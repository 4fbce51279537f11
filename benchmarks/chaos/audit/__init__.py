"""What is read after a run, and what must not be in it."""
