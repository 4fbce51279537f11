"""What is written beside the tasks: workers, journals, usage."""
