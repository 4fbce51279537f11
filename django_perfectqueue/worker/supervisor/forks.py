"""Fork the processes of a supervisor."""

from __future__ import annotations

from collections.abc import Callable

from ..database.link import prepare_for_fork
from ..plan import Plan
from ..process.child import Body, Child, fork
from ..process.pulse import ChildPulse
from ..process.title import set_title


class Forks:
    """
    Forks the processes of a supervisor, and lists those that live.

    ``closers`` run in each child, and close the descriptors that only the supervisor may
    hold: a copy in a child would keep a pipe open after the supervisor's death.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.closers: list[Callable[[], object]] = []
        self.children: set[Child] = set()

    def fork(self, role: str, body: Body, pulse: ChildPulse | None = None) -> Child:
        def alone() -> int:
            set_title(role)
            self.plan.outage.process = role
            for close in self.closers:
                close()
            return body()

        prepare_for_fork()
        child = fork(alone, pulse)
        self.children.add(child)
        return child

    def fork_helper(self, role: str, body: Body) -> Child:
        """Fork a process with a heartbeat thread; in a processor the monitor is that."""
        pulse = ChildPulse()

        def with_pulse() -> int:
            pulse.start(self.plan.options.CHILD_HEARTBEAT_INTERVAL)
            return body()

        return self.fork(role, with_pulse, pulse)

    def reap(self, child: Child) -> int | None:
        """Return the exit code of a child, negative for a signal, once it is dead."""
        code = child.reap()
        if code is not None:
            self.children.discard(child)
        return code

    def pids(self) -> set[int]:
        return {child.pid for child in self.children}
