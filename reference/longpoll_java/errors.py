"""Errors of a replay on a Java broker."""

from __future__ import annotations

from longpoll_spec.errors import UserError


class JavaUnavailableError(UserError):
    """The Java broker is missing or cannot start. The message gives the reason and the next step."""


class NotOnJavaError(UserError):
    """A run has a step that no released broker can take. The message names the step and the reason."""
