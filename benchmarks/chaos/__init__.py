"""
Whether any task is lost or run twice while everything around it dies.

``python -m benchmarks.chaos`` runs it; docs/reference/benchmarks.md says what is proved.
"""
