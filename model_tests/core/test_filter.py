"""Subscription expressions and filters: tags, SQL92, and the data of a filter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longpoll_broker.shared.filter import data as module
from longpoll_broker.shared.filter.data import FilterTable
from longpoll_broker.shared.filter.filters import (
    CACHED_SIZE_MAX,
    SQL92,
    TAG,
    ExpressionError,
    SqlFilter,
    filter_of,
    sql_filter,
    tag_filter,
)
from longpoll_protocol import tags
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


def known(table: FilterTable, topic: str = "T") -> tuple[str, int] | None:
    """The expression and version that is there."""
    found = table.get(topic, "G")
    return None if found is None else (found.filter.expression, found.version)


def test_a_later_version_counts() -> None:
    """An older or equal one is passed over; the same expression again only moves the version."""
    table = FilterTable()
    table.register("T", "G", "a > 1", "SQL92", 5)
    table.register("T", "G", "a > 2", "SQL92", 5)
    assert known(table) == ("a > 1", 5)
    table.register("T", "G", "a > 1", "SQL92", 6)
    assert known(table) == ("a > 1", 6)
    table.register("T", "G", "a > 3", "SQL92", 7)
    assert known(table) == ("a > 3", 7)


@pytest.mark.parametrize(("expression", "kind"), [("a >", "SQL92"), ("a > 1", "FOO")])
def test_what_does_not_compile_takes_the_filter_away(expression: str, kind: str) -> None:
    """Its pulls are told so; an older one does not even do that."""
    table = FilterTable()
    table.register("T", "G", "a > 1", "SQL92", 5)
    table.register("T", "G", expression, kind, 4)
    assert known(table) == ("a > 1", 5)
    table.register("T", "G", expression, kind, 6)
    assert known(table) is None
    table.register("T", "G", "", kind, 7)
    assert known(table) is None


@pytest.mark.parametrize("outlive", [False, True])
def test_a_group_without_members(outlive: bool) -> None:
    """Strict forgets its filters, RocketMQ keeps them; a topic no longer subscribed to is the same."""
    table = FilterTable(outlive)
    for topic in ("T", "U"):
        table.register(topic, "G", "a > 1", "SQL92", 5)
    table.unsubscribed("U", "G")
    table.group_gone("G", ["T"])
    assert (known(table) is None) is not outlive
    assert (known(table, "U") is None) is not outlive
    table.register("T", "G", "a > 2", "SQL92", 4)
    assert known(table) == (("a > 1", 5) if outlive else ("a > 2", 4))


def test_nothing_is_compiled_before_a_pull_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many expressions heartbeats bring; then the one that is asked for, once."""
    compiled: list[str] = []

    def compiling(expression: str, kind: str, *, with_parts: bool) -> SqlFilter:
        compiled.append(expression)
        return sql_filter(expression, kind, with_parts=with_parts)

    monkeypatch.setattr(module, "sql_filter", compiling)
    table = FilterTable()
    for number in range(60):
        table.register(f"T{number}", "G", f"a > {number}", "SQL92", 5)
    assert compiled == []
    assert known(table, "T7") == known(table, "T7") == ("a > 7", 5)
    assert compiled == ["a > 7"]


def test_what_a_pull_found_bad_gives_way_to_any_version() -> None:
    """As in RocketMQ, where it is not kept at all."""
    table = FilterTable()
    table.register("T", "G", "a >", "SQL92", 6)
    assert known(table) is None
    table.register("T", "G", "a > 1", "SQL92", 4)
    assert known(table) == ("a > 1", 4)


def test_filters_of_groups_that_are_gone_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest goes; one whose group came back stays."""
    monkeypatch.setattr(module, "ORPHAN_COUNT_MAX", 2)
    table = FilterTable(outlive_groups=True)
    for number in range(5):
        table.register(f"T{number}", "G", "a > 1", "SQL92", 1)
    table.group_gone("G", ["T0", "T1"])
    table.register("T0", "G", "a > 1", "SQL92", 1)
    table.group_gone("G", ["T2", "T3"])
    assert [known(table, f"T{number}") is not None for number in range(5)] == [True, False, True, True, True]


def test_filters_of_short_expressions_alone_are_kept() -> None:
    """A client chooses the expressions: thousands of long ones would take gigabytes."""
    short, long = "a" * CACHED_SIZE_MAX, "a" * (CACHED_SIZE_MAX + 1)
    assert tag_filter(short, TAG) is tag_filter(short, TAG)
    assert tag_filter(long, TAG) is not tag_filter(long, TAG)
    assert sql_filter("a = 1" + " " * CACHED_SIZE_MAX, SQL92) is not sql_filter("a = 1" + " " * CACHED_SIZE_MAX, SQL92)


def test_hashes_of_long_words_are_not_kept() -> None:
    """A peer chooses its tags, and thousands of 64 KiB would be a quarter of a gigabyte."""
    before = tags._kept_hash.cache_info().misses
    assert word_hash("b" * 300) == tags.java_hash("b" * 300)
    assert tags._kept_hash.cache_info().misses == before
