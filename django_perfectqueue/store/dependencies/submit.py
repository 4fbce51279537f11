"""Store tasks that wait for others, and change what a blocked one waits for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from django.db.models import Q, QuerySet

from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import InvalidTaskError, NotFoundError, NotSupportedError
from django_perfectqueue.models import Dependency, Outcome, State
from django_perfectqueue.models.batch import SEQUENCE, SEQUENCES

from ..database.transaction import (
    Session,
    Tries,
    in_transaction,
    retry_remembering_commits,
    retry_transaction,
    together,
)
from ..leases import locked_lease
from ..notify.ring import find_all, notify_workers
from ..records.dependency_events import MemberCounts, join, note
from ..records.journal import tag_fresh
from ..tasks.close import lock_tickets
from ..tasks.revise import replace
from ..tasks.steer import UNMET, refuse, seen_task
from ..tasks.steps import keep
from ..tasks.submit import stored_before
from ..values import Ids, Lease, Name, Now, Parent, Submission, Wait
from .batches import When, refuse_ended_batch, share
from .graph import Edge, insert, refuse_circle, take_turn

Submit = Callable[..., Ids]

LOOKS = 3

STANDING = 'SELECT "id", "outcome" FROM "perfectqueue_task" WHERE "id" IN ({ids}) ORDER BY "id"'


@retry_remembering_commits
def submit_linked(
    tries: Tries,
    submit: Submit,
    submissions: Sequence[Submission],
    *,
    using: str,
    batch: int | None = None,
    now: Now = None,
) -> Ids:
    """
    Store tasks by ``submit``, which wait for others, have tags or are members of a batch; return
    what that does.

    All is done in one transaction, which locks nothing but the new rows, and on PostgreSQL its
    parents' from being deleted. A parent is in the database, or earlier among the submissions.
    Raise, before anything is stored, NotFoundError where it is not, InvalidTaskError where it
    comes later or tasks wait for one another; BatchEndedError where the batch has ended or was
    cancelled, and InvalidTaskError where one of the tasks waits for its end.
    """
    waits = any(task.after for task in submissions)
    # What waits for its own batch was stored by then, and is undone.
    with in_transaction(using, apart=waits and batch is not None) as db:
        if before := stored_before(db, tries):
            return before
        if batch is not None:
            refuse_ended_batch(db, batch)
        parents = resolve(db, submissions)
        fresh = submit(followed(submissions, batch), using=using, now=now)
        link(db, submissions, fresh, parents)
        tag_fresh(submissions, fresh, using=using)
        if batch is not None:
            if waits:
                why = "A task of a batch would wait for a callback of that batch."
                refuse_circle(-batch, fresh.values(), why, using=using)
            join(db, batch, fresh.values(), MemberCounts())
        tries.append(fresh)
    if options().EAGER:
        # In a TestCase no commit comes after which the events would be acted on.
        notify_workers(using=using)
    return fresh


def followed(submissions: Sequence[Submission], batch: int | None) -> list[Submission]:
    """Return tasks as followed by a batch, and by those that wait for them."""
    parents = {parent.name for task in submissions for parent in task.after}
    marks = [2 * (batch or 0) + ((task.queue, task.key) in parents) for task in submissions]
    return [
        task._replace(followed=mark or None) for task, mark in zip(submissions, marks, strict=True)
    ]


def replace_linked(submissions: Sequence[Submission], *, using: str, now: Now = None) -> Ids:
    """
    Do what replace() does with tasks that wait for others or have tags.

    Raise InvalidTaskError where one of these waits for the task that it replaces.
    """
    with together(using=using):
        fresh = submit_linked(replace, submissions, using=using, now=now)
        with in_transaction(using) as db:
            for task_id in fresh.values():
                unmet = links_of(db, [task_id]).filter(UNMET)
                refuse_waiting(db, task_id, set(unmet.values_list("parent_id", flat=True)))
    return fresh


class FoundParents(NamedTuple):
    """Ids of parents by queue and key, and those of all that have finished; of batches, ended."""

    ids: Ids
    finished: set[int]
    ended: set[int]

    def edges(self, child: int, parents: Iterable[Parent], mode: int) -> Iterator[Edge]:
        """Yield what has a child wait; a parent that has finished stays so, and is met."""
        ids = {self.ids[p.name] if p.id is None else p.id for p in parents}
        for id_ in sorted(ids):
            state = Dependency.State.MET if id_ in self.finished else Dependency.State.NEW
            yield child, id_, SEQUENCE if id_ <= SEQUENCES else mode, state.value


def resolve(db: Session, submissions: Sequence[Submission]) -> FoundParents:
    """Return the ids of the parents that are in the database already."""
    earlier: set[Name] = set()
    needed: list[Parent] = []
    for task in submissions:
        for parent in task.after:
            if parent.id is not None or parent.name not in earlier:
                needed.append(parent)
        earlier.add((task.queue, task.key))
    return find_parents(db, needed, earlier)


def find_parents(
    db: Session, parents: Collection[Parent], given: Collection[Name] = ()
) -> FoundParents:
    """
    Return parents, which are kept from being deleted; raise NotFoundError where one is not there,
    InvalidTaskError where it is ``given`` later in the same call.
    """
    using = db.using
    by_id = {parent.id for parent in parents if parent.id is not None and parent.id > 0}
    keys: dict[str, list[str]] = {}
    for parent in parents:
        if parent.id is None:
            keys.setdefault(parent.queue, []).append(parent.key)
    for _look in range(LOOKS):
        ids = {
            (queue, key): id_
            for queue, names in keys.items()
            for key, id_ in find_all(queue, names, using=using).items()
        }
        refuse_unknown(parents, ids, given)
        outcomes = lock_parents(db, {*by_id, *ids.values()})
        # One that was replaced since its key was read is found by another look.
        if outcomes.keys() >= set(ids.values()):
            break
    if missing := by_id - outcomes.keys():
        raise NotFoundError(f"There is no task with the id {min(missing)} to wait for.")
    finished = {id_ for id_, outcome in outcomes.items() if outcome == Outcome.FINISHED}
    others = {parent.id for parent in parents if parent.id is not None}
    # One that ends after this commit finds its callbacks.
    ended = {id_ for id_ in others if SEQUENCES < id_ < 0 and share(db, -id_)[0]}
    return FoundParents(ids, finished, ended)


def refuse_unknown(parents: Collection[Parent], found: Ids, given: Collection[Name]) -> None:
    for parent in parents:
        if parent.id is None and parent.name not in found:
            if parent.name in given:
                raise InvalidTaskError(
                    f"Task '{parent.key}' is given after a task that waits for it: give parents"
                    " first; tasks can't wait for one another."
                )
            raise NotFoundError(
                f"Queue '{parent.queue}' has no task with the key '{parent.key}' to wait for."
            )


def lock_parents(db: Session, ids: Collection[int]) -> dict[int, str]:
    """Keep tasks from being deleted until the commit; return their outcomes."""
    return dict(db.rows_of(STANDING + db.dialect.keep_clause, "ids", sorted(ids)))


def link(db: Session, submissions: Sequence[Submission], fresh: Ids, found: FoundParents) -> None:
    linked = [task for task in submissions if task.after and (task.queue, task.key) in fresh]
    there = {**found.ids, **fresh}
    wanted = chain.from_iterable(task.after for task in linked)
    # Those whose keys were taken were passed over, and others have these keys.
    if taken := {parent for parent in wanted if parent.id is None and parent.name not in there}:
        more = find_parents(db, taken)
        found = found._replace(finished=found.finished | more.finished)
        there |= more.ids
    parents = found._replace(ids=there)
    children = {fresh[task.queue, task.key]: task for task in linked}
    if children:
        for_each = (parents.edges(id_, one.after, one.if_failed) for id_, one in children.items())
        insert(db, chain.from_iterable(for_each))
        # A batch looks at its callbacks when it ends; what has ended is looked at once more, and
        # the batch of which some may have died.
        tasks = [id_ for id_, one in children.items() if one.if_failed < When.DONE]
        first = [one.after for one in linked if one.if_failed == When.FIRST_FAILURE]
        note(db, added=tasks, ended=found.ended.union(one.id or 0 for [one] in first))


@retry_transaction
def wait_for(task_id: int, parents: Sequence[Parent], if_failed: int, *, using: str) -> None:
    """
    Have a blocked task wait for more tasks.

    Raise NotSupportedError where it is not blocked, NotFoundError where there is no such
    parent, InvalidTaskError where one waits for it.
    """
    with in_transaction(using) as db:
        edges = list(find_parents(db, parents).edges(task_id, parents, if_failed))
        refuse_unblocked(db, task_id)
        refuse_waiting(db, task_id, {edge[1] for edge in edges if edge[3] != Dependency.State.MET})
        insert(db, edges)
        note(db, added=[task_id])


def refuse_waiting(db: Session, task_id: int, parents: set[int]) -> None:
    """Raise InvalidTaskError where one of a task's parents is to wait for it."""
    # Without parents of its own, which only a blocked task can be given, none ever waits.
    if parents and (task_id in parents or links_of(db, parents).filter(UNMET).exists()):
        take_turn(db)
        why = "These tasks would wait for one another."
        refuse_circle(task_id, parents, why, using=db.using)


