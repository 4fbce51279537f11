"""Notify other processes that something has changed."""
