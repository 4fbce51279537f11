"""Run one task, and settle it."""
