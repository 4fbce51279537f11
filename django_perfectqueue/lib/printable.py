"""Names that others have chosen, as they are shown to people: in lines, in logs, on pages."""

from __future__ import annotations


def printable(text: str, keep: str = "") -> str:
    """
    Return a text in which nothing steers a terminal or begins another line.

    What is not printable, such as line breaks, escapes and marks of direction, is spelt
    out: ``\\n``, ``\\x1b``, ``\\u202e``. The characters of ``keep`` stay.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)


def printable_lines(text: str) -> str:
    """Return a text of several lines as printable() does, with its line breaks and tabs."""
    return printable(text, keep="\n\t")


def on_one_line(text: object) -> str:
    return " ".join(printable(str(text).replace("\n", " ").replace("\t", " ")).split())
