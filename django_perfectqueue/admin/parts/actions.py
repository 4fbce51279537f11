"""What a person may do with tasks, and the messages about its outcome."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_perfectqueue import store
from django_perfectqueue.bulk.selection import ALLOWED
from django_perfectqueue.exceptions import (
    AlreadyExistsError,
    AlreadyFinishedError,
    InvalidTaskError,
    NotFoundError,
    NotSupportedError,
    PayloadError,
)
from django_perfectqueue.models import LIVE, Status, Task
from django_perfectqueue.payload.inputs import QUEUE_LENGTH, checked
from django_perfectqueue.payload.merge import rewriter
from django_perfectqueue.queue import Queue

Act = Callable[[int, str], str]
Bind = Callable[[str, str], Act]
ActOnAll = Callable[[Sequence[int], str], "Report"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """
    One verb of the store. ``statuses`` are those in which a task's page offers it.

    ``act`` returns what it has done, as a word that done() knows; ``act_on_all`` takes the place
    of it where some statements do it to many tasks. The ``question`` is asked
    first where it is about more than ``asks_above`` tasks. ``word`` is what is written down.
    One with a ``field``, "queue" or "patch", has it typed in. ``bind`` makes ``act`` of
    that and of who does it; such a verb has no ``act`` before, and records who did it itself.
    """

    name: str
    label: object
    title: Any
    statuses: frozenset[Status]
    question: object
    word: str
    asks_above: int = 0
    field: str = ""
    act: Act | None = None
    act_on_all: ActOnAll | None = None
    bind: Bind | None = None

    def asks(self, count: int) -> bool:
        """Return whether this number of tasks needs a confirmation."""
        return count > self.asks_above

    def bound(self, value: str, by: str) -> Verb:
        """
        Return the verb with what was typed in, and who does it.

        Raise InvalidTaskError where that is not possible.
        """
        return replace(self, act=self.bind(value, by)) if self.bind else self

    def act_on(self, task_id: int, using: str) -> str:
        """Do it to a task. Raise TypeError where the verb is yet to be bound."""
        if self.act is None:
            raise TypeError(f"The verb '{self.name}' is to be bound first.")
        return self.act(task_id, using)

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
    if verb.act_on_all:
        return verb.act_on_all(list(ids), using)
    report = Report()
    for task_id in ids:
        try:
            report.done[verb.act_on(task_id, using)] += 1
        except AlreadyFinishedError:
            report.refused["ended"] += 1
        except NotFoundError:
            report.refused["gone"] += 1
        except NotSupportedError:
            report.refused["unfit"] += 1
        except AlreadyExistsError:
            report.refused["taken"] += 1
        except (InvalidTaskError, PayloadError):
            report.refused["data"] += 1
        else:
            report.ids.append(task_id)
    return report


def force_finish(task_id: int, using: str) -> str:
    store.steer(store.force_finish, task_id, using=using)
    return "finished"


def cancel(ids: Sequence[int], using: str) -> Report:
    """Cancel tasks, but for those for which others wait."""
    chosen = store.choose(ids, using=using)
    report = cancel_together(chosen.ids, using)
    if chosen.awaited:
        report.refused["awaited"] = len(chosen.awaited)
    return report


def cancel_together(ids: Sequence[int], using: str) -> Report:
    """Cancel tasks of which none refuses for another that waits for it."""
    done = store.cancel_each(ids, using=using)
    over = sum(done.values())
    words = +Counter(cancelled=over, asked=len(done) - over)
    report = Report([task_id for task_id in ids if task_id in done], words)
    if left := [task_id for task_id in ids if task_id not in done]:
        ended = Task.objects.using(using).filter(pk__in=left).count()
        report.refused += Counter(ended=ended, gone=len(left) - ended)
    return report


def retry(task_id: int, using: str) -> str:
    store.steer(store.retry, task_id, using=using)
    return "retried"


def purge(task_id: int, using: str) -> str:
    store.delete_ended(task_id, using=using)
    return "deleted"


def bind_move(value: str, by: str) -> Act:
    revision = store.Revision(queue=checked("queue", value.strip(), QUEUE_LENGTH), by=by)

    def move(task_id: int, using: str) -> str:
        store.steer(store.revise, task_id, revision, using=using)
        return "moved"

    return move


def bind_edit(value: str, by: str) -> Act:
    try:
        revision = store.Revision(rewrite=rewriter(json.loads(value)), by=by)
    except (ValueError, RecursionError) as error:
        raise InvalidTaskError(gettext("This is no JSON: %s.") % error) from error

    def edit(task_id: int, using: str) -> str:
        store.steer(store.revise, task_id, revision, using=using)
        return "edited"

    return edit


def bind_copy(value: str, by: str) -> Act:
    def copy(task_id: int, using: str) -> str:
        row = Task.objects.using(using).only("queue", "key").filter(pk=task_id).first()
        if row is None:
            raise NotFoundError(f"There is no task with the id {task_id}.")
        Queue(row.queue, using=using)[row.key].copy(by=by)
        return "copied"

    return copy


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
        "moved": ngettext("%(count)d task was moved.", "%(count)d tasks were moved.", count),
        "edited": ngettext(
            "The data of %(count)d task were changed.",
            "The data of %(count)d tasks were changed.",
            count,
        ),
        "copied": ngettext(
            "%(count)d copy was submitted.", "%(count)d copies were submitted.", count
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
        "awaited": ngettext(
            "for %(count)d others wait: its page cancels it with them",
            "for %(count)d others wait: the page of each cancels it with them",
            count,
        ),
        "unfit": ngettext(
            "%(count)d is waiting, running or blocked",
            "%(count)d are waiting, running or blocked",
            count,
        ),
    }
    reasons |= {
        "taken": ngettext(
            "%(count)d has a key that is taken there",
            "%(count)d have keys that are taken there",
            count,
        ),
        "data": ngettext(
            "the data of %(count)d can't be changed so",
            "the data of %(count)d can't be changed so",
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
    act_on_all=cancel,
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
STILL = frozenset(Status(word) for word in ALLOWED["edit"])
MOVE = Verb(
    name="move",
    word="moved",
    label=_("Move to another queue"),
    title=_("Move selected tasks to another queue"),
    bind=bind_move,
    field="queue",
    statuses=STILL,
    question=_("To which queue? A task keeps its id, its history and what waits for it."),
)
EDIT = Verb(
    name="edit",
    word="edited",
    label=_("Edit data"),
    title=_("Edit data of selected tasks"),
    bind=bind_edit,
    field="patch",
    statuses=STILL,
    question=_(
        'How are the data to change? A JSON merge patch such as {"v": 2, "old": null} sets v and'
        " takes old away."
    ),
)
COPY = Verb(
    name="copy",
    word="copied",
    label=_("Run a copy"),
    title=_("Run copies of selected tasks"),
    bind=bind_copy,
    statuses=frozenset(Status),
    question=_("Submit copies of these tasks, with new keys and due at once?"),
)
VERBS = {verb.name: verb for verb in (FORCE_FINISH, CANCEL, RETRY, MOVE, EDIT, COPY, PURGE)}
