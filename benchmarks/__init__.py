"""
How fast this queue is, beside others and beside the database alone.

``python -m benchmarks`` runs it; docs/reference/benchmarks.md says what is measured.
"""
