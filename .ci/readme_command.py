"""Print the one line of the README's Nth shell block: readme_command.py README.md N."""

import re
import sys
from pathlib import Path

FENCE = re.compile(
    r"^(```+|~~~+) *(sh|bash|shell|console|shell-session)\b[^\n]*\n(.*?)^\1",
    re.MULTILINE | re.DOTALL,
)


def commands(block: str) -> list[str]:
    lines = [line.strip().removeprefix("$ ") for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


readme, number = Path(sys.argv[1]), int(sys.argv[2])
blocks = [found[3] for found in FENCE.finditer(readme.read_text())]
if len(blocks) < number:
    sys.exit(f"{readme} has {len(blocks)} shell blocks; number {number} is needed")

found = commands(blocks[number - 1])
if len(found) != 1:
    sys.exit(f"Shell block {number} of {readme} should be one line; it has {len(found)}")

print(found[0])
