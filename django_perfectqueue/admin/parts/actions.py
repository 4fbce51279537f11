"""What a person may do with tasks, and the messages about its outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_perfectqueue import store
from django_perfectqueue.exceptions import AlreadyFinishedError, NotFoundError, NotSupportedError
from django_perfectqueue.models import LIVE, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """
    One verb of the store. ``statuses`` are those in which a task's page offers it.

    ``act`` answers what it has done, as a word that done() knows. The ``question`` is asked
    first where it is about more than ``asks_above`` tasks. ``word`` is what is written down.
    """

    name: str
    label: Any
    title: Any
    act: Callable[[int, str], str]
    statuses: frozenset[Status]
    question: object
    word: str
    asks_above: int = 0

    def asks(self, count: int) -> bool:
        """Return whether this number of tasks needs a confirmation."""
        return count > self.asks_above

    @property
    def permission(self) -> str:
        return f"perfectqueue.{self.name}_task"


@dataclass(slots=True)
class Report:
    """What came of a verb: the tasks it was done to, and why not to others."""

    ids: list[int] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    def successes(self) -> str:
        return " ".join(done(what, count) for what, count in self.done.items())

    def refusals(self) -> str:
        reasons = ", ".join(refused(why, count) for why, count in self.refused.items())
        return gettext("Not done: %(reasons)s.") % {"reasons": reasons} if reasons else ""


def steer(verb: Verb, ids: Iterable[int], *, using: str) -> Report:
    """Do a verb to each task, each in a transaction of its own where there is none yet."""
    report = Report()
    for task_id in ids:
        try:
            report.done[verb.act(task_id, using)] += 1
        except AlreadyFinishedError:
            report.refused["ended"] += 1
        except NotFoundError:
            report.refused["gone"] += 1
        except NotSupportedError:
            report.refused["unfit"] += 1
        else:
            report.ids.append(task_id)
    return report


def force_finish(task_id: int, using: str) -> str:
    store.force_finish(task_id, using=using)
    return "finished"


def cancel(task_id: int, using: str) -> str:
    return "cancelled" if store.cancel_request(task_id, using=using) else "asked"


def retry(task_id: int, using: str) -> str:
    store.redrive(task_id, using=using)
    return "retried"


def purge(task_id: int, using: str) -> str:
    store.discard(task_id, using=using)
    return "deleted"


def done(what: str, count: int) -> str:
    sentences = {
        "deleted": ngettext("%(count)d task was deleted.", "%(count)d tasks were deleted.", count),
        "finished": ngettext(
            "%(count)d task was force-finished.", "%(count)d tasks were force-finished.", count
        ),
        "cancelled": ngettext(
            "%(count)d task was cancelled.", "%(count)d tasks were cancelled.", count
        ),
        "asked": ngettext(
            "%(count)d running task was asked to stop.",
            "%(count)d running tasks were asked to stop.",
            count,
        ),
        "retried": ngettext(
            "%(count)d task was put back in line.", "%(count)d tasks were put back in line.", count
        ),
    }
    return sentences[what] % {"count": count}


def refused(why: str, count: int) -> str:
    reasons = {
        "ended": ngettext("%(count)d had ended already", "%(count)d had ended already", count),
        "gone": ngettext("%(count)d is gone", "%(count)d are gone", count),
        "unfit": ngettext(
            "%(count)d is waiting, running or blocked",
            "%(count)d are waiting, running or blocked",
            count,
        ),
    }
    return reasons[why] % {"count": count}


FORCE_FINISH = Verb(
    name="force_finish",
    word="finished",
    label=_("Force finish"),
    title=_("Force finish selected tasks"),
    act=force_finish,
    statuses=frozenset(LIVE),
    question=_(
        "Close these tasks as finished? Those that wait are never run. The handler of one "
        "that is running is interrupted, and whatever comes of it no longer counts."
    ),
)
CANCEL = Verb(
    name="cancel",
    word="requested",
    label=_("Request cancel"),
    title=_("Request cancel of selected tasks"),
    act=cancel,
    statuses=frozenset(LIVE),
    question=_(
        "Cancel these tasks? One that has yet to run is cancelled at once. One that is "
        "running is asked to stop, and ended by force where it does not in the time that its "
        "handler is given."
    ),
)
RETRY = Verb(
    name="retry",
    word="retried",
    label=_("Retry"),
    title=_("Retry selected tasks"),
    act=retry,
    statuses=frozenset(
        {Status.FAILED, Status.CANCELLED, Status.EXPIRED, Status.SCHEDULED, Status.RETRYING}
    ),
    question=_(
        "Put these tasks back in line? They run as soon as there is a free processor, and have "
        "all their attempts again."
    ),
    asks_above=20,
)
PURGE = Verb(
    name="purge",
    word="deleted",
    label=_("Delete"),
    title=_("Delete selected tasks"),
    act=purge,
    statuses=frozenset(),
    question=_("Delete these tasks with all that is known of them? Their keys are free then."),
)
VERBS = {verb.name: verb for verb in (FORCE_FINISH, CANCEL, RETRY, PURGE)}
