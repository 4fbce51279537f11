"""What stands around the performing of tasks: for all, or for some handlers."""

from .errors import ReportErrors, RetryOn, log_error, mail_error
from .limits import MemoryLimit, TimeLimit

__all__ = ["MemoryLimit", "ReportErrors", "RetryOn", "TimeLimit", "log_error", "mail_error"]
