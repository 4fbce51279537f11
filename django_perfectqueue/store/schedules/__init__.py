"""Schedules: their rows, and the ticks that become tasks."""
