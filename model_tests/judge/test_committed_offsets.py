"""Answers to offset queries: each clause on either side of its limits, in milliseconds."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

import pytest
from attrs import evolve, field, frozen
from model_tests.judge.one_queue import LATE_MS, LONG_MS, Row, context, event, facts, holes, ns
from model_tests.support.judge.histories import halves, table_of

from longpoll_judge.contract.clause import PULL_RESULTS, REFUSED_LEAST, UNHELD_MS
from longpoll_judge.contract.result import Finding, Share
from longpoll_judge.evidence.generations import DELETION_NS
from longpoll_judge.evidence.source_survey import DISORDER_NS
from longpoll_judge.evidence.survey import Context
from longpoll_judge.rules.commits import exchanges, judge_exchanges
from longpoll_judge.rules.queue_columns import MS
from longpoll_judge.run.wide_pulls import judge_suspected_commits

LEAST, SOME, MOST, WRITTEN = (f"commit.told.{name}" for name in ("kept", "some", "most", "written"))
KNOWN, ANSWERED = "commit.code.known", "commit.answered"
PULL, ASK, UPDATE = 11, 14, 15
NONE: Final = None
"""The answer 22: there is no offset."""
BOTH: Final = ["request_received", "answer_sent"]


@frozen
class One:
    """A request about offsets and its answer: received in [at, at + 1], answered in [done, done + 1]."""

    kind: int
    offset: int | None
    """The committed offset, or the answer to a query; None if there is no offset."""
    at: float
    done: float | None = None
    """None without an answer."""
    code: int | None = None
    """The answer's code; by default the one that fits."""
    fields: Row = field(factory=dict)
    """Fields of the request, and of the answer if it has them."""
    request: str | None = None
    """By default a new one."""


def pull(offset: int, at: float, done: float | None = None, code: int | None = None, **fields: Any) -> One:
    """A pull that commits; by default it is answered ten milliseconds later."""
    return One(PULL, offset, at, at + 10 if done is None else done, code, fields)


def update(offset: int, at: float, done: float | None = None, code: int | None = None, **fields: Any) -> One:
    """An explicit commit."""
    return One(UPDATE, offset, at, at + 10 if done is None else done, code, fields)


def ask(told: int | None, at: float, done: float | None = None, code: int | None = None, **fields: Any) -> One:
    """A query and its answer."""
    return One(ASK, told, at, at + 10 if done is None else done, code, fields)


def reset(code: int, at: float, **fields: Any) -> One:
    """A request that changes offsets, without an answer."""
    return One(code, None, at, fields=fields)


def open_(one: One) -> One:
    """The same without an answer."""
    return evolve(one, done=None)


def events_of(one: One, number: int) -> list[Row]:
    """The two events, or one."""
    request = f"r{number}" if one.request is None else one.request
    common = {"request": request, "group": "G"} | one.fields
    committed = {} if one.kind == ASK or one.offset is None else {"commit_offset": one.offset}
    rows = [event("request_received", (one.at, one.at + 1), code=one.kind, **(committed | common))]
    if one.done is not None:
        code = {PULL: 19}.get(one.kind, 22 if one.kind == ASK and one.offset is None else 0)
        told = {"offset": one.offset} if one.kind == ASK and one.offset is not None else {}
        kept = {name: value for name, value in common.items() if name not in {"group", "commit_offset"}}
        answer = {"code": code if one.code is None else one.code}
        rows.append(event("answer_sent", (one.done, one.done + 1), **(kept | told | answer)))
    return rows


def judged_rows(*splits: list[Row], known: Context | None = None) -> tuple[list[Finding], Share, list[tuple[str, int]]]:
    """The findings of some splits, the same without groups that are clear; answered queries, and the missing fields."""
    known = context() if known is None else known
    tables = [table_of(rows) for rows in splits]
    whole = judge_exchanges(exchanges(tables), known)
    for each in (tables, halves(tables)):
        suspected = judge_suspected_commits(partial(enumerate, each), known)
        assert (suspected.findings, suspected.share, suspected.gaps) == whole
    findings, share, gaps = whole
    return findings, share, [(gap.where, gap.count) for gap in gaps]


def rows_of(*ones: One) -> list[Row]:
    """The events of all."""
    return [row for number, one in enumerate(ones) for row in events_of(one, number)]


