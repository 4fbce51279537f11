"""A worker in the test's own thread and transaction."""

from django_perfectqueue.test import drain


def run_due(*, only=None, queue="default", **options):
    """Run what is due, or only the first; return each attempt, and raise nothing."""
    until = (lambda run: True) if only == 1 else None
    return drain(queue, until=until, raise_errors=False, **options)
