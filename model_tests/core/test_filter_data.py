"""Registered filters: versions, what does not compile, groups without members."""

from __future__ import annotations

import pytest

from longpoll_broker.core.filter import data as module
from longpoll_broker.core.filter.data import FilterTable
from longpoll_broker.core.filter.filters import SqlFilter, sql_filter


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
