"""The smallest histories of queues, of what is sent to them and pulled, on either side of what decides.

Leaves out committed offsets (`edges_offsets`).
"""

from __future__ import annotations

from typing import Final

from model_tests.judge.second.edges import (
    QUEUE,
    SETTABLE,
    Edge,
    appended,
    asked_to_keep,
    closed,
    edge,
    gone,
    held,
    kept,
    lost,
    pull,
    shown,
    unread,
    wide,
    widened,
)
from model_tests.judge.second.edges_offsets import ASKS, NOT_FOUND, exchange, named
from model_tests.judge.second.parts import Told

NOTHING = shown(20, 0)
"""A source that tells visible ends."""

SENT = (asked_to_keep(50, "s1"), kept(60, 0, "s1"))
QUESTION, SENT_TOO = named(exchange(40, ASKS, NOT_FOUND)), [*asked_to_keep(50, "x"), *kept(60, 0, "x")]
"""Of one identifier."""
HELD = {"may_hold": True, "timeout_ms": 1_000}
SHORT, LONG = {"may_hold": True, "timeout_ms": 40}, {"may_hold": True, "timeout_ms": 15_000}

ASKED, ANSWERED = pull(50, "p", 0, 19, end=0)
UNPLACED = ANSWERED | {"queue": -1, "topic": ""}

ANSWERS: Final[dict[str, Edge]] = {
    "answered twice, in no queue": edge("answer.once", [ASKED, UNPLACED, UNPLACED | {"at": 55}]),
    "answered twice, and its receipt is lost": edge("answer.once?", lost(40), [ANSWERED, ANSWERED | {"at": 55}]),
    "answered twice, and something else is lost": edge(
        "answer.once", lost(40), [ASKED, ANSWERED, ANSWERED | {"at": 55}]
    ),
    "answered at once, of another topic": edge(
        "", [ASKED | {"offset": 1}, UNPLACED | {"topic": "other", "offset_next": 0, "offset_max": 0}]
    ),
    "answered at once, of no queue of the topic": edge(
        "pull.none.next",
        [ASKED | {"offset": 1}, UNPLACED | {"topic": "T", "offset_next": 0, "offset_max": 0}],
    ),
    "two of one identifier, each answered": edge("", [ASKED, ANSWERED, ASKED | {"at": 60}, ANSWERED | {"at": 61}]),
    "two of one identifier, one of no queue": edge(
        "", [ASKED, ASKED | {"at": 52, "queue": -1, "code": 200_050}, ANSWERED | {"at": 53}, ANSWERED | {"at": 55}]
    ),
    "two of one identifier, before a deletion": edge(
        "",
        [ASKED, ASKED | {"at": 52, "queue": -1, "code": 200_050}, ANSWERED | {"at": 53}, ANSWERED | {"at": 55}],
        gone(20_000),
    ),
    "answered after the close": edge("answer.open_connection", [ASKED], closed(55), [ANSWERED | {"at": 70}]),
    "asked again after the close": edge("", [ASKED], closed(55), [ASKED | {"at": 60}, ANSWERED | {"at": 70}]),
    "asked something else after the close": edge(
        "", [ASKED], closed(55), [ASKED | {"at": 60, "queue": -1, "code": 200_050}, ANSWERED | {"at": 70}]
    ),
    "perhaps answered in two queues": edge(
        "", [ASKED, ASKED | {"at": 52, "queue": 1}, UNPLACED, UNPLACED | {"at": 55}]
    ),
    "perhaps answered in another queue, after its close": edge(
        "", [ASKED, ASKED | {"at": 60, "queue": 1}], closed(70), [UNPLACED | {"at": 80}]
    ),
}

SHOWN: Final[dict[str, Edge]] = {
    "not shown": edge("send.shown", NOTHING, appended(49, 0), kept(50, 0)),
    "neither of two is shown": edge("send.shown", NOTHING, appended(48, 0), appended(49, 1), kept(50, 0), kept(51, 1)),
    "perhaps acknowledged late": edge("", NOTHING, kept(50, 0, width_ms=3_000), shown(6_000, 1)),
    "perhaps shown in time": edge("", NOTHING, appended(49, 0), kept(50, 0), shown(5_000, 1, 2_000)),
    "shown later, and the clock may have been set": edge(
        "send.shown?", NOTHING, appended(49, 0), kept(50, 0), shown(6_000, 1), clock=SETTABLE
    ),
    "perhaps shown before something was lost": edge(
        "send.shown?",
        NOTHING,
        shown(23, 1),
        lost(30),
        *(closed(at, connection="9") for at in range(100, 900, 100)),
        kept(9_000, 1),
    ),
    "shown while its topic was deleted": edge(
        "", NOTHING, appended(21, 0), gone(60), appended(5_040, 0), shown(5_050, 1), kept(5_100, 0)
    ),
    "perhaps shown after its topic was deleted": edge(
        "", NOTHING, gone(60), appended(55, 0, 20), shown(55, 1, 20), kept(5_100, 0)
    ),
}

