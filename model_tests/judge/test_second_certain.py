"""What is certain whatever else is not, and what is not judged: where the judge and the second one once differed.

Each history is the smallest on which one of them said too much or too little.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from model_tests.judge.second.compare import judge_it
from model_tests.judge.second.edges import gone, pull
from model_tests.judge.second.judge import weigh
from model_tests.judge.second.observer import History
from model_tests.judge.second.parts import Told
from model_tests.judge.second.smallest import acknowledged, agreed, shown, strictly, watched

BACK = [{"at": 9_000, "event": "blocked", "connection": "8", "direction": "answers"}]
"""The clock was ahead until here."""


def violated(one: History, directory: Path) -> set[str]:
    """What the judge convicts of; so does the second one, of more where one answer breaks several clauses."""
    first, second = judge_it(one, directory), weigh(one.meta, one.events)
    assert first.violated <= second.violated, (first, second)
    assert bool(first.violated) == bool(second.violated), (first, second)
    return set(first.violated)


def sent(at: float, name: str, queue: int = 0) -> list[Told]:
    """A message was sent."""
    about = {"topic": "T", "queue": queue, "connection": "2", "request": name}
    return [{"at": at, "event": "request_received", "code": 10, **about}]


GOOD = pull(900, "1-9", 2, 19, end=2)


@pytest.mark.parametrize(
    ("second", "told", "verdict"),
    [
        ("2-1", shown(30, 1), "invalid"),  # one send has no messages in two lives
        ("2-2", [*shown(30, 1), *shown(40, 2)], "invalid"),  # who stands inside sees every request
        ("2-1", [], "invalid"),
        ("2-2", [], "unknown"),  # somebody may have deleted the topic, and not through this observer
        ("2-2", gone(55), "valid"),
    ],
)
def test_offset_zero_given_twice(second: str, told: list[Told], verdict: str, tmp_path: Path) -> None:
    """It is a fault where nobody can have deleted the topic unseen."""
    sends = [*sent(20, "2-1"), *(sent(25, "2-2") if second == "2-2" else [])]
    firsts = [*acknowledged(50, 0, "2-1"), *acknowledged(60, 0, second)]
    last = pull(9_000, "1-9", 1, 19, end=1) if verdict == "valid" else pull(900, "1-9", 2, 19, end=2)
    last = last if not told or verdict == "valid" else pull(900, "1-9", len(told) // 2, 19, end=len(told) // 2)
    events = sorted([*sends, *told, *firsts], key=lambda event: float(event["at"]))
    one = strictly(watched(10, 9_900, events, last), policy="")
    assert agreed(one, tmp_path) == verdict
    assert violated(one, tmp_path / "again") >= ({"log.acknowledged.once"} if verdict == "invalid" else set())


@pytest.mark.parametrize("clause", ["pull.found.from_asked", "pull.code.known", "pull.hold.allowed"])
def test_what_compares_no_moments_stands_though_the_clock_was_set_back(clause: str, tmp_path: Path) -> None:
    """An answer that contradicts itself does so by any clock."""
    asked, answer = pull(50, "1-2", 1, 0, end=2)
    answer |= {"offsets": [0, 1]} if clause == "pull.found.from_asked" else {}
    answer |= {"code": 18} if clause == "pull.code.known" else {}
    hold = {"at": 50.5, "event": "hold", "topic": "T", "queue": 0, "request": "1-2"}
    held = [hold] if clause == "pull.hold.allowed" else []
    told = watched(10, 9_900, BACK, [asked], held, [answer])
    assert violated(strictly(told, policy=""), tmp_path) == {clause}


def test_what_compares_no_moments_is_not_hidden_by_what_does(tmp_path: Path) -> None:
    """An answer that was told before its request, by a clock that was set back, and has the wrong end."""
    asked, answer = pull(50, "1-2", 1, 0, end=2, took=-20)
    told = watched(10, 9_900, BACK, [asked, answer | {"offsets": [0, 1]}])
    assert violated(strictly(told, policy=""), tmp_path) == {"pull.found.from_asked"}


@pytest.mark.parametrize(("hole_ms", "verdict"), [(20, "invalid"), (150, "unknown")])
def test_an_append_lies_between_its_send_and_its_acknowledgement(hole_ms: int, verdict: str, tmp_path: Path) -> None:
    """A hole that ended before the send came hides no append of its message."""
    hole = [{"at": hole_ms, "event": "lost", "lost_count": 1}]
    inside = [{"at": 120, "event": "append", "topic": "T", "queue": 1, "queue_offset": 0}]
    rest = [*inside, *sent(140, "2-1"), *acknowledged(160, 0, "2-1")]
    told = watched(10, 900, sorted([*hole, *rest], key=lambda event: float(event["at"])))
    assert agreed(strictly(told, policy=""), tmp_path) == verdict


@pytest.mark.parametrize(("later_ms", "verdict"), [(500, "unknown"), (9_000, "invalid")])
def test_a_hole_may_hide_a_deletion_that_takes_effect_after_it(later_ms: int, verdict: str, tmp_path: Path) -> None:
    """A queue begins anew soon after a hole, or so long after it that no deletion in it can be the cause."""
    first = {"at": 200, "event": "lost", "lost_count": 1}
    appends = [
        {"at": later_ms + place, "event": "append", "topic": "T", "queue": 0, "queue_offset": 1 - place}
        for place in range(2)
    ]
    told = watched(10, later_ms + 900, [first], appends)
    assert agreed(strictly(told, policy=""), tmp_path) == verdict


@pytest.mark.parametrize("field", ["topic", "queue"])
def test_an_acknowledgement_without_its_place_is_damage(field: str, tmp_path: Path) -> None:
    """Nothing is concluded from it, and it was not acknowledged elsewhere."""
    told = [{name: value for name, value in one.items() if name != field} for one in acknowledged(50, 0, "2-1")]
    assert agreed(strictly(watched(10, 990, sent(40, "2-1"), told, GOOD)), tmp_path) == "unknown"


@pytest.mark.parametrize(("queue", "verdict"), [(0, "unknown"), (1, "unknown")])
def test_an_identifier_that_came_twice_is_told(queue: int, verdict: str, tmp_path: Path) -> None:
    """Be it in another queue: which of both was answered nobody knows."""
    told = watched(10, 990, [*pull(50, "1-2", 0, 19, end=0)], sent(40, "1-2", queue))
    assert agreed(strictly(told, policy=""), tmp_path) == verdict


@pytest.mark.parametrize(("until_ms", "verdict"), [(4_000, "valid"), (7_000, "unknown"), (21_000, "invalid")])
def test_a_19_before_the_end_is_excused_by_a_stop_that_is_one(until_ms: int, verdict: str, tmp_path: Path) -> None:
    """Inside, its broker says that it stops and closes the connection, and goes on for as long."""
    asked, answer = pull(50, "1-2", 1, 19, end=1, expression="mine")
    close = [{"at": 60, "event": "connection_closed", "connection": "1"}]
    stop = [{"at": 50.5, "event": "stop", "topic": "T", "queue": 0, "request": "1-2"}]
    closed = close if verdict != "invalid" else []
    log = [event for end in (1, 2, 3) for event in shown(20 + end, end)]
    told = watched(10, until_ms, log, [asked], stop, [answer | {"offset_max": 3}], closed)
    found = judge_it(strictly(told), tmp_path)
    assert found.verdict == weigh(*_parts(strictly(told))).verdict
    assert any(reason.startswith("pull.none.at_end") for reason in found.reasons) == (verdict != "valid")


def _parts(one: History) -> tuple[dict[str, object], tuple[dict[str, object], ...]]:
    return one.meta, one.events


@pytest.mark.parametrize(("inner", "verdict"), [([], "invalid"), (shown(20, 1)[1:], "valid")])
def test_a_queue_whose_end_nobody_tells_is_seen_from_outside(inner: list[Told], verdict: str, tmp_path: Path) -> None:
    """Though its source tells of another queue from inside: an end that falls is wrong."""
    other = [one | {"queue": 1} for one in shown(15, 1)]
    asked, answer = pull(50, "1-1", 0, 0, end=1)
    high = answer | {"offset_max": (1 << 59) if not inner else 1}
    told = watched(10, 990, other, inner, [asked, high], pull(60, "1-2", 1, 19, end=1))
    found = violated(strictly(told, policy=""), tmp_path)
    assert found == ({"pull.max.never_falls"} if verdict == "invalid" else set())


def test_answers_that_name_no_queue_are_of_several(tmp_path: Path) -> None:
    """The ends of two queues, told on one connection, do not fall from the one to the other."""
    (one, high), (other, low) = pull(50, "1-1", 5, 19, end=5), pull(60, "1-2", 2, 19, end=2)
    events = [one, high, other | {"queue": 1}, low]
    for answer in (high, low):
        del answer["queue"], answer["topic"]
    assert agreed(strictly(watched(10, 990, events), policy=""), tmp_path) == "valid"


def test_an_exchange_reaches_as_far_as_both_of_its_events(tmp_path: Path) -> None:
    """An acknowledgement that is told before its send came, by a hole: it may be of the queue's life before."""
    hole = [{"at": 300, "event": "lost", "lost_count": 1}]
    first = acknowledged(299, 3, "2-2")
    told = watched(10, 900, first, hole, sent(400, "2-1"), acknowledged(410, 2, "2-1"), sent(420, "2-2"))
    assert "send.sequential" not in violated(strictly(told, policy=""), tmp_path)


