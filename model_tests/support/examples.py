"""How many examples a dear Hypothesis test draws."""

from __future__ import annotations

from hypothesis import settings


def fewer(divisor: int) -> settings:
    """Return settings with fewer examples than the profile, for an expensive test."""
    assert settings.default is not None
    return settings(max_examples=max(1, settings.default.max_examples // divisor))
