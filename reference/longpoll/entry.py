"""The entry point of `longpoll` and `python -m longpoll`: starts the guard before it imports anything slow."""

from __future__ import annotations

from longpoll import exit_codes


def main() -> None:
    """Run the command line and exit with its code."""
    exit_codes.run(_commands)


def _commands() -> None:
    with exit_codes.whole_imports():
        from longpoll.cli import main as commands  # noqa: PLC0415 - click takes its time
    commands()