STEPS = ("take", "keep", "expire", "run", "stop")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("at", "name", "may_hold", "clause"),
    [
        (60, "1-2", True, ""),
        (60, "1-2", False, "pull.step.allowed"),
        (40, "1-2", True, "pull.step.after_request"),
        (90, "1-2", True, "pull.step.unanswered"),
        (60, "1-3", True, "evidence.not_judged"),
        (60, "2-1", True, "evidence.not_judged"),
    ],
)
def test_what_is_done_with_a_pull_is_done_while_it_waits(  # noqa: PLR0917 - a table
    at: float, name: str, may_hold: bool, clause: str, step: str, tmp_path: Path
) -> None:
    """A step of a pull that may not be held, has not come, is answered, or of none that is known."""
    asked, answer = pull(50, "1-2", 0, 19, end=0, took=30, may_hold=may_hold, timeout_ms=30)
    about = {"at": at, "event": step, "topic": "T", "queue": 0, "request": name}
    events = sorted([asked, answer, about, *sent(20, "2-1")], key=lambda event: float(event["at"]))
    one = strictly(watched(10, 900, events))
    if clause == "evidence.not_judged":
        found = judge_it(one, tmp_path)
        assert agreed(one, tmp_path / "again") == "unknown"
        assert "steps whose pulls are not in the history" in found.reasons[0]
    else:
        assert violated(one, tmp_path) == ({clause} if clause else set())
        assert agreed(one, tmp_path / "again") == ("invalid" if clause else "valid")


