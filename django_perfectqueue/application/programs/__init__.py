"""Handlers that run a program."""
