"""What a person may do with tasks, to which of them, and the messages about its outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from django.contrib import messages
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_perfectqueue import bulk, exceptions
from django_perfectqueue.bulk import TYPE, Answer, Operation, Selection
from django_perfectqueue.bulk.selection import ALLOWED
from django_perfectqueue.exceptions import InvalidTaskError, PayloadError
from django_perfectqueue.inspection.scope import scope_of
from django_perfectqueue.inspection.steering import ACTIONS
from django_perfectqueue.models import LIVE, Status, Task

from .filters import ALL, numbers, plain

# The filters of a list that a selection has, and the others, which leave it as it is.
ALIKE = ("queue", "type", "group", "tag", "batch", "since", "until")
FILTERS = ("status", "user", "q", *ALIKE)
TERMS = ("verb", "to", "patch", "rate", "run_in")
BUTTONS = ("_show", "_do", "shown", "csrfmiddlewaretoken")
HARMLESS = ("reach", "p", "o", "e", "_changelist_filters", *TERMS, *BUTTONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """
    What a person may do to tasks. ``statuses`` are those in which a task's page offers it.

    ``name`` is in the permission, ``does`` the verb of the operation. The ``question`` is asked
    first where it is about more than ``asks_above`` tasks. ``field`` is what has to be typed in.
    """

    name: str
    does: bulk.Verb
    label: Any
    statuses: frozenset[Status]
    question: object
    asks_above: int = 0
    field: Literal["", "to", "patch", "from_step"] = ""


UNFIT = _("%d waiting, running or blocked")
AWAITED = _("%d that others wait for: its page cancels it with them")
REFUSALS: Mapping[type[Exception], Any] = {
    exceptions.AlreadyFinishedError: _("%d had ended already"),
    exceptions.NotFoundError: _("%d no longer there"),
    exceptions.NotSupportedError: UNFIT,
    exceptions.AlreadyExistsError: _("%d with a key that is taken there"),
    InvalidTaskError: _("%d with data that can't be changed so"),
    PayloadError: _("%d with data that can't be changed so"),
}


@dataclass(slots=True)
class ActionReport:
    """What came of a verb: the tasks it was done to, and why not to others."""

    ids: list[int] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    def add(self, answer: Answer, verb: Verb) -> None:
        if answer.error is None:
            self.ids.append(answer.task[0])
            self.done[answer.word] += 1
        else:
            self.refuse(type(answer.error), verb)

    def refuse(self, error: type[Exception], verb: Verb, count: int = 1) -> None:
        why = next(why for kind, why in REFUSALS.items() if issubclass(error, kind))
        self.refused[str(AWAITED if why is UNFIT and verb is CANCEL else why)] += count

    def messages(self) -> Iterator[tuple[int, str]]:
        """Return the level and the text of what is said of it."""
        if self.done:
            counts = sorted(self.done.items())
            done = ", ".join(f"{count} {ACTIONS[what]}" for what, count in counts)
            yield messages.SUCCESS, gettext("Done: %s.") % done
        if self.refused:
            refused = ", ".join(why % count for why, count in self.refused.items())
            yield messages.WARNING, gettext("Not done: %s.") % refused


FORCE_FINISH = Verb(
    name="force_finish",
    does="finish",
    label=_("Force finish"),
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
    statuses=frozenset(
        {Status.FAILED, Status.CANCELLED, Status.EXPIRED, Status.SCHEDULED, Status.RETRYING}
    ),
    question=_(
        "Put these tasks back in line? They run as soon as they are due and there is a free "
        "processor, and have all their attempts again."
    ),
    asks_above=20,
)
PURGE = Verb(
    name="purge",
    does="delete",
    label=_("Delete"),
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
    field="to",
    statuses=STILL,
    question=_("To which queue? A task keeps its id, its history and its dependents."),
)
EDIT = Verb(
    name="edit",
    does="edit",
    label=_("Edit data"),
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
    field="from_step",
    statuses=frozenset(Status),
    question=_("Submit copies of these tasks, with new keys and due at once?"),
)
VERBS = {verb.name: verb for verb in (FORCE_FINISH, CANCEL, RETRY, MOVE, EDIT, COPY, PURGE)}
# The verbs that can be done to all that match, by those of the operation.
BULK: Mapping[str, Verb] = {verb.does: verb for verb in (RETRY, CANCEL, PURGE, MOVE, EDIT)}


def bulk_verbs(request: HttpRequest, status: str = "") -> list[str]:
    """Return what a person may do in bulk to tasks of a status."""
    return [
        name
        for name, verb in BULK.items()
        if (not status or status in ALLOWED[name]) and may(request, verb)
    ]


def may(request: HttpRequest, verb: Verb) -> bool:
    return bool(request.user.has_perm(f"perfectqueue.{verb.name}_task"))


def selection_of(request: HttpRequest, values: Mapping[str, str], *, status: str) -> Selection:
    """
    Return the filter of a list as its address says; ``status`` is the one it shows by default.

    Every bulk operation of the admin gets its filter here: what confines a person does so
    here, by ``users``. Raise InvalidTaskError for a filter that a bulk operation has not.
    """
    if unknown := sorted(values.keys() - {*FILTERS, *HARMLESS}):
        text = gettext("A bulk operation has no filter '%s': remove it, or select the tasks.")
        raise InvalidTaskError(text % unknown[0])
    given = {name: values.get(name, "").replace("\x00", "") for name in FILTERS}
    word = given["status"] or status
    if word not in ("", ALL, *Status.values):
        raise InvalidTaskError(gettext("There is no status '%s'.") % word)
    if given["batch"] and not numbers([given["batch"]]):
        raise InvalidTaskError(gettext("There is no such batch."))
    return Selection(
        **{name: given[name] for name in ALIKE},
        status="" if word == ALL else word,
        user=given["user"] or None,
        key=given["q"],
        users=None if (users := scope_of(request)) is None else tuple(sorted(users)),
    )


def own_operations(request: HttpRequest, ids: Sequence[int]) -> list[int]:
    """
    Return which of these tasks do a bulk operation that the person has asked for.

    They are of no customer; ADMIN_SCOPE lets the person see them who asked, as long as the
    customers of the operation are still in the scope.
    """
    if (users := scope_of(request)) is None:
        return []
    return [
        id_
        for id_, one in operations_in(ids).items()
        if one is not None and one.by == str(request.user)
        if one.selection.users is not None and {*one.selection.users} <= {*users}
    ]


def forbidden_operations(request: HttpRequest, ids: Collection[int]) -> set[int]:
    """Return which of these tasks do a bulk operation that the person may not ask for."""
    found = operations_in(ids).items()
    return {id_ for id_, one in found if one is None or not may(request, BULK[one.verb])}


def operations_in(ids: Collection[int]) -> dict[int, Operation | None]:
    """Return the bulk operations of those tasks that do one; None where it can't be read."""
    return {row.pk: operation_in(row) for row in plain().filter(pk__in=ids, type=TYPE)}


def operation_in(task: Task) -> Operation | None:
    try:
        return Operation.read(task.data, task.key)
    except (InvalidTaskError, PayloadError):
        return None
