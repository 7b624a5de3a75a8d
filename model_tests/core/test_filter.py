"""Subscription expressions, as seen on 4.9.7."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longpoll_broker.core.filter.filters import ExpressionError, SqlFilter, filter_of, tag_filter
from longpoll_protocol.tags import word_hash


@pytest.mark.parametrize(
    ("text", "expected"), [("", 0), ("a", 97), ("AaAa", 2031744), ("BBBB", 2031744), ("主题", 659901)]
)
def test_the_hash_is_javas(text: str, expected: int) -> None:
    """Values of `String.hashCode`; AaAa and BBBB are the well-known collision."""
    assert word_hash(text) == expected


@given(st.text(max_size=20), st.text(max_size=20))
def test_the_hash_follows_javas_recurrence(head: str, tail: str) -> None:
    """hash(s + t) = hash(s) * 31^len(t) + hash(t), over UTF-16 units, in 32 bits."""
    units = len(tail.encode("utf-16-be", "surrogatepass")) // 2
    expected = (word_hash(head) * pow(31, units, 1 << 32) + word_hash(tail)) % (1 << 32)
    assert word_hash(head + tail) % (1 << 32) == expected


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_no_expression_wants_everything(expression: str | None) -> None:
    """Absent, empty and star are the same."""
    assert tag_filter(expression, None).matches(12345)


def test_tags_are_trimmed_and_separated_by_two_bars() -> None:
    """`a || b` wants a and b; a star among tags is a tag."""
    wanted = tag_filter(" a || b ", "TAG")
    assert wanted.matches(word_hash("a"))
    assert wanted.matches(word_hash("b"))
    assert not wanted.matches(word_hash("c"))
    assert wanted.matches(None)
    assert not tag_filter("*||a", "TAG").matches(word_hash("c"))


def test_only_bars_are_an_error_but_blank_parts_match_nothing() -> None:
    """Java's split gives no parts for `||`; `|| ||` has one blank part."""
    with pytest.raises(ExpressionError):
        tag_filter("||", "TAG")
    assert not tag_filter("|| ||", "TAG").matches(0)


def test_the_empty_type_counts_as_a_tag_type_but_parses_no_tags() -> None:
    """So nothing matches; and an expression of another type must not be empty."""
    assert not tag_filter("a", "").matches(word_hash("a"))
    with pytest.raises(ExpressionError):
        filter_of("", "SQL92")


def test_an_sql_filter_looks_at_properties_alone() -> None:
    """Any tag hash may match; the same text gives the same filter, so that one read serves many pulls."""
    wanted = filter_of("a > 3", "SQL92")
    assert isinstance(wanted, SqlFilter)
    assert wanted.matches(None)
    assert wanted.matches(7)
    assert wanted.matches_properties({"a": "4"}.get)
    assert not wanted.matches_properties({"a": "3"}.get)
    assert filter_of("a > 3", "SQL92") is wanted


@pytest.mark.parametrize(
    ("expression", "kind", "over_limit"),
    [
        ("a >", "SQL92", False),
        ("a = 1", "FOO", False),
        ("a" * 5000, "SQL92", True),
        ("-" * 999 + "1 > a", "SQL92", True),
    ],
)
def test_what_cannot_be_compiled_lets_everything_through(expression: str, kind: str, over_limit: bool) -> None:
    """As RocketMQ does; the problem is kept for whoever can tell it, and a limit of ours is told apart."""
    wanted = filter_of(expression, kind)
    assert isinstance(wanted, SqlFilter)
    assert wanted.matches_properties(dict[str, str]().get)
    assert wanted.problem
    assert wanted.over_limit == over_limit
