"""What a clock that may be set orders and measures, and what else a record shows less of than it seems to.

Each history is the smallest on which the judge once said more than its evidence; the second judge says the same.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from model_tests.judge.second.compare import judge_it
from model_tests.judge.second.edges import MONOTONIC, SETTABLE, gone, pull
from model_tests.judge.second.judge import weigh
from model_tests.judge.second.observer import History
from model_tests.judge.second.parts import MS, Told
from model_tests.judge.second.smallest import acknowledged, agreed, shown, strictly, watched

LOWER = pull(60, "1-2", 0, 0, end=1)
"""An answer that knows of one message, in a queue of which two are visible somewhere else."""


@pytest.mark.parametrize(("clock", "verdict"), [(MONOTONIC, "invalid"), (SETTABLE, "unknown")])
def test_two_clocks_that_may_be_set_have_no_order(clock: str, verdict: str, tmp_path: Path) -> None:
    """The next life of a broker shows a second message; its clock was set back, so it seems to come before."""
    first = watched(50, 90, shown(51, 1), LOWER)
    second = watched(10, 40, shown(11, 1), shown(12, 2))
    assert agreed(strictly(first, second, clock=clock), tmp_path) == verdict


@pytest.mark.parametrize(("clock", "verdict"), [(MONOTONIC, "invalid"), (SETTABLE, "unknown")])
def test_a_step_of_milliseconds_shows_in_the_numbers_alone(clock: str, verdict: str, tmp_path: Path) -> None:
    """Set back by 30 ms between an answer and the next message, which seems to have been there before."""
    told = watched(10, 90, shown(51, 1), pull(60, "1-2", 0, 0, end=1), shown(32, 2))
    assert agreed(strictly(told, clock=clock), tmp_path) == verdict


@pytest.mark.parametrize(("clock", "verdict"), [(MONOTONIC, "invalid"), (SETTABLE, "unknown")])
def test_visible_a_while_after_its_acknowledgement_is_measured(clock: str, verdict: str, tmp_path: Path) -> None:
    """From outside a message may be invisible for 100 ms yet; a clock that was set forward makes these a second."""
    told = watched(10, 2000, acknowledged(50, 0), acknowledged(55, 1), pull(1060, "1-2", 0, 0, end=1))
    assert agreed(strictly(told, clock=clock), tmp_path) == verdict


@pytest.mark.parametrize(("clock", "verdict"), [(MONOTONIC, "invalid"), (SETTABLE, "unknown")])
def test_until_when_a_deletion_takes_effect_is_measured(clock: str, verdict: str, tmp_path: Path) -> None:
    """Long after a deletion two messages come, and an answer does not know of the second one."""
    later = (acknowledged(7_000, 0), acknowledged(7_001, 1), pull(9_000, "1-2", 0, 0, end=1))
    told = watched(10, 9_900, acknowledged(50, 0), gone(60), *later)
    found = judge_it(strictly(told, clock=clock), tmp_path)
    assert found.violated == weigh(*_parts(strictly(told, clock=clock))).violated
    assert bool(found.violated) == (verdict == "invalid")


def _parts(one: History) -> tuple[dict[str, object], tuple[dict[str, object], ...]]:
    return one.meta, one.events


@pytest.mark.parametrize(("gap_ms", "verdict"), [(-20, "invalid"), (300, "valid")])
def test_from_outside_nobody_knows_what_a_broker_does_between_two_observers(
    gap_ms: int, verdict: str, tmp_path: Path
) -> None:
    """The topic may have been deleted and made anew while no proxy stood before the broker."""
    begin = 500 + gap_ms
    first = watched(10, 500, acknowledged(50, 0), acknowledged(60, 1))
    second = watched(begin, begin + 900, pull(begin + 300, "1-2", 0, 0, end=1))
    assert agreed(strictly(first, second), tmp_path) == verdict


@pytest.mark.parametrize(("lost", "verdict"), [([], "invalid"), ([{"at": 200, "event": "lost"}], "unknown")])
def test_from_outside_a_hole_may_hide_that_nobody_read(lost: list[Told], verdict: str, tmp_path: Path) -> None:
    """An answer is late, and the client may not have read for as long: both ends of that may be among the lost."""
    asked, answer = pull(50, "1-2", 0, 19, end=0, took=400, may_hold=True, timeout_ms=20)
    events = [one | {"lost_count": 2} for one in lost]
    assert agreed(strictly(watched(10, 900, [asked], events, [answer])), tmp_path) == verdict


def test_a_hold_that_names_another_queue_than_its_pull_is_not_judged(tmp_path: Path) -> None:
    """Whichever of both is wrong, neither says what was held."""
    asked, answer = pull(50, "1-2", 0, 19, end=0, took=20, may_hold=True, timeout_ms=20)
    for queue, verdict in ((0, "valid"), (1, "unknown")):
        hold = {"at": 51, "event": "hold", "topic": "T", "queue": queue, "request": "1-2"}
        assert agreed(strictly(watched(10, 900, [asked, hold, answer])), tmp_path) == verdict


@pytest.mark.parametrize(("field", "verdict"), [("", "valid"), ("offset", "unknown"), ("commit_offset", "unknown")])
def test_a_commit_without_its_offset_and_an_answer_without_one_are_damage(
    field: str, verdict: str, tmp_path: Path
) -> None:
    """The group commits 3 and puts that back to 1; without its offset the second commit may have been any."""
    place = {"topic": "T", "queue": 0, "group": "g", "connection": "2"}
    events: list[Told] = []
    for number, (code, offset) in enumerate([(15, 3), (15, 1), (14, 1)]):
        name = {"request": f"2-{number}"}
        asked = {"commit_offset": offset} if code == 15 and not (field == "commit_offset" and number == 1) else {}
        told = {"offset": offset} if code == 14 and field != "offset" else {}
        events.append({"at": 50 + 200 * number, "event": "request_received", "code": code, **place, **name, **asked})
        events.append({"at": 51 + 200 * number, "event": "answer_sent", "code": 0, **place, **name, **told})
    assert agreed(strictly(watched(10, 900, events)), tmp_path) == verdict


def test_an_answer_that_names_no_queue_is_about_its_requests(tmp_path: Path) -> None:
    """It is judged as if it named it: what it says wrong is found."""
    for end, verdict in ((2, "valid"), (1, "invalid")):
        asked, answer = pull(900, "1-2", 0, 0, end=end)
        del answer["queue"]
        told = watched(10, 990, acknowledged(50, 0), acknowledged(55, 1), [asked, answer])
        assert agreed(strictly(told), tmp_path) == verdict


@pytest.mark.parametrize(("offset", "verdict"), [(0, "invalid"), (3, "valid")])
def test_an_empty_queue_is_no_excuse_for_calling_offset_zero_illegal(offset: int, verdict: str, tmp_path: Path) -> None:
    """A broker that never holds could else answer 21 at once for ever."""
    asked, answer = pull(50, "1-2", offset, 21, end=0, may_hold=True, timeout_ms=15_000)
    assert agreed(strictly(watched(10, 900, [asked, answer])), tmp_path) == verdict


@pytest.mark.parametrize(
    ("until_ms", "shown_ms", "verdict"),
    [(5_040, 0, "valid"), (5_100, 0, "invalid"), (6_000, 5_040, "valid"), (6_000, 5_100, "invalid")],
)
def test_what_was_acknowledged_is_shown(until_ms: int, shown_ms: int, verdict: str, tmp_path: Path) -> None:
    """A dispatcher that stopped shows nothing, so that pulls are right to be told that nothing is there."""
    (appended, end) = shown(50, 1)
    ends = [end | {"at": 20, "visible_end": 0}, *([end | {"at": shown_ms}] if shown_ms else [])]
    told = watched(10, until_ms, ends[:1], pull(30, "1-1", 0, 19, end=0), [appended], acknowledged(50, 0), ends[1:])
    assert agreed(strictly(told), tmp_path) == verdict


def test_what_was_shown_before_a_deletion_is_not_what_came_after_it(tmp_path: Path) -> None:
    """The next life of the queue has a message at an offset that was visible in the one before."""
    for again, verdict in (([], "invalid"), (shown(6_000, 1)[1:], "valid")):
        life = [*shown(20, 1), *shown(21, 2), *gone(30), *shown(6_000, 1)[:1], *acknowledged(6_001, 0), *again]
        told = watched(10, 12_000, life, pull(11_900, "1-1", 2, 19 if not again else 21, end=0 if not again else 1))
        told = told if again else watched(10, 12_000, life, pull(11_900, "1-1", 0, 19, end=0))
        assert agreed(strictly(told), tmp_path) == verdict


def test_what_was_only_appended_may_not_have_been_stored_whole(tmp_path: Path) -> None:
    """A one-way send: nobody was told that the message is there."""
    (appended, end) = shown(50, 1)
    sent = {"at": 49, "event": "request_received", "code": 10, "topic": "T", "queue": 0, "connection": "2"}
    told = watched(10, 9_000, [end | {"at": 20, "visible_end": 0}], pull(30, "1-1", 0, 19, end=0), [sent, appended])
    assert agreed(strictly(told), tmp_path) == "unknown"


@pytest.mark.parametrize(
    ("steps", "until_ms", "policy", "verdict"),
    [
        (["cause"], 900, "strict", "valid"),
        (["cause"], 21_000, "strict", "unknown"),  # its role may have changed, which no event tells
        (["cause"], 21_000, "rocketmq-4.9", "invalid"),
        (["stop"], 900, "strict", "valid"),
        (["stop"], 9_000, "strict", "unknown"),
        (["stop"], 21_000, "strict", "invalid"),
        (["outside"], 21_000, "strict", "invalid"),
    ],
)
def test_who_stops_does_not_go_on(steps: list[str], until_ms: int, policy: str, verdict: str, tmp_path: Path) -> None:
    """A broker that says of every pull that it stops would never have to hold one."""
    about = {"topic": "T", "queue": 0, "request": "1-2"}
    inside = [] if "outside" in steps else [{"at": 51, "event": "hold", **about}]
    inside += [{"at": 60, "event": "stop", **about}] if "stop" in steps else []
    asked, answer = pull(50, "1-2", 0, 19, end=0, took=50, may_hold=True, timeout_ms=15_000)
    answer |= {} if "stop" in steps else {"cause": "stopped"}
    told = watched(10, until_ms, [asked], inside, [answer])
    assert agreed(strictly(told, policy=policy), tmp_path) == verdict


@pytest.mark.parametrize(("end", "verdict"), [(6, "invalid"), (10, "valid")])
def test_what_was_delivered_is_visible_to_later_reads(end: int, verdict: str, tmp_path: Path) -> None:
    """The end that the first answer tells was read before its messages; what these show holds all the same."""
    asked, answer = pull(50, "1-1", 0, 0, end=10)
    told = watched(10, 900, [asked, answer | {"offset_max": 5}], pull(60, "1-2", end, 19, end=end))
    assert agreed(strictly(told, policy=""), tmp_path) == verdict


@pytest.mark.parametrize(("watched_ms", "verdict"), [(2_000, "valid"), (2_200, "invalid")])
def test_a_pull_that_may_not_be_held_has_two_seconds(watched_ms: int, verdict: str, tmp_path: Path) -> None:
    """It is as late without an answer as with one."""
    (asked, _answer), good = pull(50, "1-2", 0, 19, end=0), pull(20, "1-1", 0, 19, end=0)
    told = watched(10, 50 + watched_ms, good, [asked])
    assert agreed(strictly(told, policy=""), tmp_path) == verdict


@pytest.mark.parametrize(("took_ms", "verdict"), [(2_000, "valid"), (2_200, "invalid")])
def test_a_question_for_an_offset_has_two_seconds(took_ms: int, verdict: str, tmp_path: Path) -> None:
    """A late answer is as late as none."""
    about = {"topic": "T", "queue": 0, "connection": "2", "request": "2-1"}
    asked = {"at": 50, "event": "request_received", "code": 14, "group": "g", **about}
    answer = {"at": 50 + took_ms, "event": "answer_sent", "code": 0, "offset": 0, **about}
    assert agreed(strictly(watched(10, 3_000, [asked, answer])), tmp_path) == verdict


@pytest.mark.parametrize(("committed", "verdict"), [(3, "valid"), (2, "invalid")])
def test_a_pull_that_is_refused_in_the_end_may_have_committed(committed: int, verdict: str, tmp_path: Path) -> None:
    """It was read, and held, and its topic was deleted before it was answered; the group asked in between."""
    place = {"topic": "T", "queue": 0, "group": "g", "connection": "2"}
    asked, answer = pull(40, "1-2", 0, 17, end=0, took=60, may_hold=True, timeout_ms=90, commit_offset=committed)
    refused = {key: answer[key] for key in ("at", "event", "topic", "queue", "request", "connection", "code")}
    events: list[Told] = []
    for number, (at, offset) in enumerate([(20, 1), (60, 3)]):
        name = {"request": f"2-{number}"}
        events.append({"at": at, "event": "request_received", "code": 14, **place, **name})
        events.append({"at": at + 1, "event": "answer_sent", "code": 0, "offset": offset, **place, **name})
    assert agreed(strictly(watched(10, 900, [*events[:2], asked, *events[2:], refused])), tmp_path) == verdict


@pytest.mark.parametrize(("tag", "verdict"), [("", "unknown"), ("a", "unknown")])
def test_an_append_of_an_earlier_life_tells_no_tag(tag: str, verdict: str, tmp_path: Path) -> None:
    """The append of the acknowledged message is in a hole; the one with its offset was deleted with its topic."""
    first = [shown(50, 1)[0] | {"tag": "b"}, *acknowledged(51, 0)]
    first[1]["tag"] = "b"
    hole = [{"at": 7_000, "event": "lost", "lost_count": 1}]
    later = [acknowledged(7_001, 0)[0] | ({"tag": tag} if tag else {})]
    told = watched(10, 9_900, first, gone(60), hole, later, pull(9_000, "1-2", 0, 0, end=1))
    assert agreed(strictly(told), tmp_path) == verdict


def test_a_message_that_came_while_its_topic_was_deleted_may_be_there(tmp_path: Path) -> None:
    """It was appended two milliseconds after the deletion was asked for: before it took effect, or after."""
    later = (shown(7_000, 2), pull(9_000, "1-2", 0, 0, end=2))
    told = watched(10, 9_900, shown(50, 1), gone(60), shown(62, 1), *later)
    assert agreed(strictly(told), tmp_path) == "valid"


def test_an_answer_without_a_code_is_damage_and_no_second_answer(tmp_path: Path) -> None:
    """Another event that was given the name of an answer makes nobody answer twice."""
    asked, answer = pull(50, "1-2", 0, 19, end=0)
    damaged = {"at": 52, "event": "answer_sent", "topic": "T", "queue": 0, "request": "1-2"}
    assert agreed(strictly(watched(10, 900, [asked, answer, damaged])), tmp_path) == "unknown"


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("past", "verdict"), [(0, "unknown"), (-1, "valid")], ids=["2^61", "one less"])
def test_a_number_that_is_out_of_range_is_damage(sign: int, past: int, verdict: str, tmp_path: Path) -> None:
    """Of either sign; a number that is one less is as good as any, and a count below 0 takes everything."""
    asked, answer = pull(50, "1-2", 0, 19, end=0, count_max=sign * ((1 << 61) + past))
    assert agreed(strictly(watched(10, 900, [asked, answer])), tmp_path) == verdict


@pytest.mark.parametrize(("at", "verdict"), [(20, "early"), (51.5, "invalid")])
def test_nothing_is_held_before_it_came(at: float, verdict: str, tmp_path: Path) -> None:
    """A hold that lies before the receipt of its pull says nothing of the time in between."""
    events: list[Told] = []
    for name, came, left in (("1-1", 15, 40), ("1-2", 51, 90)):
        asked, answer = pull(came, name, 0, 19, end=0, took=left - came, may_hold=True, timeout_ms=left - came)
        hold = {"at": came + 0.5 if name == "1-1" else at, "event": "hold", "topic": "T", "queue": 0, "request": name}
        events += [asked, hold, answer]
    asked, answer = pull(52, "1-3", 0, 19, end=0, took=38, may_hold=True, timeout_ms=38)
    third: Told = {"at": 52.5, "event": "hold", "topic": "T", "queue": 0, "request": "1-3"}
    if verdict == "invalid":
        events += [asked, third, answer]
    events.sort(key=lambda event: float(event["at"]))
    one = strictly(watched(10, 900, events))
    one.meta["sources"][0]["hold_limit"] = 1
    one_broken = {"early": "pull.hold.after_request", "invalid": "hold.limit.kept"}[verdict]
    assert agreed(one, tmp_path / "history") == "invalid"
    assert judge_it(one, tmp_path / "again").violated == {one_broken}


LATE = pull(60, "1-2", 0, 19, end=0, took=1_060, may_hold=True, timeout_ms=1_000)
"""Answered 60 ms after its deadline."""
TWICE = [*pull(60, "1-2", 0, 19, end=0), pull(60, "1-2", 0, 19, end=0, took=3)[1]]
ORDERLESS = [*shown(51, 1), *pull(60, "1-2", 0, 0, end=1), *shown(62, 2), *pull(70, "1-3", 0, 0, end=1)]
"""An answer that knows of one message, after two were visible."""
DECLARATIONS: list[dict[str, object] | None] = [None, {"uncertainty_ns": -1}, {"uncertainty_ns": 1 << 61}, {}]


@pytest.mark.parametrize("declares", DECLARATIONS, ids=["none", "below 0", "2^61", "known"])
@pytest.mark.parametrize(
    ("told", "verdict"),
    [(LATE, "unknown"), (ORDERLESS, "unknown"), (TWICE, "invalid")],
    ids=["measured", "ordered", "told twice"],
)
def test_a_clock_that_is_not_known_orders_and_measures_nothing(
    declares: dict[str, object] | None, told: list[Told], verdict: str, tmp_path: Path
) -> None:
    """Nor does one whose declaration cannot be read; what rests on identity alone still convicts."""
    one = strictly(watched(10, 9_000, told), policy="")
    (source,) = one.meta["sources"]
    one.meta["sources"] = [] if declares is None else [source | declares]
    assert agreed(one, tmp_path) == ("invalid" if declares == {} else verdict)


NOBODY, ASKS, COMMITS, PULLS, DELETED, MOVED = -1, 14, 15, 11, 215, 222
REFUSED, NEVER = -99, -1_000
Exchange = tuple[int, int, int]
"""A code, what it commits, and what it is told: an offset, minus a code or `NEVER`.

