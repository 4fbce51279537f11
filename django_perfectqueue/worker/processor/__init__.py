"""Acquire, run, repeat."""
