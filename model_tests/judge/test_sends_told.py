"""Sends, their acknowledgements and what was stored, by themselves: each clause on either side of its limits."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import pytest
from model_tests.judge.one_queue import LONG_MS, Moment, Row, context, event, facts, holes, ns
from model_tests.support.judge.histories import halves, table_of

from longpoll_judge.contract.clause import SEND_MS, SHOWN_MS
from longpoll_judge.contract.result import Finding, Gap, Share
from longpoll_judge.evidence.survey import Context
from longpoll_judge.rules.sends import FINDINGS_MAX, judge_sends
from longpoll_judge.run.wide_pulls import judge_suspected

AFTER, CONNECTION, OPEN, ONCE, PLACE_, APPENDED, TAG = (
    f"send.acknowledged.{name}"
    for name in ("after_request", "same_connection", "open_connection", "once", "place", "appended", "tag")
)
ORDER, ANSWERED, DELIVERED, SHOWN = "send.sequential", "send.answered", "send.delivered.after_request", "send.shown"


def send(at: Moment, request: str = "r", **fields: Any) -> Row:
    """A send comes."""
    return event("request_received", at, request=request, **({"code": 10} | fields))


def acked(at: Moment, queue_offset: int = 0, request: str = "r", **fields: Any) -> Row:
    """Its message is acknowledged."""
    return event("message_acknowledged", at, request=request, queue_offset=queue_offset, **fields)


def refused(at: Moment, request: str = "r", **fields: Any) -> Row:
    """It is answered without being stored, or another request is."""
    return event("answer_sent", at, request=request, **({"code": 14} | fields))


def appended(at: Moment, queue_offset: int = 0, **fields: Any) -> Row:
    """A message is in the log."""
    return event("append", at, queue_offset=queue_offset, **fields)


def visible(at: Moment, end: int, **fields: Any) -> Row:
    """A queue's visible end."""
    return event("make_visible", at, visible_end=end, **fields)


def delivered(at: Moment, *offsets: int, request: str = "p", **fields: Any) -> Row:
    """A pull's answer with messages."""
    ends = {"code": 0, "offset_min": 0, "offset_max": 99, "offset_next": 99}
    return event("answer_sent", at, request=request, offsets=list(offsets), **(ends | fields))


def judged(*splits: Sequence[Row], known: Context | None = None) -> tuple[list[Finding], int, Share, list[Gap]]:
    """The findings about these splits; leaving out queues that are clear changes none, whatever the size of a split."""
    known = context() if known is None else known
    tables = [table_of(list(rows)) for rows in splits]
    whole = judge_sends(partial(enumerate, tables), known)
    for each in (tables, halves(tables)):
        suspected = judge_suspected(partial(enumerate, each), known)
        assert (suspected.findings, suspected.left_out, suspected.share, suspected.gaps) == whole
    return whole


def found(*rows: Row, **known: Any) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """Each finding: its clause, with a `?` where it is not certain, its words, and what it shows."""
    findings, left_out, _share, _unasked = judged(rows, known=context(**known))
    assert left_out == 0
    assert {each.property for each in findings} <= {"send_is_kept"}
    return [
        (
            each.clause + "?" * (each.verdict == "unknown"),
            each.why,
            [(shown["event"], shown.get("request", "")) for shown in each.evidence],
        )
        for each in findings
    ]


def clauses(*rows: Row, **known: Any) -> list[str]:
    """The clauses alone."""
    return [clause for clause, _why, _shown in found(*rows, **known)]


# -- a send and its acknowledgement ----------------------------------------------------------------------------------


def test_a_send_that_is_acknowledged_is_in_order() -> None:
    """Also with what it stored, what was shown, and who got it; of no events nothing is said."""
    rows = send(0), acked(5, tag="a"), appended(1, tag="a"), visible(2, 1), delivered(3, 0)
    assert judged(rows) == ([], 0, Share(1, 1), [])
    assert judged([]) == ([], 0, Share(0, 0), [])


def test_an_acknowledgement_before_its_send_is_found() -> None:
    """Certain only where its last moment lies before the send's first."""
    assert found(send((5, 9)), acked((1, 4))) == [
        (
            AFTER,
            "a message was acknowledged before its send came (queue offset 0)",
            [("message_acknowledged", "r"), ("request_received", "r")],
        )
    ]
    assert clauses(send((5, 9)), acked((1, 5))) == []