SENDS: Final[dict[str, Edge]] = {
    "acknowledged before it came": edge("send.acknowledged.after_request", kept(40, 0, "s1"), SENT[0]),
    "perhaps acknowledged before it came": edge("", kept(45, 0, "s1", 10), widened(SENT[0], 0, 10)),
    "acknowledged on no connection": edge("", SENT[0], kept(60, 0, "s1", connection="")),
    "acknowledged on another connection": edge(
        "send.acknowledged.same_connection", SENT[0], kept(60, 0, "s1", connection="2")
    ),
    "acknowledged in the wrong order": edge(
        "send.sequential", asked_to_keep(40, "s0"), kept(45, 5, "s0"), SENT[0], kept(60, 4, "s1")
    ),
    "perhaps acknowledged in the wrong order": edge(
        "", asked_to_keep(40, "s0"), kept(45, 5, "s0", 20), SENT[0], kept(60, 4, "s1")
    ),
    "acknowledged after the close": edge("send.acknowledged.open_connection", SENT[0], closed(52), SENT[1]),
    "perhaps acknowledged after the close": edge("", SENT[0], closed(52, 20), SENT[1]),
    "acknowledged twice": edge("send.acknowledged.once", *SENT, kept(70, 1, "s1")),
    "acknowledged twice, perhaps at once": edge("", SENT[0], kept(60, 0, "s1", 10), kept(65, 1, "s1", 10)),
    "one identifier of two sends": edge("", SENT[0], asked_to_keep(55, "s1"), SENT[1], kept(65, 1, "s1")),
    "one identifier of two sends, on two connections": edge(
        "", SENT[0], asked_to_keep(55, "s1", connection="2"), SENT[1], kept(65, 1, "s1", connection="2")
    ),
    "one identifier of a question and a send": edge("", QUESTION, SENT_TOO),
    "refused, and acknowledged": edge("send.acknowledged.once", SENT_TOO, named(exchange(64, ASKS, NOT_FOUND))[1:]),
    "acknowledged in another queue": edge(
        "send.acknowledged.place", asked_to_keep(50, "s1", queue=1), kept(60, 0, "s1")
    ),
    "sent to no queue": edge("", asked_to_keep(50, "s1", queue=-1), kept(60, 3, "s1")),
    "sent to no topic": edge("", asked_to_keep(50, "s1", topic=""), kept(60, 3, "s1")),
    "put off": edge("", SENT[0], kept(60, 3, "s1", topic="%RETRY%g")),
    "never acknowledged": edge("send.answered", SENT[0]),
    "never acknowledged, and closed": edge("", SENT[0], closed(9_000)),
    "never acknowledged, and perhaps closed": edge("", SENT[0], closed(9_000, 9_000)),
    "never acknowledged, closed late": edge("send.answered", SENT[0], closed(11_000)),
    "never acknowledged to anybody": edge("", SENT[0], kept(60, 0)),
    "never acknowledged, the record ends": edge("", SENT[0], end_ms=10_040),
    "never acknowledged, something lost": edge("send.answered?", SENT[0], lost(5_000)),
    "never acknowledged, something lost later": edge("send.answered", SENT[0], closed(11_000), lost(12_000)),
    "never acknowledged, by a clock that may be set": edge("send.answered?", SENT[0], clock=SETTABLE),
    "never acknowledged, unread": edge("send.answered?", SENT[0], unread(4_000, 5_000, "answers")),
    "never acknowledged, unread later": edge("send.answered", SENT[0], unread(12_000, 13_000, "answers")),
    "delivered before it was sent": edge("send.delivered.after_request", pull(20, "1", 0, 0, end=1), *SENT),
    "listed for who asks for an offset before it was sent": edge(
        "", exchange(20, ASKS, 0)[:1], [exchange(20, ASKS, 0)[1] | {"offsets": [0]}], *SENT
    ),
    "perhaps delivered before it was sent": edge(
        "", widened(pull(44, "1", 0, 0, end=1), 1, 10), asked_to_keep(50, "s1", 10), SENT[1]
    ),
    "appended too late": edge("send.acknowledged.appended", *SENT, appended(70, 0)),
    "perhaps appended too late": edge("", SENT[0], kept(60, 0, "s1", 20), appended(65, 0, 20)),
}

