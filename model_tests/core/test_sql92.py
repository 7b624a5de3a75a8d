"""What SQL92 filters mean: beside RocketMQ's recorded outcomes, beside SQLite, and under planted slips."""

from __future__ import annotations

import functools
import json
import lzma
import operator
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_tests.support.broker.sql92_cases import WORDS, Case, outcome

from longpoll_broker.shared.filter import sql92, sql92_grammar, sql92_tree, sql92_values
from longpoll_broker.shared.filter.sql92 import Sql92Error, compile_expression
from longpoll_broker.shared.filter.sql92_values import Value

RECORDED: Final = Path(__file__).parent / "golden" / "sql92-4.9.7.jsonl.xz"
RECORDED_5: Final = Path(__file__).parent / "golden" / "sql92-5.5.0.jsonl.xz"


def recorded(path: Path = RECORDED) -> list[tuple[Case, str]]:
    """Cases and what the parser of RocketMQ 4.9.7 made of them, or that of another one."""
    lines = [json.loads(line) for line in lzma.decompress(path.read_bytes()).decode().splitlines()]
    return [((line["expression"], line["properties"]), line["outcome"]) for line in lines]


CASES: Final = recorded()


def differing() -> Iterator[tuple[Case, str, str]]:
    """The recorded cases that have another outcome here, with both."""
    found = ((case, java, outcome(*case)) for case, java in CASES)
    return ((case, java, ours) for case, java, ours in found if java != ours)


def test_every_recorded_outcome_is_ours() -> None:
    """At least 400 cases of each outcome: bad, error, true, false, null."""
    assert list(differing()) == []
    counts = Counter(java for _case, java in CASES)
    assert min(counts[word] for word in ("bad", "error", "true", "false", "null")) >= 400


def test_every_outcome_of_what_5_has_more_is_ours() -> None:
    """CONTAINS, STARTSWITH and ENDSWITH; read as 4.9 reads them, as planted, many a case has another outcome."""
    cases = recorded(RECORDED_5)
    assert [(case, java) for case, java in cases if outcome(*case, with_parts=True) != java] == []
    assert min(Counter(java for _case, java in cases).values()) >= 50
    assert sum(outcome(*case) != java for case, java in cases) > 500


def test_a_part_nests_as_deep_as_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each counts towards the depth, so that a walk through the tree may recurse."""
    monkeypatch.setattr(sql92_tree, "DEPTH_MAX", 3)
    assert compile_expression("a" + " CONTAINS 'x'" * 3, with_parts=True).matches({"a": "x"}.get) is False
    with pytest.raises(Sql92Error, match="nested over 3 deep"):
        compile_expression("a" + " CONTAINS 'x'" * 4, with_parts=True)


WHOLE_NAMES: Final = ("n1", "n2", "n3")
TEXT_NAMES: Final = ("t1", "t2")
RELATIONS: Final = ("=", "<>", ">", ">=", "<", "<=")


@st.composite
def comparisons(draw: st.DrawFn) -> str:
    """One comparison that SQLite reads as RocketMQ does: of whole numbers, or of texts for equality."""
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
    """The condition as SQLite evaluates it over one row; a missing property is NULL."""
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
    """Three-valued logic, precedence, ranges and lists, for properties that are there or missing."""
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
    """What `docs/sql92.md` lists, with n3 = 5, t1 = 'x', t2 = '99999999999' and no n1 and n2."""
    properties: dict[str, int | str] = {"n3": 5, "t1": "x", "t2": "99999999999"}
    assert outcome(expression, {name: str(value) for name, value in properties.items()}) == ours
    assert sqlite_outcome(expression, properties) is theirs


@given(
    st.one_of(st.text(max_size=60), st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)), st.text(max_size=9)
)
def test_no_text_breaks_the_filter(expression: str, value: str) -> None:
    """Whatever a client sends compiles or is refused with a reason, and then matches or does not."""
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
def test_deep_nesting_is_refused_and_what_is_allowed_runs(make: Callable[[int], str]) -> None:
    """Just under the limit it compiles and runs; over it there is a limit error, never a RecursionError."""
    with pytest.raises(sql92.Sql92LimitError, match="nested"):
        compile_expression(make(sql92_tree.DEPTH_MAX + 1))
    compiled = compile_expression(make(sql92_tree.DEPTH_MAX - 2))
    assert compiled.matches({"a": "1"}.get) in {True, False}


def test_length_alone_does_not_nest() -> None:
    """A long chain of OR, and parentheses around parentheses, are as flat as they look; the size has a limit."""
    chain = " OR ".join(f"a = {number}" for number in range(300))
    assert compile_expression(chain).matches({"a": "299"}.get)
    assert not compile_expression(chain).matches({"a": "300"}.get)
    assert compile_expression("(" * 2000 + "TRUE" + ")" * 2000).matches(lambda _name: None)
    with pytest.raises(sql92.Sql92LimitError, match="4096 characters"):
        compile_expression("a" * (sql92_grammar.SIZE_MAX + 1))


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
    """So that the remark of a refusal helps."""
    with pytest.raises(Sql92Error, match=words):
        compile_expression(expression)


sql92_logic: Final = sql92._logic
SLIPS: Final[dict[str, tuple[Any, str, Any]]] = {
    "AND and OR swapped": (sql92, "_logic", lambda operands, *, decides: sql92_logic(operands, decides=not decides)),
    "minus forgotten": (sql92, "_negate", lambda operand: operand),
    "at least is above": (sql92, "_HOLDS", sql92._HOLDS | {">=": operator.gt}),
    "no Integer": (sql92_values, "INTEGER_MAX", sql92_values.LONG_MAX),
    "0.0 allowed": (sql92_tree, "DOUBLE_MIN", 0.0),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_a_planted_slip_is_seen(slip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these slips changes the outcome of some recorded case."""
    monkeypatch.setattr(*SLIPS[slip])
    assert next(differing(), None) is not None


@pytest.mark.parametrize(("rule", "planted"), [("| _NOT unary  ", "| _NOT comparison  "), ("FLOAT.2: ", "FLOAT.-1: ")])
def test_a_slip_in_the_grammar_is_seen(rule: str, planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """NOT binds loosely, a minus is lost, a comment needs no end, numbers are cut, words of other letters or case."""
    slipped = sql92_grammar.GRAMMAR.replace(rule, planted)
    assert slipped != sql92_grammar.GRAMMAR
    monkeypatch.setattr(sql92_grammar, "GRAMMAR", slipped)
    monkeypatch.setattr(sql92_grammar, "_parser", functools.cache(sql92_grammar._parser.__wrapped__))
    assert next(differing(), None) is not None
