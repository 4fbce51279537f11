"""
Pass the tests on each Python and Django that go together, on SQLite unless told otherwise.

A Python that is not on this machine is passed over and said so. ``nox`` runs them all,
``nox -s "tests(python='3.12', django='6.0')"`` one, and what follows ``--`` goes to runtests.py.
"""

import nox

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.error_on_missing_interpreters = False

PYTHONS = {
    "5.2": ("3.10", "3.11", "3.12", "3.13", "3.14"),
    "6.0": ("3.12", "3.13", "3.14"),
    "6.1": ("3.12", "3.13", "3.14"),
}


@nox.session
@nox.parametrize(
    "python,django",
    [(python, django) for django, pythons in PYTHONS.items() for python in pythons],
)
def tests(session: nox.Session, django: str) -> None:
    extras = "test,tasks" if django == "5.2" else "test"
    session.install("--editable", f".[{extras}]", f"django~={django}.0")
    arguments = session.posargs or ["--database", "sqlite"]
    session.run("python", "runtests.py", *arguments, env={"PERFECTQUEUE_NO_BOOTSTRAP": "1"})