def test_an_acknowledgement_on_another_connection_is_found() -> None:
    """Where both are told."""
    assert found(send(0, connection="c"), acked(1, connection="d"))[0][:2] == (
        CONNECTION,
        "a message was acknowledged on another connection than its send came on (queue offset 0)",
    )
    assert clauses(send(0, connection="c"), acked(1, connection="")) == []
    assert clauses(send(0, connection=""), acked(1, connection="c")) == []


def test_a_later_send_with_a_lower_offset_is_found() -> None:
    """Both exchanges are shown, and the cause is reported once."""
    rows = send(0, "a"), acked((1, 2), 7, "a"), send((3, 4), "b"), acked(5, 6, "b")
    why = "a message that was sent after another one was acknowledged has the lower queue offset (queue offset 6)"
    shown = [(kind, request) for request in "ab" for kind in ("request_received", "message_acknowledged")]
    assert found(*rows) == [(ORDER, why, shown)]
    assert clauses(*rows, send(6, "d"), acked(7, 3, "d")) == [ORDER]
    assert clauses(send(0, "a"), acked((1, 3), 7, "a"), send((3, 4), "b"), acked(5, 6, "b")) == []
    assert clauses(send(0, "a"), acked(2, 7, "a"), send(3, "b"), acked(5, 7, "b")) == []
    assert clauses(send(0, "a"), acked(2, 7, "a"), send(3, "b"), acked(5, 6, "b", queue=1)) == [PLACE_]
    assert clauses(send(0, "a"), acked(2, 7, "a"), send(3, "b", queue=1), acked(5, 6, "b", queue=1)) == []


@pytest.mark.parametrize("code", [10, 11])
def test_of_an_identifier_that_came_twice_nobody_knows_which_was_acknowledged(code: int) -> None:
    again, late = send(20, "a", code=code), send(5, "a")
    for rows in ([late, again], [again, late]):
        assert clauses(*rows, acked(2, 7, "a")) == []
        assert clauses(*rows, acked(6, 7, "a"), send(8, "b"), acked(9, 6, "b")) == []
        assert clauses(send(0, "b"), acked(1, 7, "b"), *rows, acked(6, 6, "a")) == []
        assert clauses(*rows, acked(6, 7, "a"), delivered(1, 7)) == []
    assert clauses(late, acked(2, 7, "a")) == [AFTER]
    assert clauses(late, acked(6, 7, "a"), delivered(1, 7)) == [DELIVERED]