def found(*ones: One, **known: Any) -> list[tuple[str, str, list[str]]]:
    """Each finding: its clause, with `?` if it is uncertain, its text, and its requests."""
    findings, _share, _gaps = judged_rows(rows_of(*ones), known=context(**known))
    return [
        (
            each.clause + "?" * (each.verdict == "unknown"),
            each.why,
            list(dict.fromkeys(shown["request"] for shown in each.evidence)),
        )
        for each in findings
    ]


def says(clause: str, *ones: One, **known: Any) -> list[str]:
    """The result of one clause alone: nothing, its name, or its name with `?`."""
    told = [name for name, _why, _shown in found(*ones, asked_alone=frozenset({clause}), **known)]
    assert {name.strip("?") for name in told} <= {clause, KNOWN, ANSWERED}
    return [name for name in told if name.startswith(clause)]


@pytest.mark.parametrize(
    ("end", "before", "clause"),
    [
        (11, (), ["commit.told.within?"]),
        (12, (), []),
        (11, (update(12, 2),), []),
        (11, (open_(pull(13, 2)),), []),
        (None, (), []),
    ],
)
def test_an_offset_past_the_queue_s_end_is_unknown(end: int | None, before: tuple[One, ...], clause: list[str]) -> None:
    """Also the first offset that a group gets, unless a commit of as much is possible."""
    ends = {} if end is None else {"offset_min": 0, "offset_max": end}
    read = [event("answer_sent", (0, 1), request="other", code=19, **ends)]
    findings, _share, _gaps = judged_rows(read, rows_of(*before, ask(12, 30)))
    told = [each.clause + "?" * (each.verdict == "unknown") for each in findings]
    assert [name for name in told if name.startswith("commit.told.within")] == clause


# -- less than was committed -----------------------------------------------------------------------------------------


def test_a_group_that_is_told_less_than_it_committed_is_found() -> None:
    """The finding shows the last commit and the query."""
    why = (
        "group 'G' was told offset 5, although 9 was committed before it asked, and nothing but a pull's older commit "
        "can have put that back"
    )
    assert found(pull(9, 0), ask(5, 20)) == [(LEAST, why, ["r0", "r1"])]
    assert found(update(9, 0), ask(0, 20))[0][0] == LEAST
    assert found(pull(8, 2), pull(9, 0), ask(5, 20))[0][2] == ["r0", "r2"]
    findings, _share, _gaps = judged_rows(rows_of(pull(9, 0), ask(5, 20)))
    (one,) = findings
    assert [(each["event"], each["request"]) for each in one.evidence] == [
        (kind, request) for request in ("r0", "r1") for kind in BOTH
    ]
    assert (one.topic, one.queue, one.request, one.property) == ("T", 0, "r1", "commit_never_regresses")
    assert (one.window_start_ms, one.window_end_ms) == (0, 31)


@pytest.mark.parametrize(
    "ones",
    [
        (pull(9, 0), ask(9, 20)),
        (pull(9, 0), ask(10, 20)),
        (pull(9, 0), ask(NONE, 20)),
        (pull(9, 0, 19), ask(5, 20)),
        (pull(9, 0, source="t"), ask(5, 20)),
        (open_(pull(9, 0)), ask(5, 20)),
        (pull(9, 0, code=1), ask(5, 20)),
        (update(9, 0, code=1), ask(5, 20)),
        (pull(9, 0, group="H"), ask(5, 20)),
        (pull(9, 0, topic="U"), ask(5, 20)),
        (pull(9, 0, queue=1), ask(5, 20)),
        (pull(9, 0, broker="c"), ask(5, 20)),
        (One(ASK, 9, 0, 10, fields={"commit_offset": 9}), ask(5, 20)),
        (pull(9, 0), open_(ask(5, 20))),
    ],
    ids=[
        *("as much", "more", "none", "answered meanwhile", "seen by another", "not answered", "not read", "refused"),
        *("another group", "another topic", "another queue", "another broker", "no commit", "no question"),
    ],
)
def test_what_was_not_certainly_committed_is_nothing_less(ones: tuple[One, ...]) -> None:
    """Before the question came, by this group, seen by the observer of the question."""
    assert says(LEAST, *ones) == []


