"""
Whether any order of verbs, deaths and freezes leads to a state that must not be.

``python -m benchmarks.storm`` runs it; docs/reference/benchmarks.md says what is proved.
"""