LOGS: Final[dict[str, Edge]] = {
    "an end that nobody else tells falls": edge("log.visible.monotone", shown(50, 3), shown(60, 2))
}

HIGHER = (pull(50, "1", 5, 19, end=5),)

ENDS: Final[dict[str, Edge]] = {
    "an end that falls": edge("pull.max.never_falls", *HIGHER, pull(60, "2", 4, 19, end=4)),
    "an end that perhaps falls": edge("", widened(HIGHER[0], 1, 20), pull(60, "2", 4, 19, end=4)),
    "an end that falls to one of two of an identifier": edge(
        "",
        *HIGHER,
        [
            *pull(60, "2", 5, 19, end=5)[:1],
            *(one | {"queue": 1} for one in pull(61, "2", 0, 19, end=0)[:1]),
            *(one | {"queue": -1, "topic": ""} for end in (5, 0) for one in pull(62, "2", end, 19, end=end)[1:]),
        ],
    ),
    "an end that falls on another connection": edge(
        "", *HIGHER, [one | {"connection": "2"} for one in pull(60, "2", 4, 19, end=4)]
    ),
    "an end that falls for a topic deleted meanwhile": edge("", *HIGHER, gone(55), pull(60, "2", 4, 19, end=4)),
    "an end below what was delivered": edge(
        "pull.max.never_falls",
        [one | ({"offset_max": 3} if "offset_max" in one else {}) for one in pull(50, "1", 0, 0, end=5)],
        pull(60, "2", 4, 19, end=4),
    ),
    "an end that falls on no connection": edge(
        "", *([one | {"connection": ""} for one in told] for told in (*HIGHER, pull(60, "2", 4, 19, end=4)))
    ),
    "the end of what was delivered": edge(
        "",
        [one | ({"offset_max": 3} if "offset_max" in one else {}) for one in pull(50, "1", 0, 0, end=5)],
        pull(60, "2", 5, 19, end=5),
    ),
}

EARLY_SAYS = "pull.hold.not_early"
EARLY = pull(50, "1", 0, 19, end=0, took=20, **LONG)
SLOW = pull(50, "1", 0, 19, end=0, took=3_000)
WAITS = pull(50, "1", 0, 19, end=0, took=40, **SHORT)
AT_END = pull(50, "1", 1, 19, end=1, took=40, **SHORT)
BELOW = [*NOTHING, *appended(30, 0)]
THREE = [*NOTHING, *(one for offset in range(3) for one in appended(30 + offset, offset))]
MORE = [one | ({"offset_max": 3} if "offset_max" in one else {}) for one in pull(50, "1", 0, 0, end=1)]
WOKEN = pull(50, "1", 0, 0, end=1, took=250, **HELD)
UNSEEN = (NOTHING, WOKEN[:1], held(51, "1"), appended(59, 0), shown(60, 1))
GONE = [one | ({"offset_min": 1} if "offset_min" in one else {}) for one in pull(50, "1", 0, 21, end=1, took=250)]

