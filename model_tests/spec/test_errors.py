"""What is said of a name that nobody has."""

from __future__ import annotations

import pytest

from longpoll_spec.errors import GUESSED_MAX, LISTED_MAX, not_known

MANY = [f"name-{number}" for number in range(LISTED_MAX + 1)]

LONG = "1" * (GUESSED_MAX + 1)


@pytest.mark.parametrize(
    ("said", "whole"),
    [
        (not_known("engine", "pyton", ["python", "packed"]), "did you mean 'python'? known: python, packed"),
        (not_known("engine", "x", ["python", "python"]), "known: python"),
        (not_known("engine", "x", []), "known: none"),
        (not_known("engine", "x", ["python"], "longpoll engines"), "known: python (see `longpoll engines`)"),
        (not_known("engine", "x", MANY, "longpoll engines"), f"`longpoll engines` lists all {len(MANY)}"),
        (not_known("engine", "x", MANY), "known: " + ", ".join(MANY)),
        (not_known("engine", LONG, [LONG + "2"]), f"known: {LONG}2"),
        (not_known("engine", LONG[1:], [LONG]), f"did you mean {LONG!r}? known: {LONG}"),
    ],
)
def test_a_name_that_nobody_has(said: str, whole: str) -> None:
    """The nearest one if there is any, and each that there is once, or the command that lists them."""
    (_unknown, rest) = said.split("; ", 1)

    assert rest == whole


def test_a_long_name_is_shown_by_its_beginning() -> None:
    """And how long it is; the longest that a near one is looked for is shown whole."""
    assert not_known("engine", LONG[1:], []).startswith(f"unknown engine {LONG[1:]!r}; ")
    assert not_known("engine", LONG, []).startswith(f"unknown engine {LONG[1:]!r}... ({len(LONG)} characters); ")