@pytest.mark.parametrize("code", PULL_RESULTS)
def test_every_pull_that_was_read_has_committed(code: int) -> None:
    """With any offset; the answer comes just before the query, one of several."""
    assert says(LEAST, pull(9, 0, 18, code=code), ask(5, 20)) == [LEAST]
    assert says(LEAST, pull(9, 0), ask(9, 20), ask(5, 40), ask(6, 60)) == [LEAST] * 2


@pytest.mark.parametrize(
    ("excuse", "is_one"),
    [
        (update(5, 5), True),
        (update(4, 5), True),
        (update(6, 5), False),
        (update(5, 5, source="t"), True),
        (update(5, 41), True),
        (update(5, 42), False),
        (update(5, -20, 2), True),
        (update(5, -20, 1), False),
        (open_(update(5, -20)), True),
        (update(5, 5, code=1), True),
        (pull(5, 5), True),
        (pull(6, 5), False),
        (pull(5, -20, 12), False),
    ],
)
def test_a_commit_of_its_own_may_have_put_it_back(excuse: One, is_one: bool) -> None:
    """A commit of no more than the answer that began before it; a pull came later, an update ended later."""
    commit = One(PULL, 9, 3, 13)
    assert says(LEAST, commit, ask(5, 30, 40), excuse) == ([] if is_one else [LEAST])


# -- none, although there was one ------------------------------------------------------------------------------------


def test_a_group_that_is_told_that_it_has_none_is_found() -> None:
    """Some offset was committed or returned before."""
    none = "group 'G' was told that it has no offset, although"
    assert found(pull(9, 0), ask(NONE, 20)) == [(SOME, f"{none} 9 was committed before", ["r0", "r1"])]
    assert found(ask(9, 0), ask(NONE, 20)) == [(SOME, f"{none} it was told 9 before", ["r0", "r1"])]
    assert found(pull(9, 0), ask(9, 2, 12), ask(NONE, 20))[0][1:] == (f"{none} it was told 9 before", ["r1", "r2"])
    assert found(pull(9, 2, 3), pull(8, 10, 12), ask(NONE, 20))[0][2] == ["r1", "r2"]
    assert says(SOME, pull(0, 0), ask(NONE, 20)) == [SOME]
    assert says(SOME, ask(1, 0), ask(NONE, 20)) == [SOME]
    for ones in ((ask(0, 0), ask(NONE, 20)), (pull(9, 0), ask(0, 20)), (pull(9, 0, 19), ask(NONE, 20))):
        assert says(SOME, *ones) == []
    assert says(SOME, pull(9, 0), ask(NONE, 20, code=1)) == []


# -- more than can have been committed -------------------------------------------------------------------------------


def test_a_group_that_is_told_more_than_anybody_committed_is_found() -> None:
    """After a smaller answer or none; certain with that query, uncertain with only a commit."""
    more = "group 'G' was told offset 9, and no more than {} can have been committed"
    assert found(ask(5, 0), ask(9, 20)) == [(MOST, more.format(0) + " since it was told 5", ["r0", "r1"])]
    none = more.format(0) + " since it was told that it has none"
    assert found(ask(NONE, 0), ask(9, 20)) == [(MOST, none, ["r0", "r1"])]
    assert found(ask(5, 0), pull(7, 2), ask(9, 20))[0][1] == more.format(7) + " since it was told 5"
    assert found(ask(3, 0), ask(5, 2), ask(9, 20))[0][2] == ["r1", "r2"]
    begun = more.format(7) + ", but for what was committed before this record began"
    assert found(pull(7, 0), ask(9, 20)) == [(MOST + "?", begun, ["r0", "r1"])]
    assert found(pull(6, 0), pull(7, 2), ask(9, 20))[0][2] == ["r1", "r2"]
    assert found(ask(0, 0), ask(1, 20))[0][1].endswith("no more than 0 can have been committed since it was told 0")


