"""
Which functions may be run for a task's type: those that were defined as Django tasks here.

A type is looked up and never imported: who can write a row would otherwise choose
what a worker calls.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING

from django.apps import apps
from django.utils.module_loading import autodiscover_modules

from django_perfectqueue.compat import Task

if TYPE_CHECKING:
    from django_perfectqueue.compat import AnyTask

MODULE = "tasks"

definitions: dict[str, AnyTask] = {}
"""Each task by its module path, as it was first defined."""


def add(task: AnyTask) -> None:
    """Note a task; one that ``using()`` has made of another is no new one."""
    known = definitions.get(task.module_path)
    if known is None or known.func is not task.func:
        definitions[task.module_path] = task


def discover(modules: Iterable[str] = ()) -> None:
    """
    Import the ``tasks`` module of each installed app, and the modules that are named.

    Raise ImportError when one of those is not there.
    """
    autodiscover_modules(MODULE)
    paths = [f"{app.name}.{MODULE}" for app in apps.get_app_configs()]
    found = [sys.modules[path] for path in paths if path in sys.modules]
    for module in (*found, *map(import_module, modules)):
        for value in list(vars(module).values()):
            if isinstance(value, Task):
                add(value)
