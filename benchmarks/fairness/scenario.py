"""Who submits what, and when: scenarios, read from files of TOML."""

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import cycle
from operator import attrgetter
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).resolve().parent / "scenarios"
QUEUE = "default"
LONGEST = 20.0


class ScenarioError(ValueError):
    """A scenario that can't be run; the message names the file, the place and what to do."""


@dataclass(frozen=True, slots=True)
class Length:
    """How long tasks take: between two bounds, or around a mean; in seconds."""

    least: float
    most: float
    mean: float | None = None

    @property
    def expected(self) -> float:
        return self.mean if self.mean is not None else (self.least + self.most) / 2

    def draw(self, chance: random.Random) -> float:
        if self.mean is None:
            return chance.uniform(self.least, self.most)
        return min(chance.expovariate(1 / self.mean), self.mean * LONGEST)


USUAL = Length(0.01, 0.01)


@dataclass(frozen=True, slots=True)
class Later:
    at: float
    backlog: int
    task: Length


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """
    Users who are alike.

    ``backlog`` tasks of each come at each of the times ``at``; beside them come ``rate``
    a second, from ``begin`` until ``end``. Both are for each processor where the
    scenario says so. Of ``at_once`` of the users there is a task at every moment, one of
    each: when it ends, the next user in turn comes with one. Each task is released
    ``releases`` times, after its time, before it ends; with a ``step`` it has steps of so many
    seconds, and is simulated without them. ``scheduled`` means that a schedule
    for each task is stored, which is due then, instead of the task. Tasks of another length
    are ``later``, in so great a number, at that time.

    Where a scenario has several queues, each has one group with one user, and the weight is
    that of the queue.
    """

    name: str
    user: str
    queue: str = QUEUE
    count: int = 1
    weight: float = 1.0
    max_running: int | None = None
    task: Length = USUAL
    backlog: int = 0
    at: tuple[float, ...] = (0.0,)
    rate: float = 0.0
    at_once: int = 0
    begin: float = 0.0
    end: float = math.inf
    releases: int = 0
    step: float | None = None
    scheduled: bool = False
    later: Later | None = None

    def users(self) -> list[str]:
        if self.count == 1:
            return [self.user]
        return [f"{self.user}-{number}" for number in range(1, self.count + 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """
    ``seconds`` and ``tasks`` end it, whichever is reached first. ``reach`` is the largest
    share error that is promised, in percent of the total. ``headroom`` is how many processors are
    kept for short tasks. What was given before ``judged_from``
    is not judged.
    """

    name: str
    title: str
    about: str = ""
    seconds: float = 60.0
    tasks: int | None = None
    per_processor: bool = False
    prefetch: int | None = None
    headroom: int = 0
    reach: float | None = None
    judged_from: float = 0.0
    seed: int = 1
    groups: tuple[Group, ...] = field(default=())

    @property
    def queues(self) -> list[str]:
        return list(dict.fromkeys(group.queue for group in self.groups))

    def owners(self) -> dict[str, Group]:
        """Return the group of each user."""
        return {user: group for group in self.groups for user in group.users()}


@dataclass(frozen=True, slots=True)
class Arrival:
    """A task that comes: when, whose and how long it will take; in seconds."""

    at: float
    user: str
    seconds: float
    releases: int = 0
    step: float | None = None

    @property
    def demand(self) -> float:
        """Return how long all its runs will take."""
        return self.seconds * (1 + self.releases)


def arrivals(scenario: Scenario, processors: int) -> list[Arrival]:
    """Return all that comes until the scenario ends, by time; the same each time."""
    times = processors if scenario.per_processor else 1
    chance = random.Random(scenario.seed)
    found = [
        arrival
        for group in scenario.groups
        for user in group.users()
        for arrival in arrivals_of(group, user, times, scenario.seconds, chance)
    ]
    return sorted([*Followers(scenario).first(), *found], key=attrgetter("at"))


class Followers:
    """Those who come when others' tasks end, the same each time."""

    def __init__(self, scenario: Scenario) -> None:
        self.groups = [group for group in scenario.groups if group.at_once]
        self.group_of = {user: group for group in self.groups for user in group.users()}
        self.users = {group.name: cycle(group.users()) for group in self.groups}
        self.chance = random.Random(scenario.seed)

    def first(self) -> list[Arrival]:
        """Return who is there from the beginning."""
        return [self.next(group, 0.0) for group in self.groups for _ in range(group.at_once)]

    def after(self, user: str, moment: float) -> Arrival | None:
        """Return who comes when a task of this user ends."""
        group = self.group_of.get(user)
        return group and self.next(group, moment)

    def next(self, group: Group, moment: float) -> Arrival:
        return Arrival(moment, next(self.users[group.name]), group.task.draw(self.chance))


def arrivals_of(
    group: Group, user: str, times: int, seconds: float, chance: random.Random
) -> Iterator[Arrival]:
    for moment in group.at:
        if moment < seconds:
            for _ in range(group.backlog * times):
                yield Arrival(moment, user, group.task.draw(chance), group.releases, group.step)
    if group.later:
        for _ in range(group.later.backlog * times):
            yield Arrival(group.later.at, user, group.later.task.draw(chance), group.releases)
    rate = group.rate * times
    moment = group.begin
    while rate and (moment := moment + chance.expovariate(rate)) < min(group.end, seconds):
        yield Arrival(moment, user, group.task.draw(chance), group.releases, group.step)


def shipped() -> dict[str, Path]:
    """Return the files that come with the benchmark, by name."""
    return {file.stem: file for file in sorted(FOLDER.glob("*.toml"))}


def find(names: Iterable[str]) -> list[Scenario]:
    """
    Return scenarios by their names, or the paths of their files.

    Raise ScenarioError when one is not there or is no scenario.
    """
    known = shipped()
    return [read(known.get(name) or existing(name, known)) for name in names]


def existing(name: str, known: Iterable[str]) -> Path:
    path = Path(name)
    if path.suffix == ".toml" and path.is_file():
        return path
    raise ScenarioError(
        f"There is no scenario {name!r}. Name a file that ends in .toml, or one of "
        + ", ".join(known)
    )


def read(path: Path) -> Scenario:
    """Return the scenario of a file; raise ScenarioError when it is none."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ScenarioError(f"{path} can't be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path} is not TOML: {error}.") from None
    return checked(path, given)


# What a file may say


def checked(path: Path, given: dict[str, Any]) -> Scenario:
    place = str(path)
    found = taken(place, given, SCENARIO)
    rows = found.pop("users", [])
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise ScenarioError(f"{path} has no users. Add a table [[users]] for each group of them.")
    groups = tuple(group(f"{path}, users {n}", row, n) for n, row in enumerate(rows, 1))
    scenario = Scenario(**{"name": path.stem, "title": path.stem, "groups": groups, **found})
    users = Counter(user for group in scenario.groups for user in group.users())
    for user, times in users.items():
        if times > 1:
            raise ScenarioError(f"{path} names the user {user!r} twice. Merge the two tables.")
    many = len(scenario.queues) > 1
    if many and len(scenario.queues) < len(users):
        raise ScenarioError(f"{path} has several queues: give each a single user.")
    if many and any(group.max_running is not None for group in scenario.groups):
        raise ScenarioError(f"{path} has several queues, which have weights only: set no cap.")
    return scenario


def group(place: str, given: dict[str, Any], number: int) -> Group:
    named = {"name": f"users {number}", **taken(place, given, GROUP)}
    found = Group(**{"user": named["name"], **named})
    if not (found.backlog or found.rate or found.at_once):
        raise ScenarioError(f"{place}: nothing ever comes. Give a backlog, a rate or at_once.")
    if found.count > 1 and not found.user:
        raise ScenarioError(f"{place}: tasks without a user are one line. Set count to 1.")
    return found


Check = Callable[[str, str, Any], Any]


def taken(place: str, given: dict[str, Any], known: dict[str, Check]) -> dict[str, Any]:
    """Return what a table says, by the names of our own; what it does not say has a default."""
    for name in given:
        if name not in known:
            raise ScenarioError(f"{place}: there is no {name!r}; there are {', '.join(known)}.")
    return {
        OTHER_NAMES.get(name, name): known[name](place, name, value)
        for name, value in given.items()
    }


def of_kind(kind: Any, words: str) -> Check:
    def check(place: str, name: str, value: Any) -> Any:
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise ScenarioError(f"{place}: {name} is {value!r}, which is not {words}.")
        return value

    return check


A_NUMBER = of_kind((int, float), "a number")


def number(least: float, most: float = math.inf, *, kind: Check = A_NUMBER) -> Check:
    def check(place: str, name: str, value: Any) -> Any:
        kind(place, name, value)
        if math.isnan(value):
            raise ScenarioError(f"{place}: {name} is {value!r}, which is not a number.")
        if not least <= value <= most or math.isinf(value):
            to = f" to {most:g}" if most < math.inf else " on"
            raise ScenarioError(f"{place}: {name} is {value:g}; it must be from {least:g}{to}.")
        return value

    return check


def whole(least: int) -> Check:
    return number(least, kind=of_kind(int, "a whole number"))


def length(place: str, name: str, value: Any) -> Length:
    if not isinstance(value, dict):
        of_kind((int, float), "a number of seconds or a table")(place, name, value)
        seconds = number(0.0, 86_400.0)(place, name, value)
        return Length(seconds, seconds)
    if set(value) not in ({"mean"}, {"least", "most"}):
        raise ScenarioError(
            f"{place}: task is a number of seconds, {{ least = …, most = … }} or {{ mean = … }}."
        )
    found = taken(f"{place}, task", value, LENGTH)
    if "mean" in found:
        return Length(0.0, found["mean"] * LONGEST, found["mean"])
    number(found["least"])(f"{place}, task", "most", found["most"])
    return Length(**found)


def later(place: str, name: str, value: Any) -> Later:
    of_kind(dict, "a table")(place, name, value)
    defaults = {"at": 0.0, "backlog": 1, "task": USUAL}
    return Later(**{**defaults, **taken(f"{place}, later", value, LATER)})


def moments(place: str, name: str, value: Any) -> tuple[float, ...]:
    of_kind((int, float, list), "a number of seconds or a list of them")(place, name, value)
    listed = value if isinstance(value, list) else [value]
    return tuple(number(0.0)(place, name, moment) for moment in listed)


text = of_kind(str, "a text")
flag = of_kind(bool, "true or false")
OTHER_NAMES = {"from": "begin", "until": "end"}
LENGTH = {"least": number(0.0), "most": number(0.0), "mean": number(0.0001)}
LATER = {"at": number(0.0), "backlog": whole(1), "task": length}
GROUP = {
    "name": text,
    "user": text,
    "queue": text,
    "count": whole(1),
    "weight": number(0.001, 1_000_000.0),
    "max_running": whole(0),
    "task": length,
    "backlog": whole(0),
    "at": moments,
    "rate": number(0.0),
    "at_once": whole(0),
    "from": number(0.0),
    "until": number(0.0),
    "releases": whole(0),
    "step": number(0.01),
    "scheduled": flag,
    "later": later,
}
SCENARIO = {
    "title": text,
    "about": lambda *given: " ".join(text(*given).split()),
    "seconds": number(0.01),
    "tasks": whole(1),
    "per_processor": flag,
    "prefetch": whole(0),
    "headroom": whole(0),
    "reach": number(0.0),
    "judged_from": number(0.0),
    "seed": whole(0),
    "users": of_kind(list, "a list of tables"),
}
