"""
What queues have and do: for the overview of the admin, and for monitors.

``overview`` asks the database, ``text`` writes it as Prometheus reads it, and ``urls`` answers
over HTTP.
"""
