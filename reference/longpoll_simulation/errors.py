"""How a simulated run ends abnormally."""

from __future__ import annotations

from longpoll_spec.errors import LongpollError


class StuckError(LongpollError):
    """A deadlock with no timer, or a run of too many steps. The text lists the waiting actors."""


class AbandonedError(BaseException):
    """Ends an actor of a finished run, or of a killed process; code under test must not catch it."""
