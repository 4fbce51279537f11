"""Run a command as a person at a terminal, or a script, would."""

import io
import json
from unittest import mock

from django.core.management import (
    CommandError,
    call_command,
    get_commands,
    load_command_class,
)

from tests.factories import fail, running


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self):
        return True


def entered(name, *arguments, **streams):
    """Call a command as manage.py does: with the system checks that it asks for."""
    command = load_command_class(get_commands()[name], name)
    checked = {"skip_checks": False} if command.requires_system_checks else {}
    call_command(command, *arguments, no_color=True, **checked, **streams)


def run(name, *arguments):
    """Return what a command printed."""
    out = io.StringIO()
    entered(name, *arguments, stdout=out, stderr=io.StringIO())
    return out.getvalue()


def run_json(name, *arguments):
    """Return the objects that a command printed."""
    return [json.loads(line) for line in run(name, *arguments, "--json").splitlines()]


def refused(case, name, *arguments, code=1):
    """Return what a command said when it would not do it, and did say on the way."""
    out, err = io.StringIO(), io.StringIO()
    with case.assertRaises(CommandError) as caught:
        entered(name, *arguments, stdout=out, stderr=err)
    case.assertEqual(caught.exception.returncode, code)
    return out.getvalue() + err.getvalue() + str(caught.exception)


def broken(key, **options):
    """Have a task that failed just now."""
    task, lease = running(key, now=None, **options)
    fail(lease, now=None)
    return task


def typed(text):
    """Give a text, or bytes, as standard input."""
    data = text.encode() if isinstance(text, str) else text
    return mock.patch("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


def json_lines(*tasks):
    return "".join(json.dumps(task) + "\n" for task in tasks)
