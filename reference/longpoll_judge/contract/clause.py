"""A clause of the judge's contract, and the constants that several clauses share. The clauses: `pulls`, `clauses`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from attrs import frozen

from longpoll_judge.contract.result import FindingVerdict

Seen = Literal["anywhere", "inside", "outside"]

PULL_RESULTS: Final = (0, 19, 20, 21)
"""Answers to a pull that report a read of the store."""
PULL_REFUSALS: Final = (1, 2, 3, 16, 17, 23, 24, 25, 26, 27, 28, 29, 215, 501, 1500)
"""Answers to a pull without a read: the codes of `ResponseCode` and `RemotingSysResponseCode` that
`PullMessageProcessor`, its executor and the hooks before it return. 4.9 answers code 361 with 3."""
REFUSED_LEAST: Final = 10
REFUSED_SHARE: Final = 0.25
"""The contract does not cover refusals. At least so many, above this share of the requests, are a gap."""
NOTE_REFUSED: Final = "of {} {} were refused, and no history tells whether they had to be"
BUSY_CODES: Final = (2, 215)
"""Refusals because the broker is overloaded."""
SEND_CODES: Final = (10, 310, 320)
"""SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE."""
SEND_ANSWERS: Final = (0, 1, 2, 3, 10, 11, 12, 13, 14, 16, 17, 26, 29, 215, 501, 1500)
"""Answers to a send: stored (0; 10 to 12 without a timely flush or copy), or refused."""
SEND_STORED: Final = (0, 10, 11, 12)
"""Answers to a send whose messages were stored."""
SEND_NOT_STORED: Final = (2, 3, 13, 16, 17, 26, 29, 215, 501, 1500)
"""Answers to a send whose messages were not stored; 1 and 14 are left out, because they may follow a store."""
QUERY_CODES: Final = (0, 1, 2, 16, 17, 22, 26, 29, 215, 501, 1500)
"""Answers to a query of a committed offset (14)."""
UPDATE_CODES: Final = (0, 1, 2, 16, 17, 26, 29, 215, 501, 1500)
"""Answers to an update of a committed offset (15)."""

UNHELD_MS: Final = 2_000
"""The time limit of an answer that is not held. It has no deadline, and machines are busy."""
SHORT_POLLING_MS: Final = 1_000
"""The hold time of every pull in a broker without long polling (`shortPollingTimeMills`)."""
SHOWN_MS: Final = 5_000
"""The time limit from acknowledgement to visibility; the dispatcher is some milliseconds behind."""
SEND_MS: Final = 10_000
"""The time limit of an answer to a send, which may wait for disk and slave."""
EARLY_MS: Final = 1_000
"""How early a delayed message may be delivered: timers count in seconds (`timerPrecisionMs`)."""
LATE_MS: Final = 5_000
"""The delay after which the judge reports a late delivery of a delayed message."""
RETRY_MS: Final = 3_000
"""How long a producer repeats a send: RocketMQ's `sendMsgTimeout`."""
COMPACTION_MS: Final = 900_000
"""So long a compaction topic keeps every message at least: RocketMQ's `compactionScheduleInternal`."""
UNREMOVED_MS: Final = 1_000
"""The least age of a message that retention removes, even from a full disk: its file is still written to."""
RETENTION_MS: Final = 3_600_000
"""The least retention: `fileReservedTime` is in hours. A full disk removes messages earlier."""
STOPPING_MS: Final = 5_000
"""Within this time, a stopping broker answers its held pulls and closes its connections."""
STOPPED_MS: Final = 15_000
"""A broker that reports a stop and continues for longer did not stop."""

TIMELESS: Final = frozenset(
    {
        *("answer.once", "answer.same_connection", "commit.code.known", "log.append.once", "log.acknowledged.once"),
        *("send.acknowledged.same_connection", "send.acknowledged.tag", "pull.code.known", "pull.found.some"),
        *("pull.none.empty", "pull.found.ordered", "pull.found.from_asked", "pull.found.at_most", "pull.found.next"),
        *("pull.found.identified", "send.acknowledged.identity"),
        *("pull.found.above_min", "pull.next.within", "pull.none.next", "pull.passed.next", "pull.illegal.outside"),
        *("pull.illegal.next", "pull.min.below_max", "pull.hold.allowed", "pull.hold.once"),
        *("pull.step.allowed", "pull.found.within", "send.code.known", "send.batch.gapless"),
        *("pull.found.tag", "pull.found.complete", "pull.passed.none_match", "message.one_value"),
        *("pop.code.known", "pop.found.some", "pop.found.at_most", "pop.found.asked", "pop.found.tag"),
    }
)
"""Clauses that compare no times, so that they hold with any clock."""
LOGGED: Final = frozenset(
    {
        *("log.append.once", "log.acknowledged.once", "send.acknowledged.tag", "message.one_value"),
        *("pull.found.tag", "pull.found.complete", "pull.passed.none_match"),
    }
)
"""The timeless clauses that depend on times if the queue has several generations, because times separate these."""


@frozen
class Clause:
    """One line of the contract."""

    id: str
    """Stable: reports, tests and other judges name it."""
    says: str
    property: str
    """Its property in the report, or `evidence`."""
    source: str
    """The source in RocketMQ or the specification."""
    needs: tuple[str, ...]
    """The required events, with their fields."""
    seen: Seen = "anywhere"
    """Whether it needs a record from inside a broker, or applies only from outside."""
    whole_record: bool = False
    """Whether an unrecorded event could explain a violation: with a gap in the source's record, a finding is
    unknown."""
    verdict: FindingVerdict = "violated"
    """The strongest verdict; an `observed` finding breaks no promise of a broker."""


def moment_text(moment_ns: float) -> str:
    """Nanoseconds of Unix time as text, UTC."""
    begin = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=moment_ns / 1_000)
    return begin.isoformat(timespec="microseconds").replace("+00:00", "Z")


def restart_text(since_ns: float) -> str:
    """An explanation of a finding, for its reason."""
    return f"; all connections were closed from {moment_text(since_ns)} on, so the broker may have been killed then"


def are_many_refused(refused: int, count: int) -> bool:
    """Whether so many of these requests were refused that the rest is weak evidence."""
    return refused >= REFUSED_LEAST and refused > REFUSED_SHARE * count
