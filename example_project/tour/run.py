from __future__ import annotations

import argparse
import os
import signal
import sys
from types import FrameType
from typing import Any, NoReturn

import django
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError

from .errors import TourError, advice
from .terminal import say

EPILOG = """
Each run uploads the customers' files again and deletes nothing, so what you change in
the admin stays. DATABASE_URL chooses another database than the SQLite file:
postgres://user:password@host/name, mysql://user:password@host/name.
"""


def main() -> int:
    """Run the tour; return its exit code."""
    arguments = parse_arguments()
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, interrupt)
    try:
        django.setup()
        return tour(arguments)
    except TourError as error:
        say(f"\ndemo: {error}")
    except (DatabaseError, ImproperlyConfigured) as error:
        say(f"\ndemo: {advice(error)}")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        say("\ndemo: stopped. The next run takes up the tasks that are left.")
        return 130
    return 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="demo.py",
        description="Run several customers' tasks on one queue, and show what each of them got.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--processors", type=at_least_one, default=2, metavar="N", help="run so many (2)"
    )
    parser.add_argument(
        "--fresh", action="store_true", help="forget Chartroom's tasks, uploads and charts first"
    )
    return parser.parse_args()


def at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def interrupt(signum: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def tour(arguments: Any) -> int:
    from . import prepare, report, work

    prepare.database()
    if arguments.fresh:
        prepare.forget()
    prepare.administrator()
    batch = prepare.batch()
    work.run(batch, processors=arguments.processors)
    return report.show(batch.standings(), closing_key=batch.closing_key)
