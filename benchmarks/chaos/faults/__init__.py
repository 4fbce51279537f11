"""What goes wrong in a run, and what it goes wrong with."""
