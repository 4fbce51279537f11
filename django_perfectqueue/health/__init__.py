"""
Whether tasks are being run: for monitors, containers and people.

``checks`` asks the database, ``urls`` answers over HTTP. What a worker reports of itself on
its own host, with no database, is on its board.
"""
