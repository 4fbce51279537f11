"""What a person may do with tasks, and the messages about its outcome."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.utils.translation import gettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from django_perfectqueue import bulk, exceptions
from django_perfectqueue.bulk import Answer, Operation
from django_perfectqueue.bulk.selection import ALLOWED
from django_perfectqueue.models import LIVE, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """
    What a person may do to tasks. ``statuses`` are those in which a task's page offers it.

    ``name`` is in the permission, ``does`` the verb of the operation. The ``question`` is asked
    first where it is about more than ``asks_above`` tasks. One with a ``field``, "to" or "patch",
    has it typed in.
    """

    name: str
    does: bulk.Verb
    label: object
    title: Any
    statuses: frozenset[Status]
    question: object
    asks_above: int = 0
    field: str = ""

    def asks(self, count: int) -> bool:
        """Return whether this number of tasks needs a confirmation."""
        return count > self.asks_above

    def operation(self, value: str, by: str) -> Operation:
        """Return it with what was typed in; raise InvalidTaskError where that is not possible."""
        if self.field != "patch":
            return Operation(verb=self.does, by=by, to=value if self.field else "")
        try:
            return Operation(verb=self.does, by=by, patch=json.loads(value))
        except (ValueError, RecursionError) as error:
            raise exceptions.InvalidTaskError(gettext("This is no JSON: %s.") % error) from error

    @property
    def permission(self) -> str:
        return f"perfectqueue.{self.name}_task"


@dataclass(slots=True)
class ActionReport:
    """What came of a verb: the tasks it was done to, and why not to others."""

    ids: list[int] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    def add(self, answer: Answer, verb: str) -> None:
        if answer.error is None:
            self.ids.append(answer.task[0])
            self.done[answer.word] += 1
            return
        kind = next(word for error, word in REFUSALS.items() if isinstance(answer.error, error))
        self.refused["awaited" if (kind, verb) == ("unfit", "cancel") else kind] += 1

    def successes(self) -> str:
        return " ".join(worded(DONE, what, count) for what, count in sorted(self.done.items()))

    def refusals(self) -> str:
        reasons = ", ".join(worded(REFUSED, why, count) for why, count in self.refused.items())
        return gettext("Not done: %(reasons)s.") % {"reasons": reasons} if reasons else ""


REFUSALS: Mapping[type[Exception], str] = {
    exceptions.AlreadyFinishedError: "ended",
    exceptions.NotFoundError: "gone",
    exceptions.NotSupportedError: "unfit",
    exceptions.AlreadyExistsError: "taken",
    exceptions.InvalidTaskError: "data",
    exceptions.PayloadError: "data",
}


def worded(texts: Mapping[str, Any], what: str, count: int) -> str:
    return str(texts[what] % {"count": count})


DONE = {
    "deleted": ngettext_lazy(
        "%(count)d task was deleted.", "%(count)d tasks were deleted.", "count"
    ),
    "finished": ngettext_lazy(
        "%(count)d task was force-finished.", "%(count)d tasks were force-finished.", "count"
    ),
    "cancelled": ngettext_lazy(
        "%(count)d task was cancelled.", "%(count)d tasks were cancelled.", "count"
    ),
    "requested": ngettext_lazy(
        "%(count)d task that a processor has was asked to stop.",
        "%(count)d tasks that processors have were asked to stop.",
        "count",
    ),
    "moved": ngettext_lazy("%(count)d task was moved.", "%(count)d tasks were moved.", "count"),
    "edited": ngettext_lazy(
        "The data of %(count)d task were changed.",
        "The data of %(count)d tasks were changed.",
        "count",
    ),
    "copied": ngettext_lazy(
        "%(count)d copy was submitted.", "%(count)d copies were submitted.", "count"
    ),
    "retried": ngettext_lazy(
        "%(count)d task was put back in line.", "%(count)d tasks were put back in line.", "count"
    ),
}
REFUSED = {
    "ended": ngettext_lazy("%(count)d had ended already", "%(count)d had ended already", "count"),
    "gone": ngettext_lazy("%(count)d is gone", "%(count)d are gone", "count"),
    "awaited": ngettext_lazy(
        "for %(count)d others wait: its page cancels it with them",
        "for %(count)d others wait: the page of each cancels it with them",
        "count",
    ),
    "unfit": ngettext_lazy(
        "%(count)d is waiting, running or blocked",
        "%(count)d are waiting, running or blocked",
        "count",
    ),
    "taken": ngettext_lazy(
        "%(count)d has a key that is taken there",
        "%(count)d have keys that are taken there",
        "count",
    ),
    "data": ngettext_lazy(
        "the data of %(count)d can't be changed so",
        "the data of %(count)d can't be changed so",
        "count",
    ),
}


FORCE_FINISH = Verb(
    name="force_finish",
    does="finish",
    label=_("Force finish"),
    title=_("Force finish selected tasks"),
    statuses=frozenset(LIVE),
    question=_(
        "Close these tasks as finished? Waiting tasks never run. The handler of a running task is "
        "interrupted, and its result is discarded."
    ),
)
CANCEL = Verb(
    name="cancel",
    does="cancel",
    label=_("Request cancel"),
    title=_("Request cancel of selected tasks"),
    statuses=frozenset(LIVE),
    question=_(
        "Cancel these tasks? A task that does not run yet is cancelled at once. A running task is "
        "asked to stop; if it does not stop within the kill_wait of its handler, it is ended by "
        "force."
    ),
)
RETRY = Verb(
    name="retry",
    does="retry",
    label=_("Retry"),
    title=_("Retry selected tasks"),
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
    does="delete",
    label=_("Delete"),
    title=_("Delete selected tasks"),
    statuses=frozenset(),
    question=_(
        "Delete these tasks with their attempts, logs and results? Their keys can be used again."
    ),
)
STILL = frozenset(Status(word) for word in ALLOWED["edit"])
MOVE = Verb(
    name="move",
    does="move",
    label=_("Move to another queue"),
    title=_("Move selected tasks to another queue"),
    field="to",
    statuses=STILL,
    question=_("To which queue? A task keeps its id, its history and its dependents."),
)
EDIT = Verb(
    name="edit",
    does="edit",
    label=_("Edit data"),
    title=_("Edit data of selected tasks"),
    field="patch",
    statuses=STILL,
    question=_(
        'How are the data to change? A JSON merge patch such as {"v": 2, "old": null} sets v and '
        "removes old."
    ),
)
COPY = Verb(
    name="copy",
    does="copy",
    label=_("Run a copy"),
    title=_("Run copies of selected tasks"),
    statuses=frozenset(Status),
    question=_("Submit copies of these tasks, with new keys and due at once?"),
)
VERBS = {verb.name: verb for verb in (FORCE_FINISH, CANCEL, RETRY, MOVE, EDIT, COPY, PURGE)}
# The verbs that can be done to all that match, by those of the operation.
BULK: Mapping[str, Verb] = {verb.does: verb for verb in (RETRY, CANCEL, PURGE, MOVE, EDIT)}
