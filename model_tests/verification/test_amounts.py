"""What a caller gives as an amount: finite, not below zero, and not so large that reckoning with it overflows."""

from __future__ import annotations

import click
import pytest

from longpoll.options.amounts import AMOUNT_MAX, Amount


@pytest.mark.parametrize(("given", "above_zero"), [("0", False), ("0.5", True), ("1e9", True), ("1000000000", False)])
def test_an_amount_is_a_number_from_zero_to_the_most(given: str, above_zero: bool) -> None:
    """Both ends are amounts; zero where it makes sense."""
    assert Amount(above_zero=above_zero).convert(given, None, None) == float(given)


@pytest.mark.parametrize(
    ("given", "above_zero", "why"),
    [
        ("0", True, "range"),
        ("-0.1", False, "range"),
        (str(AMOUNT_MAX + 1), False, "range"),
        ("nan", False, "not a finite number"),
        ("-inf", False, "not a finite number"),
        ("1e999", False, "not a finite number"),
        ("soon", False, "not a valid"),
    ],
)
def test_what_is_none_is_the_callers_mistake(given: str, above_zero: bool, why: str) -> None:
    """Each says what is wrong with it."""
    with pytest.raises(click.BadParameter, match=why):
        Amount(above_zero=above_zero).convert(given, None, None)


def test_the_most_is_days_and_no_more() -> None:
    """In nanoseconds it has to fit into 64 bits, with a time of day added."""
    assert 10**9 <= AMOUNT_MAX * 1_000_000 < 2**62 - 2 * 10**18
