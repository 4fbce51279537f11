"""The program that a worker runs for all tasks: ``pq_worker --exec``."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Sequence
from typing import ClassVar

from django.utils.translation import gettext as _

from django_perfectqueue.application import CommandHandler, Dispatch
from django_perfectqueue.exceptions import ConfigError

EVERY_TYPE = re.compile("")


class Exec(Dispatch):
    """Has tasks of every type run by one program."""

    command: ClassVar[Sequence[str]] = ()


def exec_of(text: str) -> type[Exec]:
    """
    Return the dispatch for a program with its arguments, written as for a shell.

    Raise ConfigError when it is no command, or is not found.
    """
    words = split(text)
    if shutil.which(words[0]) is None:
        raise ConfigError(unknown(words[0]))
    handler = type("Handler", (CommandHandler,), {"command": words, "__module__": __name__})
    return type("Exec", (Exec,), {"command": words, "routes": {EVERY_TYPE: handler}})


def split(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(
            _("--exec can't be read: %(why)s: %(text)s") % {"why": error, "text": text}
        ) from error
    if not words or not words[0]:
        raise ConfigError(_("--exec needs a program, such as: --exec 'convert --fast'."))
    return words


def unknown(name: str) -> str:
    if "/" in name:
        return _("--exec: there is no program at '%s', or it may not be executed.") % name
    return _("--exec: there is no program '%s' on PATH.") % name