The second observer's codes are 1,000 more.
"""


def exchanges(asked: list[Exchange]) -> History:
    """A group's requests about its offset in one queue, one after the other, 10 ms apart, at two observers."""
    told: list[list[Told]] = [[], []]
    for number, (code, commit, said) in enumerate(asked):
        at, place = 50 + 10 * number, {"topic": "T", "queue": 0, "group": "g", "connection": "2"}
        where = told[code >= 1_000]
        if code % 1_000 in {DELETED, MOVED}:
            where.append({"at": at, "event": "request_received", "code": code % 1_000, "topic": "T", "connection": "9"})
            continue
        name = {"request": f"r{number}"}
        if code % 1_000 == PULLS:
            where += pull(at, f"r{number}", 0, 19, end=0, commit_offset=commit)
            continue
        fields = {"commit_offset": commit} if code % 1_000 == COMMITS else {}
        where.append({"at": at, "event": "request_received", "code": code % 1_000, **fields, **place, **name})
        if said != NEVER:
            answer = {"code": -said} if said < 0 else {"code": 0, **({"offset": said} if code % 1_000 == ASKS else {})}
            where.append({"at": at + 1, "event": "answer_sent", **answer, **place, **name})
    return strictly(*(watched(10, 9_000, one) for one in told if one or one is told[0]))


