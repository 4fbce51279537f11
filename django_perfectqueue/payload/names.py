"""Lengths of names, and names with a meaning."""

from __future__ import annotations

import sys

LAST_CHARACTER = chr(sys.maxunicode)

EVERYONE = "*"

LIMITS_LENGTH = 500

LIMIT_LENGTH = 249
