"""Whether a worker stays as it is while thousands of its processors die: __main__ → live."""
