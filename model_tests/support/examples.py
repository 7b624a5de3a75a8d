"""How many examples a dear Hypothesis test draws."""

from __future__ import annotations

from hypothesis import settings


def fewer(divisor: int) -> settings:
    """Return settings with the profile's number of examples divided by this, for a test whose examples are dear."""
    assert settings.default is not None
    return settings(max_examples=max(1, settings.default.max_examples // divisor))
