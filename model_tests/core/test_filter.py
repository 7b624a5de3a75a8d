"""Tags, SQL92 filters and message properties, compared with recorded results of the Java broker."""

from __future__ import annotations

import functools
import json
import lzma
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_tests.support.broker.sql92_cases import WORDS, Case, outcome

from longpoll_broker.shared import filters as module
from longpoll_broker.shared import sql92, sql92_tree
from longpoll_broker.shared.filters import (
    CACHED_SIZE_MAX,
    SQL92,
    TAG,
    ExpressionError,
    FilterTable,
    SqlFilter,
    filter_of,
    sql_filter,
    tag_filter,
)
from longpoll_broker.shared.sql92 import Sql92Error, compile_expression
from longpoll_broker.shared.sql92_tree import Value
from longpoll_conform.vectors import recorded
from longpoll_protocol import properties
from longpoll_protocol.properties import (
    FORM_4_9,
    FORM_5,
    WAIT,
    PropertiesForm,
    hash_order,
    read_properties,
    word_hash,
    write_properties,
)


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_a_missing_expression_matches_everything(expression: str | None) -> None:
    assert tag_filter(expression, None).matches(12345)


def test_tags_of_an_expression() -> None:
    wanted = tag_filter(" a || b ", "TAG")
    assert wanted.matches(word_hash("a"))
    assert wanted.matches(word_hash("b"))
    assert not wanted.matches(word_hash("c"))
    assert wanted.matches(None)
    assert not tag_filter("*||a", "TAG").matches(word_hash("c"))
    with pytest.raises(ExpressionError):
        tag_filter("||", "TAG")
    assert not tag_filter("|| ||", "TAG").matches(0)
    assert not tag_filter("a", "").matches(word_hash("a"))
    with pytest.raises(ExpressionError):
        filter_of("", "SQL92")


def test_an_sql_filter_depends_only_on_properties() -> None:
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
def test_an_invalid_expression_matches_everything(expression: str, kind: str, over_limit: bool) -> None:
    """As in RocketMQ, an invalid expression matches everything, and so does one that exceeds our own limits."""
    wanted = filter_of(expression, kind)
    assert isinstance(wanted, SqlFilter)
    assert wanted.matches_properties(dict[str, str]().get)
    assert wanted.problem
    assert wanted.over_limit == over_limit


def known(table: FilterTable, topic: str = "T") -> tuple[str, int] | None:
    found = table.get(topic, "G")
    return None if found is None else (found.filter.expression, found.version)


def test_versions_of_a_filter() -> None:
    """A filter is replaced only by a later version, or if a pull found the filter invalid."""
    table = FilterTable()
    table.register("T", "G", "a > 1", "SQL92", 5)
    table.register("T", "G", "a > 2", "SQL92", 5)
    assert known(table) == ("a > 1", 5)
    table.register("T", "G", "a > 1", "SQL92", 6)
    assert known(table) == ("a > 1", 6)
    table.register("T", "G", "a > 3", "SQL92", 7)
    assert known(table) == ("a > 3", 7)
    table = FilterTable()
    table.register("T", "G", "a >", "SQL92", 6)
    assert known(table) is None
    table.register("T", "G", "a > 1", "SQL92", 4)
    assert known(table) == ("a > 1", 4)


@pytest.mark.parametrize(("expression", "kind"), [("a >", "SQL92"), ("a > 1", "FOO")])
def test_an_invalid_expression_removes_the_filter(expression: str, kind: str) -> None:
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
    """If a group loses its members or its subscription, the strict policy drops its filters and RocketMQ keeps them."""
    table = FilterTable(outlive)
    for topic in ("T", "U"):
        table.register(topic, "G", "a > 1", "SQL92", 5)
    table.unsubscribed("U", "G")
    table.group_gone("G", ["T"])
    assert (known(table) is None) is not outlive
    assert (known(table, "U") is None) is not outlive
    table.register("T", "G", "a > 2", "SQL92", 4)
    assert known(table) == (("a > 1", 5) if outlive else ("a > 2", 4))


