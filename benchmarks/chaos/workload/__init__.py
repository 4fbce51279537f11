"""What is to be done in a run, and who does it: handlers, operators, players."""
