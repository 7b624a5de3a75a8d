"""Collects the errors that the broker logs during a simulated run: each is a failure, even if the broker survives.

Warnings do not count, because policies and limits cause them as intended.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

ROOM: Final = "longpoll_broker"


class ErrorCollector(logging.Handler):
    """Keeps errors. Invariant: `said` has them in the order of logging."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one record."""
        text = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        self.said.append(f"{text}: {error!r}" if error is not None else text)


@contextmanager
def collected_errors() -> Iterator[ErrorCollector]:
    """Replace the handlers of the broker's loggers."""
    loud, log = ErrorCollector(), logging.getLogger(ROOM)
    level, propagates, handlers = log.level, log.propagate, log.handlers
    log.handlers, log.propagate = [loud], False
    log.setLevel(logging.ERROR)
    try:
        yield loud
    finally:
        log.handlers, log.propagate = handlers, propagates
        log.setLevel(level)
