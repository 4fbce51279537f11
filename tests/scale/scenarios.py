"""One short act for each statement that the store, the commands and the admin have."""

import io
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from django.contrib.auth.models import User
from django.core.management import CommandError as Unhealthy
from django.core.management import call_command
from django.test import Client

from django_perfectqueue import store
from django_perfectqueue.bulk import Selection
from django_perfectqueue.inspection.results import ResultWaiter
from django_perfectqueue.metrics import families
from django_perfectqueue.models import Account, State, Task, Ticket
from django_perfectqueue.queue import Queue
from django_perfectqueue.store.arithmetic.fair_order import lane_id
from django_perfectqueue.store.lanes.apply import apply_shares
from django_perfectqueue.store.tasks.close import Loss
from django_perfectqueue.store.values import ClaimRequest

from ..factories import completion, processor, register
from .filling import RETENTION

USING = {"using": "default"}
BATCH = 100
DRY = 200
ADMIN = "/admin/perfectqueue"
KEPT = {"finished": RETENTION, "cancelled": RETENTION, "failed": None}


@dataclass(frozen=True)
class Scenario:
    """What is done, and to how many tasks; ``prepare`` is not measured, and gives what it takes."""

    name: str
    act: Callable
    tasks: int = 1
    prepare: Callable = tuple


def acquired(count=BATCH, holder=7):
    """Take tasks; return the leases and their holder."""
    leases = acquire(count, holder)
    assert len(leases) > count * 0.8, len(leases)
    return leases, holder


def acquire(count=BATCH, holder=7, **options):
    whose = {"limit": count, "alive_time": 300.0, "holder": holder}
    return store.acquire(ClaimRequest(queues=["default"], **whose, **USING, **options))


def finish(leases, _holder):
    assert not store.finish([completion(lease) for lease in leases], worker="w", **USING)


def go_on(leases, _holder):
    request = ClaimRequest(queues=["default"], limit=BATCH, alive_time=300.0, holder=7, **USING)
    done = [completion(lease) for lease in leases]
    taken, _refused = store.finish_and_acquire(done, request, worker="w")
    assert len(taken) > BATCH * 0.7, len(taken)


def beat(leases, _holder):
    assert all(pulse.held for pulse in store.leases.heartbeat(leases, alive_time=300.0, **USING))


def retry(leases, _holder):
    for lease in leases[:10]:
        store.settle([lease], store.Ending.retry(5.0, store.Failure()), seconds=1.0, **USING)


def fail(leases, _holder):
    for lease in leases[:10]:
        store.settle([lease], store.Ending.fail(store.Failure()), seconds=1.0, **USING)


def release(leases, _holder):
    assert len(store.settle(leases, store.Ending.release(), **USING)) == len(leases)


def give_back(leases, holder):
    loss = Loss(crashed=[lease.task_id for lease in leases[:10]])
    given = store.upkeep.give_back(holder, alive_time=300.0, loss=loss, **USING)
    assert given == len(leases), given


def update(leases, _holder):
    store.update_payload(leases[0], "{}", alive_time=300.0, **USING)


def make_due(state):
    def prepare():
        later = Ticket.objects.filter(state=state, timer_at__isnull=False)
        ids = list(later.order_by("-pk").values_list("pk", flat=True)[:BATCH])
        Ticket.objects.filter(pk__in=ids).update(timer_at="2020-01-01T00:00:00Z", crashes=0)
        return ()

    return prepare


def answer():
    assert not store.schedules.fire_due_timers(**USING)


def leave_lanes_dry():
    """Have lanes at the head that are awake and empty, as after many short bursts."""
    dry = Account.objects.filter(queue="default", has_waiting=False).values_list("pk", flat=True)
    Account.objects.filter(pk__in=list(dry[:DRY])).update(has_waiting=True, virtual_time=0.0)
    return ()


def put_lanes_to_sleep():
    ids = [lane_id("default", f"user{number}") for number in range(BATCH)]
    Account.objects.filter(pk__in=ids).update(has_waiting=False)
    return ()


def wake_forgotten_lanes():
    assert store.upkeep.wake_forgotten_lanes(**USING) > 0


def add_usage():
    tallies = {
        store.records.UsageKey("default", others=False, user=f"user{number}"): store.records.Tally(
            seconds=1.0
        )
        for number in range(BATCH)
    }
    store.records.add_usage(tallies, at=store.records.clock(**USING), **USING)


def note_waiting():
    assert store.records.note_waiting(limit=BATCH, **USING) > 0


def submit_many():
    tasks = [{"key": f"new-{n}", "type": "report", "user": f"user{n % 50}"} for n in range(1000)]
    assert Queue().submit_many(tasks) == 1000


def purge(after=0):
    store.upkeep.purge(store.upkeep.purgeable(KEPT, after=after, **USING), **USING)


def at_share(share):
    """Return an act of a purge that begins so far into the ids."""

    def prepare():
        return (round(Task.objects.order_by("-pk").values_list("pk", flat=True)[0] * share),)

    return prepare


