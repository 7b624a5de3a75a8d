"""The judge's result: findings, evidence gaps, latencies and one overall verdict. `report` shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa
from attrs import frozen

from longpoll_spec.tables import with_table


@with_table
class Rate(msgspec.Struct, frozen=True):
    """How often a property was violated, and how often a violation was possible."""

    violated: int
    of: int
    """The number of pulls that could have violated the property, because a message woke them or their deadline passed.
    """


Verdict = Literal["valid", "invalid", "unknown"]
FindingVerdict = Literal["violated", "unknown", "observed"]

NO_LOST_WAKEUP: Final = "no_lost_wakeup"
ANSWERED_BY_DEADLINE: Final = "answered_by_deadline"
ANSWERED_ONCE: Final = "answered_once"
ANSWER_IS_RIGHT: Final = "answer_is_right"
ANSWERED_ON_STOP: Final = "answered_on_stop"
OFFSETS_IN_ORDER: Final = "offsets_in_order"
VISIBLE_IS_MONOTONE: Final = "visible_is_monotone"
COMMIT_NEVER_REGRESSES: Final = "commit_never_regresses"
HOLD_LIMIT_KEPT: Final = "hold_limit_kept"
FOLLOWS_THE_LAW: Final = "follows_the_law"
HELD_AS_ASKED: Final = "held_as_asked"
SEND_IS_KEPT: Final = "send_is_kept"
COMMIT_IS_TOLD: Final = "commit_is_told"
MESSAGE_IS_DELIVERED: Final = "message_is_delivered"
POP_IS_KEPT: Final = "pop_is_kept"
EVIDENCE: Final = "evidence"
"""The group of clauses about the record itself; it is not a property of a broker."""
PROPERTIES: Final = (
    NO_LOST_WAKEUP,
    ANSWERED_BY_DEADLINE,
    ANSWERED_ON_STOP,
    ANSWERED_ONCE,
    ANSWER_IS_RIGHT,
    OFFSETS_IN_ORDER,
    VISIBLE_IS_MONOTONE,
    COMMIT_NEVER_REGRESSES,
    HOLD_LIMIT_KEPT,
    FOLLOWS_THE_LAW,
    HELD_AS_ASKED,
    SEND_IS_KEPT,
    COMMIT_IS_TOLD,
    MESSAGE_IS_DELIVERED,
    POP_IS_KEPT,
)


@with_table
class Follow(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of one clause that have the same cause as a listed finding."""

    property: str
    clause: str
    verdict: FindingVerdict
    topic: str
    queue: int
    count: int
    requests: list[str]
    """The requests at fault; empty if the log is at fault."""
    why: str
    """The reason of the first of these findings."""


@with_table
class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A request or a queue's log that violates a property, or may violate it, with the events as evidence."""

    property: str
    clause: str
    """The clause of the contract that the finding is about (`longpoll_judge.contract.clauses`)."""
    verdict: FindingVerdict
    topic: str
    queue: int
    request: str
    """The request at fault; empty if the log is at fault."""
    window_start_ms: float
    """Unix time of the earliest event that the finding needs."""
    window_end_ms: float
    why: str
    evidence: list[dict[str, Any]]
    """The events that show the fault. With `meta`, the events form a complete history, which violates the clause again
    if it is judged alone."""
    messages: list[int] = []
    """Queue offsets of the messages that the finding is about, starting with the message at fault; may be empty."""
    tag: str = ""
    """The tag of the first message in `messages`, if the evidence has it."""
    offsets: dict[str, int] = {}
    """The offsets in the request at fault and its answer, or, if the log is at fault, in the log."""
    time: str = ""
    """The beginning of the finding's window in UTC, such as `2026-11-27T03:19:14.000001Z`."""
    group: str = ""
    """The consumer group of the request at fault; empty if it was not recorded."""
    connection: str = ""
    codes: dict[str, str] = {}
    """The codes of the `request` and its `answer`, with their names in RocketMQ."""
    follows: list[Follow] = []
    """Other consequences of the same cause, which are not separate findings."""
    meta: dict[str, Any] = {}
    """The content of the evidence's `meta.json`."""
    id: str = ""
    """The finding's id, which stays the same when a history is judged again (`longpoll_judge.contract.causes`)."""

    def told(self) -> list[Finding | Follow]:
        """Returns the finding itself and the findings in `follows`, which have the same cause."""
        return [self, *self.follows]

    def shown(self) -> list[dict[str, Any]]:
        """Returns the events that show the fault, without the events that only complete the history."""
        return [
            event
            for event in self.evidence
            if event["event"] not in {"omitted", "source_started", "source_stopped"}
            and self.window_start_ms <= event["after_ns"] / 1_000_000
            and event["before_ns"] / 1_000_000 <= self.window_end_ms
        ]


@frozen
class Gap:
    """Missing evidence. A verdict with any gap cannot be `valid`."""

    kind: str
    where: str
    count: int
    why: str

    @property
    def clause(self) -> str:
        """The clause of the contract to which the gap belongs."""
        return f"{EVIDENCE}.{self.kind.replace(' ', '_')}"


@with_table
class Percentiles(msgspec.Struct, frozen=True):
    """Percentiles of latencies in ms, from upper bounds so that no latency is understated; None without latencies."""

    count: int
    p50: float | None
    p99: float | None
    max: float | None

    def texts(self) -> tuple[str, str, str]:
        """The three percentiles as text, in ms."""
        p50, p99, most = ("-" if value is None else f"{value:.3f}" for value in (self.p50, self.p99, self.max))
        return p50, p99, most