@pytest.mark.parametrize(
    "ones",
    [
        (ask(9, 20),),
        (ask(9, 0), ask(9, 20)),
        (ask(10, 0), ask(9, 20)),
        (ask(5, 0), ask(0, 20)),
        (ask(NONE, 0), ask(0, 20)),
        (ask(5, 0), pull(9, 2), ask(9, 20)),
        (ask(5, 0), pull(10, 2), ask(9, 20)),
        (ask(5, 0), pull(9, 2, source="t"), ask(9, 20)),
        (ask(5, 0), pull(9, 31, 50), ask(9, 20)),
        (ask(5, 0), open_(pull(9, 2)), ask(9, 20)),
        (ask(5, 0), open_(update(9, 2)), ask(9, 20)),
        (ask(5, 0), pull(9, 2, code=1), ask(9, 20)),
        (ask(5, 0, 19), ask(9, 20)),
        (ask(5, 0, source="t"), ask(9, 20)),
        (ask(5, 0, code=1), ask(9, 20)),
    ],
)
def test_what_may_have_been_committed_is_nothing_more(ones: tuple[One, ...]) -> None:
    """Any commit until the query's answer counts; without a smaller answer before, the clause is undecided."""
    assert says(MOST, *ones) == []


@pytest.mark.parametrize("ones", [(pull(9, 32, 50),), (update(9, 2, code=1),), (pull(8, 2),), ()])
def test_what_cannot_have_been_committed_is_no_excuse(ones: tuple[One, ...]) -> None:
    """Begun after the answer, refused, or less."""
    assert says(MOST, ask(5, 0), *ones, ask(9, 20)) == [MOST]


# -- an offset that nobody wrote -------------------------------------------------------------------------------------


def test_an_offset_that_nobody_committed_since_another_was_there_is_found() -> None:
    """After another answer or explicit commit; a commit alone allows a reset before the record."""
    since = "group 'G' was told offset 6, which nobody can have committed since"
    one = {"asked_alone": frozenset({WRITTEN})}
    assert found(ask(5, 0), ask(6, 20), **one) == [(WRITTEN, f"{since} it was told 5", ["r0", "r1"])]
    assert found(ask(NONE, 0), ask(6, 20), **one) == [(WRITTEN, f"{since} it was told that it has none", ["r0", "r1"])]
    doubt = ", but for a reset before this record began"
    assert found(update(5, 0), ask(6, 20), **one) == [(WRITTEN + "?", f"{since} 5 was committed{doubt}", ["r0", "r1"])]
    assert found(ask(9, 0), update(5, 2), ask(6, 20), **one) == [
        (WRITTEN, f"{since} 5 was committed", ["r0", "r1", "r2"])
    ]
    assert found(ask(8, 0), ask(9, 2), update(5, 3), ask(6, 20), **one)[0][2] == ["r1", "r2", "r3"]
    assert found(update(5, 0), ask(9, 2), ask(6, 20), **one)[0][1:] == (f"{since} it was told 9", ["r1", "r2"])
    assert says(WRITTEN, ask(5, 0), ask(0, 20)) == says(WRITTEN, ask(0, 0), ask(6, 20)) == [WRITTEN]
    assert says(WRITTEN, ask(NONE, 0), ask(1, 20)) == [WRITTEN]
    # Who has none is told 0 as well, which is then no other offset.
    none = ask(NONE, 0), update(5, 12, 22), ask(0, 30)
    zero = "group 'G' was told offset 0, which nobody can have committed since 5 was committed"
    assert found(*none, **one) == [(WRITTEN + "?", f"{zero}{doubt}", ["r1", "r2"])]


@pytest.mark.parametrize(
    "ones",
    [
        (ask(6, 20),),
        (ask(6, 0), ask(6, 20)),
        (update(6, 0), ask(6, 20)),
        (ask(5, 0), ask(NONE, 20)),
        (ask(5, 0), pull(6, 2), ask(6, 20)),
        (ask(5, 0), pull(6, 2, source="t"), ask(6, 20)),
        (ask(5, 0), pull(6, 31, 50), ask(6, 20)),
        (ask(5, 10, 15), pull(6, -9, 9), ask(6, 20)),
        (ask(5, 0), open_(pull(6, 2)), ask(6, 20)),
        (ask(5, 0), ask(6, 2), ask(6, 20)),
        (ask(5, 0, 19), ask(6, 20)),
        (ask(5, 0, source="t"), ask(6, 20)),
        (update(5, 0, code=1), ask(6, 20)),
        (pull(5, 0), ask(6, 20)),
        (ask(NONE, 0), ask(0, 20)),
        (ask(5, 0), ask(NONE, 2), ask(0, 20)),
        (ask(5, 0), ask(NONE, 2, source="t"), ask(0, 20)),
        (ask(5, 0), open_(pull(0, 2)), ask(0, 20)),
    ],
)
def test_what_somebody_may_have_written_is_in_order(ones: tuple[One, ...]) -> None:
    """From any client, at any time since the other offset."""
    assert says(WRITTEN, *ones) == []


