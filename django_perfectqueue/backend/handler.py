"""Run a Django task, and send Django's signals for it to those who listen."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from asgiref.sync import sync_to_async
from django.conf import settings
from django.dispatch import Signal
from django.utils import timezone
from django.utils.log import RequireDebugFalse, RequireDebugTrue

from django_perfectqueue import signals
from django_perfectqueue.application import Application, Dispatch
from django_perfectqueue.application.middleware import is_async
from django_perfectqueue.backoff import backoff_at, error_rules, restored
from django_perfectqueue.compat import Task, TaskContext, normalize_json, task_backends
from django_perfectqueue.compat import signals as django_signals
from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import CancelRequestedError
from django_perfectqueue.lib.imports import derived
from django_perfectqueue.logs import Masked
from django_perfectqueue.queue import AcquiredTask

from .definition import StoredCall, definitions, option_of
from .results import FAILED, SUCCESSFUL, error_from_exception, running_result, set_attributes

if TYPE_CHECKING:
    from django_perfectqueue.compat import AnyTask


logger = logging.getLogger("django_perfectqueue.backend")

# Django's own receivers log the exception of a task that has failed.
for _name in ("django.tasks", "django_tasks"):
    logging.getLogger(_name).addFilter(Masked())


# Stands for the result of an attempt of which nobody hears, which is made when it fails.
UNHEARD: object = object()


class OfCall(functools.cached_property[object]):
    """A value that is made when an instance is first asked for it; None on the class."""

    def __get__(self, instance: object, owner: type[Any] | None = None) -> Any:
        return None if instance is None else super().__get__(instance, owner)


class DjangoTask(Application):
    """Runs the function of a Django task with the arguments of one call."""

    is_djangos = True
    definition: ClassVar[AnyTask]
    plain_call: ClassVar[Callable[..., object]]

    def __init__(self, task: AcquiredTask) -> None:
        super().__init__(task)
        self.call = StoredCall.of(task.data)
        if task_options := self.call.task_options:
            vars(self)["backend"] = task_backends[
                task_options.get("backend", self.definition.backend)
            ]
            if "atomic" in task_options and not self.is_async:
                vars(self)["atomic"] = task_options["atomic"]

    @OfCall
    def backend(self) -> object:
        return task_backends[self.definition.backend]

    # Only an error asks for these three.
    @OfCall
    def backoff(self) -> object:
        if kept := self.task._known_context.get("backoff"):
            return restored(*kept)
        backoff = option_of(self.definition, "backoff") or self.backend.options.get("backoff")
        return backoff_at(backoff) if isinstance(backoff, str) else backoff

    @OfCall
    def attempts_when_asked(self) -> int:
        return self.attempts(options().MAX_ATTEMPTS)

    @OfCall
    def max_attempts(self) -> int:
        return self.attempts(1)

    def attempts(self, usual: int) -> int:
        """Return what the call says, or else its definition, or else the backend."""
        given = self.call.task_options.get(
            "max_attempts", option_of(self.definition, "max_attempts")
        )
        if self.backoff:
            usual = options().MAX_ATTEMPTS
        return int(given or self.backend.options.get("max_attempts") or usual)

    def for_backoff(self, error: BaseException) -> object:
        """Return the result with this error, as a backoff is given it."""
        if self.task.django_result in (None, UNHEARD):
            self.task.django_result = running_result(self.task, self.call, self.definition)
        add_error(self.task, error)
        return self.task.django_result

    def is_heard(self) -> bool:
        """Return whether the function, an earlier attempt or anyone else needs the result."""
        takes_context = self.call.task_options.get("takes_context", self.definition.takes_context)
        return takes_context or self.task.lease.attempt > 1 or is_there()

    def before_perform(self) -> bool:
        if not self.is_heard():
            self.task.django_result = UNHEARD
            return True
        result = running_result(self.task, self.call, self.definition)
        self.task.django_result = result
        django_signals.task_started.send_robust(sender=type(self.backend), task_result=result)
        return True

    def arguments(self) -> tuple[AnyTask, list[object], dict[str, object]]:
        """Return the task with its positional and its named arguments."""
        result = self.task.django_result
        if result is UNHEARD:
            return self.definition, self.call.args, self.call.kwargs
        own: list[object] = [TaskContext(task_result=result)] if result.task.takes_context else []
        return result.task, [*own, *result.args], result.kwargs

    def perform(self) -> object:
        if self.task.django_result is UNHEARD:
            return self.returned(self.plain_call(*self.call.args, **self.call.kwargs))
        task, args, kwargs = self.arguments()
        return self.returned(task.call(*args, **kwargs))

    def returned(self, value: object) -> object:
        plain = None if value is None else normalize_json(value)
        if self.task.django_result is not UNHEARD:
            set_attributes(self.task.django_result, _return_value=plain)
        return plain


class CoroutineTask(DjangoTask):
    """Runs a coroutine function, in the event loop of its processor."""

    async def before_perform(self) -> bool:  # type: ignore[override]
        if self.is_heard():
            return await sync_to_async(super().before_perform)()
        self.task.django_result = UNHEARD
        return True

    async def perform(self) -> object:
        task, args, kwargs = self.arguments()
        return self.returned(await task.acall(*args, **kwargs))


@functools.cache
def handler_of(definition: AnyTask) -> type[DjangoTask]:
    """Return the handler that runs this task."""
    function = definition.func
    usual = task_backends[definition.backend].options.get("time_limit")
    names = {
        "definition": definition,
        "time_limit": option_of(definition, "time_limit") or usual,
        "kill_wait": option_of(definition, "kill_wait"),
        "atomic": option_of(definition, "atomic"),
        "signals": option_of(definition, "signals") or {},
        "plain_call": staticmethod(plain_call_of(definition)),
        **error_rules.rules_of(definition),
    }
    made = derived(CoroutineTask if is_async(function) else DjangoTask, function, **names)
    for signal in ENDINGS:
        signal.connect(ended, sender=made)
    return made


def plain_call_of(definition: AnyTask) -> Callable[..., object]:
    """Return what call() does, without its question whether the function is a coroutine's."""
    own = type(definition).call is not Task.call or is_async(definition.func)
    call: Callable[..., object] = definition.call if own else definition.func
    return call


