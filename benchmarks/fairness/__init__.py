"""
How fairly processor time is shared, against what the weights say.

``python -m benchmarks.fairness`` runs it; docs/reference/benchmarks.md says what is measured.
"""
