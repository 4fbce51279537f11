"""
``llms.txt``, the list of all pages for programs that read (https://llmstxt.org).

Sections and pages are those of the toctrees of ``index.md``, and what a page is for stands in
its table.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

TREE = re.compile(r"^```{toctree}\n(.*?)^```", re.MULTILINE | re.DOTALL)
CAPTION = re.compile(r"^:caption: (.+)$", re.MULTILINE)
PAGE = re.compile(r"^[a-z][\w/-]*$", re.MULTILINE)
ROW = re.compile(r"^\| ([^|]+) \| (\[.+) \|$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#]+)\.md(?:#[^)]*)?\)")
HEADING = re.compile(r"^# (.+)$", re.MULTILINE)


def llms_of(docs: Path, base: str) -> str:
    """Return ``llms.txt`` for the pages of a folder, which are published below this address."""
    index = (docs / "index.md").read_text()
    title, summary = re.findall(r"^# (.+)\n\n(.+)\n", index)[0]
    purposes: dict[str, list[str]] = {}
    for purpose, links in ROW.findall(index):
        for page in dict.fromkeys(LINK.findall(links)):
            purposes.setdefault(page, []).append(purpose.strip())
    lines = [f"# {title}", "", f"> {summary}", ""]
    lines.append(f"[AGENTS.md]({base}AGENTS.md) has what a first program needs, in one file.")
    for tree in TREE.findall(index):
        lines += ["", f"## {CAPTION.findall(tree)[0]}", ""]
        for page in PAGE.findall(tree):
            [heading] = HEADING.findall((docs / f"{page}.md").read_text())[:1] or ["Changes"]
            purpose = "; ".join(purposes.get(page, ()))
            lines.append(f"- [{heading}]({base}{page}.html)" + (f": {purpose}" if purpose else ""))
    return "\n".join(lines) + "\n"


def write(app: Any, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        text = llms_of(Path(app.srcdir), app.config.html_baseurl)
        Path(app.outdir, "llms.txt").write_text(text)


def setup(app: Any) -> dict[str, Any]:
    app.connect("build-finished", write)
    return {"parallel_read_safe": True}
