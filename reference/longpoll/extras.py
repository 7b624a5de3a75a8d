"""Which package comes with which extra, and the error text for a missing one. Imports no other module of longpoll.

The extras are defined in pyproject.toml; a test compares both.
"""

from __future__ import annotations

import sys
from typing import Final

PACKAGES: Final = {
    "numpy": "law",
    "z3": "law",
    "pyarrow": "judge",
    "jinja2": "judge",
    "pandas": "spark",
    "pyspark": "spark",
    "hypothesis": "testing",
    "pytest": "testing",
    "_pytest": "testing",
    "greenlet": "simulation",
    "dpkt": "import",
    "lz4": "compression",
    "zstandard": "compression",
}
"""A package that may be missing -> the extra that brings it."""
COMMANDS: Final = {
    "judge": "judge",
    "history": "judge",
    "verify": "all",
    "simulate-broker": "simulation",
    "replay": "simulation",
    "soak": "judge",
}
"""A command that needs an extra as a whole -> that one, whichever of its packages was missed first."""
HINTS: Final = {"check": "; or take --engine python, which needs none"}
"""What else the user of a command can do."""


def missing(error: BaseException, command: str = "") -> str | None:
    """What to say of an import that failed in a command; None where no extra brings what was missed.

    Args:
        error: What was raised.
        command: The command's name; empty for a call from Python.
    """
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if name not in PACKAGES:
        return None
    extra = COMMANDS.get(command, PACKAGES[name])
    # Spark is an engine of two commands, and brings more than either of them needs besides.
    extra = "spark" if PACKAGES[name] == "spark" and extra != "all" else extra
    return f"this needs {name}, which is not installed: {install(extra)}{HINTS.get(command, '')}"


def install(extra: str) -> str:
    """The command that adds an extra to this installation of longpoll.

    pip takes the longpoll that is installed, from a checkout or a wheel, and looks for none on an index. That holds for
    this interpreter's own pip only.
    """
    return f"{sys.executable} -m pip install 'longpoll[{extra}]'"
