"""What stands around the performing of tasks: for all, or for some handlers."""

from .memory_limit import MemoryLimit
from .report_errors import ReportErrors, log_error, mail_error
from .retry_on import RetryOn
from .time_limit import TimeLimit

__all__ = ["MemoryLimit", "ReportErrors", "RetryOn", "TimeLimit", "log_error", "mail_error"]
