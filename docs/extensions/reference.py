"""
Parts of the reference that are made from the code: commands, columns of tables, settings.

``options_of()``, ``columns_of()`` and ``setting_of()`` return Markdown; the directives
``command``, ``model`` and ``setting`` put it into a page. No database is needed.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
from pathlib import Path
from typing import Any

from django.apps import apps
from django.core.management import load_command_class
from django.core.management.base import BaseCommand
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util.docutils import SphinxDirective

from django_perfectqueue import conf

DJANGOS = {one.option_strings[-1] for one in BaseCommand().create_parser("", "")._actions}
# Public by name, and no part of the API.
INTERNAL = {
    "check_results",
    "deferred",
    "for_backoff",
    "lease",
    "restore",
    "snapshot",
    "started",
}
# Classes that programs get and do not make.
RETURNED = {
    "AcquiredTask",
    "Batch",
    "End",
    "Reason",
    "Run",
    "Snapshot",
    "Statistics",
    "SubmittedTask",
    "TaskHandle",
    "UserShare",
}
LETTERS = {"error": "E", "warning": "W"}
TYPES = {
    "AutoField": "number",
    "BigAutoField": "number",
    "BigIntegerField": "number",
    "BooleanField": "yes or no",
    "CharField": "text",
    "DateTimeField": "time",
    "FloatField": "number",
    "ForeignKey": "id",
    "IntegerField": "number",
    "OneToOneField": "id",
    "SmallIntegerField": "number",
    "TextField": "text",
    "UUIDField": "UUID",
}


def parser_of(name: str) -> Any:
    return load_command_class("django_perfectqueue", name).create_parser("manage.py", name)


def verbs_of(parser: Any) -> dict[str, Any]:
    """Return the parsers of the verbs of a command by name; empty if it has none."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def options_of(name: str) -> str:
    """Return the forms and the options of a command as two tables in Markdown."""
    parser = parser_of(name)
    verbs = verbs_of(parser)
    forms, found = [], {}
    helps = {
        action.dest: action.help or ""
        for group in parser._actions
        if isinstance(group, argparse._SubParsersAction)
        for action in group._choices_actions
    }
    for verb, one in (verbs or {"": parser}).items():
        taken = " ".join(argument_of(action) for action in one._actions if is_argument(action))
        forms.append(row(code(f"{name} {verb} {taken}".strip()), helps.get(verb, one.description)))
        for action in one._actions:
            if action.option_strings and action.option_strings[-1] not in DJANGOS:
                key = (written(action), filled(action, one))
                found.setdefault(key, []).append(verb)
    shared = [
        row(written_as, meaning, "" if len(used) == len(verbs) else ", ".join(used))
        for (written_as, meaning), used in sorted(found.items(), key=lambda one: -len(one[1]))
    ]
    if not verbs:
        shared = [row(*key) for key in found]
    head = ["Option", "Meaning", "Of"] if verbs else ["Option", "Meaning"]
    lines = [*table(["Form", "Effect"], forms), "", *table(head, shared)]
    return "\n".join(lines)


def is_argument(action: argparse.Action) -> bool:
    return not action.option_strings and not isinstance(action, argparse._SubParsersAction)


def argument_of(action: argparse.Action) -> str:
    text = action.metavar or action.dest.upper()
    text = text if isinstance(text, str) else " ".join(text)
    optional = {"?": f"[{text}]", "*": f"[{text}…]", "+": f"{text}…"}
    return optional.get(str(action.nargs), text)


def written(action: argparse.Action) -> str:
    """Return the names of an option with its value, each in backticks."""
    value = ""
    if action.nargs != 0:
        value = action.metavar or (
            "|".join(map(str, action.choices)) if action.choices else action.dest.upper()
        )
    names = [code(f"{one} {value}".strip()) for one in action.option_strings]
    return ", ".join(names)


def filled(action: argparse.Action, parser: Any) -> str:
    """Return the help of an option as ``--help`` prints it."""
    return str(parser._get_formatter()._expand_help(action)) if action.help else ""


def code(text: str) -> str:
    return f"`{text}`"


def table(head: list[str], rows: list[str]) -> list[str]:
    return [row(*head), "|" + "---|" * len(head), *rows]


