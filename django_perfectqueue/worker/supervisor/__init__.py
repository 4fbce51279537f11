"""Keep the processes of a worker alive."""