PULLS: Final[dict[str, Edge]] = {
    "nothing new, too early": edge("pull.hold.not_early", pull(50, "1", 0, 19, end=0, took=900, **HELD)),
    "nothing new, perhaps too early": edge(
        "", widened(widened(pull(50, "1", 0, 19, end=0, took=940, **HELD), 0, 60), 1, 30)
    ),
    "nothing new, its topic deleted": edge("", EARLY[:1], gone(60), EARLY[1:]),
    "nothing new, its topic deleted long before": edge(
        "pull.hold.not_early", gone(60), pull(6_000, "1", 0, 19, end=0, took=20, **HELD)
    ),
    "nothing new, its topic deleted later": edge("pull.hold.not_early", EARLY, gone(75)),
    "nothing new, all topics deleted later": edge(EARLY_SAYS, EARLY, [one | {"topic": ""} for one in gone(75)]),
    "nothing new, its topic deleted later elsewhere": Edge(EARLY_SAYS, (tuple(EARLY), tuple(gone(75)))),
    "nothing new, as short polling has it": edge(
        "pull.hold.not_early?", pull(50, "1", 0, 19, end=0, took=1_001, **LONG)
    ),
    "nothing new, as nothing has it": edge("pull.hold.not_early", pull(50, "1", 0, 19, end=0, took=900, **LONG)),
    "nothing new, and everything ends": edge("", EARLY, closed(1_000), end_ms=3_000),
    "nothing new, and its connection ends": edge("pull.hold.not_early?", EARLY, closed(1_000)),
    "nothing new, and its connection ends late": edge("pull.hold.not_early", EARLY, closed(6_000)),
    "nothing new, and the record ends": edge("pull.hold.not_early?", EARLY, end_ms=3_000),
    "nothing new, and something lost soon": edge("pull.hold.not_early?", EARLY, lost(2_000)),
    "nothing new, and something lost late": edge(
        "pull.hold.not_early", EARLY, closed(7_000, connection="9"), lost(8_000)
    ),
    "not held, and unread": edge("pull.unheld.prompt?", SLOW[:1], unread(500, 600, "answers"), SLOW[1:]),
    "not held, and unread later": edge("pull.unheld.prompt", SLOW, unread(5_500, 5_600, "answers")),
    "held before it came": edge("pull.hold.after_request", held(45, "1"), WAITS),
    "held before it came and before its end": edge(
        "pull.hold.after_request", BELOW, held(40, "1"), shown(45, 1), AT_END
    ),
    "perhaps held before it came": edge("", held(45, "1", 10), widened(WAITS, 0, 10)),
    "held after its answer": edge("pull.hold.unanswered", WAITS, held(95, "1")),
    "perhaps held after its answer": edge("", widened(WAITS, 1, 10), held(95, "1", 10)),
    "held past the end": edge("pull.hold.at_end", BELOW, AT_END[:1], held(60, "1"), shown(75, 1), AT_END[1:]),
    "perhaps held past the end": edge("", BELOW, AT_END[:1], held(60, "1", 20), shown(75, 1), AT_END[1:]),
    "told of more than is visible": edge("pull.max.most", THREE, shown(40, 1), MORE, shown(500, 3)),
    "told of more than is perhaps visible": edge(
        "pull.max.most", THREE, shown(40, 1), MORE[:1], shown(50.5, 2, 10), MORE[1:], shown(500, 3)
    ),
    "perhaps told of what is visible": edge("", THREE, shown(40, 1), MORE[:1], shown(50.5, 3, 10), MORE[1:]),
    "given what is visible later": edge(
        "pull.found.visible", appended(30, 0), pull(50, "1", 0, 0, end=1), shown(500, 1)
    ),
    "given what is perhaps visible": edge(
        "", appended(30, 0), pull(50, "1", 0, 0, end=1)[:1], shown(50.5, 1, 10), pull(50, "1", 0, 0, end=1)[1:]
    ),
    "woken late": edge("pull.wake.prompt", NOTHING, WOKEN[:1], held(51, "1"), appended(59, 0), shown(60, 1), WOKEN[1:]),
    "perhaps woken late": edge(
        "pull.wake.prompt?", NOTHING, WOKEN[:1], held(51, "1"), appended(59, 0), shown(60, 1, 200), WOKEN[1:]
    ),
    "woken late, and unread until then": edge(
        "pull.wake.prompt?", *UNSEEN, widened(WOKEN, 1, 200)[1:], unread(310, 320, "answers")
    ),
    "woken late, and unread later": edge("pull.wake.prompt", *UNSEEN, WOKEN[1:], unread(310, 320, "answers")),
    "never woken": edge("pull.answered pull.wake.prompt", *UNSEEN),
    "told late that its offset is gone": edge("", *UNSEEN, GONE[1:]),
    "answered late": edge("pull.deadline.met", pull(50, "1", 0, 19, end=0, took=1_060, **HELD)),
    "perhaps answered late": edge(
        "pull.deadline.met?", widened(pull(50, "1", 0, 19, end=0, took=1_060, **HELD), 0, 100)
    ),
    "answered late, and unread until then": edge(
        "pull.deadline.met?",
        widened(pull(50, "1", 0, 19, end=0, took=1_200, **HELD), 1, 200),
        unread(1_300, 1_350, "answers"),
    ),
    "nothing new, too early by a clock that may be set": edge(EARLY_SAYS + "?", EARLY, clock=SETTABLE),
    "not held, and late by a clock that may be set": edge("pull.unheld.prompt?", SLOW, clock=SETTABLE),
    "woken late by a clock that may be set": edge("pull.wake.prompt?", *UNSEEN, WOKEN[1:], clock=SETTABLE),
    "answered late by a clock that may be set": edge(
        "pull.deadline.met?", pull(50, "1", 0, 19, end=0, took=1_060, **HELD), clock=SETTABLE
    ),
    "told of more than is visible by a clock that may be set": edge(
        "pull.max.most", THREE, shown(40, 1), MORE, shown(500, 3), clock=SETTABLE
    ),
    "never answered": edge("pull.answered", pull(50, "1", 0, 19, end=0, **HELD)[:1]),
    "never answered, and something lost": edge("pull.answered?", pull(50, "1", 0, 19, end=0, **HELD)[:1], lost(500)),
    "never answered, and something lost after its deadline": edge(
        "pull.answered",
        pull(50, "1", 0, 19, end=0, **HELD)[:1],
        closed(3_000, connection="9"),
        lost(5_000),
    ),
}


