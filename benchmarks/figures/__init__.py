"""
The figures that must not creep: size, Python calls, statements and transactions.

``python -m benchmarks.figures`` counts them and compares them with ``figures.toml``. They
are counts, not times: the same on a busy machine.
"""