OFFSETS: dict[str, tuple[str, list[Exchange]]] = {
    "none, then nothing to skip": ("valid", [(ASKS, NOBODY, -22), (ASKS, NOBODY, 0)]),
    "nothing to skip, then none": ("valid", [(ASKS, NOBODY, 0), (ASKS, NOBODY, -22)]),
    "committed beside": ("valid", [(ASKS, NOBODY, -22), (1_000 + COMMITS, 9, 0), (ASKS, NOBODY, 9)]),
    "put back beside": ("valid", [(COMMITS, 9, 0), (1_000 + COMMITS, 3, 0), (ASKS, NOBODY, 3)]),
    "moved beside": ("valid", [(COMMITS, 9, 0), (1_000 + MOVED, NOBODY, 0), (ASKS, NOBODY, 0)]),
    "deleted beside": ("valid", [(COMMITS, 9, 0), (1_000 + DELETED, NOBODY, 0), (ASKS, NOBODY, -22)]),
    "between what was committed": (
        "invalid",
        [(ASKS, NOBODY, -22), (COMMITS, 9, 0), (COMMITS, 5, 0), (ASKS, NOBODY, 7)],
    ),
    "none, then less than pulled": ("valid", [(ASKS, NOBODY, 9), (PULLS, 5, 0), (ASKS, NOBODY, 5)]),
    "pulled past an older one": ("valid", [(ASKS, NOBODY, 5), (PULLS, 9, 0), (ASKS, NOBODY, 9)]),
    "falls": ("invalid", [(ASKS, NOBODY, 10**12), (ASKS, NOBODY, 5)]),
    "falls to nothing to skip": ("invalid", [(ASKS, NOBODY, 5), (ASKS, NOBODY, 0)]),
    "gone": ("invalid", [(ASKS, NOBODY, 5), (ASKS, NOBODY, -22)]),
    "not put back": ("unknown", [(ASKS, NOBODY, 9), (COMMITS, 5, 0), (ASKS, NOBODY, 9)]),
    "certainly not put back": ("invalid", [(ASKS, NOBODY, -22), (COMMITS, 9, 0), (COMMITS, 5, 0), (ASKS, NOBODY, 9)]),
    "after a deletion": (
        "invalid",
        [(ASKS, NOBODY, -22), (DELETED, NOBODY, 0), (COMMITS, 5, 0), (ASKS, NOBODY, 10**9)],
    ),
    "after a move": ("valid", [(ASKS, NOBODY, -22), (MOVED, NOBODY, 0), (COMMITS, 5, 0), (ASKS, NOBODY, 10**9)]),
    "an update refused strangely": ("invalid", [(PULLS, 3, 0), (COMMITS, 5, REFUSED)]),
    "an update without an answer": ("invalid", [(PULLS, 3, 0), (COMMITS, 5, NEVER)]),
}


