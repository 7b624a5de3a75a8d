"""A clause of the judge's contract, and the constants that several clauses share. The clauses: `pulls`, `clauses`."""

from __future__ import annotations

from typing import Final, Literal

from attrs import frozen

from longpoll_judge.contract.result import FindingVerdict

Seen = Literal["anywhere", "inside", "outside"]

PULL_RESULTS: Final = (0, 19, 20, 21)
"""Answers to a pull that tell of a read of the store."""
PULL_REFUSALS: Final = (1, 2, 3, 16, 17, 23, 24, 25, 26, 27, 28, 29, 215, 501, 1500)
"""Answers to a pull that tell why there was none: `ResponseCode` and `RemotingSysResponseCode` as far as
`PullMessageProcessor`, its executor and the hooks before it give them; 3 of 4.9 to code 361."""
REFUSED_LEAST: Final = 10
REFUSED_SHARE: Final = 0.25
"""Refusals are out of the contract's reach; where they are so many, and such a share of the requests, that is a gap."""
NOTE_REFUSED: Final = "of {} {} were refused, and no history tells whether they had to be"
BUSY_CODES: Final = (2, 215)
"""Refusals for want of room."""
SEND_CODES: Final = (10, 310, 320)
"""SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE."""
SEND_ANSWERS: Final = (0, 1, 2, 3, 10, 11, 12, 13, 14, 16, 17, 26, 29, 215, 501, 1500)
"""Answers to a send: stored (0, 10 to 12, with what was not done in time), or refused."""
SEND_STORED: Final = (0, 10, 11, 12)
"""Those of them that tell that the messages were stored."""
SEND_NOT_STORED: Final = (2, 3, 13, 16, 17, 26, 29, 215, 501, 1500)
"""Those that tell that they were not: 1 and 14 may come after the store."""
QUERY_CODES: Final = (0, 1, 2, 16, 17, 22, 26, 29, 215, 501, 1500)
"""Answers to a query of a committed offset (14)."""
UPDATE_CODES: Final = (0, 1, 2, 16, 17, 26, 29, 215, 501, 1500)
"""Answers to an update of a committed offset (15)."""

UNHELD_MS: Final = 2_000
"""How long a broker may take for an answer that it may not hold back; it has no deadline, and machines are busy."""
SHORT_POLLING_MS: Final = 1_000
"""How long a broker holds every pull whose long polling is off (`shortPollingTimeMills`)."""
SHOWN_MS: Final = 5_000
"""How long a message that was acknowledged may take until it is visible: a dispatcher is some milliseconds behind."""
SEND_MS: Final = 10_000
"""How long a broker may take to answer a send: it may wait for its disk and its slave."""
EARLY_MS: Final = 1_000
"""How much before its time a delayed message may be delivered: timers are kept by the second (`timerPrecisionMs`)."""
LATE_MS: Final = 5_000
"""From when on after its time it is told that a delayed message came late."""
RETENTION_MS: Final = 3_600_000
"""How long a message stays at least: `fileReservedTime` is in hours. A disk that is full removes it earlier."""
STOPPING_MS: Final = 5_000
"""A broker that stops answers what it holds and then closes its connections, within this."""
STOPPED_MS: Final = 15_000
"""One that says that it stops and goes on for longer than this did not."""

TIMELESS: Final = frozenset(
    {
        *("answer.once", "answer.same_connection", "commit.code.known", "log.append.once", "log.acknowledged.once"),
        *("send.acknowledged.same_connection", "send.acknowledged.tag", "pull.code.known", "pull.found.some"),
        *("pull.none.empty", "pull.found.ordered", "pull.found.from_asked", "pull.found.at_most", "pull.found.next"),
        *("pull.found.above_min", "pull.next.within", "pull.none.next", "pull.passed.next", "pull.illegal.outside"),
        *("pull.illegal.next", "pull.min.below_max", "pull.hold.allowed", "pull.hold.once"),
        *("pull.step.allowed", "pull.found.within", "send.code.known", "send.batch.gapless"),
        *("pull.found.tag", "pull.found.complete", "pull.passed.none_match", "message.one_value"),
    }
)
"""Clauses that compare no moments, so that they stand whatever a clock did."""
LOGGED: Final = frozenset(
    {
        *("log.append.once", "log.acknowledged.once", "send.acknowledged.tag", "message.one_value"),
        *("pull.found.tag", "pull.found.complete", "pull.passed.none_match"),
    }
)
"""Those of them that do so only where the queue has one life: moments tell lives apart."""


@frozen
class Clause:
    """One line of the contract."""

    id: str
    """Stable: reports, tests and other judges name it."""
    property: str
    """The property of the report that it belongs to, or `evidence`."""
    says: str
    source: str
    """Where RocketMQ, or the law, says so."""
    needs: tuple[str, ...]
    """Events, with the fields that are read."""
    seen: Seen = "anywhere"
    """Whether it needs a record from inside a broker, or is asked of one from outside only."""
    whole_record: bool = False
    """Whether an event that was not recorded could explain it away: where the source's record has a hole the finding
    is unknown."""
    verdict: FindingVerdict = "violated"
    """The most that it can be found to be; what is `observed` breaks no promise of a broker."""


def are_many_refused(refused: int, count: int) -> bool:
    """Whether so many of these requests were refused that what was judged says little of the broker."""
    return refused >= REFUSED_LEAST and refused > REFUSED_SHARE * count
