"""
Whether a worker and its database stay as they are under the most work that they can do,
while a snapshot is open, too: rate, latency, sizes, memory, threads, files, connections.

    __main__ → live → report, picture
"""
