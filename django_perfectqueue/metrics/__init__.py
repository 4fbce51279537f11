"""
What queues have and do, for monitors.

``text`` writes it as Prometheus reads it, and ``urls`` answers over HTTP.
"""