@pytest.mark.parametrize(
    "ones", [(pull(6, 32, 50),), (pull(6, -9, 8.9),), (update(6, 2, code=1),), (pull(7, 2),), (ask(NONE, 2),)]
)
def test_what_was_written_before_or_behind_is_no_excuse(ones: tuple[One, ...]) -> None:
    """Done before the other offset was asked for, begun after the answer, refused, or another offset."""
    assert says(WRITTEN, One(ASK, 5, 10, 15), *ones, ask(6, 20)) == [WRITTEN]


# -- resets ----------------------------------------------------------------------------------------------------------

DELETION_MS: Final = DELETION_NS // MS


@pytest.mark.parametrize(("clause", "told"), [(LEAST, 5), (SOME, NONE), (MOST, 12)], ids=["less", "none", "more"])
def test_a_reset_makes_what_was_before_it_unknown(clause: str, told: int | None) -> None:
    """For this group and topic or for all, begun before the answer; certain again after later events."""
    before = pull(9, 0) if clause != MOST else ask(9, 0)
    question = ask(told, 20)
    assert says(clause, before, question) == [clause]
    for code in (207, 215, 222, 314):
        assert says(clause, before, reset(code, 15), question) == []
        assert says(clause, before, reset(code, 31), question) == []
        assert says(clause, before, reset(code, 32), question) == [clause]
    for fields in ({"group": ""}, {"topic": ""}, {"broker": ""}):
        assert says(clause, before, reset(207, 15, **fields), question) == []
    for fields in ({"group": "H"}, {"topic": "U"}, {"broker": "c"}):
        assert says(clause, before, reset(207, 15, **fields), question) == [clause]


def test_a_deletion_takes_effect_within_its_time() -> None:
    """An offset that the broker sets stays so, and an unreliable clock bounds nothing."""
    late = DELETION_MS + 17
    after = pull(9, late), ask(5, late + 20)
    assert says(LEAST, reset(207, 15), *after) == [LEAST]
    assert says(LEAST, reset(215, 15), pull(9, late - 1), ask(5, late + 20)) == []
    assert says(LEAST, reset(222, 15), *after) == []
    assert says(LEAST, reset(207, 15), *after, settable=frozenset({"s"})) == []


def test_a_deletion_leaves_no_other_offset() -> None:
    """As by a reset: the returned offset was written by a client, except 0."""
    assert says(WRITTEN, ask(5, 0), reset(207, 15), ask(6, 20)) == [WRITTEN]
    assert says(WRITTEN, ask(5, 0), reset(207, 15), ask(0, 20)) == []
    assert says(WRITTEN, ask(5, 0), reset(222, 15), ask(6, 20)) == []
    at = DELETION_MS + 16
    assert says(WRITTEN, reset(207, 15), ask(5, at, at + 10), ask(0, at + 20)) == []
    assert says(WRITTEN, reset(207, 14), ask(5, at, at + 10), ask(0, at + 20)) == [WRITTEN]
    anew = {("b", "T", 0): holes((20, 30))}
    assert says(WRITTEN, update(9, 0), ask(9, 40), begun_anew=anew) == [WRITTEN + "?"]


# -- what is answered ------------------------------------------------------------------------------------------------


def test_a_code_that_no_broker_gives_is_found() -> None:
    """A query's and an update's, at any times."""
    why = "a request of code 14 was answered with code 19, which no broker gives to it"
    assert found(ask(NONE, 0, code=19)) == [(KNOWN, why, ["r0"])]
    assert says(KNOWN, ask(NONE, 0, code=16), ask(NONE, 20, code=22), ask(0, 40)) == []
    assert [clause for clause, _why, _shown in found(update(5, 0, code=22))] == [KNOWN]
    assert found(update(5, 0, code=26), pull(5, 20, code=9)) == []
    unsteady = {"sources": {"s": facts(is_steady=False)}}
    assert [clause for clause, _why, _shown in found(ask(NONE, 0, code=19), **unsteady)] == [KNOWN]
    assert found(evolve(ask(NONE, 0, code=19), request=""), reset(207, 5)) == []


