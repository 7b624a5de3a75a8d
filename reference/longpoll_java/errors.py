"""What can keep a run from being played on a Java broker."""

from __future__ import annotations

from longpoll_spec.errors import UserError


class JavaUnavailableError(UserError):
    """The Java broker cannot be had or started here; the text says why, and what to do next."""


class NotOnJavaError(UserError):
    """A run has a step that no schedule of a shipped broker can make; the text says which, and why."""
