"""The documentation names all that there is, and nothing that there is not."""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import io
import pkgutil
import re
import shlex
import sys
import textwrap
import unittest
from collections.abc import Iterator
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from itertools import product
from pathlib import Path
from typing import Any

from django.apps import apps
from django.core.management import load_command_class
from django.core.management.base import BaseCommand
from django.dispatch import Signal
from django.test import SimpleTestCase

from django_perfectqueue import (
    application,
    backoff,
    checks,
    compat,
    conf,
    exceptions,
    fairness,
    queue,
    signals,
    test,
    verdicts,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
README = ROOT / "README.md"

OUTSIDE = re.compile(r"^(https?|mailto):")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^(```+|~~~+).*?^\1", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
SHELL = re.compile(r"^```(?:sh|bash|shell|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
DOTTED = re.compile(r"\bdjango_perfectqueue(?:\.[A-Za-z_]\w*)+")
IMPORTED = re.compile(
    r"^ *from (django_perfectqueue[\w.]*) import (\([^)]*\)|[^(\n]+)", re.MULTILINE
)
ROOM = re.compile(r"^\| `(?:django_perfectqueue|(\.[\w.]+))` \| ([^|]+) \|", re.MULTILINE)
NAME = re.compile(r"`(\w+)`")
RANGE = re.compile(r"`(\w+_)(\d+)` to `\1(\d+)`")
PYTHON = re.compile(r"^ *```python\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
COMMAND_LINE = re.compile(r"^(?:\$ )?python manage\.py (pq_.+)", re.MULTILINE)
TABLE = re.compile(r"^\|.*\n(?:\|.*\n)*", re.MULTILINE)
BAR = re.compile(r"(?<!\\)\|")
LOGGER = re.compile(r'getLogger\("([\w.]+)"\)')
AUTODOC = re.compile(r"^\.\. auto\w+:: ([\w.]+)$", re.MULTILINE)
DEFINED = re.compile(r"^ +(?:async )?def (test_\w+)\(", re.MULTILINE)
INNER = {
    application.Dispatch: {"checked", "handler_at", "look_up", "build_handler", "describe_route"},
    application.Application: {
        "attempts_when_asked",
        "for_backoff",
        "interrupter",
        "is_djangos",
    },
    application.CommandHandler: {"is_async"},
    application.Decider: {"like"},
    queue.AcquiredTask: {"deferred", "restore", "snapshot"},
}
DJANGOS = {one.option_strings[-1] for one in BaseCommand().create_parser("", "")._actions}


def setUpModule() -> None:
    if not DOCS.is_dir():
        raise unittest.SkipTest("The documentation is not beside the tests.")


def page(name: str) -> str:
    return (DOCS / name).read_text()


def sections(text: str) -> dict[str, str]:
    """Return what stands under each heading, up to the next one."""
    parts = re.split(HEADING, without_code(text))
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def without_code(text: str) -> str:
    return CODE.sub("", text)


def pages() -> Iterator[Path]:
    yield README
    yield Path(__file__).parent / "features.md"
    yield from sorted(DOCS.rglob("*.md"))


class SettingTests(SimpleTestCase):
    def test_every_setting_has_its_heading_and_says_what_it_means(self):
        text = page("reference/settings.md")
        source = Path(inspect.getfile(conf)).read_text()
        for name in conf.Options():
            with self.subTest(name):
                self.assertIn(f"### {name}\n\n```{{setting}} {name}\n", text)
                self.assertRegex(source, rf"(?m)^    #: .*\n    {name}: ")

    @unittest.skipUnless(find_spec("sphinx"), "Sphinx is not installed.")
    def test_every_setting_is_shown_with_its_default(self):
        reference = extension()
        for name in conf.Options():
            with self.subTest(name):
                made = reference.setting_of(name)
                self.assertIn(f"Default: `{getattr(conf.Options(), name)!r}`", made)

    def test_no_setting_is_documented_that_is_not_there(self):
        documented = sections(page("reference/settings.md"))
        named = {heading for heading in documented if heading.isupper()}
        self.assertEqual(named, set(conf.Options()))


class CommandTests(SimpleTestCase):
    def test_every_command_has_its_heading(self):
        documented = sections(page("reference/commands.md"))
        self.assertEqual(
            {heading for heading in documented if heading.startswith("pq_")}, set(names())
        )

    def test_the_page_of_commands_has_the_options_of_each(self):
        text = page("reference/commands.md")
        for name in names():
            with self.subTest(name):
                documented = text.partition(f"\n## {name}\n")[2].partition("\n## pq_")[0]
                self.assertIn(f"```{{command}} {name}\n", documented)

    def test_every_option_has_a_help(self):
        for name in names():
            for parser in parsers_of(name):
                for action in parser._actions:
                    if action.option_strings and action.option_strings[-1] not in DJANGOS:
                        with self.subTest(f"{parser.prog} {action.option_strings[-1]}"):
                            self.assertTrue(action.help)

    @unittest.skipUnless(find_spec("sphinx"), "Sphinx is not installed.")
    def test_the_tables_of_a_command_name_all_its_options_and_forms(self):
        reference = extension()
        for name in names():
            made = reference.options_of(name)
            for option in options_of(name):
                with self.subTest(f"{name} {option}"):
                    self.assertRegex(made, word(option))
            for verb in reference.verbs_of(parser_of(name)):
                with self.subTest(f"{name} {verb}"):
                    self.assertIn(f"`{name} {verb}", made)

    def test_no_option_is_named_that_is_not_there(self):
        text = page("reference/commands.md")
        there = {option for name in names() for option in options_of(name)} | DJANGOS
        self.assertEqual(set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) - there, set())

    def test_every_command_line_of_the_pages_is_accepted(self):
        found = [
            (file, line) for file in pages() for line in COMMAND_LINE.findall(file.read_text())
        ]
        self.assertGreater(len(found), 40)
        for file, line in found:
            with self.subTest(f"{file.relative_to(ROOT)}: {line}"):
                name, *arguments = shlex.split(line.partition(" > ")[0])
                parser = parser_of(name)
                parser.called_from_command_line = False
                self.assertTrue(parser.parse_args(arguments))

    def test_every_command_prints_its_help(self):
        for name in names():
            with self.subTest(name):
                self.assertIn("usage:", helped(name))


def names() -> list[str]:
    folder = Path(inspect.getfile(conf)).parent / "management" / "commands"
    return sorted(file.stem for file in folder.glob("pq_*.py"))


def parser_of(name: str) -> Any:
    return load_command_class("django_perfectqueue", name).create_parser("manage.py", name)


def parsers_of(name: str) -> list[Any]:
    """Return the parser of a command, and those of its verbs."""
    parser = parser_of(name)
    nested = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    return [parser, *(verb for one in nested for verb in one.choices.values())]


def options_of(name: str) -> set[str]:
    actions = [action for parser in parsers_of(name) for action in parser._actions]
    return {option for action in actions for option in action.option_strings[-1:]} - DJANGOS


def extension() -> Any:
    """Return the module that makes parts of the reference."""
    path = DOCS / "extensions" / "reference.py"
    spec = spec_from_file_location("reference", path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def helped(name: str) -> str:
    out = io.StringIO()
    parser_of(name).print_help(out)
    return out.getvalue()


def word(option: str) -> str:
    return rf"(?<![\w-]){re.escape(option)}(?![\w-])"


def classes_of(module: Any) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__
    ]


class ErrorTests(SimpleTestCase):
    def test_every_exception_says_what_it_means(self):
        for module in (exceptions, verdicts):
            self.assertIn(f".. automodule:: {module.__name__}\n", page("reference/errors.md"))
            for name in classes_of(module):
                with self.subTest(name):
                    self.assertTrue(vars(module)[name].__doc__)


class SignalTests(SimpleTestCase):
    def test_every_signal_says_when_it_is_sent(self):
        source = Path(inspect.getfile(signals)).read_text()
        for name, value in vars(signals).items():
            if isinstance(value, Signal):
                with self.subTest(name):
                    directive = f".. autodata:: {signals.__name__}.{name}\n"
                    self.assertIn(directive, page("reference/errors.md"))
                    self.assertRegex(source, rf"(?m)^#: .*\n{name} = ")


class CheckTests(SimpleTestCase):
    def test_every_check_is_documented(self):
        folder = Path(inspect.getfile(checks)).parent
        source = "".join(file.read_text() for file in sorted(folder.glob("*.py")))
        calls = re.findall(r"\b(error|warning)\(\s*(\d+),", source)
        # The last one is that of the backend, which Django asks.
        numbers = [*checks.settings.NAMED, *checks.settings.IMPORTED, 30]
        calls += [("error", number) for number in numbers]
        there = {f"{'E' if kind == 'error' else 'W'}{int(number):03}" for kind, number in calls}
        documented = set(re.findall(r"`perfectqueue\.([EW]\d{3})`", page("reference/errors.md")))
        if find_spec("sphinx"):
            documented |= set(extension().checks_of())
        else:
            there = documented
        self.assertEqual(sorted(documented), sorted(there))


@unittest.skipUnless(compat.HAS_TASKS, "There are no tasks of Django.")
class DjangoTaskTests(SimpleTestCase):
    def test_every_word_and_every_option_is_documented(self):
        from django_perfectqueue.backend import definition

        for name in (*definition.DEFAULTS, *checks.project.RULES):
            with self.subTest(name):
                self.assertIn(f"\n| `{name}` |", page("howto/django-tasks.md"))

    def test_every_status_is_mapped(self):
        from django_perfectqueue.backend.results import STATUSES

        documented = sections(page("howto/django-tasks.md"))["Statuses"]
        for status, djangos in STATUSES.items():
            with self.subTest(status):
                self.assertRegex(
                    documented, rf"(?m)^\| .*\b{status.value}\b.* \| `{djangos.value}` \|"
                )


class ApiTests(SimpleTestCase):
    def test_every_public_method_has_a_docstring(self):
        for kind in documented_classes():
            for name in public(kind):
                method = inspect.getattr_static(kind, name)
                method = getattr(method, "fget", None) or getattr(method, "__func__", method)
                if inspect.isfunction(method):
                    with self.subTest(f"{kind.__name__}.{name}"):
                        self.assertTrue(inspect.getdoc(method))

    def test_every_public_class_and_function_is_on_the_page(self):
        paths = AUTODOC.findall(page("reference/api.md"))
        shown = {path: pkgutil.resolve_name(":".join(path.rsplit(".", 1))) for path in paths}
        for path, one in shown.items():
            with self.subTest(path):
                self.assertTrue(inspect.getdoc(one))
        wanted = [*documented_classes(), *functions_of(fairness), *functions_of(test)]
        self.assertEqual([one for one in wanted if one not in shown.values()], [])

    def test_every_function_of_shares_and_limits_has_its_async_twin(self):
        for one in functions_of(fairness):
            with self.subTest(one.__name__):
                module = importlib.import_module(one.__module__)
                twin = getattr(module, f"a{one.__name__}")
                self.assertTrue(inspect.iscoroutinefunction(twin.__call__))

    def test_every_method_that_asks_the_database_has_its_async_twin(self):
        for kind in (queue.Queue, queue.TaskHandle, queue.AcquiredTask):
            asking = [
                name
                for name, value in vars(kind).items()
                if inspect.isfunction(value)
                and not inspect.iscoroutinefunction(value)
                and not name.startswith("_")
                and "now" in inspect.signature(value).parameters
            ]
            for name in asking:
                with self.subTest(f"{kind.__name__}.{name}"):
                    method, twin = getattr(kind, name), getattr(kind, f"a{name}")
                    self.assertTrue(inspect.iscoroutinefunction(twin))
                    self.assertEqual(inspect.signature(twin), inspect.signature(method))


def documented_classes() -> list[type]:
    return [
        queue.Queue,
        queue.TaskHandle,
        queue.AcquiredTask,
        application.Application,
        application.CommandHandler,
        application.Decider,
        application.Dispatch,
        *(getattr(backoff, name) for name in classes_of(backoff)),
        *filter(inspect.isclass, exported(test).values()),
    ]


def exported(room: Any) -> dict[str, Any]:
    """Return what a room itself gives others, by name."""
    return {
        name: value
        for name, value in vars(room).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith(room.__name__)
    }


def functions_of(room: Any) -> list[Any]:
    """Return the functions that a room gives others, without the async twins."""
    found = {name: one for name, one in exported(room).items() if inspect.isfunction(one)}
    return [one for name, one in found.items() if name[0] != "a" or name[1:] not in found]


def public(kind: type) -> list[str]:
    """Return what a class itself offers, without the async twins and what is internal."""
    own = {name for name in vars(kind) if not name.startswith("_")} - INNER.get(kind, set())
    return sorted(name for name in own if name[0] != "a" or name[1:] not in own)


class ModelTests(SimpleTestCase):
    def test_every_table_is_on_the_page(self):
        text = page("reference/models.md")
        inner = text.partition("\n## Tables of the store\n")[2]
        models = apps.get_app_config("perfectqueue").get_models()
        for model in (one for one in models if not one._meta.proxy):
            with self.subTest(model.__name__):
                self.assertNotIn(f"{model.__name__}(", model.__doc__)
                if f"| `{model.__name__}` |" in inner:
                    self.assertIn(f"`{model._meta.db_table}`", inner)
                else:
                    self.assertIn(f"```{{model}} {model.__name__}\n", text)

    @unittest.skipUnless(find_spec("sphinx"), "Sphinx is not installed.")
    def test_the_table_of_a_model_names_its_columns(self):
        reference = extension()
        for name in re.findall(r"```{model} (\w+)", page("reference/models.md")):
            there = columns_in(reference.columns_of(name))
            model = apps.get_model("perfectqueue", name)
            wanted = {field.column for field in model._meta.local_fields}
            with self.subTest(name):
                self.assertEqual(wanted - there, set())


def columns_in(text: str) -> set[str]:
    """Return each name in backticks, and each that "`name_0` to `name_9`" stands for."""
    names = set(NAME.findall(text))
    for prefix, first, last in RANGE.findall(text):
        names |= {f"{prefix}{number}" for number in range(int(first), int(last) + 1)}
    return names


class LinkTests(SimpleTestCase):
    def test_every_relative_link_leads_somewhere(self):
        for file in pages():
            for target in LINK.findall(without_code(file.read_text())):
                if OUTSIDE.match(target):
                    continue
                path, _sign, anchor = target.partition("#")
                with self.subTest(f"{file.relative_to(ROOT)}: {target}"):
                    there = (file.parent / path).resolve() if path else file
                    self.assertTrue(there.exists())
                    if anchor:
                        self.assertIn(anchor, anchors(there))

    def test_every_page_is_in_a_toctree(self):
        index = page("index.md")
        for file in sorted(DOCS.rglob("*.md")):
            name = file.relative_to(DOCS).with_suffix("").as_posix()
            if name != "index":
                with self.subTest(name):
                    self.assertRegex(index, rf"(?m)^{re.escape(name)}$")


def anchors(file: Path) -> set[str]:
    headings = HEADING.findall(without_code(file.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@unittest.skipUnless(compat.HAS_TASKS, "There are no tasks of Django's, which pages import.")
class ImportTests(SimpleTestCase):
    def test_every_dotted_path_exists(self):
        there = set(LOGGER.findall(source()))
        for file in pages():
            for path in sorted(set(DOTTED.findall(file.read_text())) - there):
                with self.subTest(f"{file.relative_to(ROOT)}: {path}"):
                    pkgutil.resolve_name(path)

    def test_every_imported_name_exists(self):
        for file in pages():
            for module, names in IMPORTED.findall(file.read_text()):
                for name in re.findall(r"(\w+)(?: as \w+)?", names.partition("#")[0]):
                    with self.subTest(f"{file.relative_to(ROOT)}: {module}.{name}"):
                        pkgutil.resolve_name(f"{module}:{name}")

    def test_every_name_can_be_imported_from_its_room(self):
        documented = sections(page("reference/api.md"))["Where to import from"]
        for room, names in ROOM.findall(documented):
            module = importlib.import_module(f"django_perfectqueue{room}")
            for name in NAME.findall(names.partition(" of ")[0]):
                with self.subTest(f"{room}: {name}"):
                    self.assertTrue(hasattr(module, name))


def source() -> str:
    return "".join(file.read_text() for file in (ROOT / "django_perfectqueue").rglob("*.py"))


class CodeTests(SimpleTestCase):
    def test_every_python_block_is_python(self):
        for file in pages():
            for block in PYTHON.findall(file.read_text()):
                with self.subTest(f"{file.relative_to(ROOT)}: {block[:60]}"):
                    self.assertTrue(is_python(textwrap.dedent(block)))


def is_python(source: str) -> bool:
    """Whether a block is a module, the inside of a dict, a body of a coroutine, or a session."""
    if source.startswith(">>> "):
        return is_python(source.partition("\n")[0][4:])
    return any(
        compiles(whole)
        for whole in (
            source,
            f"{{\n{source}\n}}",
            f"async def f():\n{textwrap.indent(source, ' ')}",
        )
    )


def compiles(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


class TableTests(SimpleTestCase):
    def test_every_table_has_a_head_and_rows_of_its_width(self):
        for file in pages():
            for table in TABLE.findall(without_code(file.read_text())):
                head, rule, *rows = table.splitlines()
                with self.subTest(f"{file.relative_to(ROOT)}: {head}"):
                    self.assertRegex(rule, r"^\|(:?-+:?\|)+$")
                    self.assertEqual(
                        {len(BAR.findall(row)) for row in (head, rule, *rows)},
                        {len(BAR.findall(head))},
                    )


class ReadmeTests(SimpleTestCase):
    def test_its_first_two_shell_blocks_are_one_line_each(self):
        blocks = SHELL.findall(README.read_text())
        self.assertEqual([len(block.splitlines()) for block in blocks[:2]], [1, 1])


class RoomTests(SimpleTestCase):
    def test_every_room_is_documented_to_contributors(self):
        documented = re.findall(r"`(\w+)/?`", (ROOT / "CONTRIBUTING.md").read_text())
        package = ROOT / "django_perfectqueue"
        rooms = {path.parent.name for path in package.glob("*/__init__.py")}
        rooms |= {path.stem for path in package.glob("*.py")}
        self.assertEqual(rooms - set(documented), {"__init__", "apps", "migrations"})

    def test_every_path_that_contributors_are_told_exists(self):
        package = ROOT / "django_perfectqueue"
        folders = (ROOT, package, package / "store", package / "store" / "claims")
        told = re.findall(r"`(\w+(?:/\w+)+(?:\.\w+)?)`", (ROOT / "CONTRIBUTING.md").read_text())
        gone = [
            path
            for path in told
            if not any((f / path).exists() or (f / f"{path}.py").exists() for f in folders)
        ]
        self.assertEqual(gone, [])


class PermissionTests(SimpleTestCase):
    def test_every_permission_is_documented(self):
        page = (DOCS / "reference" / "admin.md").read_text()
        [rows] = re.findall(r"^## Permissions$(.*?)(?=^## |\Z)", page, re.M | re.S)
        # One row says what four models have: the actions before the "of", the models behind it.
        actions, models = re.search(r"\| (`view`.*?) of (.*?) \|", rows).groups()
        pairs = product(re.findall(r"`(\w+)`", models), re.findall(r"`(\w+)`", actions))
        documented = {f"{action}_{model}" for model, action in pairs}
        documented |= set(re.findall(r"`(\w+_\w+)`", rows))
        there = set()
        for model in apps.get_app_config("perfectqueue").get_models():
            options = model._meta
            there |= {f"{action}_{options.model_name}" for action in options.default_permissions}
            there |= {name for name, _label in options.permissions}
        self.assertEqual(documented, there)


class FeatureTests(SimpleTestCase):
    rows = (*(f"S{n}" for n in range(1, 76)), *(f"N{n}" for n in range(1, 40)), "N44", "N45")

    def test_every_row_names_tests_that_exist(self):
        there = defined()
        tests = tomllib.loads((Path(__file__).parent / "features.toml").read_text())
        self.assertEqual(sorted(tests), sorted(self.rows))
        for row, named in tests.items():
            self.assertTrue(named, row)
            for one in named:
                with self.subTest(row, test=one):
                    file, _colons, name = one.partition("::")
                    self.assertIn(file, there.get(name, ()))

    def test_every_row_of_the_mission_is_documented_once(self):
        documented = re.findall(
            r"^\| ([SN]\d+) \|", (Path(__file__).parent / "features.md").read_text(), re.MULTILINE
        )
        self.assertEqual(sorted(documented), sorted(self.rows))


def defined() -> dict[str, list[str]]:
    """Return the files below tests/ that define each test."""
    folder = ROOT / "tests"
    found: dict[str, list[str]] = {}
    for file in sorted(folder.rglob("test_*.py")):
        place = file.relative_to(folder).as_posix()
        for name in DEFINED.findall(file.read_text()):
            found.setdefault(name, []).append(place)
    return found
