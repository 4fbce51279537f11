"""What one process needs: signals, wake-ups, children, titles, output."""