def waits(begin: float, name: str, end: float) -> list[Told]:
    """A pull that is held if `held` says so, on a connection of its own, and its answer."""
    took = end - begin
    told = pull(begin, name, 0, 19, end=0, took=took, may_hold=True, timeout_ms=int(took))
    return [one | {"connection": name} for one in told]


def moved(at: float, event: str, name: str, width_ms: float = 0, end: int = 0) -> list[Told]:
    """Something happens to a pull in the table, or with it."""
    about = {"request": name, "visible_end": end}
    return [wide({"at": at, "event": event, **QUEUE, **about}, width_ms)]


def crowd(says: str, *first: list[Told], since: float = 80, hold: list[Told] | None = None) -> Edge:
    """What happens to one pull while another comes and is held at a broker that promises to hold one."""
    other = waits(since, "2", since + 10)
    events = [*waits(50, "1", 100), *(moved(since + 2, "hold", "2") if hold is None else hold), *other]
    events += [one for several in first for one in several]
    events.sort(key=lambda one: float(one["at"]))
    return Edge(says, (tuple(events),), hold_limit=1)


CROWDED = "hold.limit.kept"
LIMITS: Final[dict[str, Edge]] = {
    "two are held": crowd(CROWDED, moved(52, "hold", "1")),
    "one was kept first": crowd(CROWDED, moved(52, "hold", "1"), moved(90, "keep", "1"), since=60),
    "one was rechecked for nothing": crowd(CROWDED, moved(52, "hold", "1"), moved(56, "recheck", "1")),
    "one was rechecked for more": crowd("", moved(52, "hold", "1"), moved(56, "recheck", "1", end=1)),
    "one was rechecked for less": crowd("", moved(52, "hold", "1", end=1), moved(56, "recheck", "1")),
    "one was rechecked for what is not told": crowd(
        "", moved(52, "hold", "1", end=-1), moved(56, "recheck", "1", end=-1)
    ),
    "one was kept, and rechecked": crowd("", moved(52, "take", "1"), moved(53, "keep", "1"), moved(56, "recheck", "1")),
    "the connection of one was closed": crowd(
        "answer.open_connection", moved(52, "hold", "1"), closed(70, connection="1")
    ),
    "the connection of one was perhaps closed before": crowd(
        "answer.open_connection", closed(51, 10, connection="1"), moved(54, "hold", "1")
    ),
    "one was perhaps taken before": crowd("", moved(52, "take", "1", 10), moved(55, "hold", "1")),
    "one was perhaps held late": crowd("", moved(52, "hold", "1", 45)),
    "one was perhaps taken early": crowd("", moved(52, "hold", "1"), moved(70, "take", "1", 40)),
    "one was held as the other was taken": crowd(
        "", moved(52, "hold", "1"), moved(84, "take", "1"), hold=moved(82, "hold", "2", 2)
    ),
}
QUEUES: Final = {**ANSWERS, **LIMITS, **LOGS, **SHOWN, **SENDS, **ENDS, **PULLS}