ALLOWED: Final = UNHELD_MS + LATE_MS


@pytest.mark.parametrize("one", [ask(0, 0), update(5, 0)])
def test_an_answer_that_comes_late_is_found(one: One) -> None:
    """Certain if every choice of times is late."""
    why = f"a request of code {one.kind} was answered after {ALLOWED + 1}.000 ms (allowed {ALLOWED}.000 ms)"
    assert found(evolve(one, done=ALLOWED + 2)) == [(ANSWERED, why, ["r0"])]
    assert [name for name, *_ in found(evolve(one, done=ALLOWED + 1))] == [ANSWERED + "?"]
    assert [name for name, *_ in found(evolve(one, done=ALLOWED))] == [ANSWERED + "?"]
    assert found(evolve(one, done=ALLOWED - 1)) == []
    assert found(evolve(pull(5, 0), done=ALLOWED + 2)) == []


@pytest.mark.parametrize(
    ("known", "clause"),
    [
        ({}, ANSWERED),
        ({"settable": frozenset({"s"})}, ANSWERED + "?"),
        ({"settable": frozenset({"t"})}, ANSWERED),
        ({"sources": {"s": facts(is_steady=False)}}, ANSWERED + "?"),
        ({"unsteady_brokers": frozenset({"b"})}, ANSWERED),
        ({"broker_holes": {"b": holes((2_900, 2_901))}}, ANSWERED + "?"),
        ({"blocked": {("s", "c"): holes((9_000, 9_001))}}, ANSWERED),
        ({"blocked": {("s", "c"): holes((0, 1))}}, ANSWERED + "?"),
        ({"blocked": {("s", "d"): holes((0, 1))}}, ANSWERED),
        ({"inside": frozenset(), "sources": {"s": facts(holes=holes((1, 2)))}}, ANSWERED + "?"),
        ({"inside": frozenset({"s"}), "sources": {"s": facts(holes=holes((1, 2)))}}, ANSWERED),
        ({"inside": frozenset(), "sources": {"s": facts(holes=holes((9_000, 9_001)))}}, ANSWERED),
    ],
)
def test_an_answer_may_have_been_in_time(known: dict[str, Any], clause: str) -> None:
    """The broker did not read for a while, or no clock is reliable."""
    assert [name for name, *_ in found(One(ASK, 0, 0, 3_000), **known)] == [clause]


OUT: Final = 1 + ALLOWED
"""The latest answer to a request that came by 1."""


@pytest.mark.parametrize(
    ("known", "clause"),
    [
        ({}, [ANSWERED]),
        ({"sources": {"s": facts(OUT)}}, []),
        ({"sources": {"s": facts(OUT + 1)}}, [ANSWERED]),
        ({"closes": {("s", "c"): (ns(OUT), ns(OUT + 1))}}, []),
        ({"closes": {("s", "c"): (ns(OUT + 1), ns(OUT + 2))}}, [ANSWERED]),
        ({"closes": {("s", "d"): (ns(OUT), ns(OUT + 1))}}, [ANSWERED]),
        ({"closed_often": {("s", "c"): ((ns(-5), ns(-1)), (ns(9), ns(10)))}}, []),
        ({"closed_often": {("s", "c"): ((ns(-5), ns(-1)),)}}, [ANSWERED]),
        ({"broker_holes": {"b": holes((OUT, OUT + 9))}}, [ANSWERED + "?"]),
        ({"broker_holes": {"b": holes((OUT + 1, OUT + 9))}}, [ANSWERED]),
        ({"broker_holes": {"b": holes((-9, -1e-6))}}, [ANSWERED]),
        ({"broker_holes": {"b": holes((-9, 0))}}, [ANSWERED + "?"]),
        ({"blocked": {("s", "c"): holes((5, 6))}}, [ANSWERED + "?"]),
        ({"inside": frozenset(), "sources": {"s": facts(holes=holes((5, 6)))}}, [ANSWERED]),
    ],
)
def test_a_request_without_an_answer_is_found(known: dict[str, Any], clause: list[str]) -> None:
    """Its connection and its source lasted longer than the limit."""
    assert [name for name, *_ in found(One(ASK, None, 0), **known)] == clause