def some_sends(dice: random.Random) -> list[Row]:
    """Sends to two queues with what becomes of them, much of it wrong, and identifiers that come again."""
    rows: list[Row] = []
    for number, at in enumerate(itertools.accumulate(dice.choices([0, 1, 2, 5], k=12))):
        name, queue = f"r{number if dice.random() < 0.9 else 0}", dice.choice([0, 1])
        place = max(number // 2 + dice.choice([0] * 4 + [1, -1]), 0)
        rows += [send((at, at + dice.choice([0, 2])), name, queue=queue)] * (dice.random() < 0.95)
        rows += [acked(at + dice.choice([-9, 1, 2, 9]), place, name, queue=queue)] * (dice.random() < 0.9)
        rows += [refused(at + 2, name), refused(at + 3, name)] * (dice.random() < 0.1)
        rows += [delivered(at + dice.choice([-2, 4]), place, place + 1, request=f"p{number}", queue=queue)]
        rows += [appended(at + number / 100, place, queue=queue)] * (dice.random() < 0.3)
    return [row | {"sequence": number} for number, row in enumerate(rows)]


@pytest.mark.parametrize("seed", range(9))
def test_what_is_found_does_not_hang_on_the_order_of_the_events(seed: int) -> None:
    """However they are shuffled and cut into splits: the same clauses, words and events."""
    dice = random.Random(seed)
    rows = some_sends(dice)
    told = []
    for _time in range(4):
        cut = dice.randrange(len(rows))
        findings, *others = judged(rows[:cut], rows[cut:])
        words = sorted(str((each.clause, each.verdict, each.why, each.evidence)) for each in findings)
        told.append((words, others))
        dice.shuffle(rows)

    assert told[0][0]
    assert told[1:] == told[:1] * 3


def test_a_deletion_in_between_begins_the_offsets_anew() -> None:
    """Then a lower one is another life's."""
    rows = send(0, "a"), acked(2, 7, "a"), send(20, "b"), acked(25, 6, "b")
    assert clauses(*rows, deleted={("b", "T"): holes((8, 10))}) == []
    unnamed = rows[0], rows[1], rows[2] | {"broker": ""}, rows[3]
    assert clauses(*unnamed, deleted={("b", "T"): holes((8, 10))}) == []
    assert clauses(*rows, deleted={("b", "U"): holes((8, 10))}) == [ORDER]


def test_an_acknowledgement_on_a_closed_connection_is_found() -> None:
    """Closed certainly before it was sent."""
    closes = {("s", "c"): (ns(3), ns(4))}
    why = "a message was acknowledged on a connection that was closed before (queue offset 0)"
    assert found(send(0), acked((5, 6)), closes=closes) == [
        (OPEN, why, [("request_received", "r"), ("message_acknowledged", "r")])
    ]
    assert clauses(send(0), acked((4, 6)), closes=closes) == []
    assert clauses(send(0), acked((5, 6)), closes={("s", "d"): (ns(3), ns(4))}) == []
    assert clauses(send(0), acked((5, 6)), closes={("t", "c"): (ns(3), ns(4))}) == []
    assert clauses(send(0), acked((5, 6)), closes={("s", "c"): (ns(0), ns(0))}) == [OPEN]
    assert clauses(send(0), acked((5, 6)), closes={("s", "c"): (ns(-2), ns(-1))}) == []


@pytest.mark.parametrize(
    ("connection", "last", "clause"),
    [
        (("s", "c"), (3, 4), [OPEN]),
        (("s", "c"), (0, 0), [OPEN]),
        (("s", "c"), (3, 5), []),
        (("s", "c"), (3, 7), []),
        (("s", "c"), (-4, -1), []),
        (("t", "c"), (3, 4), []),
        (("s", "d"), (3, 4), []),
    ],
)
def test_an_acknowledgement_between_two_closes_is_found(
    connection: tuple[str, str], last: tuple[int, int], clause: list[str]
) -> None:
    """Where the connection that the send came on certainly closed before; not by what was closed before the send."""
    often = {connection: ((ns(-9), ns(-5)), (ns(last[0]), ns(last[1])))}
    assert clauses(send(0), acked((5, 6)), closed_often=often) == clause


def test_a_second_acknowledgement_is_found() -> None:
    why = "a send was answered once more after it was answered (queue offset 1)"
    shown = [("request_received", "r"), ("message_acknowledged", "r"), ("message_acknowledged", "r")]
    assert found(send(0), acked((1, 2), 0), acked((3, 4), 1)) == [(ONCE, why, shown)]
    assert clauses(send(0), acked((1, 3), 0), acked((3, 4), 1)) == []
    assert clauses(send(0), acked(1, 0), acked(3, 1), acked(5, 2)) == [ONCE]
    assert found(send(0), acked(1), refused(2)) == [
        (ONCE, why.replace("set 1", "set 0"), [shown[0], shown[1], ("answer_sent", "r")])
    ]
    assert clauses(send(0), acked(1), delivered(2, request="r")) == []
    assert clauses(send(0), acked(1), refused(2, "")) == []
    other = send(0, "o"), acked(1, 0, "o")
    ((_clause, _why, evidence),) = found(*other, send(0), acked(1, 1), refused(2))
    assert {request for _event, request in evidence} == {"r"}
    twice = send(0), send(0), acked(1, 0), acked(3, 1)
    assert clauses(*twice) == []


def test_an_acknowledgement_in_another_place_is_found() -> None:
    why = "a message was acknowledged in another queue than it was sent to (queue offset 0)"
    assert found(send(0), acked(1, queue=1))[0][:2] == (PLACE_, why)
    assert clauses(send(0), acked(1, topic="U")) == [PLACE_]
    assert clauses(send(0, queue=-1), acked(1)) == []
    assert clauses(send(0, topic=""), acked(1, queue=1)) == []
    for own in ("%RETRY%G", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer", "TRANS_CHECK_X"):
        assert clauses(send(0), acked(1, topic=own, queue=3)) == []
    assert clauses(send(0), acked(1, topic="RMQ_OTHER", queue=3)) == [PLACE_]


# -- sends without an answer -----------------------------------------------------------------------------------------

DUE: Final = 5 + SEND_MS
"""Until when a send that came by 5 is answered."""


@pytest.mark.parametrize(
    ("rows", "known", "clause"),
    [
        ((), {}, [ANSWERED]),
        ((acked(LONG_MS),), {}, [ANSWERED + "?"]),
        ((refused(LONG_MS),), {}, []),
        ((refused(9, "x"),), {}, [ANSWERED]),
        ((), {"sources": {"s": facts(DUE)}}, []),
        ((), {"sources": {"s": facts(DUE + 1)}}, [ANSWERED]),
        ((), {"sources": {"s": facts(DUE), "t": facts()}}, []),
        ((acked(9, request="", queue=1),), {}, []),
        ((acked(9, request="", queue=1, source="t"),), {}, [ANSWERED]),
        ((), {"closes": {("s", "c"): (ns(DUE), ns(DUE + 9))}}, []),
        ((), {"closes": {("s", "c"): (ns(DUE + 1), ns(DUE + 9))}}, [ANSWERED]),
        ((), {"closes": {("s", "d"): (ns(DUE), ns(DUE + 9))}}, [ANSWERED]),
        ((), {"closes": {("s", "c"): (ns(-9), ns(-1))}}, [ANSWERED]),
        ((), {"closes": {("s", "c"): (ns(-9), ns(0))}}, []),
        ((), {"sources": {"s": facts(holes=holes((-5, -1)))}}, [ANSWERED]),
        ((), {"sources": {"s": facts(holes=holes((-5, 0)))}}, [ANSWERED + "?"]),
        ((), {"sources": {"s": facts(holes=holes((DUE, DUE + 1)))}}, [ANSWERED + "?"]),
        ((), {"sources": {"s": facts(holes=holes((DUE + 1, DUE + 2)))}}, [ANSWERED]),
        ((), {"sources": {"s": facts(), "t": facts(holes=holes((0, 9)))}}, [ANSWERED]),
        ((), {"settable": frozenset({"s"})}, [ANSWERED + "?"]),
        ((), {"settable": frozenset({"t"})}, [ANSWERED]),
        ((), {"blocked": {("s", "c"): holes((DUE, DUE + 9))}}, [ANSWERED + "?"]),
        ((), {"blocked": {("s", "c"): holes((DUE + 1, DUE + 9))}}, [ANSWERED]),
        ((), {"blocked": {("s", "d"): holes((0, DUE))}}, [ANSWERED]),
        ((), {"blocked": {("t", "c"): holes((0, DUE))}}, [ANSWERED]),
        ((), {"closed_often": {("s", "c"): ((ns(-9), ns(-1)), (ns(DUE + 1), ns(DUE + 2)))}}, [ANSWERED]),
        ((), {"closed_often": {("s", "c"): ((ns(-9), ns(0)), (ns(DUE + 1), ns(DUE + 2)))}}, []),
        ((), {"closed_often": {("s", "c"): ((ns(-9), ns(-1)), (ns(DUE), ns(DUE + 2)))}}, []),
        ((), {"closed_often": {("t", "c"): ((ns(0), ns(1)),)}}, [ANSWERED]),
        ((), {"closed_often": {("s", "d"): ((ns(0), ns(1)),)}}, [ANSWERED]),
        ((), {"sources": {"s": facts(is_steady=False)}}, [ANSWERED + "?"]),
    ],
)
def test_a_send_that_nobody_answers_is_found(rows: tuple[Row, ...], known: dict[str, Any], clause: list[str]) -> None:
    assert clauses(send((0, 5)), *rows, **known) == clause


def test_what_was_not_answered_is_told() -> None:
    """The send alone; a send without a name, and another request, are none."""
    why = f"a send was neither acknowledged nor refused within {SEND_MS} ms"
    assert found(send(0)) == [(ANSWERED, why, [("request_received", "r")])]
    assert clauses(send(0, "")) == clauses(send(0, code=11)) == []
    assert clauses(send(0, code=310), send(0, "q", code=320)) == [ANSWERED] * 2


# -- delivered before it was sent ------------------------------------------------------------------------------------


def test_a_message_delivered_before_its_send_is_found() -> None:
    rows = send((5, 6)), acked(9, 3), delivered((1, 4), 2, 3)
    shown = [("answer_sent", "p"), ("request_received", "r"), ("message_acknowledged", "r")]
    ((clause, said, evidence),) = found(*rows)
    assert (clause, evidence) == (DELIVERED, shown)
    assert said.startswith("a message was delivered before its send came")
    assert clauses(*rows, delivered((1, 4), 3, request="q")) == [DELIVERED]
    assert clauses(send((5, 6)), acked(9, 3), delivered((1, 5), 3)) == []
    assert clauses(send((5, 6)), acked(9, 3), delivered((1, 4), 4)) == []
    assert clauses(send((5, 6)), acked(9, 3), delivered((1, 4), 3, queue=1)) == []
    assert clauses(send((5, 6)), acked(9, 3), delivered((1, 4), 3, offset_min=-1, request="")) == []
    assert clauses(send((5, 6)), acked(9, 3), delivered((1, 4), 3, code=19)) == []
    other = send(0, queue=1), acked(1, 3, queue=1), send((5, 6), "a"), acked(9, 3, "a")
    assert clauses(*other, delivered((1, 4), 3)) == [DELIVERED]
    assert clauses(*other, delivered((1, 4), 3, request="r")) == []
    assert clauses(acked(9, 3), delivered((1, 4), 3)) == []
    pull = event("request_received", 0, request="p", code=11)
    assert clauses(*rows, pull) == [DELIVERED]
    assert clauses(*rows, pull | {"queue": 1}) == []


def test_each_message_of_an_answer_is_looked_at() -> None:
    """Of several answers, in one split and in several, with bodies of any size."""
    answers = [delivered(1, 5, 6, request="p"), delivered(1, request="q"), delivered(1, 7, 8, 9, request="u")]
    sent = [row for number in (3, 6, 8) for row in (send(5, f"r{number}"), acked((8, 9), number, f"r{number}"))]
    for splits in ([sent, answers], [sent + answers], [answers[:1], answers[1:], sent]):
        findings, *_others = judged(*splits)
        offsets = [next(each["queue_offset"] for each in one.evidence if "queue_offset" in each) for one in findings]
        assert list(zip((one.request for one in findings), offsets, strict=True)) == [("p", 6), ("u", 8)]
        assert {one.clause for one in findings} == {DELIVERED}


def test_of_two_sends_with_one_offset_the_first_is_meant() -> None:
    sent = send(0, "a"), acked(9, 3, "a"), send(5, "b"), acked(9, 3, "b")
    assert clauses(*sent, delivered(2, 3)) == []
    assert clauses(*sent[2:], *sent[:2], delivered(2, 3)) == []


def test_a_queue_that_began_anew_in_between_has_other_messages() -> None:
    rows = send((5, 6)), acked(9, 3), delivered((1, 4), 3)
    assert clauses(*rows, deleted={("b", "T"): holes((9, 12))}) == []
    assert clauses(*rows, deleted={("b", "T"): holes((10, 12))}) == [DELIVERED]
    assert clauses(*rows, deleted={("b", "T"): holes((-3, 0))}) == [DELIVERED]
    assert clauses(*rows, deleted={("b", "U"): holes((2, 8))}) == [DELIVERED]


# -- acknowledged and appended ---------------------------------------------------------------------------------------


def test_an_acknowledged_message_that_was_not_appended_is_found() -> None:
    """Only of sources that tell appends, and of a message that certainly came later."""
    why = "a message was acknowledged with a place at which none was appended (queue offset 3)"
    rows = send(0), acked((8, 9), 3), appended(2, 2)
    assert found(*rows) == [(APPENDED, why, [("request_received", "r"), ("message_acknowledged", "r")][1:])]
    assert clauses(*rows[:2]) == clauses(*rows[:2], appended(2, 2, source="t")) == []
    assert clauses(send(0), acked((8, 9), 3), appended((9, 10), 3)) == []
    late = found(send(0), acked((8, 9), 3), appended((10, 11), 3))
    assert late == [(APPENDED, why, [("message_acknowledged", "r"), ("append", "")])]
    assert clauses(send(0), acked((8, 9), 3), appended((10, 11), 3), appended((2, 3), 3)) == []


@pytest.mark.parametrize(
    ("hole", "clause"),
    [((-9, -1), APPENDED), ((-9, 4), APPENDED + "?"), ((9, 20), APPENDED + "?"), ((10, 20), APPENDED)],
)
def test_an_append_may_be_what_is_missing(hole: tuple[float, float], clause: str) -> None:
    """Where the record has a hole between the send and its acknowledgement."""
    rows = send((0, 1)), acked((8, 9), 3), appended(2, 2)
    assert clauses(*rows, sources={"s": facts(holes=holes(hole))}) == [clause]
    assert clauses(*rows, sources={"s": facts(), "t": facts(holes=holes(hole))}) == [APPENDED]


def test_of_a_send_that_is_not_known_any_hole_before_counts() -> None:
    """Its identifier came twice, or not at all."""
    known = {"sources": {"s": facts(holes=holes((-9, -8)))}}
    assert clauses(acked((8, 9), 3), appended(2, 2), **known) == [APPENDED + "?"]
    assert clauses(send(0), acked((8, 9), 3), appended(2, 2), **known) == [APPENDED]
    assert clauses(send(0), send(0), acked((8, 9), 3), appended(2, 2), **known) == [APPENDED + "?"]


def test_an_acknowledged_message_with_another_tag_is_found() -> None:
    """Than was appended at its place in the same life of the queue."""
    why = "a message was acknowledged with another tag than was appended (queue offset 3)"
    rows = send(0), acked((8, 9), 3, tag="a"), appended(2, 3, tag="b")
    assert found(*rows) == [(TAG, why, [("append", ""), ("message_acknowledged", "r")])]
    assert clauses(*rows, appended(3, 3, tag="a")) == []
    assert clauses(send(0), acked(8, 3, tag="a"), appended(2, 3, tag="a"), appended(2, 4, tag="b")) == []
    assert clauses(send(0), acked(8, 3, tag="a"), appended(2, 3, tag="b", queue=1)) == [APPENDED]
    known = {"deleted": {("b", "T"): holes((4, 6))}}
    assert clauses(*rows, **known) == []
    assert clauses(*rows, deleted={("b", "T"): holes((2, 3))}) == []
    assert clauses(*rows, deleted={("b", "T"): holes((20, 30))}) == [TAG]
    assert clauses(*rows, deleted={("b", "T"): holes((8, 12))}) == []


# -- shown -----------------------------------------------------------------------------------------------------------


def test_an_acknowledged_message_that_is_not_shown_is_found() -> None:
    rows = send(0), acked(5, 3), visible(2, 3), appended(1, 3)
    why = f"a message was acknowledged, and not visible {SHOWN_MS} ms later (queue offset 3)"
    assert found(*rows) == [(SHOWN, why, [("append", ""), ("make_visible", ""), ("message_acknowledged", "r")])]
    assert clauses(*rows, settable=frozenset({"s"})) == [SHOWN + "?"]
    assert clauses(*rows, visible(6, 4)) == []
    assert clauses(*rows, appended(1, 3, queue=1), visible(2, 3, queue=1)) == [SHOWN, SHOWN + "?"]


def test_an_appended_message_that_is_not_shown_is_doubted() -> None:
    why = f"a message was appended, and not visible {SHOWN_MS} ms later (queue offset 3)"
    assert found(appended(1, 3), visible(2, 3)) == [(SHOWN + "?", why, [("append", ""), ("make_visible", "")])]


def test_what_lacks_its_place_says_nothing() -> None:
    """Without a topic, a queue, an offset or an end an event is damage."""
    lacking: list[Row] = [{"topic": ""}, {"queue": -1}]
    for fields in lacking:
        assert clauses(acked(5, 3, request="", **fields), appended(1, 2, **fields), visible(2, 3, **fields)) == []
    assert clauses(appended(1, -1), visible(2, 0)) == []
    assert clauses(appended(1, 0), visible(2, -1)) == []
    assert clauses(acked(5, -1, request=""), appended(1, 0), visible(2, 1)) == []
    assert clauses(appended(1, 0), visible(2, 0)) == [SHOWN + "?"]


# -- findings --------------------------------------------------------------------------------------------------------


def test_only_so_many_of_a_clause_are_listed() -> None:
    """The earliest, the others are counted."""
    rows = [send(1_000 - number, f"r{number}") for number in range(FINDINGS_MAX + 3)]
    findings, left_out, _share, _unasked = judged(rows)
    assert (len(findings), left_out) == (FINDINGS_MAX, 3)
    assert [each.request for each in findings] == [f"r{number}" for number in range(FINDINGS_MAX + 2, 2, -1)]


def test_how_many_were_acknowledged_is_told() -> None:
    """Of all that are known of; and how many acknowledgements name a send that is not there."""
    rows = [send(0, "a"), acked(1, 0, "a"), acked(2, 1, "a"), send(0, "b"), acked(3, 2, "lost")]
    rows += [acked(4, offset, "") for offset in (3, 4)]
    _findings, _left_out, share, unasked = judged(rows)
    assert (share, [gap.count for gap in unasked]) == (Share(1, 3), [1])
    _findings, _left_out, share, unasked = judged([acked(1, 0, "a"), acked(1, 1, "b")])
    assert (share, unasked) == (Share(0, 2), [])
    _findings, _left_out, share, unasked = judged([send(0, "a"), acked(1, 1, "b", source="t")])
    assert (share, unasked) == (Share(0, 1), [])


def test_a_clause_without_moments_is_certain_whatever_the_clocks_say() -> None:
    """Of a source whose moments order nothing; those of a log only where the queue has one life."""
    known = {"sources": {"s": facts(is_steady=False)}}
    assert clauses(send(0), acked(1, connection="d"), **known) == [CONNECTION]
    assert clauses(send((5, 9)), acked((1, 4)), **known) == [AFTER + "?"]
    other = send(0), acked((8, 9), 3, tag="a"), appended(2, 3, tag="b")
    for deleted, clause in (
        ({}, TAG),
        ({("b", "U"): holes((90, 91))}, TAG),
        ({("b", "T"): holes((90, 91))}, TAG + "?"),
    ):
        assert clauses(*other, **known, deleted=deleted) == [clause]


def test_evidence_is_each_event_once_in_the_order_of_time() -> None:
    """With the offsets of its messages."""
    rows = send(0, "a"), acked(2, 7, "a"), send(3, "b"), acked(5, 6, "b")
    (finding,), *_others = judged(rows)
    assert [event["after_ns"] for event in finding.evidence] == [ns(0), ns(2), ns(3), ns(5)]
    assert (finding.request, finding.topic, finding.queue, finding.messages) == ("b", "T", 0, [7, 6])


def test_a_torn_batch_is_found() -> None:
    """Unless what lies in between may be missing from the record."""
    rows = send(0), acked(5, 0), acked(5, 2)
    assert clauses(*rows) == ["send.batch.gapless"]
    assert clauses(*rows, sources={"s": facts(holes=holes((1, 2)))}) == ["send.batch.gapless?"]
    assert clauses(send(0), acked(5, 0), acked(5, 1)) == []


def test_a_batch_is_held_against_nobody_where_its_list_does_not_tell() -> None:
    """An id of 0 or one that comes again has no place in the list; an identifier that came again is of two lists."""

    def of_batch(listed: Sequence[int], stored: Sequence[int], *more: Row) -> list[str]:
        told = [acked(5, at, ids=[one] if one else []) for at, one in enumerate(stored)]
        findings, *_rest = judged([send(0, code=320, ids=list(listed)), *more, *told])
        return [one.clause for one in findings if one.property == "send_is_kept"]

    assert of_batch([1, 2, 3], [2, 1, 3]) == of_batch([1, 2, 3], [1, 2]) == ["send.batch.gapless"]
    for listed in ([1, 2, 1], [1, 0, 2], [0, 0]):
        assert of_batch(listed, listed) == []
    assert of_batch([1, 2], [1, 2], send(1, ids=[4, 5])) == []
    first = send(0, "a", ids=[8, 9]), acked(1, 7, "a", ids=[8]), acked(1, 8, "a", ids=[9])
    assert of_batch([1, 2], [2, 1], *first) == ["send.batch.gapless"]


@pytest.mark.parametrize(
    ("rows", "is_doubted"),
    [
        ([refused(5, code=2)], True),
        ([refused(5, code=1)], False),
        ([refused(5, code=14)], False),
        ([refused(5, code=2), send(1, code=11)], False),
        ([refused(5, code=2), acked(5, ids=[1])], False),
    ],
)
def test_only_a_refusal_that_certainly_stored_nothing_forbids_a_delivery(rows: list[Row], is_doubted: bool) -> None:
    findings, *_rest = judged([send(0, ids=[1]), *rows, delivered(9, 0, ids=[1])])
    assert ("message.committed" in {one.clause for one in findings}) == is_doubted


def test_a_prepared_message_waits_for_a_commit() -> None:
    """Whether or not the commit names its broker."""

    def are_found(outcome: str, broker: str, at: Moment = 3) -> bool:
        end = event("request_received", at, code=37, ids=[1], transaction=outcome, broker=broker)
        findings, *_rest = judged([send(0, ids=[1], transaction="prepared"), end, delivered(9, 0, ids=[1])])
        return "message.committed" in {one.clause for one in findings}

    assert are_found("commit", "b", 12)
    assert [are_found(outcome, broker) for outcome in ("commit", "rollback") for broker in ("b", "")] == [
        *(False, False),
        *(True, True),
    ]


@pytest.mark.parametrize("fields", [{"transaction": "prepared"}, {"delay_ms": 5_000}, {"delay_level": 5}])
def test_a_send_without_a_name_says_what_becomes_of_its_message(fields: Row) -> None:
    """Its transaction and its delay are of the message, not of the exchange."""
    identity: Row = {"ids": [1], "bodies": [1]}
    findings, *_rest = judged([send(0, "", **identity, **fields), delivered(9, 0, **identity)])
    assert [one.property for one in findings] == ["message_is_delivered"]


def test_observations_are_not_left_out() -> None:
    """However many of a kind there are, only findings are counted."""
    rows = []
    for number in range(FINDINGS_MAX + 1):
        for half in (0, 1):
            name, at = f"{number}-{half}", 2 * number + half
            rows += [send(at, name, ids=[number + 1]), acked(at + 0.5, at, name, ids=[number + 1])]
    findings, left_out, *_rest = judged(rows)
    assert ({one.clause for one in findings}, left_out) == ({"message.stored.again"}, 0)


def test_a_code_that_no_send_gets_is_found() -> None:
    assert clauses(send(0), refused(5, code=19)) == ["send.code.known"]
    assert clauses(send(0), send(1), refused(5, code=19)) == []


def test_a_late_acknowledgement_is_doubted() -> None:
    """Nothing is said of a connection that was not read meanwhile."""
    rows = send(0), acked(SEND_MS + 1)
    assert clauses(*rows) == [ANSWERED + "?"]
    assert clauses(send(0), acked(SEND_MS)) == clauses(*rows, blocked={("s", "c"): holes((1, 2))}) == []
    assert clauses(send(SEND_MS), acked(SEND_MS + 1)) == []


@pytest.mark.parametrize(
    ("known", "clause"),
    [
        ({}, [ORDER]),
        ({"sources": {"s": facts(4), "t": facts()}}, []),
        ({"sources": {"s": facts(5), "t": facts()}}, [ORDER]),
        ({"sources": {"s": facts(), "t": facts(is_steady=False)}}, []),
        ({"unsteady_brokers": frozenset({"b"})}, []),
    ],
)
def test_two_sources_order_sends_while_both_watch(known: dict[str, Any], clause: list[str]) -> None:
    """By clocks that order both."""
    later = send(3, "b", source="t"), acked(5, 7, "b", source="t")
    rows = send(0, "a"), acked(2, 7, "a"), *later
    shown = [(kind, request) for request in "ab" for kind in ("request_received", "message_acknowledged")]
    assert [(each, events) for each, _why, events in found(*rows, **known)] == [(each, shown) for each in clause]
    assert clauses(*(row | {"broker": ""} for row in rows), **known) == []


@pytest.mark.parametrize(("code", "is_gap"), [(14, True), (10, False)])
def test_many_refused_sends_are_a_gap(code: int, *, is_gap: bool) -> None:
    """A send that was stored, and not yet on the disk, was not refused."""
    rows = [row for n in range(10) for row in (send(n, f"r{n}"), refused(n + 0.5, f"r{n}", code=code))]
    assert [gap.count for gap in judged(rows)[3]] == [10] * is_gap
