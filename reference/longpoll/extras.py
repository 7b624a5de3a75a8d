"""The packages that only an extra installs, and the error for a missing one.

This module imports none of these packages. pyproject.toml defines the extras; a test compares the two lists.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Final

PACKAGES: Final = {
    "numpy": "spec",
    "z3": "spec",
    "pyarrow": "judge",
    "jinja2": "judge",
    "pandas": "spark",
    "pyspark": "spark",
    "hypothesis": "testing",
    "pytest": "testing",
    "_pytest": "testing",
    "redis": "testing",
    "boto3": "services",
    "confluent_kafka": "services",
    "etcd3gw": "services",
    "greenstalk": "services",
    "nats": "services",
    "greenlet": "simulation",
    "dpkt": "import",
    "lz4": "compression",
    "zstandard": "compression",
    "opentelemetry": "opentelemetry",
}
"""Maps a package that may be missing to the extra that installs it."""
COMMANDS: Final = {
    "judge": "judge",
    "verify": "spec,spark",
    "kit": "testing",
}
"""Maps a command that needs a whole extra to that extra, whichever package is missing first."""
HINTS: Final = {"check": "; or use --engine python, which needs no extra"}
"""Maps a command to a way to run it without the extra."""


def missing(error: BaseException, command: str = "") -> str | None:
    """The error text for a failed import; None if no extra installs the missing package.

    Args:
        error: The exception.
        command: The command's name; empty for a call from Python.
    """
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if name not in PACKAGES:
        return None
    extra = COMMANDS.get(command, PACKAGES[name])
    # The extra `services` includes the extra `testing` of the command `kit`, and the clients of all services.
    extra = "services" if PACKAGES[name] == "services" else extra
    # Two commands can use Spark, and the extra `spark` includes the packages that each of these commands needs.
    extra = "spark" if PACKAGES[name] == "spark" and "spark" not in extra else extra
    return f"the package {name} is not installed; run: {install(extra)}{HINTS.get(command, '')}"


def lacking(command: str) -> str | None:
    """Return a note for the command's help if its extra is not installed; None if the help needs no such note."""
    extra = COMMANDS.get(command, "")
    wanted = {*extra.split(","), *(["judge"] if "spark" in extra else [])}
    absent = [name for name, brought_by in PACKAGES.items() if brought_by in wanted and not _is_there(name)]
    return f"Not installed: {', '.join(absent)}. Run: {install(extra)}" if absent else None


def _is_there(package: str) -> bool:
    """Whether a package can be imported, without importing it."""
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # ValueError: a module without a spec, which cannot be imported again
        return False


def install(extra: str) -> str:
    """The command that adds an extra to this installation of longpoll.

    pip uses the installed longpoll, from a checkout or a wheel, not a longpoll from an index. The command needs the pip
    of this interpreter.
    """
    return f"{sys.executable} -m pip install 'longpoll[{extra}]'"