def test_what_was_never_answered_is_told() -> None:
    """With how long the history goes on; one-way requests wait for no answer."""
    why = f"never answered, although the history goes on for {LONG_MS - 1}.000 ms (allowed {ALLOWED}.000 ms)"
    assert found(One(UPDATE, 5, 0)) == [(ANSWERED, f"a request of code 15 was {why}", ["r0"])]
    assert found(evolve(One(UPDATE, 5, 0), request="")) == found(One(PULL, 5, 0)) == []


# -- what may be missing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "clause"),
    [
        ({"broker_holes": {"b": holes((-9_000, -UNHELD_MS - 1))}}, LEAST),
        ({"broker_holes": {"b": holes((-9_000, -UNHELD_MS))}}, LEAST + "?"),
        ({"broker_holes": {"b": holes((31, 40))}}, LEAST + "?"),
        ({"broker_holes": {"b": holes((32, 40))}}, LEAST),
        ({"broker_holes": {"c": holes((0, 40))}}, LEAST),
        ({"unsteady_brokers": frozenset({"b"})}, LEAST + "?"),
        ({"unsteady_brokers": frozenset({"c"})}, LEAST),
        ({"sources": {"s": facts(is_steady=False)}}, LEAST + "?"),
        ({"settable": frozenset({"s"})}, LEAST),
    ],
)
def test_what_is_missing_may_be_a_commit(known: dict[str, Any], clause: str) -> None:
    """A request some time before the first event, or until the last."""
    assert [name for name, *_ in found(pull(9, 0), ask(5, 20), **known)] == [clause]


def test_a_request_that_lacks_whose_offset_it_is_may_be_anybodys() -> None:
    """It makes what is around it unknown, and is counted as a gap."""
    near = DISORDER_NS // MS
    lacks: list[tuple[Row, list[str]]] = [
        ({"topic": ""}, ["unknown"]),
        ({"group": ""}, ["unknown"]),
        ({"commit_offset": -1}, []),
    ]
    for fields, verdicts in lacks:
        lacking = update(4, 60, **fields)
        findings, _share, gaps = judged_rows(rows_of(lacking, pull(9, 30), ask(5, 80)))
        assert [each.verdict for each in findings] == verdicts
        (name,) = fields
        assert gaps == [(f"request_received without {name}", 1)]
    lacking = update(4, 0, group="")
    for at, verdict in ((1 + near, "violated"), (near, "unknown")):
        ones = lacking, One(PULL, 9, at + UNHELD_MS + 1, at + UNHELD_MS + 2), ask(5, at + UNHELD_MS + 20)
        assert [each.verdict for each in judged_rows(rows_of(*ones))[0]] == [verdict]
    behind = ask(5, 20), update(4, 32 + near, group="")
    assert [each.verdict for each in judged_rows(rows_of(pull(9, 0), *behind))[0]] == ["violated"]
    known = context(broker_holes={"b": holes((25, 26))})
    assert judged_rows(rows_of(pull(9, 0), *behind), known=known)[0][0].verdict == "unknown"


def test_what_is_not_about_offsets_lacks_nothing() -> None:
    """A pull without a group, or a commit of no number with it."""
    assert judged_rows(rows_of(update(0, 0), ask(0, 20))) == ([], Share(1, 1), [])
    findings, share, gaps = judged_rows(rows_of(pull(9, 0, group=""), reset(207, 5, topic=""), pull(-1, 20)))
    assert (findings, share, gaps) == ([], Share(0, 0), [])


def test_a_success_that_tells_no_offset_is_a_gap() -> None:
    """The request is still answered; each query counts once, answered or not."""
    ones = One(ASK, -1, 0, 10), ask(3, 20), open_(ask(3, 40)), ask(NONE, 60), update(3, 80), One(ASK, -1, 100, 110, 22)
    findings, share, gaps = judged_rows(rows_of(*ones), known=context(sources={"s": facts(200)}))
    assert [each.clause for each in findings] == [SOME] * 1 + [SOME]
    assert (share, gaps) == (Share(4, 5), [("answer_sent without offset", 1)])


