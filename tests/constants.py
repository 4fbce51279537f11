"""What is no setting, but a constant of Options that tests change like one."""

from django_perfectqueue.conf import CHECKS, Options

CONSTANTS = {name for name in vars(Options) if name.isupper()} - {*CHECKS}


def taken_from(given):
    """Take the constants out of a dict of settings, and return them."""
    return {name: given.pop(name) for name in CONSTANTS & {*given}}


def set_constants(given):
    """Set for good those that are in a dict of settings, and take them out of it."""
    for name, value in taken_from(given).items():
        setattr(Options, name, value)