@pytest.mark.parametrize("name", OFFSETS)
def test_a_group_is_told_what_may_have_been_committed_last(name: str, tmp_path: Path) -> None:
    """By whichever observer; what nobody can have left there is none of it."""
    verdict, asked = OFFSETS[name]
    assert agreed(exchanges(asked), tmp_path) == verdict


@pytest.mark.parametrize(
    ("own", "beside", "verdict"),
    [
        ({}, {}, "valid"),
        ({"broker": "b"}, {}, "valid"),
        ({"broker": "other"}, {}, "invalid"),
        ({}, {"broker": "other"}, "unknown"),
    ],
    ids=["none", "its own", "another's", "one of two"],
)
def test_a_deletion_without_a_broker_is_of_the_one_that_its_source_tells_of(
    own: Told, beside: Told, verdict: str, tmp_path: Path
) -> None:
    """Of one whose source tells of several nobody knows which; the queue is empty after it, and was not before."""
    deletion = gone(500)[0] | {"broker": ""} | own
    other = [one | beside for one in acknowledged(40, 0)]
    told = watched(10, 9_900, other, acknowledged(50, 1), [deletion], pull(7_000, "1-2", 0, 19, end=0))
    found = judge_it(strictly(told, policy=""), tmp_path).verdict
    assert found == verdict
    assert weigh(*_parts(strictly(told, policy=""))).verdict == found


