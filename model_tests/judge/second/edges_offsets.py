"""The smallest histories of groups that commit offsets and ask for them, on either side of what decides.

Leaves out queues (`edges_queues`).
"""

from __future__ import annotations

from typing import Final

from model_tests.judge.second.edges import MONOTONIC, SETTABLE, Edge, closed, edge, gone, lost, pull, wide
from model_tests.judge.second.parts import Told

ASKS, COMMITS, GROUP_DELETED = 14, 15, 207
NOT_FOUND: Final = -22
REFUSED: Final = 1
SILENT: Final = -1_000
"""In place of what is told: nothing."""


def exchange(at: float, code: int, number: int = 0, *, took: float = 1, **widths: float) -> list[Told]:
    """A request about an offset and its answer: one that commits `number`, or is told it, or minus a code.

    `widths` are how wide the intervals of `asked` and `answered` are, ms.
    """
    place = {"topic": "T", "queue": 0, "group": "g", "connection": "1", "request": f"2-{at}"}
    asked = wide({"at": at, "event": "request_received", "code": code, **place}, widths.get("asked", 0))
    if number == SILENT:
        return [asked]
    fields = {"commit_offset": number} if code == COMMITS else {}
    told = {"code": -number} if number < 0 else {"code": 0, **({} if code == COMMITS else {"offset": number})}
    answer = {"at": at + took, "event": "answer_sent", **place, **told}
    return [asked | fields, wide(answer, widths.get("answered", 0))]


def pulled(at: float, commit: int, *, is_refused: bool = False) -> list[Told]:
    """A pull with which an offset is committed, and its answer."""
    asked, answer = pull(at, f"1-{at}", 0, 19, end=0, commit_offset=commit)
    refusal = {"code": REFUSED, "offset_next": -1, "offset_min": -1, "offset_max": -1}
    return [asked, answer | (refusal if is_refused else {})]


LATE_COMMIT = (exchange(5_100, COMMITS, 9), exchange(5_200, ASKS, NOT_FOUND))
"""Over five seconds after a deletion at 60 the group commits, and is told that it has no offset."""
LATE_ANSWER = exchange(50, ASKS, NOT_FOUND, took=3_000)
OTHERS = tuple(exchange(50, COMMITS, 9)), tuple(exchange(60, ASKS, NOT_FOUND))
"""What one observer sees, and the other: nobody knows who saw first."""

LONG_COMMIT = exchange(50, COMMITS, 7, took=1_850)
DAMAGED = [{name: value for name, value in LONG_COMMIT[0].items() if name != "commit_offset"}]
UNTIL = closed(300, connection="9")
LATELY = [*exchange(1_500, ASKS, NOT_FOUND), *exchange(1_950, ASKS, 7)]
"""None, and then more than nothing; what may have been committed meanwhile came up to two seconds before."""
SINCE = (LATELY[:2], LONG_COMMIT[1:], LATELY[2:])


def named(told: list[Told], **fields: object) -> list[Told]:
    """The same, with one identifier for all; `fields` are of the last of the events."""
    renamed = [one | {"request": "x"} for one in told]
    return [*renamed[:-1], renamed[-1] | fields]


TO_7 = exchange(50, COMMITS, 7)
SECOND: Final[Told] = {"queue": 1}
NOWHERE: Final[Told] = {"topic": "", "queue": -1}
ASKED_IN_SECOND = [named(exchange(60, ASKS, 5))[0] | SECOND]

NOBODYS: Final[dict[str, Edge]] = {
    "told in the queue of another question": edge(
        "",
        TO_7,
        [named(exchange(55, ASKS, 5))[0] | SECOND, named(exchange(55, ASKS, 5))[1] | SECOND],
        named(exchange(60, ASKS, 7)),
    ),
    "told one of two questions": edge("", TO_7, ASKED_IN_SECOND, named(exchange(65, ASKS, 5), **NOWHERE)),
    "told one question": edge("commit.told.least", TO_7, named(exchange(65, ASKS, 5), **NOWHERE)),
    "told of another queue": edge("", TO_7, named(exchange(65, ASKS, 5), **SECOND)),
    "told of another topic": edge("", TO_7, named(exchange(65, ASKS, 5), **NOWHERE | {"topic": "other"})),
    "told of no queue of the topic": edge("commit.told.least", TO_7, named(exchange(65, ASKS, 5), queue=-1)),
    "one of two commits was refused": edge(
        "",
        named(exchange(50, COMMITS, 5)),
        named(exchange(60, COMMITS, 7), code=REFUSED),
        exchange(70, ASKS, 5),
    ),
    "perhaps a code that there is not": edge("", ASKED_IN_SECOND, named(exchange(65, ASKS, -77), **NOWHERE)),
    "perhaps late": edge("", ASKED_IN_SECOND, named(exchange(5_000, ASKS, NOT_FOUND), **NOWHERE)),
    "a pull was answered": edge("", named(pull(50, "x", 0, 19, end=0)), [named(exchange(60, ASKS, 5))[0]]),
}

