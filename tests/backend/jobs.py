"""Django tasks outside of any ``tasks`` module: TASKS names this one."""

from django.contrib.auth.models import Group

from django_perfectqueue import (
    asleep,
    aversion,
    await_for,
    current_task,
    progress,
    sleep,
    step,
    version,
    wait_for,
)
from django_perfectqueue.application import Discard, Fixed, Retry, Snooze
from django_perfectqueue.compat import task
from django_perfectqueue.queue import Queue

reported = []
"""What backoff functions were called with; tests empty it."""


@task
def add(a, b):
    return a + b


@task
def nothing(*args, **kwargs):
    """Return nothing."""


@task(queue_name="default", priority=5)
async def later(value):
    return {"value": value}


@task(takes_context=True)
def number(context):
    """Return which attempt this is, and the id."""
    return [context.attempt, context.task_result.id]


@task
def boom(message):
    raise ValueError(message)


@task
def halfway():
    progress(0.5, "halfway")


@task
def stepping():
    """Return which attempt has charged; the first one fails after that."""
    number = current_task().attempt
    charged = step("charge", lambda: number)
    if number == 1:
        raise ValueError("once more")
    return charged


@task
async def stepping_async():
    return await current_task().astep("charge", later.func, 7)


@task(signals={"approved": "Approve"})
def approve():
    answer = wait_for("approved")
    sleep("cooling-off", 60)
    return answer


@task
async def approve_async():
    answer = await await_for("approved")
    await asleep("cooling-off", 60)
    return answer


@task
def leave():
    raise SystemExit("as it should")


@task
def interrupt():
    raise KeyboardInterrupt


@task
def unreturnable():
    return object()


@task
def cancel_itself(key):
    Queue()[key].cancel_request()
    raise ValueError("someone has asked for it")


@task(max_attempts=3, takes_context=True)
def third_time(context):
    if context.attempt < 3:
        raise ValueError(f"attempt {context.attempt}")
    return [error.exception_class_path for error in context.task_result.errors]


def waits(exception, result):
    reported.append((type(exception).__name__, result.attempts, len(result.errors)))
    return None if str(exception) == "hopeless" else 60


@task(max_attempts=3, backoff=waits)
def patient(message):
    raise ValueError(message)


@task(backoff=lambda exception, result: "soon")
def wrong_backoff():
    raise ValueError("boom")


VERDICTS = {"retry": Retry(60), "snooze": Snooze(60), "discard": Discard("as it should")}


@task
def says(word):
    raise VERDICTS[word]


@task
async def says_later(word):
    raise VERDICTS[word]


@task
def retries_for(word):
    try:
        raise KeyError(word)
    except KeyError as error:
        raise Retry(60) from error


@task(retry_on={OSError: Fixed(60)}, discard_on=LookupError, fail_on=(ValueError,))
def ruled(name):
    raise {"os": ConnectionError, "key": KeyError, "value": ValueError, "other": TypeError}[name](
        "boom"
    )


@task(backoff=Fixed(60, jitter=0))
def fixed():
    raise ValueError("boom")


def always_forty(exception, result):
    return 40


@task(max_attempts=2)
def twice():
    raise ValueError("boom")


def customer_of(args, kwargs):
    return args[0]


def key_of(args, kwargs):
    return f"report-{args[0]}"


@task(
    user=customer_of,
    key=key_of,
    limits=["reports"],
    time_limit=30,
    kill_wait=4,
    expires_at=3600,
)
def report(customer):
    return customer


@task(limits=["stripe:{data[account]}", "each:{user}"], user=lambda args, kwargs: "ann")
def charge(account, amount=1):
    return account


@task(priority=7, user="shop", limits=["hook"])
def ping(url=""):
    """Have all that a definition can say of a submit."""


@task(atomic=True)
def enrol(name, error=""):
    """Make a group, and raise then if there is something to be said."""
    Group.objects.create(name=name)
    if error:
        raise ValueError(error)
    return name


@task
def family(numbers):
    """Return what children have returned."""
    mine = current_task()
    parts = [mine.run(f"part {n}", "echo", n) for n in numbers]
    return [version("v2"), *mine.join(*parts)]


@task
async def family_async(numbers):
    mine = current_task()
    parts = [await mine.arun(f"part {n}", "echo", n) for n in numbers]
    return [await aversion("v2"), *await mine.ajoin(*parts)]
