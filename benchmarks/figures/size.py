"""How large the package is, as a new reader meets it."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent.parent / "django_perfectqueue"
NOT_CODE = {"migrations", "locale", "static", "templates", "__pycache__"}
UNCROWDED = {"commands"}  # Django wants all commands in one folder
NO_TOKENS = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
ANY = re.compile(r"\bAny\b")


def count(package: Path = PACKAGE) -> dict[str, dict[str, float]]:
    files = {path: path.read_text() for path in code_files(package)}
    lines: Counter[str] = Counter()
    for path, source in files.items():
        lines[room(path, package)] += code_lines(source)
    return {
        "size": {
            "code_lines": sum(lines.values()),
            "files": len(files),
            "root_entries": sum(map(is_there, package.iterdir())),
            "largest_room": largest_room(files, package),
            "lines_with_any": sum(len(lines_with_any(source)) for source in files.values()),
        },
        "code_lines": dict(sorted(lines.items())),
    }


def code_files(package: Path) -> list[Path]:
    return [
        path
        for path in sorted(package.rglob("*.py"))
        if not NOT_CODE & set(path.relative_to(package).parts)
    ]


def is_there(entry: Path) -> bool:
    """Return whether it would be in a clone, which has no folder of bytecode alone."""
    if entry.is_file():
        return True
    return any(path.is_file() and path.suffix != ".pyc" for path in entry.rglob("*"))


def room(path: Path, package: Path) -> str:
    """Return the folder of the package's root in which the file lies."""
    parts = path.relative_to(package).parts
    return parts[0] if len(parts) > 1 else "root"


def largest_room(files: Iterable[Path], package: Path) -> int:
    """Return the number of modules in the fullest folder below the root."""
    rooms = Counter(path.parent for path in files if path.name != "__init__.py")
    return max(
        (
            number
            for folder, number in rooms.items()
            if folder != package and folder.name not in UNCROWDED
        ),
        default=0,
    )


def code_lines(source: str) -> int:
    """Count the lines that hold code: no comment, no docstring, not blank."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_TOKENS:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstring_lines(source))


def docstring_lines(source: str) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            lines.update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return lines


def lines_with_any(source: str) -> list[str]:
    return [line for line in source.splitlines() if ANY.search(line)]
