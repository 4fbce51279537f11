"""What can hold a task back, each with its sentence."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime

from django.db import models
from django.utils.formats import number_format
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_perfectqueue.fairness.wording import describe_pause, time_shown
from django_perfectqueue.lib.durations import long_duration, per

COUNTED = 1_000


class Code(models.TextChoices):
    """
    What can hold a task back, or that nothing does, in the order in which they are asked; each
    with its sentence.
    """

    ENDED = "ended", _("It has ended.")
    RUNNING = "running", _("A processor has it, and renews the lease as long as it works on it.")
    PARENT_FAILED = (
        "parent_failed",
        _(
            "It waits for task '%(name)s', which ended %(wait)s ago and has not finished"
            " (%(error)s): retry that one, or cancel this one."
        ),
    )
    BLOCKED = "blocked", _("It waits for other tasks.")
    SEQUENCE_STOPPED = (
        "sequence_stopped",
        _(
            "Its sequence is stopped by task '%(name)s', which ended %(wait)s ago and has not"
            " finished (%(error)s): retry that one, or delete it."
        ),
    )
    SEQUENCE = "sequence", _("It comes after task '%(name)s' in its sequence.")
    BATCH_OPEN = "batch_open", _("It waits for batch '%(name)s'; open tasks: %(parents)s.")
    BATCH_FAILED = (
        "batch_failed",
        _(
            "It waits for batch '%(name)s'; tasks that have not finished: %(parents)s. Retry these,"
            " or cancel this one."
        ),
    )
    SIGNAL = "signal", _("It waits for the signal '%(name)s' since %(since)s.")
    SLEEPING = "sleeping", _("It sleeps until %(at)s (step '%(name)s').")
    EXPIRED = (
        "expired",
        _("It expired %(wait)s ago; the next worker closes it, and does not run it."),
    )
    SCHEDULED = "scheduled", _("It is due in %(wait)s.")
    RETRYING = "retrying", _("An attempt did not finish it; it is due again in %(wait)s.")
    NO_WORKER = "no_worker", _("No worker serves queue '%(name)s'.")
    DRAINED = "drained", _("Its queue's workers are drained: see pq_status workers --undrain.")
    UNKNOWN_TYPE = "unknown_type", _("No worker that serves its queue knows the type '%(name)s'.")
    STALLED = "stalled", _("Its lease ran out %(wait)s ago; the next free processor takes it.")
    USER_PAUSED = "user_paused", _("Its user is paused.")
    USER_CAP = "user_cap", _("Its user has %(running)d running, of %(most)d at most.")
    QUEUE_PAUSED = "queue_paused", _("Queue '%(name)s' is paused.")
    LIMIT_PAUSED = "limit_paused", _("Limit '%(name)s' is paused.")
    LIMIT_CAP = (
        "limit_cap",
        _("Limit '%(name)s' lets %(most)d tasks run at once, and %(running)d run."),
    )
    LIMIT_RATE = "limit_rate", _("Limit '%(name)s' lets %(rate)s start, the next one in %(wait)s.")
    LANE_ASLEEP = (
        "lane_asleep",
        _(
            "Its lane is asleep: the program that submitted the task did not wake it. A worker does"
            " so within seconds."
        ),
    )
    NEXT_STEP = (
        "next_step",
        _("It waits for a long task of user '%(name)s' to reach its next step."),
    )
    POSITION = "position"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """
    Why a task does not run now.

    ``name`` is the user, queue, type, limit, signal, step or outcome that it is about. ``at`` is
    when the clock ends it, or has ended the lease, and ``wait`` the seconds until then; ``since``
    is when it began to wait for a signal, or to sleep. ``running``
    tasks of at most ``most`` fill a cap; ``rate`` may start in each ``period`` of seconds.
    ``parents`` is how many tasks it waits for; ``name`` is one of them, that has failed if any,
    or their batch. ``error`` is why that one failed.
    A pause ends ``at`` a time, if it has an end, and is ``by`` someone, with a ``note``.
    ``position`` is the task's place in its user's line, 1 for the first, and ``lanes`` how
    many other lanes are served before that; COUNTED + 1 says that there are more.

    ``code`` is the first of these that holds:

    - ``ended``: nothing: it has ended
    - ``running``: nothing: a processor has it
    - ``parent_failed``: a task that it waits for, which did not finish
    - ``blocked``: other tasks
    - ``sequence_stopped``: the first task before it in its sequence that did not finish
    - ``sequence``: the task before it in its sequence
    - ``batch_open``: the batch of which it is a callback
    - ``batch_failed``: tasks of that batch that have not finished
    - ``signal``: a signal
    - ``sleeping``: the end of its sleep
    - ``expired``: its time has passed, and no worker has closed it yet
    - ``scheduled``, ``retrying``: its time, at first or after an attempt; ``name`` is its queue
      where that is ``unserved``: *no_worker* or *drained*
    - ``no_worker``: no worker serves its queue
    - ``drained``: the workers of its queue are drained
    - ``unknown_type``: no such worker knows its type
    - ``stalled``: its lease has run out, and no processor has taken it yet
    - ``user_paused``: its user is paused
    - ``user_cap``: its user's cap
    - ``queue_paused``: the queue is paused
    - ``limit_paused``: a paused limit
    - ``limit_cap``: a limit's cap
    - ``limit_rate``: a limit's rate
    - ``lane_asleep``: its user's lane, which a worker wakes within seconds
    - ``next_step``: a long task of user ``name``, which may yield to it between two steps
    - ``position``: its place in line
    """

    code: Code
    name: str = ""
    at: datetime | None = None
    since: datetime | None = None
    wait: float | None = None
    running: int | None = None
    most: int | None = None
    rate: int | None = None
    period: float | None = None
    parents: int | None = None
    error: str = ""
    by: str = ""
    note: str = ""
    position: int | None = None
    lanes: int | None = None
    unserved: str = ""

    def __str__(self) -> str:
        return self.sentence

    @property
    def sentence(self) -> str:
        """The reason in words, in the language of the one who asks."""
        if self.code == Code.POSITION:
            return describe_position(self.position or 1, self.lanes)
        if self.code == Code.BLOCKED and self.parents:
            return describe_parents(self.name, self.parents)
        if self.code in PAUSES:
            return describe_paused(self)
        if self.since:
            return describe_wait(self, self.since)
        codes = filter(None, [self.code, self.unserved])
        return " ".join(str(Code(code).label) for code in codes) % {
            **asdict(self),
            "rate": per(self.rate or 0, self.period or 0.0),
            "wait": long_duration(abs(self.wait or 0.0)),
        }

    def facts(self) -> dict[str, object]:
        """Return the code, the sentence and what is known, for programs."""
        known = {name: value for name, value in asdict(self).items() if value not in (None, "")}
        known |= {name: at.isoformat() for name, at in known.items() if isinstance(at, datetime)}
        return {**known, "code": self.code.value, "sentence": self.sentence}


PAUSES = (Code.USER_PAUSED, Code.QUEUE_PAUSED, Code.LIMIT_PAUSED)


def describe_paused(reason: Reason) -> str:
    """Return what is paused in words, and until when, by whom and why."""
    sentence = str(reason.code.label) % {"name": reason.name}
    terms = describe_pause(reason.at, reason.by, reason.note)
    return f"{sentence[:-1]} ({terms})." if terms else sentence


def describe_wait(reason: Reason, since: datetime) -> str:
    """Return for which signal one waits and since when, or until when it sleeps."""
    until = time_shown(reason.at) if reason.at else ""
    known = {"name": reason.name, "since": time_shown(since), "at": until}
    sentence = str(reason.code.label) % known
    if reason.code == Code.SIGNAL and until:
        return f"{sentence[:-1]}, {gettext('until %s') % until}."
    return sentence


def describe_position(position: int, lanes: int | None) -> str:
    """Return a place in line in words."""
    if position > COUNTED:
        many = gettext("More than %s tasks are before it in its user's line.")
        sentence = many % grouped(COUNTED)
    else:
        sentence = gettext("It is number %s in its user's line.") % grouped(position)
    if lanes is None:
        return sentence
    if not lanes:
        return f"{sentence} " + gettext("Its lane is the next.")
    if lanes > COUNTED:
        return f"{sentence} " + gettext("More than %s lanes are served before.") % grouped(COUNTED)
    before = ngettext("%s lane is served before.", "%s lanes are served before.", lanes)
    return f"{sentence} " + before % grouped(lanes)


def describe_parents(name: str, parents: int) -> str:
    """Return in words for how many tasks one waits."""
    if parents == 1:
        return gettext("It waits for task '%s'.") % name
    more = gettext("more than %s") if parents > COUNTED else "%s"
    count = more % grouped(min(parents, COUNTED))
    return gettext("It waits for %(count)s tasks, among them '%(name)s'.") % {
        "count": count,
        "name": name,
    }


def grouped(number: int) -> str:
    return number_format(number, force_grouping=True)
