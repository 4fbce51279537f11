"""
The one command of Chartroom: several customers send their files, a worker runs their
tasks, and what each of them got is shown.
"""

from .run import main

__all__ = ["main"]
