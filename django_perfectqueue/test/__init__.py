"""The door for tests: run what is due in place, look at what was submitted, make tasks."""

from .assertions import QueueAssertions as QueueAssertions
from .assertions import QueueTestCase as QueueTestCase
from .drain import Drained as Drained
from .drain import adrain as adrain
from .drain import drain as drain
from .eager import eager as eager
from .factories import make_task as make_task
from .inline_runner import Run as Run
from .submitted import SubmittedTask as SubmittedTask
from .submitted import submitted as submitted
