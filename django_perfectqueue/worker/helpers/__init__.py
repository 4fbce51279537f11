"""The helpers of a worker, beside its processors."""