OFFSETS: Final[dict[str, Edge]] = {
    **NOBODYS,
    "made up after the group was deleted": edge(
        "commit.told.written",
        *(exchange(50, ASKS, NOT_FOUND), gone(60, GROUP_DELETED)),
        *(exchange(70, COMMITS, 5), exchange(80, ASKS, 10**9)),
    ),
    "none after the deletion was over": edge("commit.told.some", gone(60), *LATE_COMMIT),
    "none, and the clock may have been set": edge("", gone(60), *LATE_COMMIT, clock=SETTABLE),
    "none, and the deletion may have come late": edge("", gone(60, width_ms=3_000), *LATE_COMMIT),
    "none, and the deletion may have come after": edge(
        "", gone(60), exchange(70, COMMITS, 9), exchange(80, ASKS, NOT_FOUND)
    ),
    "none, and the deletion may have come meanwhile": edge(
        "", gone(60), exchange(5_000, COMMITS, 9, took=100), exchange(5_200, ASKS, NOT_FOUND)
    ),
    "less, and deleted only afterwards": edge(
        "commit.told.least", exchange(50, COMMITS, 9), exchange(60, ASKS, 5), gone(70)
    ),
    "none, and perhaps not committed yet": edge(
        "", exchange(50, COMMITS, 9, answered=30), exchange(60, ASKS, NOT_FOUND)
    ),
    "put back before the last of two": edge(
        "commit.told.least", pulled(50, 9), exchange(60, COMMITS, 5), pulled(70, 9), exchange(80, ASKS, 5)
    ),
    "put back below what is told": edge(
        "", pulled(50, 9), exchange(60, COMMITS, 3), pulled(70, 5), exchange(80, ASKS, 5)
    ),
    "more than a refused pull committed": edge("", pulled(50, 5, is_refused=True), exchange(60, ASKS, 9)),
    "more than a pull committed": edge("commit.told.most?", pulled(50, 5), exchange(60, ASKS, 9)),
    "none at another observer, then nothing to skip": Edge(
        "", ((*exchange(50, ASKS, 5), *exchange(70, ASKS, 0)), tuple(exchange(60, ASKS, NOT_FOUND)))
    ),
    "more, and nobody knows what was committed": edge("commit.told.most?", DAMAGED, UNTIL, *SINCE),
    "more, and something lost while it may have been committed": edge("commit.told.most?", lost(50), UNTIL, LATELY),
    "more, and something lost too early for that": edge(
        "commit.told.most",
        lost(50),
        closed(60, connection="9"),
        exchange(3_000, ASKS, NOT_FOUND),
        exchange(3_020, ASKS, 7),
    ),
    "more, as was committed meanwhile": edge("", LONG_COMMIT[:1], UNTIL, *SINCE),
    "committed while another was told": edge(
        "", exchange(50, COMMITS, 7, took=60), exchange(60, ASKS, 5), exchange(120, ASKS, 7)
    ),
    "seen committed by another observer": Edge("", OTHERS),
    "seen committed": Edge("commit.told.some", ((*OTHERS[0], *OTHERS[1]), ())),
    "answered as late as is allowed": edge("", exchange(50, ASKS, NOT_FOUND, took=2_030)),
    "perhaps answered too late": edge("commit.answered?", exchange(50, ASKS, NOT_FOUND, took=2_090, asked=60)),
    "never answered, and closed": edge("", exchange(50, ASKS, SILENT), closed(1_000)),
    "never answered, and perhaps closed": edge("", exchange(50, ASKS, SILENT), closed(1_000, 3_000)),
    "never answered, and closed late": edge("commit.answered", exchange(50, ASKS, SILENT), closed(3_000)),
    "never answered, and something lost": edge("commit.answered?", exchange(50, ASKS, SILENT), lost(2_000)),
    "never answered, and something lost later": edge("commit.answered", exchange(50, ASKS, SILENT), lost(8_000)),
    "answered late, and something lost": edge("commit.answered?", LATE_ANSWER[:1], lost(1_000), LATE_ANSWER[1:]),
    "answered late by a clock that may be set": edge("commit.answered?", LATE_ANSWER, clock=SETTABLE),
    "never answered by a clock that may be set": edge("commit.answered?", exchange(50, ASKS, SILENT), clock=SETTABLE),
    "answered late": edge("commit.answered", LATE_ANSWER, clock=MONOTONIC),
}