def row(*cells: str) -> str:
    escaped = (re.sub(r"\s+", " ", cell).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def columns_of(name: str) -> str:
    """Return the docstring of a model and its columns, as Markdown."""
    model = apps.get_model("perfectqueue", name)
    rows = [row(code(field.column), type_of(field)) for field in model._meta.local_fields]
    return "\n".join(
        [
            f"Table `{model._meta.db_table}`.",
            inspect.cleandoc(model.__doc__ or ""),
            "",
            *table(["Column", "Holds"], folded(rows)),
        ]
    )


def type_of(field: Any) -> str:
    kinds = (TYPES.get(kind.__name__) for kind in type(field).__mro__)
    words = [next((kind for kind in kinds if kind), "text")]
    if field.max_length and words == ["text"]:
        words = [f"text of up to {field.max_length}"]
    if field.choices:
        words = [", ".join(code(str(value)) for value, _label in field.choices if value != "")]
    if field.name != field.column and not field.is_relation:
        words.append(f"field `{field.name}`")
    if field.null:
        words.append("may be null")
    elif field.has_default() and field.default not in ("", None) and not callable(field.default):
        words.append(f"by default `{field.default}`")
    if field.unique and not field.primary_key:
        words.append("unique")
    if field.primary_key:
        words.append("primary key")
    return "; ".join(words)


def folded(rows: list[str]) -> list[str]:
    """Return the rows with runs such as ``wait_0``, ``wait_1``, … as one row."""
    kept: list[str] = []
    for one in rows:
        found = re.match(r"\| `(\w+_)(\d+)` \| (.*) \|$", one)
        if found and kept and (run := re.match(rf"\| `({found[1]}\d+)`", kept[-1])):
            kept[-1] = f"| `{run[1]}` to `{found[1]}{found[2]}` | {found[3]} |"
        else:
            kept.append(one)
    return kept


def setting_of(name: str) -> str:
    """Return the default of a setting and the comment above it, as Markdown."""
    lines = inspect.getsource(conf).splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith(f"    {name}: "))
    said: list[str] = []
    while (line := lines[at - 1].strip()).startswith("#:"):
        said.insert(0, line.removeprefix("#:").strip())
        at -= 1
    return f"Default: `{getattr(conf.Options(), name)!r}`.\n\n" + "\n".join(said)


def checks_of() -> dict[str, list[str]]:
    """Return what each check says, with ``…`` for what varies, unless all of it does."""
    package = Path(inspect.getfile(conf)).parent
    found: dict[str, list[str]] = {}
    for file in sorted([*package.glob("checks/*.py"), *package.glob("backend/*.py")]):
        for call in ast.walk(ast.parse(file.read_text())):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") in LETTERS:
                number, *said = map(literal, call.args)
                text = " ".join(filter(None, said))
                if number.isdecimal() and said[0]:
                    found.setdefault(f"{LETTERS[call.func.id]}{int(number):03}", []).append(text)
    return dict(sorted(found.items()))


def literal(node: ast.expr) -> str:
    """Return a number or a text; with ``…`` for each part that is computed."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        parts = (literal(part) if isinstance(part, ast.Constant) else "…" for part in node.values)
        return re.sub("…+", "…", "".join(parts))
    return ""


class Generated(SphinxDirective):
    """A directive whose one argument is what the part is made of."""

    required_arguments = 1

    def text(self) -> str:
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes(self.text())


class CommandDirective(Generated):
    def text(self) -> str:
        return options_of(self.arguments[0])


class ChecksDirective(Generated):
    required_arguments = 0

    def text(self) -> str:
        rows = [
            row(code(f"perfectqueue.{name}"), re.sub(r"([*<\[])", r"\\\1", said))
            for name, texts in checks_of().items()
            for said in texts[:1]
        ]
        return "\n".join(table(["Id", "What it says, and what to do"], rows))


class SettingDirective(Generated):
    def text(self) -> str:
        return setting_of(self.arguments[0])


class ModelDirective(Generated):
    def text(self) -> str:
        return columns_of(self.arguments[0])


class DarkTwins(SphinxTransform):
    """Have a dark theme show the picture ``NAME-dark.png`` in place of ``NAME-light.png``."""

    default_priority = 500

    def apply(self) -> None:
        for image in list(self.document.findall(nodes.image)):
            if image["uri"].endswith("-light.png"):
                dark = image.deepcopy()
                dark["uri"] = image["uri"].replace("-light.png", "-dark.png")
                dark["classes"].append("only-dark")
                image["classes"].append("only-light")
                image.parent.insert(image.parent.index(image) + 1, dark)


def skip(
    app: Sphinx, what: str, name: str, obj: object, is_skipped: bool, options: object
) -> bool | None:
    """Leave out async twins, whose docstring is that of the method, and what is internal."""
    twin_of = getattr(getattr(obj, "__wrapped__", None), "__name__", "")
    return True if name == f"a{twin_of}" or name in INTERNAL else None


def hide_constructor(
    app: Sphinx, what: str, name: str, obj: object, *given: object
) -> tuple[str, str] | None:
    """Show no arguments of a class that only the package calls."""
    return ("", "") if what == "class" and name.rpartition(".")[2] in RETURNED else None


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("checks", ChecksDirective)
    app.add_directive("command", CommandDirective)
    app.add_directive("model", ModelDirective)
    app.add_directive("setting", SettingDirective)
    app.add_transform(DarkTwins)
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-skip-member", skip)
    app.connect("autodoc-process-signature", hide_constructor)
    return {"parallel_read_safe": True}
