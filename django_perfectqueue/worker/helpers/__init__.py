"""The helper processes of a worker, beside its processors."""