@pytest.mark.parametrize(("code", "verdict"), [(14, "valid"), (15, "invalid")])
def test_a_question_commits_nothing(code: int, verdict: str, tmp_path: Path) -> None:
    """Whatever else it carries: the group is told 1 after a question with a 3 on it, and not after a commit of 3."""
    place = {"topic": "T", "queue": 0, "group": "g", "connection": "2"}
    events: list[Told] = []
    for number, (asked, commit) in enumerate([(15, 1), (code, 3), (14, -1)]):
        name, at = {"request": f"2-{number}"}, 50 + 10 * number
        carried = {"commit_offset": commit} if commit >= 0 else {}
        told = {"offset": 1} if asked == 14 else {}
        events.append({"at": at, "event": "request_received", "code": asked, **place, **name, **carried})
        events.append({"at": at + 1, "event": "answer_sent", "code": 0, **place, **name, **told})
    assert agreed(strictly(watched(10, 900, events)), tmp_path) == verdict


@pytest.mark.parametrize(("wide_ms", "verdict"), [(10, "valid"), (200, "unknown")])
@pytest.mark.parametrize("may_hold", [True, False])
def test_a_pull_without_answer_may_be_due_by_the_width_of_its_interval(
    may_hold: bool, wide_ms: int, verdict: str, tmp_path: Path
) -> None:
    """The record ends a little before its deadline, or a little more than is allowed after it: nobody knows."""
    due_ms = 1_000 if may_hold else 2_000
    asked, _answer = pull(3_000, "1-2", 0, 19, end=0, may_hold=may_hold, timeout_ms=1_000)
    one = strictly(watched(10, 3_000 + due_ms, pull(60, "1-9", 0, 19, end=0), [asked]), policy="")
    one.events[3]["after_ns"] -= wide_ms * MS
    assert agreed(one, tmp_path) == verdict


def test_an_answer_to_nobody_knows_whom_leaves_a_hole(tmp_path: Path) -> None:
    """It may be the one that is missing."""
    asked, answer = pull(60, "1-2", 0, 19, end=0)
    nameless = {name: value for name, value in answer.items() if name != "request"}
    assert agreed(strictly(watched(10, 9_000, [asked, nameless])), tmp_path) == "unknown"
    assert agreed(strictly(watched(10, 9_000, [asked])), tmp_path) == "invalid"


@pytest.mark.parametrize(("wide_ms", "verdict"), [(100, "valid"), (2_200, "unknown")])
def test_a_pull_that_may_not_be_held_may_be_late_by_the_width_of_its_interval(
    wide_ms: int, verdict: str, tmp_path: Path
) -> None:
    """It was received 2.2 s before its answer, or a moment: nobody knows."""
    asked, answer = pull(3_000, "1-2", 0, 19, end=0)
    one = strictly(watched(10, 4_000, [asked, answer]))
    one.events[1]["after_ns"] -= wide_ms * MS
    assert agreed(one, tmp_path) == verdict