def test_a_recheck_may_come_after_the_answer(tmp_path: Path) -> None:
    """Who held the pull looks once more, whoever has answered it meanwhile."""
    asked, answer = pull(50, "1-2", 0, 19, end=0, took=30, may_hold=True, timeout_ms=30)
    late = {"at": 90, "event": "recheck", "topic": "T", "queue": 0, "request": "1-2", "visible_end": 0}
    assert agreed(strictly(watched(10, 900, [asked, answer, late])), tmp_path) == "valid"


@pytest.mark.parametrize(
    ("sends", "name", "verdict"),
    [(["2-1"], "2-1", "valid"), (["2-1"], "2-2", "unknown"), ([], "2-2", "valid"), (["2-1"], "", "valid")],
)
def test_an_acknowledgement_of_a_send_that_nobody_made_is_told(
    sends: list[str], name: str, verdict: str, tmp_path: Path
) -> None:
    """Of a source that tells of sends; one that tells acknowledgements alone is asked for none."""
    asked = [event for each in sends for event in sent(20, each)]
    extra = acknowledged(31, 1, "2-1" if sends else "") if name != "2-1" else []
    told = watched(10, 990, asked, acknowledged(30, 0, name), extra, pull(900, "1-9", 2, 19, end=2))
    assert agreed(strictly(told, policy=""), tmp_path) == verdict


