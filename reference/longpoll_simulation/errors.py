"""How a simulated run ends other than by its own end."""

from __future__ import annotations

from longpoll_spec.errors import LongpollError


class StuckError(LongpollError):
    """Nobody can go on and no time is waited for; or a run has gone on for too many steps. The text says who waits."""


class AbandonedError(BaseException):
    """Ends an actor of a run that is over, or of a killed process; nothing under test may catch it."""
