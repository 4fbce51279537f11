"""Which ended tasks are deleted, and that they are: by the settings, or as someone asks."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from django.db.models import Q

from django_perfectqueue import store
from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import ConfigError
from django_perfectqueue.models import DebouncedSubmit, Outcome
from django_perfectqueue.store.upkeep.deletion import BATCH
from django_perfectqueue.store.values import Now

logger = logging.getLogger("django_perfectqueue.queue")


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeRule:
    """
    For how many seconds what ended so is kept, and how many ended tasks of a queue at most.

    ``only`` are values of queue, type, user or group, which is an error's class or a reason,
    that a task must have to be deleted.
    """

    retention: Mapping[str, float | None]
    keep: int | None = None
    only: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        *,
        older_than: float | None = None,
        statuses: Collection[str] = (),
        only: Mapping[str, str | None],
    ) -> PurgeRule:
        """
        Return the rule of the settings; with ``older_than`` that of so many seconds.

        What the settings keep for ever stays unless its status is named. Raise ConfigError
        where the rule would keep everything, ValueError for an unknown status.
        """
        ended = [Outcome(status) for status in statuses] or [*Outcome]
        retention = {one.value: options().retention_time(one.value) for one in ended}
        if older_than is not None:
            retention = {
                status: older_than if statuses or kept is not None else None
                for status, kept in retention.items()
            }
        keep = None if statuses or older_than is not None else options().retention_count
        if keep is None and all(seconds is None for seconds in retention.values()):
            raise ConfigError("The settings keep these tasks for ever.")
        chosen = {name: value for name, value in only.items() if value is not None}
        return cls(retention=retention, keep=keep, only=chosen)


def purge(
    rule: PurgeRule,
    *,
    using: str,
    dry: bool = False,
    progress: Callable[[int], None] = lambda _looked: None,
    now: Now = None,
) -> Counter[str]:
    """
    Delete what a rule dooms, a batch in a transaction; return how many, by how they ended.

    With ``dry`` only count them. ``progress`` is called with how many tasks were looked at.
    """
    over = {} if rule.keep is None else store.upkeep.surplus(rule.keep, using=using).last
    found: Counter[str] = Counter()
    kept_for: set[str] = set()
    looked = 0
    after: int | None = 0
    while after is not None:
        swept = store.upkeep.purgeable(
            rule.retention, using=using, after=after, over=over, only=rule.only, now=now
        )
        swept = swept if dry else store.upkeep.purge(swept, using=using)
        found.update(swept.doomed.values())
        kept_for.update(swept.kept_for)
        looked, after = looked + BATCH, swept.reached
        progress(looked)
    ages = [seconds for seconds in rule.retention.values() if seconds is not None]
    if ages and not dry:
        forget_batches(min(ages), rule.only.get("queue", ""), using=using, now=now)
    warn(kept_for)
    return found


def clear(queue: str, *, using: str) -> int:
    """Forget all tasks of a queue, whatever their status, and its batches; return how many."""
    waiting = DebouncedSubmit.objects.using(using).filter(queue=queue)
    store.database.with_retries(waiting.delete, using=using)
    count, kept_for = store.upkeep.clear(Q(queue=queue), using=using)
    forget_batches(None, queue, using=using)
    warn(kept_for)
    return count


def forget_batches(keep: float | None, queue: str, *, using: str, now: Now = None) -> None:
    while store.dependencies.forget_batches(keep, using=using, queue=queue, now=now):
        pass


def warn(kept_for: Collection[str]) -> None:
    for why in sorted(kept_for):
        logger.warning("Some tasks are not deleted. %s", why)
