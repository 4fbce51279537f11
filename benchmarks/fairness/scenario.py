"""Who submits what, and when: scenarios, read from files of TOML."""

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
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
MOST_TASKS = 2_000_000


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
    task: Length = Length(0.01, 0.01)
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
    """
    Return all that comes until the scenario ends, by time; the same each time.

    Raise ScenarioError when that is more than can be held.
    """
    times = processors if scenario.per_processor else 1
    check_number(scenario, times)
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


def check_number(scenario: Scenario, times: int) -> None:
    number = 0.0
    for group in scenario.groups:
        lasts = max(0.0, min(group.end, scenario.seconds) - group.begin)
        number += group.count * times * (group.later.backlog if group.later else 0)
        number += group.count * times * (group.backlog * len(group.at) + group.rate * lasts)
    if number > MOST_TASKS:
        raise ScenarioError(
            f"{scenario.name}: {number:,.0f} tasks would come, and no more than {MOST_TASKS:,} can"
            " be held. Let fewer come, or for a shorter time."
        )


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


def checked(path: Path, given: dict[str, Any]) -> Scenario:
    fields = Fields(str(path), given)
    rows = fields.take("users", list, [])
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise ScenarioError(f"{path} has no users. Add a table [[users]] for each group of them.")
    scenario = Scenario(
        name=path.stem,
        title=fields.take("title", str, path.stem),
        about=" ".join(fields.take("about", str, "").split()),
        seconds=fields.number("seconds", 60.0, least=0.01),
        tasks=fields.whole("tasks", None, least=1),
        per_processor=fields.take("per_processor", bool, False),
        prefetch=fields.whole("prefetch", None, least=0),
        headroom=fields.whole("headroom", 0, least=0),
        reach=fields.number("reach", None, least=0.0),
        judged_from=fields.number("judged_from", 0.0, least=0.0),
        seed=fields.whole("seed", 1, least=0),
        groups=tuple(group(f"{path}, users {n}", row, n) for n, row in enumerate(rows, 1)),
    )
    fields.done()
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
    fields = Fields(place, given)
    name = fields.take("name", str, f"users {number}")
    found = Group(
        name=name,
        user=fields.take("user", str, name),
        queue=fields.take("queue", str, QUEUE),
        count=fields.whole("count", 1, least=1),
        weight=fields.number("weight", 1.0, least=0.001, most=1_000_000.0),
        max_running=fields.whole("max_running", None, least=0),
        task=length(fields),
        backlog=fields.whole("backlog", 0, least=0),
        at=moments(fields),
        rate=fields.number("rate", 0.0, least=0.0),
        at_once=fields.whole("at_once", 0, least=0),
        begin=fields.number("from", 0.0, least=0.0),
        end=fields.number("until", math.inf, least=0.0),
        releases=fields.whole("releases", 0, least=0),
        step=fields.number("step", None, least=0.01),
        scheduled=fields.take("scheduled", bool, False),
        later=later(f"{place}, later", fields.take("later", dict, None)),
    )
    fields.done()
    if not (found.backlog or found.rate or found.at_once):
        raise ScenarioError(f"{place}: nothing ever comes. Give a backlog, a rate or at_once.")
    if found.count > 1 and not found.user:
        raise ScenarioError(f"{place}: tasks without a user are one line. Set count to 1.")
    return found


def later(place: str, given: dict[str, Any] | None) -> Later | None:
    if given is None:
        return None
    fields = Fields(place, given)
    at = fields.number("at", 0.0, least=0.0)
    found = Later(at, fields.whole("backlog", 1, least=1), length(fields))
    fields.done()
    return found


def length(fields: Fields) -> Length:
    given = fields.take("task", (int, float, dict), 0.01)
    if not isinstance(given, dict):
        fields.check("task", given, 0.0, 86_400.0)
        return Length(given, given)
    inside = Fields(f"{fields.place}, task", given)
    if set(given) == {"mean"}:
        mean = inside.number("mean", 0.01, least=0.0001)
        return Length(0.0, mean * LONGEST, mean)
    if set(given) != {"least", "most"}:
        raise ScenarioError(
            f"{fields.place}: task is a number of seconds, {{ least = …, most = … }} or"
            " {{ mean = … }}.".replace("{{", "{").replace("}}", "}")
        )
    least = inside.number("least", 0.0, least=0.0)
    return Length(least, inside.number("most", least, least=least))


def moments(fields: Fields) -> tuple[float, ...]:
    given = fields.take("at", (int, float, list), 0.0)
    listed = given if isinstance(given, list) else [given]
    for moment in listed:
        fields.check("at", moment, 0.0, math.inf)
    return tuple(map(float, listed))


class Fields:
    """The keys of one table, each taken once; what is left over is not known."""

    def __init__(self, place: str, given: dict[str, Any]) -> None:
        self.place = place
        self.left = dict(given)
        self.known: list[str] = []

    def take(self, name: str, kind: Any, default: Any) -> Any:
        self.known.append(name)
        if name not in self.left:
            return default
        value = self.left.pop(name)
        fits = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
        if not fits:
            raise ScenarioError(f"{self.place}: {name} is {value!r}, which is not {KINDS[kind]}.")
        return value

    def number(
        self, name: str, default: Any, *, least: float = -math.inf, most: float = math.inf
    ) -> Any:
        value = self.take(name, (int, float), default)
        if value is not None and value is not default:
            self.check(name, value, least, most)
            return float(value)
        return value

    def whole(self, name: str, default: Any, *, least: int) -> Any:
        value = self.take(name, int, default)
        if value is not None:
            self.check(name, value, least, math.inf)
        return value

    def check(self, name: str, value: Any, least: float, most: float) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
            raise ScenarioError(f"{self.place}: {name} is {value!r}, which is not a number.")
        if not least <= value <= most or math.isinf(value):
            to = f" to {most:g}" if most < math.inf else " on"
            raise ScenarioError(
                f"{self.place}: {name} is {value:g}; it must be from {least:g}{to}."
            )

    def done(self) -> None:
        if self.left:
            known = ", ".join(self.known)
            raise ScenarioError(
                f"{self.place}: there is no {next(iter(self.left))!r}; there are {known}."
            )


KINDS = {
    str: "a text",
    int: "a whole number",
    bool: "true or false",
    list: "a list of tables",
    dict: "a table",
    (int, float): "a number",
    (int, float, dict): "a number of seconds or a table",
    (int, float, list): "a number of seconds or a list of them",
}
