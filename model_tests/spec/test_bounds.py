from __future__ import annotations

from typing import Any

import pytest

from longpoll_spec.bounds import NAMES, Bounds, named
from longpoll_spec.errors import BoundsError
from longpoll_spec.policy import STRICT, STRICT_CLONE


@pytest.mark.parametrize("name", NAMES)
def test_every_name_gives_bounds(name: str) -> None:
    """Every name that is printed can be asked for, and in place there is room for as many requests or more."""
    assert named(name, STRICT).requests >= named(name, STRICT_CLONE).requests >= 1


def test_an_override_shows_in_the_name() -> None:
    """What was set by hand is named, so that no result passes for the preset's."""
    bounds = named("tiny", STRICT, messages=2, requests=2)

    assert (bounds.messages, bounds.name) == (2, "tiny+messages=2")


@pytest.mark.parametrize(
    "wrong",
    [{"requests": 0}, {"requests": 65}, {"messages": 0}, {"hold_ticks": 0}, {"scan_ticks": 1}, {"scan_ticks": -3}],
)
def test_impossible_bounds_are_refused(wrong: dict[str, Any]) -> None:
    """Bounds that cannot be explored, or that hide lateness, are refused with the range."""
    with pytest.raises(BoundsError, match=f"{next(iter(wrong))} must be from"):
        named("tiny", STRICT, **wrong)


def test_an_unknown_name_is_refused() -> None:
    """The error lists the names there are."""
    with pytest.raises(BoundsError, match="tiny, small, wide, bench"):
        named("huge", STRICT)


def test_an_unbounded_log_is_for_proofs() -> None:
    """No number of messages is a bound that exists, but not one that can be explored."""
    assert Bounds("proof", messages=None).messages is None
