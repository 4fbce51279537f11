"""
Whether a worker stays as it is: memory, threads, files, connections and tables over hours.

    __main__ → live (load) or deaths → report
"""