@pytest.mark.parametrize("event", ["take", "hold", ""])
@pytest.mark.parametrize("damage", [{"code": None}, {"offset_min": None}])
def test_nothing_is_concluded_from_a_damaged_answer(damage: dict[str, None], event: str, tmp_path: Path) -> None:
    """It is no second answer, none on another connection, none before the pull came, and none before a step."""
    asked, answer = pull(50, "1-2", 0, 19, end=0, took=30, may_hold=True, timeout_ms=30)
    damaged = {name: value for name, value in answer.items() if name not in damage}
    early = [damaged | {"at": 40, "connection": "7"}] if not event else [damaged | {"at": 60}]
    step = [{"at": 70, "event": event, "topic": "T", "queue": 0, "request": "1-2"}] if event else []
    events = sorted([asked, *early, *step, answer], key=lambda each: float(each["at"]))
    one = strictly(watched(10, 900, events), policy="")
    found = judge_it(one, tmp_path)
    assert (found.verdict, found.violated) == ("unknown", frozenset())
    assert weigh(one.meta, one.events).verdict == "unknown"


@pytest.mark.parametrize(("tag", "verdict"), [("a", "valid"), ("b", "invalid")])
def test_an_append_of_another_life_does_not_vouch_for_a_tag(tag: str, verdict: str, tmp_path: Path) -> None:
    """The topic is deleted, and its next life has a message of the other tag at the same offset."""
    first = [one | {"tag": "a"} for one in shown(50, 1)[:1]] + shown(50, 1)[1:]
    told = [one | {"tag": tag} for one in acknowledged(55, 0)]
    later = [one | {"tag": "b"} for one in shown(7_000, 1)[:1]] + shown(7_000, 1)[1:]
    one = strictly(watched(10, 9_900, first, told, gone(60), later, pull(9_000, "1-9", 1, 19, end=1)), policy="")
    assert agreed(one, tmp_path) == verdict


def test_an_answer_of_a_pull_is_none_to_a_question(tmp_path: Path) -> None:
    """It tells no offset, so it is damage there: no second answer, none on another connection and none too early."""
    place = {"topic": "T", "queue": 0, "group": "g", "connection": "2", "request": "2-1"}
    question = {"at": 50, "event": "request_received", "code": 14, **place}
    told = {"at": 60, "event": "answer_sent", "code": 0, "offset": 0, **place}
    _asked, other = pull(30, "2-1", 0, 0, end=1)
    one = strictly(watched(10, 900, [other, question, told]), policy="")
    assert agreed(one, tmp_path) == "unknown"


@pytest.mark.parametrize(("closes", "verdict"), [([55, 200], "valid"), ([200], "invalid"), ([20, 200], "invalid")])
def test_a_name_of_a_connection_may_come_again(closes: list[int], verdict: str, tmp_path: Path) -> None:
    """Who asked before the first close is answered nowhere after it, though another one of its name closes later."""
    asked, _answer = pull(50, "1-2", 0, 19, end=0, may_hold=True, timeout_ms=20)
    other = [one | {"connection": "7"} for one in pull(60, "7-1", 0, 19, end=0)]
    gone = [{"at": at, "event": "connection_closed", "connection": "1"} for at in closes]
    events = sorted([asked, *other, *gone], key=lambda event: float(event["at"]))
    assert agreed(strictly(watched(10, 900, events), policy=""), tmp_path) == verdict


def test_an_append_of_an_earlier_life_fills_no_gap(tmp_path: Path) -> None:
    """The topic was deleted: its next life has offsets 0 and 2, and only the one before had a 1."""
    appends = [
        {"at": at, "event": "append", "topic": "T", "queue": 0, "queue_offset": offset}
        for at, offset in ((50, 1), (9_000, 0), (9_001, 2))
    ]
    told = watched(10, 9_900, appends[:1], gone(60), appends[1:])
    assert violated(strictly(told, policy=""), tmp_path) == {"log.append.gapless"}
