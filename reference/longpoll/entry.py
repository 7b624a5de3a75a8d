"""Where `longpoll` and `python -m longpoll` begin: under the guard before anything heavy is imported.

Leaves out the commands (`cli`) and what becomes of their ends (`guard`).
"""

from __future__ import annotations

from longpoll import guard


def main() -> None:
    """Run the command line and leave with its exit code."""
    guard.run(_commands)


def _commands() -> None:
    with guard.whole_imports():
        from longpoll.cli import main as commands  # noqa: PLC0415 - click takes its time
    commands()
