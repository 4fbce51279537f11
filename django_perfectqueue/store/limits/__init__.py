"""The rows that count what limits allow: holds and meters."""
