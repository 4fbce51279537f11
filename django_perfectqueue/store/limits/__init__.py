"""The rows that count what limits allow: gates and meters."""
