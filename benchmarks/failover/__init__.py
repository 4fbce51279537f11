"""A cluster whose primary is killed again and again: ``python -m benchmarks.failover``."""
