"""Reads the tables of other queues, and moves what waits there into this one."""
