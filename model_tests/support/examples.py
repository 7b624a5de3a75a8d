"""Limits the number of examples of an expensive Hypothesis test."""

from __future__ import annotations

from hypothesis import settings


def fewer(divisor: int) -> settings:
    """Returns settings with the profile's number of examples divided by `divisor`."""
    assert settings.default is not None
    return settings(max_examples=max(1, settings.default.max_examples // divisor))
