#!/usr/bin/env python3
"""
Pictures of the admin's pages, in light and dark: python example_project/pictures.py.

Runs the demo in a database of its own, and writes docs/images/PAGE-light.png and -dark.png.
Needs Chromium, and the packages playwright and pillow.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal

HERE = Path(__file__).resolve().parent
IMAGES = HERE.parent / "docs" / "images"
WIDTH, HEIGHT = 1200, 760
NO_SIDEBAR = "localStorage.setItem('django.admin.navSidebarIsOpen', 'false')"
ADMIN = "/admin/perfectqueue/"
PAGES = {
    "overview": "overview/",
    "tasks": "task/",
    "failed-tasks": "deadletter/?group=",
    "batches": "batch/",
    "schedules": "schedule/",
    "queues": "queueshare/",
    "users": "fairshare/",
    "limits": "limit/",
    "workers": "worker/",
    "audit-log": "change/",
}
COMMANDS = (
    ("pq_limit", "set", "smtp", "--rate", "10/min", "--at-once", "3"),
    ("pq_limit", "set", "type:reports.tasks.draw_chart", "--max-running", "2"),
    ("pq_user", "pause", "birch", "--unpause-at", "1h", "--note", "ticket 812"),
    ("pq_queue", "set", "default", "--weight", "2"),
)
LATER = """
from django_perfectqueue.queue import Queue
queue = Queue()
for part in ("north", "south"):
    queue.submit(f"extract-{part}", "reports.extract", {"part": part}, user="delta")
queue.submit("load", "reports.load", user="delta", after=["extract-north", "extract-south"])
queue.submit("mail", "reports.mail", user="delta", after=["load"])
print(queue["load"].id)
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "DATABASE_URL": f"sqlite:///{folder}/chartroom.sqlite3",
            "CHARTROOM_MEDIA": f"{folder}/media",
            "DJANGO_SETTINGS_MODULE": "chartroom.settings",
        }
        run(environment, "demo.py")
        for command in COMMANDS:
            run(environment, "manage.py", *command)
        task = run(environment, "manage.py", "shell", "--no-imports", "-c", LATER).split()[-1]
        port = free_port()
        processes = [
            start(environment, "pq_worker", "--processors", "2"),
            start(environment, "runserver", "--noreload", "--insecure", f"127.0.0.1:{port}"),
        ]
        try:
            wait_for(port)
            time.sleep(15)  # the worker's row and the figures are written every ten seconds
            photograph(f"http://127.0.0.1:{port}", PAGES | {"task": f"task/{task}/change/"})
        finally:
            for process in processes:
                process.terminate()
                process.wait()


def run(environment: dict[str, str], *arguments: str) -> str:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=HERE,
        env=environment,
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    ).stdout


def start(environment: dict[str, str], *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "manage.py", *arguments]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, cwd=HERE, env=environment, stdout=quiet, stderr=quiet)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def wait_for(port: int) -> None:
    for _ in range(100):
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    sys.exit("The server does not answer.")


def photograph(site: str, pages: dict[str, str]) -> None:
    from playwright.sync_api import sync_playwright

    IMAGES.mkdir(exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
        for scheme in schemes:
            page = browser.new_page(
                color_scheme=scheme, viewport={"width": WIDTH, "height": HEIGHT}
            )
            page.add_init_script(NO_SIDEBAR)
            page.goto(f"{site}/admin/login/?next={ADMIN}overview/")
            page.fill("#id_username", "demo")
            page.fill("#id_password", "demo")
            page.click("input[type=submit]")
            for name, path in pages.items():
                page.goto(f"{site}{ADMIN}{path}")
                page.wait_for_timeout(300)
                file = IMAGES / f"{name}-{scheme}.png"
                page.screenshot(path=file)
                shrink(file)
        browser.close()


def shrink(file: Path) -> None:
    """Keep 64 colours, which a page of the admin does not exceed to the eye."""
    from PIL import Image

    with Image.open(file) as image:
        small = image.convert("RGB").quantize(64)
    small.save(file, optimize=True)
    sys.stdout.write(f"{file.relative_to(HERE.parent)}  {file.stat().st_size // 1024} kB\n")


if __name__ == "__main__":
    main()
