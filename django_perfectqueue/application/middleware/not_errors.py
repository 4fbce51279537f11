"""What a handler may raise that is no error of it."""

from django_perfectqueue.exceptions import CancelRequestedError, PreemptedError, ProcessStopError
from django_perfectqueue.verdicts import Verdict

NO_ERRORS = (CancelRequestedError, PreemptedError, ProcessStopError, Verdict)
