"""Errors of a replay on a Java broker."""

from __future__ import annotations

from longpoll_spec.errors import UserError


class JavaUnavailableError(UserError):
    """The Java broker is missing or cannot start; the text says why, and what to do next."""


class NotOnJavaError(UserError):
    """A run has a step that a shipped broker cannot be made to take; the text says which, and why."""
