"""What stands around the performing of tasks: for all, or for some handlers."""

from .errors import ReportErrors, RetryOn
from .limits import MemoryLimit, TimeLimit

__all__ = ["MemoryLimit", "ReportErrors", "RetryOn", "TimeLimit"]