def ended(
    sender: type[DjangoTask],
    task: AcquiredTask,
    signal: Signal,
    error: BaseException | None = None,
    **kwargs: object,
) -> None:
    """Send Django's task_finished for a task that has ended, unless it never began."""
    if task.django_result is UNHEARD:
        if signal is signals.task_finished:
            return
        # Nobody has heard of its start; its end is logged as an error.
        task.django_result = running_result(task, StoredCall.of(task.data), sender.definition)
    if (result := task.django_result) is None:
        return
    add_error(task, error)
    if signal is signals.task_cancelled:
        reason = error_from_exception(CancelRequestedError(f"Task '{task.key}' was cancelled."))
        kinds = [one.exception_class_path for one in result.errors]
        if kinds[-1:] != [reason.exception_class_path]:
            result.errors.append(reason)
    status = SUCCESSFUL if signal is signals.task_finished else FAILED
    set_attributes(result, status=status, finished_at=timezone.now())
    backend = type(task_backends[result.backend])
    django_signals.task_finished.send_robust(sender=backend, task_result=result)


def add_error(task: AcquiredTask, error: BaseException | None) -> None:
    """Add an error to the result, where this attempt has not added one yet."""
    result = task.django_result
    if result is not None and error is not None and len(result.errors) < len(result.worker_ids):
        result.errors.append(error_from_exception(error))


ENDINGS: tuple[Signal, ...] = (
    signals.task_finished,
    signals.task_failed,
    signals.task_discarded,
    signals.task_cancelled,
)


# Whether anyone hears of the start and the end of a Django task.


SIGNALS: tuple[Signal, ...] = (django_signals.task_started, django_signals.task_finished)
LOGGER: logging.Logger = django_signals.logger
LOGGING = {id(django_signals.log_task_started), id(django_signals.log_task_finished)}


def is_there() -> bool:
    """
    Return whether a signal has a receiver other than Django's own, which logs, or a handler
    takes the records that this one makes of a task that succeeds.
    """
    for signal in SIGNALS:
        for (receiver, _sender), *_rest in signal.receivers:
            if receiver not in LOGGING:
                return True
    logger: logging.Logger | None = LOGGER
    if not LOGGER.isEnabledFor(logging.INFO):
        return False
    while logger is not None:
        for handler in logger.handlers:
            if handler.level <= logging.INFO and takes_records(handler):
                return True
        logger = logger.parent if logger.propagate else None
    for each in LOGGER.filters:  # noqa: SIM110, a generator costs more calls
        if not isinstance(each, Masked):
            return True
    return False


def takes_records(handler: logging.Handler) -> bool:
    """Return whether a handler may take a record; one that captures those of tasks does not."""
    if isinstance(handler, logging.NullHandler) or getattr(handler, "leaves_own", False):
        return False
    for each in handler.filters:
        if isinstance(each, RequireDebugTrue) and not settings.DEBUG:
            return False
        if isinstance(each, RequireDebugFalse) and settings.DEBUG:
            return False
    return True


# How a worker's dispatch comes to know Django's tasks.


def with_django_tasks(dispatch: type[Dispatch]) -> type[Dispatch]:
    """
    Return a dispatch that knows Django's tasks beside its own types.

    An exact route of the dispatch goes first. A pattern does not: who wrote one that
    matches everything did not mean the tasks of Django.
    """
    own = dispatch.routes
    first = itertools.takewhile(lambda route: isinstance(route, str), own)
    django_tasks = {name: handler_of(task) for name, task in definitions.items() if name not in own}
    routes: dict[Any, object] = {**{route: own[route] for route in first}, **django_tasks, **own}
    unrouted = dispatch._unrouted

    def late(cls: type[Dispatch], type_: str) -> type[Application]:
        # A handler may import a module of tasks later.
        return handler_of(definitions[type_]) if type_ in definitions else unrouted(type_)

    return derived(dispatch, dispatch, routes=routes, _unrouted=classmethod(late))