def asked(prepare):
    """Return a preparation that gives the reference of a task, and has a worker for it."""

    def prepared():
        row = Task.objects.get(pk=prepare()[0])
        register("default", "other", types=[row.type], now=None)
        return (Queue(row.queue)[row.key],)

    return prepared


def why(task):
    assert task.why_waiting().code == "position"


def look_for_ends(*keys):
    waiter = ResultWaiter("default", keys, using="default", timeout=0)
    assert waiter.look()
    assert waiter.waited_for
    if waiter.listener is not None:
        store.notify.watch(list(waiter.waited_for), **USING)


def some_that_ended():
    """Return the keys of tasks of which some have yet to end."""
    rows = Task.objects.filter(queue="default").order_by("-pk").values_list("key", flat=True)
    return (*rows.filter(outcome="")[: BATCH // 2], *rows.exclude(outcome="")[: BATCH // 2])


def steered(verb):
    return lambda task_id: store.steer(verb, task_id, **USING)


def newest(**conditions):
    """Return a preparation that gives the id of a task."""

    def prepare():
        return (Task.objects.filter(**conditions).order_by("-pk").values_list("pk", flat=True)[0],)

    return prepare


def key_of(prepare):
    def prepared():
        return (Task.objects.get(pk=prepare()[0]),)

    return prepared


def show(task):
    command("pq_task", "show", task.key, "--queue", task.queue)


def command(*arguments):
    with suppress(SystemExit, Unhealthy):
        call_command(*arguments, stdout=io.StringIO(), stderr=io.StringIO(), no_color=True)


def registered():
    """Have a worker that runs one task."""
    task_id = Ticket.objects.filter(state=State.RUNNING).values_list("pk", flat=True).first()
    register(now=None, states=[processor(1, task_id)])
    return ()


def commanded(*arguments):
    return lambda: command(*arguments)


def scrape():
    families.kept.clear()
    command("pq_status", "metrics")


def client():
    visitor = Client()
    visitor.force_login(
        User.objects.get_or_create(username="boss", is_staff=True, is_superuser=True)[0]
    )
    return (visitor,)


def page(path, **query):
    def act(visitor):
        response = visitor.get(f"{ADMIN}/{path}", query)
        assert response.status_code == 200, response.status_code
        response.content  # noqa: B018

    return act


def story(visitor):
    page(f"task/{visitor.task}/change/")(visitor)


def visitor_of(prepare):
    def prepared():
        [visitor] = client()
        [visitor.task] = prepare()
        return (visitor,)

    return prepared


waiting = newest(ticket__state=State.WAITING)
running = newest(ticket__state=State.RUNNING)
failed = newest(dead_letter__status="failed")
STATUSES = (
    "waiting", "scheduled", "retrying", "blocked", "running", "stalled",
    "finished", "failed", "cancelled", "expired",
)  # fmt: skip

BULK = {
    "retry": ("retry", {}),
    "retry of a group": ("retry", {"group": "error-3"}),
    "cancel": ("cancel", {}),
    "cancel of what waits": ("cancel", {"status": "waiting"}),
    "delete of what finished": ("delete", {"status": "finished"}),
    "move": ("move", {}),
    "edit": ("edit", {}),
}


def chunk_of(verb, terms):
    """Prepare to read the tasks behind the middle of those of a queue."""

    def prepare():
        newest = store.upkeep.newest_id(**USING)
        selection = Selection(queue="default", **terms)
        return selection, verb, range(newest // 2, newest + 1)

    return prepare


def chunk(selection, verb, ids):
    found, _reached = selection.chunk(verb, ids, 100, **USING)
    assert len(found) > 20, len(found)


STORE = [
    Scenario("submit", lambda: Queue().submit("new", "report", {}, user="user3")),
    Scenario("submit for a new user", lambda: Queue().submit("new", "report", {}, user="nobody")),
    Scenario("submit a taken key", lambda: Queue().submit("key-9", "t", {}, on_conflict="ignore")),
    Scenario("submit_many", submit_many, 1000),
    Scenario("acquire", acquire, BATCH),
    Scenario("acquire one", lambda: acquire(1), 1),
    Scenario("acquire past dry lanes", lambda: acquire(1), DRY, leave_lanes_dry),
    Scenario("acquire with finished", go_on, BATCH, acquired),
    Scenario("finish", finish, BATCH, acquired),
    Scenario("heartbeat", beat, BATCH, acquired),
    Scenario("retry", retry, 10, acquired),
    Scenario("fail", fail, 10, acquired),
    Scenario("release", release, BATCH, acquired),
    Scenario("give back", give_back, BATCH, acquired),
    Scenario("update data", update, 1, acquired),
    Scenario("add usage", add_usage, BATCH),
    Scenario("no timer", answer),
    Scenario("timers of scheduled tasks", answer, BATCH, make_due(State.SCHEDULED)),
    Scenario("timers of lapsed leases", answer, BATCH, make_due(State.RUNNING)),
    Scenario("purge what is old", purge, 1000),
    Scenario("purge where all is too young", purge, 1000, at_share(0.5)),
    Scenario("purge behind the end", purge, 1, at_share(1.0)),
    Scenario(
        "cancel a waiting task",
        lambda task_id: store.dependencies.cancel_request(task_id, **USING),
        1,
        waiting,
    ),
    Scenario(
        "cancel a running task",
        lambda task_id: store.dependencies.cancel_request(task_id, **USING),
        1,
        running,
    ),
    Scenario("force finish", steered(store.force_finish), 1, running),
    Scenario("retry a failed task", steered(store.retry), 1, failed),
    Scenario("why a task waits", why, 1, asked(waiting)),
    Scenario("look for ends", look_for_ends, BATCH, some_that_ended),
]
EDITS = [
    *(
        Scenario(f"chunk of a bulk {name}", chunk, 100, chunk_of(*terms))
        for name, terms in BULK.items()
    ),
    Scenario("edit a share", lambda: apply_shares("user3", **USING), 10),
]
ROUSE = [
    Scenario("wake_forgotten_lanes", wake_forgotten_lanes, 400, put_lanes_to_sleep),
    Scenario("no forgotten lane", lambda: store.upkeep.wake_forgotten_lanes(**USING), 400),
    Scenario("note who waits", note_waiting, 400),
]
COMMANDS = [
    Scenario("pq_task show", show, 1, key_of(failed)),
    Scenario("pq_task list", commanded("pq_task", "list"), BATCH),
    Scenario("pq_task list --user", commanded("pq_task", "list", "--user", "user3"), BATCH),
    Scenario("pq_task list --type", commanded("pq_task", "list", "--type", "type-3"), BATCH),
    Scenario(
        "pq_task list --key-prefix", commanded("pq_task", "list", "--key-prefix", "key-77"), BATCH
    ),
    *(
        Scenario(
            f"pq_task list --status {status}",
            commanded("pq_task", "list", "--status", status),
            BATCH,
        )
        for status in STATUSES
    ),
    Scenario(
        "pq_task retry --group",
        commanded("pq_task", "retry", "--group", "error-3", "--first", "5", "--yes"),
        5,
    ),
    Scenario("pq_user report", commanded("pq_user", "report")),
    Scenario("pq_queue show", commanded("pq_queue", "show", "default")),
    Scenario("pq_status types", commanded("pq_status", "types")),
    Scenario("pq_status metrics", scrape),
    Scenario("pq_user list", commanded("pq_user", "list"), BATCH),
    Scenario("pq_user show", commanded("pq_user", "show", "share-7"), BATCH),
    Scenario("pq_limit list", commanded("pq_limit", "list"), BATCH),
    Scenario("pq_status health", commanded("pq_status", "health", "--oldest", "60")),
    Scenario("pq_status workers", commanded("pq_status", "workers", "--tasks"), 1, registered),
    Scenario("pq_queue purge", commanded("pq_queue", "purge", "--older-than", "20000d", "--yes")),
]
PAGES = [
    Scenario("overview", page("overview/"), BATCH, client),
    Scenario("figures", page("overview/figures/", queue="default", over="day"), BATCH, client),
    Scenario("task list", page("task/"), BATCH, client),
    Scenario("task list, page 5", page("task/", p=5), BATCH, client),
    *(
        Scenario(f"task list, {status}", page("task/", status=status), BATCH, client)
        for status in STATUSES
    ),
    Scenario("task list, user", page("task/", user="user3"), BATCH, client),
    Scenario("task list, queue", page("task/", queue="other"), BATCH, client),
    Scenario("task list, type", page("task/", type="type-3"), BATCH, client),
    Scenario("task list, type*", page("task/", type="type-3*"), BATCH, client),
    Scenario("task list, user's", page("task/", user="user3", status="running"), BATCH, client),
    Scenario("task list, key", page("task/", q="key-777"), BATCH, client),
    Scenario("task list, begin of keys", page("task/", q="key-"), BATCH, client),
    Scenario("task page, waiting", story, 1, visitor_of(waiting)),
    Scenario("task page, failed", story, 1, visitor_of(failed)),
    Scenario("dead letters", page("deadletter/"), BATCH, client),
    Scenario("dead letters, status", page("deadletter/", status="cancelled"), BATCH, client),
    Scenario("dead letters, group", page("deadletter/", group="error-3"), BATCH, client),
    Scenario("workers", page("worker/"), 1, lambda: registered() or client()),
    Scenario("users", page("fairshare/"), BATCH, client),
    Scenario("users, queue", page("fairshare/", queue="other"), BATCH, client),
    Scenario("user", page("fairshare/", user="user3"), BATCH, client),
    Scenario("queues", page("queueshare/"), BATCH, client),
    Scenario("queue", page("queueshare/", queue="other"), BATCH, client),
    Scenario("limits", page("limit/"), BATCH, client),
    Scenario("changes", page("change/"), BATCH, client),
    Scenario("changes, user", page("change/", q="share-7"), BATCH, client),
]  # fmt: skip
ALL = STORE + EDITS + ROUSE + COMMANDS + PAGES
