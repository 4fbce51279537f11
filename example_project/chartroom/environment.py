"""Run where Django and this project's packages are installed. Imports no Django."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def enter() -> None:
    """Return in the repository's own environment, which is made when there is none."""
    sys.path.insert(0, str(ROOT))
    from bootstrap import enter as enter_environment

    os.environ["DJANGO_SETTINGS_MODULE"] = "chartroom.settings"
    enter_environment(["example", "tasks", *drivers(os.environ.get("DATABASE_URL", ""))])


def drivers(url: str) -> list[str]:
    return ["mysql"] if url.startswith("mysql") else []
