"""
What queues have and do, for monitors.

``views`` writes it as Prometheus reads it, and ``urls`` answers over HTTP.
"""