def test_an_expression_is_compiled_at_the_first_pull(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats compile nothing, and the first pull compiles its expression once."""
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


def test_filters_of_removed_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ORPHAN_COUNT_MAX", 2)
    table = FilterTable(outlive_groups=True)
    for number in range(5):
        table.register(f"T{number}", "G", "a > 1", "SQL92", 1)
    table.group_gone("G", ["T0", "T1"])
    table.register("T0", "G", "a > 1", "SQL92", 1)
    table.group_gone("G", ["T2", "T3"])
    assert [known(table, f"T{number}") is not None for number in range(5)] == [True, False, True, True, True]


def test_only_filters_of_short_expressions_are_cached() -> None:
    """Clients choose the expressions, and thousands of cached long expressions would take gigabytes."""
    short, long = "a" * CACHED_SIZE_MAX, "a" * (CACHED_SIZE_MAX + 1)
    assert tag_filter(short, TAG) is tag_filter(short, TAG)
    assert tag_filter(long, TAG) is not tag_filter(long, TAG)
    assert sql_filter("a = 1" + " " * CACHED_SIZE_MAX, SQL92) is not sql_filter("a = 1" + " " * CACHED_SIZE_MAX, SQL92)


def test_hashes_of_long_tags_are_not_cached() -> None:
    """Clients choose their tags, and thousands of cached tags of 64 KiB would take a quarter of a gigabyte."""
    before = properties._kept_hash.cache_info().misses
    assert word_hash("b" * 300) == properties.java_hash("b" * 300)
    assert properties._kept_hash.cache_info().misses == before


EXPECTED = Path(__file__).parents[1] / "store" / "golden" / "store-4.9.7-clean.expected.json.xz"


def java_records() -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = json.loads(lzma.decompress(EXPECTED.read_bytes()))["commitlog"]["records"]
    return [record for record in records if record["topic"] != "T_batch"]


def java_answers() -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for vector in recorded("5.5.0"):
        case = vector.case
        for step in (case, *case.get("during", []), *case.get("after", [])):
            body = (step.get("response") or {}).get("body") or {}
            records += body.get("records", [])
    return [record for record in records if "CLUSTER" in record["properties"]]


def differing(records: list[dict[str, Any]], form: PropertiesForm = FORM_4_9) -> list[str]:
    texts = [record["propertiesRaw"] for record in records]
    return [text for text in texts if write_properties(read_properties(text), form).decode() != text]


def test_the_order_of_properties_is_the_java_brokers() -> None:
    records = java_records()
    assert len(records) > 1000
    assert differing(records) == []
    records = java_answers()
    assert len(records) > 20
    assert differing(records, FORM_5) == []
    assert differing(java_records(), PropertiesForm(128, marks_last=False))
    assert differing(java_answers(), PropertiesForm(16, marks_last=True))
    assert len(differing(java_answers(), PropertiesForm(128, marks_last=False))) == len(java_answers())


def test_a_map_of_properties() -> None:
    """Thirteen names need 32 buckets; empty names and values are left out."""
    names = tuple("Aa0Bb1Cc2Dd3E")
    assert "".join(hash_order(names[:12])) == "0Aa1Bb2Cc3Dd"
    assert "".join(hash_order(names)) == "AaBbCcDdE0123"
    assert hash_order(("UNIQ_KEY", "CLUSTER")) == ("UNIQ_KEY", "CLUSTER")
    assert hash_order(("CLUSTER", "UNIQ_KEY")) == ("CLUSTER", "UNIQ_KEY")
    found = read_properties("a\x01\x02\x01b\x02c\x02d\x01e\x01f\x02WAIT\x01true\x02")
    assert found == {"d": "e\x01f", WAIT: "true"}
    assert (write_properties(found, without=WAIT), read_properties(None)) == (b"d\x01e\x01f", {})
    assert write_properties({}) == b""


@given(st.dictionaries(st.text(st.characters(exclude_characters="\x01\x02"), min_size=1), st.just("v"), max_size=40))
def test_no_property_is_lost(given_properties: dict[str, str]) -> None:
    written = write_properties(given_properties).decode("utf-8", "surrogatepass")
    assert read_properties(written) == given_properties


RECORDED: Final = Path(__file__).parent / "golden" / "sql92-4.9.7.jsonl.xz"
RECORDED_5: Final = Path(__file__).parent / "golden" / "sql92-5.5.0.jsonl.xz"


def recorded_cases(path: Path = RECORDED) -> list[tuple[Case, str]]:
    lines = [json.loads(line) for line in lzma.decompress(path.read_bytes()).decode().splitlines()]
    return [((line["expression"], line["properties"]), line["outcome"]) for line in lines]


CASES: Final = recorded_cases()


def differing_cases() -> Iterator[tuple[Case, str, str]]:
    found = ((case, java, outcome(*case)) for case, java in CASES)
    return ((case, java, ours) for case, java, ours in found if java != ours)


def test_recorded_outcomes_are_ours() -> None:
    assert list(differing_cases()) == []
    counts = Counter(java for _case, java in CASES)
    assert min(counts[word] for word in ("bad", "error", "true", "false", "null")) >= 400
    cases = recorded_cases(RECORDED_5)
    assert [(case, java) for case, java in cases if outcome(*case, with_parts=True) != java] == []
    assert min(Counter(java for _case, java in cases).values()) >= 50
    assert sum(outcome(*case) != java for case, java in cases) > 500


def test_chained_operators_count_as_nesting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql92_tree, "DEPTH_MAX", 3)
    assert compile_expression("a" + " CONTAINS 'x'" * 3, with_parts=True).matches({"a": "x"}.get) is False
    with pytest.raises(Sql92Error, match="nested over 3 deep"):
        compile_expression("a" + " CONTAINS 'x'" * 4, with_parts=True)


WHOLE_NAMES: Final = ("n1", "n2", "n3")
TEXT_NAMES: Final = ("t1", "t2")
RELATIONS: Final = ("=", "<>", ">", ">=", "<", "<=")


@st.composite
def comparisons(draw: st.DrawFn) -> str:
    """Draw a comparison that SQLite evaluates like RocketMQ: whole numbers, or equality of texts."""
    whole, text = draw(st.sampled_from(WHOLE_NAMES)), draw(st.sampled_from(TEXT_NAMES))
    low, high = sorted((draw(st.integers(0, 9)), draw(st.integers(0, 9))))
    shown = [f"'{each}'" for each in draw(st.lists(st.sampled_from(("x", "y", "it''s", "5")), min_size=1, max_size=6))]
    negated = draw(st.sampled_from(("", "NOT ")))
    return draw(
        st.sampled_from(
            (
                f"{whole} {draw(st.sampled_from(RELATIONS))} {draw(st.sampled_from(('', '-', '+')))}{low}",
                f"{whole} {draw(st.sampled_from(RELATIONS))} {low}.5",
                f"{low} {draw(st.sampled_from(RELATIONS[2:]))} {whole}",
                f"{whole} {draw(st.sampled_from(RELATIONS[2:]))} {draw(st.sampled_from(WHOLE_NAMES))}",
                f"{whole} {negated}BETWEEN {low} AND {high}",
                f"{text} {draw(st.sampled_from(RELATIONS[:2]))} {shown[0]}",
                f"{text} {negated}IN ({', '.join(shown)})",
                f"{draw(st.sampled_from((whole, text)))} IS {negated}NULL",
                draw(st.sampled_from(("TRUE", "FALSE", "NULL"))),
            )
        )
    )


conditions = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        st.builds("{} AND {}".format, inner, inner),
        st.builds("{} OR {}".format, inner, inner),
        st.builds("NOT ({})".format, inner),
        st.builds("({})".format, inner),
    ),
    max_leaves=8,
)
wholes = st.dictionaries(st.sampled_from(WHOLE_NAMES), st.integers(-9, 9))
texts = st.dictionaries(st.sampled_from(TEXT_NAMES), st.sampled_from(("x", "y", "it's", "5", "z")))


def sqlite_outcome(expression: str, properties: dict[str, int | str]) -> Value:
    """Return the result of SQLite for one row; a missing property is NULL."""
    columns = ", ".join(f"? AS {name}" for name in (*WHOLE_NAMES, *TEXT_NAMES))
    row = [properties.get(name) for name in (*WHOLE_NAMES, *TEXT_NAMES)]
    connection = sqlite3.connect(":memory:")
    try:
        ((value,),) = connection.execute(f"SELECT {expression} FROM (SELECT {columns})", row).fetchall()  # noqa: S608 - our own text
    finally:
        connection.close()
    return None if value is None else bool(value)


@given(conditions, wholes, texts)
def test_the_common_part_agrees_with_sqlite(expression: str, numbers: dict[str, int], words: dict[str, str]) -> None:
    """Three-valued logic, precedence, ranges and lists agree with SQLite, for present and missing properties."""
    properties: dict[str, int | str] = {**numbers, **words}
    lookup = {name: str(value) for name, value in properties.items()}.get
    assert compile_expression(expression).evaluate(lookup) is sqlite_outcome(expression, properties)


@pytest.mark.parametrize(
    ("expression", "ours", "theirs"),
    [
        ("n1 = n2", "true", None),
        ("5 = n1", "false", None),
        ("NOT n3 IS NULL", "false", True),
        ("NOT n3 = 4", "false", True),
        ("t1 > 5 OR TRUE", "error", True),
        ("t2 = 5", "error", False),
        ("n3", "false", True),
    ],
)
def test_where_we_differ_from_sqlite(expression: str, ours: str, theirs: Value) -> None:
    properties: dict[str, int | str] = {"n3": 5, "t1": "x", "t2": "99999999999"}
    assert outcome(expression, {name: str(value) for name, value in properties.items()}) == ours
    assert sqlite_outcome(expression, properties) is theirs


@given(
    st.one_of(st.text(max_size=60), st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)), st.text(max_size=9)
)
def test_any_text_compiles_or_is_refused(expression: str, value: str) -> None:
    try:
        compiled = compile_expression(expression)
    except Sql92Error:
        return
    assert compiled.matches(lambda _name: value) in {True, False}
    assert compiled.matches(lambda _name: None) in {True, False}


@pytest.mark.parametrize(
    "make",
    [
        lambda count: "NOT " * count + "a",
        lambda count: "-" * count + "1 > a",
        lambda count: "a" + " = 1" * count,
        lambda count: "a" + " IS NULL" * count,
        lambda count: "(TRUE AND " * count + "a" + ")" * count,
    ],
    ids=["not", "minus", "equal", "is null", "parentheses"],
)
def test_too_deep_nesting_is_refused_and_allowed_nesting_runs(make: Callable[[int], str]) -> None:
    """Just below the nesting limit an expression compiles and runs. Above it there is a limit error."""
    with pytest.raises(sql92.Sql92LimitError, match="nested"):
        compile_expression(make(sql92_tree.DEPTH_MAX + 1))
    compiled = compile_expression(make(sql92_tree.DEPTH_MAX - 2))
    assert compiled.matches({"a": "1"}.get) in {True, False}


def test_a_long_expression_is_not_a_nested_one() -> None:
    """Long chains of OR and redundant parentheses are not nested, so only the limits of size apply."""
    chain = " OR ".join(f"a = {number}" for number in range(300))
    assert compile_expression(chain).matches({"a": "299"}.get)
    assert not compile_expression(chain).matches({"a": "300"}.get)
    assert compile_expression("(" * 2000 + "TRUE" + ")" * 2000).matches(lambda _name: None)
    with pytest.raises(sql92.Sql92LimitError, match="4096 characters"):
        compile_expression("a" * (sql92.SIZE_MAX + 1))


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("idx >", "cannot continue at its end"),
        ("(a > 3 b", "cannot continue at line 1, column 8"),
        ("a =\n ! 3", "no word begins at line 2, column 2"),
        ("a = NULL", "write IS NULL"),
        ("a > 'x'", "compares numbers only"),
        ("a BETWEEN 2 AND 1", "in the wrong order"),
        ("5 IN ('a')", "needs a property"),
        ("a = 0.0", "without a point"),
        ("a = 9223372036854775808", "9223372036854775807"),
        ("5", "a condition is needed"),
        ("TRUE = 5", "TRUE or FALSE is compared"),
    ],
)
def test_an_error_says_where_or_what(expression: str, words: str) -> None:
    with pytest.raises(Sql92Error, match=words):
        compile_expression(expression)


@pytest.mark.parametrize(("rule", "planted"), [("| _NOT unary  ", "| _NOT comparison  "), ("FLOAT.2: ", "FLOAT.-1: ")])
def test_a_mutant_of_the_grammar_is_detected(rule: str, planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slipped = sql92.GRAMMAR.replace(rule, planted)
    assert slipped != sql92.GRAMMAR
    monkeypatch.setattr(sql92, "GRAMMAR", slipped)
    monkeypatch.setattr(sql92, "_parser", functools.cache(sql92._parser.__wrapped__))
    assert next(differing_cases(), None) is not None


@pytest.mark.parametrize("digits", ["1", "1.1", ".1", "0x1", "0x1.1", "1e1", "0", "\u0661"])
def test_a_long_invalid_number_matches_nothing(digits: str) -> None:
    """An earlier regular expression backtracked for half a minute on 32,000 digits before a letter."""
    properties = {"p": digits + digits[-1] * 32_000 + "x"}
    assert not any(compile_expression(each).matches(properties.get) for each in ("p > 1.5", "p > 1", "p < p"))


def test_a_long_number_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    pattern = sql92_tree._DECIMAL

    def fullmatch(text: str) -> object:
        seen.append(text)
        return pattern.fullmatch(text)

    monkeypatch.setattr(sql92_tree, "_DECIMAL", SimpleNamespace(fullmatch=fullmatch))
    properties = {"long": "2" * 200, "short": "3"}
    assert compile_expression(" AND ".join(["long > 1.5", "short > 1.5"] * 9)).matches(properties.get)
    assert Counter(seen) == {properties["long"]: 1, "3": 9}


def test_a_broker_with_filters_has_its_parser_from_the_start() -> None:
    """The parser is built at the start, so the first client with an expression does not wait for it."""
    for with_parts in (False, True):
        module.prepare_parser(with_parts=with_parts)
    made = sql92._parser.cache_info().misses
    assert compile_expression("a = 1").matches({"a": "1"}.get)
    assert compile_expression("a CONTAINS 'b'", with_parts=True).matches({"a": "abc"}.get)
    assert sql92._parser.cache_info().misses == made
