"""A bulk operation: who wants what, as the signed data of the task that does it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Literal, get_args
from uuid import uuid4

from django.core.signing import BadSignature, Signer

from django_perfectqueue import store
from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import InvalidTaskError
from django_perfectqueue.lib.checks import number
from django_perfectqueue.payload import inputs
from django_perfectqueue.payload.codecs import JSON
from django_perfectqueue.queue import Queue, TaskHandle

from .selection import TYPE, Selection, preview

USER = "perfectqueue"
# Tasks a second, unless something else is said: others use the database, too.
RATE = 500.0
CHECKED_RATE = number(1 / 86_400, 1_000_000, of="tasks a second")

# The last three are for tasks that are named, not for all that match.
Verb = Literal["retry", "cancel", "delete", "move", "edit", "finish", "copy", "priority"]
TERMS = ("verb", "to", "patch", "rate", "by", "until")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """
    One verb for all tasks that match, ``rate`` of them a second, or for those that are named.

    ``to`` is the queue to move them to, ``patch`` a JSON merge patch of their data; retry takes
    both, too. ``from_step`` is where a copy begins. ``by`` is who wants it. Tasks whose id is
    above ``until`` are left alone.
    """

    verb: Verb
    selection: Selection = field(default_factory=Selection)
    to: str = ""
    patch: JSON = None
    priority: int = 0
    from_step: str = ""
    rate: float = RATE
    by: str = ""
    until: int = 0

    def __post_init__(self) -> None:
        """Raise InvalidTaskError where the terms do not fit the verb."""
        if self.verb not in get_args(Verb):
            raise InvalidTaskError(f"A bulk operation is no {self.verb!r}.")
        self.selection.check(self.verb)
        if self.to:
            inputs.checked("queue", self.to, inputs.QUEUE_LENGTH)
        if self.verb == "move" and not self.to:
            raise InvalidTaskError("Say to which queue the tasks are to be moved.")
        if self.verb == "edit" and self.patch is None:
            raise InvalidTaskError("Say how the data are to be changed: a JSON merge patch.")
        if self.to and self.verb not in ("move", "retry"):
            raise InvalidTaskError(f"'{self.verb}' moves no tasks to a queue.")
        if self.patch is not None and self.verb not in ("edit", "retry"):
            raise InvalidTaskError(f"'{self.verb}' changes no data.")
        inputs.checked_priority(self.priority)
        CHECKED_RATE.require("The rate", self.rate, InvalidTaskError)

    def revision(self, queue: str = "") -> store.Revision | None:
        """Return what is to change of a task in this queue, or None where that is nothing."""
        to = "" if self.to == queue else self.to
        if not to and self.patch is None:
            return None
        rewrite = None if self.patch is None else inputs.rewriter(self.patch)
        return store.Revision(queue=to, rewrite=rewrite, by=self.by)

    def stored(self) -> dict[str, object]:
        """Return what it says as JSON."""
        terms = {name: getattr(self, name) for name in TERMS}
        return {**terms, "filter": self.selection.stored()}

    def signed(self, key: str) -> str:
        """Return the signature for the task of a key: it is good for no other task."""
        text = json.dumps([key, self.stored()], sort_keys=True)
        return Signer(salt=TYPE).signature(text)

    @classmethod
    def read(cls, data: JSON, key: str) -> Operation:
        """
        Return the operation of a task's data.

        Raise InvalidTaskError where the data were not written by submit_bulk() for this key: who
        may submit or edit tasks may not therefore do all that this can.
        """
        try:
            terms = {name: data[name] for name in TERMS}
            operation = cls(**terms, selection=Selection.read(data["filter"]))
            text = json.dumps([key, operation.stored()], sort_keys=True)
            signer = Signer(salt=TYPE)
            signer.unsign(f"{text}{signer.sep}{data['signature']}")
        except (KeyError, TypeError, BadSignature) as error:
            raise InvalidTaskError(
                "This is no bulk operation that was asked for by the command, the admin or"
                f" submit_bulk(): {type(error).__name__}."
            ) from error
        return operation


def submit_bulk(operation: Operation, *, queue: str = "", using: str) -> TaskHandle:
    """
    Submit the task that does it, and return it.

    It runs in ``queue``, or else in that of the filter, or else in the default queue. Raise
    InvalidTaskError where it can't be stored.
    """
    found = preview(operation.verb, operation.selection, until=operation.until, using=using)
    operation = replace(operation, until=found.until)
    if operation.patch is not None:
        inputs.encoded(operation.patch, "The patch")
    key = f"bulk-{uuid4()}"
    data = {
        **operation.stored(),
        "signature": operation.signed(key),
        "total": found.total,
        "cursor": 0,
        "done": {},
    }
    name = queue or operation.selection.queue or options().DEFAULT_QUEUE
    with store.database.together(using=using):
        task = Queue(name, using=using).submit(key, TYPE, data, user=USER)
        store.records.sign([(name, key)], f"bulk {operation.verb}", by=operation.by, using=using)
    return task