# -- joining ---------------------------------------------------------------------------------------------------------


def test_splits_are_one_history() -> None:
    """A request and its answer may be in two splits, and a source's number differs between splits."""
    rows = rows_of(pull(9, 0), ask(5, 20))
    for splits in ([rows[1:], rows[:1]], [rows[2:], rows[:2]], [[row] for row in reversed(rows)]):
        assert [each.clause for each in judged_rows(*splits)[0]] == [LEAST]
    assert judged_rows()[0] == judged_rows([])[0] == []


EARLIER: Final = [pull(5, -100 + 20 * number) for number in range(4)]


@pytest.mark.parametrize(
    ("ones", "order", "clause"),
    [
        ([pull(5, -20), ask(5, 20), pull(9, 0)], range(6), LEAST),
        ([pull(5, -20), pull(9, 0), ask(5, 20)], [0, 1, 3, 2, 4, 5], LEAST),
        ([open_(ask(3, 0)), *(update(3, 20 * number) for number in range(1, 6))], range(11), ANSWERED),
        ([pull(9, 0), *EARLIER, ask(5, 20)], range(12), LEAST),
        ([update(3, 0), *EARLIER, ask(5, 20)], range(12), WRITTEN),
    ],
)
def test_events_of_other_splits_are_remembered(ones: list[One], order: Iterable[int], clause: str) -> None:
    """Each event is in a split alone, and in this order."""
    rows = rows_of(*ones)
    assert [each.clause for each in judged_rows(*([rows[place]] for place in order))[0]] == [clause]


@pytest.mark.parametrize("named", [{"queue": 1}, {"topic": "U"}, {"topic": "U", "queue": -1}, {"topic": ""}, {}])
def test_a_query_is_judged_only_by_its_own_answer(named: Row) -> None:
    """Not by one that names another queue, nor where its identifier came twice."""
    *rows, answer = rows_of(update(9, 0), ask(9, 20))
    again = [] if named else [event("request_received", 50, request="r1", code=34)]
    assert judged_rows([*rows, answer | named, *again])[:2] == ([], Share(0, 1))


def test_all_groups_count_among_the_refusals() -> None:
    """Also those whose queries are clear."""
    asked = [ask(9, 20 * number) for number in range(1, 100)]
    refusals = [ask(NONE, 0, code=1, group="H")] * REFUSED_LEAST
    assert judged_rows(rows_of(update(9, 0), *asked, *refusals)) == ([], Share(109, 109), [])


def test_answers_are_those_of_the_same_observer() -> None:
    """Two requests may share a name; a request without a name has no answer."""
    rows = rows_of(pull(9, 0), ask(5, 20))
    other = [row | {"source": "t"} for row in rows if row["event"] == "answer_sent"]
    for without in (rows[0], rows[2]):
        assert [each.clause for each in judged_rows([*other, without])[0]] != [LEAST]
    nameless = [row | {"request": ""} if row["request"] == "r0" else row for row in rows]
    assert LEAST not in [each.clause for each in judged_rows(nameless)[0]]


def test_several_groups_are_told_apart() -> None:
    """Queries and explicit commits, in the order of their requests; nothing else is checked."""
    ones = [
        one
        for group in ("H", "G", "I")
        for one in (pull(9, 0, group=group), ask(5 if group != "I" else 9, 20, group=group))
    ]
    told = [why.split("'")[1] for _clause, why, _shown in found(*ones, pull(4, 0, group="J"))]
    assert sorted(told) == ["G", "H"]
    assert found(ask(5, 20, group="x" * 100), pull(9, 0, group="x" * 100))[0][1].startswith(f"group '{'x' * 80}' was")
    (unplaced,) = judged_rows(rows_of(pull(9, 0, queue=-1), ask(5, 20, queue=-1)))[0]
    assert (unplaced.clause, unplaced.queue) == (LEAST, -1)
    for lacking, name in ((update(9, 0, queue=-1), "queue"), (update(-1, 0), "commit_offset")):
        assert judged_rows(rows_of(lacking))[2] == [(f"request_received without {name}", 1)]
    assert found(pull(9, 0, group=""), ask(5, 20, group=""), sources={"s": facts(50)}) == []