@with_table
class Share(msgspec.Struct, frozen=True):
    """The number of judged items, and the number of all items."""

    judged: int
    of: int

    def __str__(self) -> str:
        return f"{self.judged} of {self.of}"


FINDINGS: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("id", "property", "clause", "verdict", "topic")),
        ("queue", pa.int64()),
        *((name, pa.string()) for name in ("group", "connection", "request", "time", "why", "tag")),
        *((name, pa.float64()) for name in ("window_start_ms", "window_end_ms")),
        ("messages", pa.list_(pa.int64())),
    ]
)
"""The columns of the table of findings, which are fields of `Finding`."""
COUNTS: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("clause", "property")),
        *((name, pa.int64()) for name in ("judged", "violated", "unknown", "observed")),
    ]
)
"""The columns of the table of clauses: how often the property of a clause was checked, and how often the clause was
violated."""
METRICS: Final = pa.schema([("metric", pa.string()), ("label", pa.string()), ("value", pa.float64())])
"""The columns of the table of counts and latencies."""
TableName = Literal["findings", "counts", "metrics"]


@with_table
class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The judgement of one history."""

    verdict: Verdict
    events: int
    queues: int
    requests: int
    """The number of pulls that were judged."""
    seconds: float
    """The duration of the judgement in seconds, without the start of Spark."""
    start_seconds: float
    engine: str
    findings: list[Finding]
    findings_left_out: int
    """The number of findings that are not listed, because their queue and property have too many."""
    gaps: list[dict[str, Any]]
    notes: list[dict[str, Any]] = []
    """Requests that the contract does not cover, with their counts. The verdict `valid` says nothing about these
    requests."""
    observations: list[Finding] = []
    """Permitted behaviour that users may want to know. Observations do not affect the verdict."""
    latency: dict[str, Percentiles]
    thresholds: dict[str, float]
    shares: dict[str, Share] = {}
    """For pulls, sends, commits and steps, the number of judged items and of all items. `commits` counts queries of
    committed offsets."""
    judged: dict[str, int] = {}
    """How often each property was checked. A property with 0 checks did not apply, which does not mean that it held."""
    rates: dict[str, Rate] = {}
    """For each property about time, how often it was certainly violated, and how often that was possible."""

    def to_arrow(self, name: TableName = "findings") -> pa.Table:
        """Returns the findings (`FINDINGS`), the counts of each clause (`COUNTS`), or counts and latencies (`METRICS`).

        The counts include the listed findings and their consequences. The label of a metric depends on its name:
        `judged` and `violations` are labelled with a property; `gaps`, `violated`, `unknown` and `observed` with a
        clause; `latency_ms` with a latency and `count`, `p50`, `p99` or `max`. `events`, `queues` and `requests` have
        no label.
        """
        if name == "findings":
            return pa.Table.from_pylist(
                [{column: getattr(one, column) for column in FINDINGS.names} for one in self.findings], FINDINGS
            )
        if name == "counts":
            return pa.Table.from_pylist(list(self._counts()), COUNTS)
        return pa.Table.from_pylist(
            [{"metric": metric, "label": label, "value": value} for metric, label, value in self._metrics()], METRICS
        )

    def to_pandas(self, name: TableName = "findings") -> Any:
        """Returns the table of `to_arrow` as a pandas DataFrame."""
        return self.to_arrow(name).to_pandas()

    def to_spark(self, session: Any, name: TableName = "findings") -> Any:
        """Returns the table of `to_arrow` as a DataFrame of a Spark session."""
        return session.createDataFrame(self.to_arrow(name))

    def _counts(self) -> Iterator[dict[str, Any]]:
        from longpoll_judge.contract.clauses import CLAUSE  # noqa: PLC0415 - which imports this module

        told = [each for one in (*self.findings, *self.observations) for each in one.told()]
        properties = {name: clause.property for name, clause in CLAUSE.items()} | {
            one.clause: one.property for one in told
        }
        counts = Counter((gap["clause"], "unknown") for gap in self.gaps)
        for one in told:
            counts[one.clause, one.verdict] += one.count if isinstance(one, Follow) else 1
        for name, kind in properties.items():
            counted = {verdict: counts[name, verdict] for verdict in ("violated", "unknown", "observed")}
            yield {"clause": name, "property": kind, "judged": self.judged.get(kind, 0), **counted}

    def _metrics(self) -> Iterator[tuple[str, str, float | None]]:
        counts = Counter({(name, ""): getattr(self, name) for name in ("events", "queues", "requests")})
        counts.update(("gaps", gap["clause"]) for gap in self.gaps)
        counts.update((one.verdict, one.clause) for one in (*self.findings, *self.observations))
        for (metric, label), count in counts.items():
            yield metric, label, float(count)
        yield from (("judged", name, float(count)) for name, count in self.judged.items())
        yield from (("violations", name, float(rate.violated)) for name, rate in self.rates.items())
        for name, latency in self.latency.items():
            yield from (("latency_ms", f"{name} {at}", value) for at, value in msgspec.structs.asdict(latency).items())


def overall(findings: Iterable[Finding], gaps: Iterable[Gap]) -> Verdict:
    """Returns `invalid` if a finding is violated, else `unknown` if any finding or gap exists, else `valid`."""
    verdicts = {finding.verdict for finding in findings}
    if "violated" in verdicts:
        return "invalid"
    return "unknown" if verdicts or any(True for _ in gaps) else "valid"