def add_child(task_id: int, child: int, *, using: str) -> None:
    """Have a task that another runs be kept until that has finished."""
    with in_transaction(using) as db:
        insert(db, [(task_id, child, When.JOINED, Dependency.State.MET)])


@retry_transaction
def begin_join(lease: Lease, ids: Collection[int], *, using: str) -> None:
    """
    Have a held task wait for the ends of these once it is suspended.

    Raise PreemptedError when the lease has passed on, InvalidTaskError where one waits for it.
    """
    with locked_lease(lease, using=using) as db:
        there = lock_parents(db, sorted(ids)).keys()
        refuse_waiting(db, lease.task_id, set(there))
        links = joined_by(db, lease)
        these = Q(parent_id__in=there)
        known = dict(links.filter(these | UNMET).values_list("parent_id", "pk"))
        # What an attempt that died after this was to join: its code may have changed since.
        if stale := [known[id_] for id_ in known.keys() - there]:
            links.filter(pk__in=stale).update(state=Dependency.State.MET)
        links.filter(these).update(state=Dependency.State.NEW)
        new = Dependency.State.NEW.value
        insert(db, [(lease.task_id, id_, When.JOINED, new) for id_ in sorted(there - known.keys())])


@retry_transaction
def leave_joins(lease: Lease, *, using: str) -> None:
    """Have a held task wait for no task; raise PreemptedError when the lease has passed on."""
    with locked_lease(lease, using=using) as db:
        joined_by(db, lease).filter(UNMET).update(state=Dependency.State.MET)


