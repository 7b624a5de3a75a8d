"""`messageDelayLevel`: what a list of delay levels says, and what cannot be one."""

from __future__ import annotations

import pytest

from longpoll_protocol.properties import DELAY_LEVELS_MS, LEVEL_COUNT_MAX, LEVEL_DAYS_MAX, delay_levels_ms


def test_rocketmqs_own_levels() -> None:
    minutes = [60_000 * count for count in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)]
    assert [*DELAY_LEVELS_MS] == [1_000, 5_000, 10_000, 30_000, *minutes, 3_600_000, 7_200_000]


@pytest.mark.parametrize(
    ("text", "levels_ms"),
    [
        ("1s", (1_000,)),
        ("0s 2m  3h\t4d", (0, 120_000, 10_800_000, 345_600_000)),
        ("9s 1s", (9_000, 1_000)),
        (f"{LEVEL_DAYS_MAX}d", (LEVEL_DAYS_MAX * 86_400_000,)),
        ("007s", (7_000,)),
    ],
)
def test_levels_are_numbers_with_a_unit(text: str, levels_ms: tuple[int, ...]) -> None:
    """Seconds, minutes, hours and days, in any order."""
    assert delay_levels_ms(text) == levels_ms


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "0 levels; write 1 to 1024"),
        ("1s 5", "level 2 is '5'"),
        ("1s s", "level 2 is 's'"),
        ("1S", "level 1 is '1S'"),
        ("1ms", "level 1 is '1ms'"),
        ("1.5s", "level 1 is '1.5s'"),
        ("-1s", "level 1 is '-1s'"),
        ("+1s", r"level 1 is '\+1s'"),
        ("1s,5s", "level 1 is '1s,5s'"),
        ("\u0661s", "level 1 is '\u0661s'"),
        ("1234567890s", "level 1 is '1234567890s'"),
        (f"1s {LEVEL_DAYS_MAX + 1}d", f"level 2 is {LEVEL_DAYS_MAX + 1}d; write at most {LEVEL_DAYS_MAX}d"),
        ("x" * 9_999, f"level 1 is '{'x' * 40}'"),
        ("1s " * (LEVEL_COUNT_MAX + 1), f"{LEVEL_COUNT_MAX + 1} levels; write 1 to"),
    ],
)
def test_what_is_no_list_of_levels_is_named(text: str, said: str) -> None:
    """The level that cannot be is said, and what could; nothing long is shown."""
    with pytest.raises(ValueError, match=said) as caught:
        delay_levels_ms(text)
    assert len(str(caught.value)) < 200


def test_there_can_be_as_many_levels_as_a_topic_has_queues() -> None:
    assert len(delay_levels_ms("1s " * LEVEL_COUNT_MAX)) == LEVEL_COUNT_MAX
