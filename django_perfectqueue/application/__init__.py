"""What a project writes: handlers, the routes to them, and what to decide when they fail."""

from django_perfectqueue.backoff import Backoff as Backoff
from django_perfectqueue.backoff import Exponential as Exponential
from django_perfectqueue.backoff import Fixed as Fixed
from django_perfectqueue.backoff import Steps as Steps
from django_perfectqueue.verdicts import Discard as Discard
from django_perfectqueue.verdicts import Retry as Retry
from django_perfectqueue.verdicts import Snooze as Snooze

from .base import Application as Application
from .base import TimeLimits as TimeLimits
from .base import time_limits as time_limits
from .dispatch import Dispatch as Dispatch
from .dispatch import Registry as Registry
from .dispatch import autodiscover as autodiscover
from .dispatch import dispatch_at as dispatch_at
from .dispatch import handler as handler
from .error_policy import Decider as Decider
from .programs import CommandDecider as CommandDecider
from .programs import CommandHandler as CommandHandler
from .programs import Completed as Completed
