"""A clause of the contract, and the constants of several clauses. `pulls`, `pops` and `clauses` define the clauses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from attrs import frozen

from longpoll_judge.contract.result import FindingVerdict

Seen = Literal["anywhere", "inside", "outside"]

PULL_RESULTS: Final = (0, 19, 20, 21)
"""Codes of answers to a pull that report a read of the store."""
PULL_REFUSALS: Final = (1, 2, 3, 16, 17, 23, 24, 25, 26, 27, 28, 29, 215, 501, 1500)
"""Codes of answers that refuse a pull without reading the store. `PullMessageProcessor`, its executor and its RPC hooks
return these values of `ResponseCode` and `RemotingSysResponseCode`. RocketMQ 4.9 answers LITE_PULL_MESSAGE (361) with
code 3."""
REFUSED_LEAST: Final = 10
REFUSED_SHARE: Final = 0.25
"""If more than this fraction of requests was refused, and at least `REFUSED_LEAST` requests, the result has a gap,
because the contract has no clause for refusals."""
NOTE_REFUSED: Final = "of {} {} were refused, and no history tells whether they had to be"
BUSY_CODES: Final = (2, 215)
"""Codes with which an overloaded broker refuses a request."""
SEND_CODES: Final = (10, 310, 320)
"""SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE."""
SEND_ANSWERS: Final = (0, 1, 2, 3, 10, 11, 12, 13, 14, 16, 17, 26, 29, 215, 501, 1500)
"""Codes of answers to a send: stored (0; 10 to 12 if not flushed or copied in time), or refused."""
SEND_STORED: Final = (0, 10, 11, 12)
"""Codes of answers to a send whose messages were stored."""
SEND_NOT_STORED: Final = (2, 3, 13, 16, 17, 26, 29, 215, 501, 1500)
"""Codes of answers to a send whose messages were not stored. Codes 1 and 14 are absent, because the broker may have
stored the message before it returned them."""
QUERY_CODES: Final = (0, 1, 2, 16, 17, 22, 26, 29, 215, 501, 1500)
"""Codes of answers to a query of a committed offset (14)."""
UPDATE_CODES: Final = (0, 1, 2, 16, 17, 26, 29, 215, 501, 1500)
"""Codes of answers to an update of a committed offset (15)."""

SENT_BACK: Final = ("%RETRY%", "%DLQ%")
"""Prefixes of the topics to which a broker adds messages that a consumer sends back (36)."""
UNHELD_MS: Final = 2_000
"""The time limit in ms for an answer to a request that is not held, which is long because hosts may be busy."""
SHORT_POLLING_MS: Final = 1_000
"""The hold time of every pull in a broker without long polling (`shortPollingTimeMills`)."""
COLD_MS: Final = 10_000
"""The longest time in ms by which a broker with `coldDataFlowControlEnable` delays the read of an old message, and the
minimum age of an old message."""
SHOWN_MS: Final = 5_000
"""The time limit in ms from a message's acknowledgement until the message is visible, which is long because the
dispatcher may be behind."""
SEND_MS: Final = 10_000
"""The time limit in ms for an answer to a send, which may wait for the disk and for a slave."""
EARLY_MS: Final = 1_000
"""How much too early a delayed message may be delivered, because timers are rounded to seconds (`timerPrecisionMs`)."""
LATE_MS: Final = 5_000
"""The maximum delay in ms after a delayed message was due; the judge reports a message that is delivered later."""
RETRY_MS: Final = 3_000
"""The time in ms for which a producer repeats a send: RocketMQ's `sendMsgTimeout`."""
COMPACTION_MS: Final = 900_000
"""The minimum time for which a compaction topic keeps every message: RocketMQ's `compactionScheduleInternal`."""
UNREMOVED_MS: Final = 1_000
"""Retention removes no message younger than this, even if the disk is full, because the newest files are still in use.
"""
RETENTION_MS: Final = 3_600_000
"""The minimum retention, because RocketMQ's `fileReservedTime` is in hours. If the disk is full, messages are removed
earlier."""
STOPPING_MS: Final = 5_000
"""Time within which a stopping broker answers its held pulls and closes its connections."""
STOPPED_MS: Final = 15_000
"""A broker that is active longer than this after it reported a stop did not stop."""

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
        *("pop.code.known", "pop.found.some", "pop.found.at_most", "pop.found.once"),
        *("pop.found.asked", "pop.found.tag"),
    }
)
"""Clauses that compare no times, so they can be judged with any clock."""
LOGGED: Final = frozenset(
    {
        *("log.append.once", "log.acknowledged.once", "send.acknowledged.tag", "message.one_value"),
        *("pull.found.tag", "pull.found.complete", "pull.passed.none_match"),
    }
)
"""Clauses of `TIMELESS` that need times if the queue has several generations, because only times separate generations.
"""


@frozen
class Clause:
    """One clause of the contract, which says what a correct broker may do."""

    id: str
    """A stable name, used by reports, tests and other judges."""
    says: str
    property: str
    """The property in the report to which the clause belongs, or `evidence`."""
    source: str
    """The source in RocketMQ or the specification."""
    needs: tuple[str, ...]
    """The events that the clause needs, with their fields."""
    seen: Seen = "anywhere"
    """Whether the clause applies to any record, only to a record from inside a broker, or only to a record from
    outside."""
    whole_record: bool = False
    """Whether an unrecorded event could explain a violation, so that a finding is unknown if the source's record has a
    gap."""
    verdict: FindingVerdict = "violated"
    """The strongest possible verdict of the clause. An `observed` finding breaks no promise of a broker."""


def moment_text(moment_ns: float) -> str:
    """Format nanoseconds of Unix time as text in UTC."""
    begin = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=moment_ns / 1_000)
    return begin.isoformat(timespec="microseconds").replace("+00:00", "Z")


def restart_text(since_ns: float) -> str:
    """Returns the end of a finding's reason: the broker may have been killed at this time."""
    return f"; no connection of before answers after {moment_text(since_ns)}, so the broker may have been killed then"


def are_many_refused(refused: int, count: int) -> bool:
    """Whether so many of these requests were refused that a verdict on the remaining requests would be weak."""
    return refused >= REFUSED_LEAST and refused > REFUSED_SHARE * count
