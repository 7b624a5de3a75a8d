"""The entry point of `longpoll` and `python -m longpoll`: starts the guard before it imports anything slow."""

from __future__ import annotations

from longpoll import guard


def main() -> None:
    """Run the command line and exit with its code."""
    guard.run(_commands)


def _commands() -> None:
    with guard.whole_imports():
        from longpoll.cli import main as commands  # noqa: PLC0415 - click takes its time
    commands()
