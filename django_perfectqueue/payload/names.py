"""Lengths of names, and names with a meaning."""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

LAST_CHARACTER = chr(sys.maxunicode)

EVERYONE = "*"

LIMITS_LENGTH = 500

LIMIT_LENGTH = 249

STEP_LENGTH = 100

TAG_LENGTH = 64

JSON: TypeAlias = Any
"""What a codec gives back: only the project knows its shape."""
