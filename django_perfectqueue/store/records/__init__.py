"""What is written beside the tasks: workers, journals, usage."""

from .dependency_events import follow
from .journal import drain, register, sign, sign_off, tag_task, untag_task, write_journal
from .usage import Tally, UsageKey, add_usage, clock, count_endings, folded, note_waiting
from .usage_read import count_submitted, roll_up