@retry_transaction
def end_join(lease: Lease, wait: Wait, ends: str, *, using: str, now: Now = None) -> None:
    """
    Keep how tasks have ended that a held task joins: it waits for them no longer.

    Raise PreemptedError, and write nothing, when the lease has passed on.
    """
    with locked_lease(lease, using=using, now=now) as db:
        keep(db, lease, wait, ends, "result")
        joined_by(db, lease).filter(UNMET).update(state=Dependency.State.MET)


def joined_by(db: Session, lease: Lease) -> QuerySet[Dependency]:
    return links_of(db, [lease.task_id]).filter(if_failed=When.JOINED)


def links_of(db: Session, children: Collection[int]) -> QuerySet[Dependency]:
    return Dependency.objects.using(db.using).filter(child_id__in=children)


@retry_transaction
def wait_no_longer_for(task_id: int, parents: Sequence[Parent] | None, *, using: str) -> None:
    """
    Have a blocked task no longer wait for these tasks, or with None for any.

    Raise NotSupportedError where it is not blocked, NotFoundError where it does not wait for one.
    """
    ids: list[int] = []
    with in_transaction(using) as db:
        if parents is not None:
            ids = [edge[1] for edge in find_parents(db, parents).edges(task_id, parents, 0)]
        refuse_unblocked(db, task_id)
        links = links_of(db, [task_id]).exclude(if_failed=SEQUENCE)
        if strange := set(ids).difference(links.values_list("parent_id", flat=True)):
            key, other = (seen_task(db, id_).key for id_ in (task_id, min(strange)))
            raise NotFoundError(f"Task '{key}' does not wait for task '{other}'.")
        (links if parents is None else links.filter(parent_id__in=ids)).delete()
        note(db, added=[task_id])


def refuse_unblocked(db: Session, task_id: int) -> None:
    """
    Lock the ticket of a blocked task; raise NotSupportedError where it is not blocked,
    NotFoundError where it is gone, AlreadyFinishedError where it has ended.
    """
    if [ticket.state for ticket in lock_tickets(db, [task_id])] != [State.BLOCKED]:
        task = seen_task(db, task_id)
        refuse(task)
        raise NotSupportedError(
            f"Task '{task.key}' is not blocked: what it waits for can be changed only until then."
        )
