"""Groups findings by cause. The judge reports one finding of each group and lists the others below it.

The keys of a finding name what could explain it: a wrong event of the log, a missing message, a wrong answer, a late
answer or a silent connection. Findings that share a key, directly or through other findings, have one cause. A lost
wakeup joins a group but does not link two groups: if one message failed to wake two pulls, there are two lost wakeups,
unless the message itself may be wrong. If several answers were due at one time and all arrived late together, they have
one cause: the host or the broker paused. The judge reports the strongest finding: violations before unknowns, then
findings about the log, about sends, and about answers, then the earliest finding.

`case.Explanation` names the events that a rule blames.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, Final

import msgspec
from attrs import define, evolve, field, frozen

from longpoll_judge.contract.clauses import CLAUSES
from longpoll_judge.contract.result import (
    ANSWER_IS_RIGHT,
    COMMIT_IS_TOLD,
    COMMIT_NEVER_REGRESSES,
    PROPERTIES,
    Finding,
    Follow,
)
from longpoll_judge.read.schema import order_of

LOG_EVENTS: Final = ("append", "message_acknowledged", "message_seen", "make_visible")
OF_CONNECTION: Final = frozenset({"answer.same_connection", "answer.open_connection"})
"""Clauses whose violations could all be explained by a connection whose traffic the record lacks."""
OF_SILENCE: Final = frozenset({"pull.wake.prompt", "pull.answered", "pull.stop.answered", "commit.answered"})
"""Clauses about a missing answer, which a connection without any recorded answer may explain."""
ANSWERS: Final = frozenset(
    clause.id for clause in CLAUSES if clause.property in {ANSWER_IS_RIGHT, COMMIT_NEVER_REGRESSES, COMMIT_IS_TOLD}
) | {"send.delivered.after_request"}
"""Clauses about the content of an answer."""
OF_LATENESS: Final = frozenset({"pull.wake.prompt", "pull.deadline.met", "pull.answered"})
"""Clauses about late or missing answers."""
JOINING: Final = frozenset({"pull.wake.prompt"})
"""Clauses whose findings join a group of findings with one cause, but do not link two groups."""
OF_FALLS: Final = frozenset({"pull.min.never_falls", "pull.max.never_falls", "pull.min.kept"})
"""Clauses that later answers violate again for the same reason, so that only the first answer of each group is
reported."""
OF_SOURCE: Final = frozenset({"law.step"})
"""Clauses that each source can violate only once, so the source is their only key."""
OF_PAUSE: Final = frozenset(
    {"pull.wake.prompt", "pull.deadline.met", "pull.unheld.prompt", "commit.answered", "send.answered"}
)
"""Clauses about a late answer, which a pause of the host or the broker may explain."""
PAUSE_NS: Final = 2_000_000_000
"""The maximum lateness in ns that a pause explains. An answer that waited for the next scan is usually later."""
PAUSE_ENDS_NS: Final = 50_000_000
"""The time in ns after a pause within which the late answers must arrive."""
PAUSED_LEAST: Final = 3
"""The minimum number of late requests that show a pause."""
RANKS: Final = (
    *(
        "log.append.",
        "log.",
        "send.",
        "answer.",
        "pull.answered",
        "pull.stop.",
        "pull.found.",
        "pull.none.",
        "pull.passed.",
    ),
    "pop.",
    *("pull.illegal.", "pull.max.", "pull.next.", "pull.wake.", "pull.", "pull.hold.", "commit.", "hold.", "law."),
    *("send.delivered.", "message.", "pull.min.never_falls", "pull.max.never_falls", "own."),
)
"""Prefixes of clauses. Of the findings with one cause, the judge reports the one whose longest prefix comes first."""


@frozen
class Cause:
    """A finding with the keys of its possible causes."""

    finding: Finding
    keys: tuple[str, ...]
    pause: str = ""
    """The pause that delayed the answer; empty if no pause delayed it."""


def event_key(event: dict[str, Any]) -> str:
    """Return the key of a log event."""
    return f"event\0{event['source']}\0{event['sequence']}"


def request_key(event: dict[str, Any]) -> str:
    """Return the key of the request that an event belongs to."""
    return f"request\0{event['source']}\0{event['request']}"


def keys_of(
    clause: str,
    messages: Iterable[int],
    place: tuple[object, ...],
    roots: Iterable[dict[str, Any]],
    others: Sequence[dict[str, Any]],
) -> tuple[str, ...]:
    """Returns the keys of a finding about messages of a queue.

    `roots` contains events of the queue's log, and `others` contains events of requests.
    """
    blamed = ["\0".join(map(str, ("message", *place, offset))) for offset in messages]
    requests = [request_key(event) for event in others if event.get("request")] if clause in ANSWERS else []
    late = [f"late {request_key(event)}" for event in others if clause in OF_LATENESS and event.get("request")]
    is_silent = clause in OF_SILENCE and all(event["event"] != "answer_sent" for event in others)
    connections = [
        f"connection\0{event['source']}\0{event['connection']}"
        for event in others
        if (clause in OF_CONNECTION or is_silent) and event.get("connection")
    ]
    return tuple(dict.fromkeys((*map(event_key, roots), *blamed, *connections, *requests, *late)))


def alone(findings: Iterable[Finding]) -> Iterator[Cause]:
    """Yields findings that belong to no queue, with keys from their evidence."""
    for finding in findings:
        if finding.clause in OF_SOURCE:
            yield Cause(finding, (f"{finding.clause}\0{finding.evidence[-1]['source']}",))
            continue
        logged = [event for event in finding.evidence if event["event"] in LOG_EVENTS]
        others = [event for event in finding.evidence if event["event"] not in LOG_EVENTS]
        place = finding.evidence[0].get("broker", ""), finding.topic, finding.queue
        yield Cause(finding, keys_of(finding.clause, finding.messages, place, logged, others))


def _lateness(finding: Finding) -> tuple[str, int, int] | None:
    """Returns a late answer's source, when it was due, and when it came; None if the finding is not about one."""
    of_it = [event for event in finding.evidence if event.get("request") == finding.request]
    asked = next((event for event in of_it if event["event"] == "request_received"), None)
    answer = next((event for event in of_it if event["event"] in {"answer_sent", "message_acknowledged"}), None)
    if finding.clause not in OF_PAUSE or asked is None or answer is None:
        return None
    due_ns: int = asked["after_ns"]
    if finding.clause == "pull.deadline.met":
        due_ns += asked.get("timeout_ms", 0) * 1_000_000
    if finding.clause == "pull.wake.prompt":
        due_ns = max(event["after_ns"] for event in finding.evidence if event is not answer)
    came_ns: int = answer["after_ns"]
    return (asked["source"], due_ns, came_ns) if 0 < came_ns - due_ns <= PAUSE_NS else None


def _with_pauses(causes: Iterable[Cause]) -> list[Cause]:
    """Add to each late answer the pause that delayed it.

    All answers that one pause delayed were due before the pause ended, and arrived shortly after one another.
    """
    found = list(causes)
    bursts: list[list[tuple[str, int, int, int]]] = []
    for one in sorted(
        (source, came_ns, due_ns, place)
        for place, cause in enumerate(found)
        for source, due_ns, came_ns in filter(None, [_lateness(cause.finding)])
    ):
        first = bursts[-1][0] if bursts else one
        if not bursts or one[0] != first[0] or one[1] > first[1] + PAUSE_ENDS_NS:
            bursts.append([])
        bursts[-1].append(one)
    for burst in bursts:
        source, first_ns = burst[0][:2]
        places = [place for _source, _came_ns, due_ns, place in burst if due_ns < first_ns]
        if len({found[place].finding.request for place in places}) >= PAUSED_LEAST:
            for place in places:
                found[place] = evolve(found[place], pause=f"pause\0{source}\0{first_ns}")
    return found


@define
class _Groups:
    """Groups findings by cause. Invariant: `_parent` leads from each finding to the first finding of its group."""

    _parent: list[int] = field(factory=list)
    _owner: dict[str, int] = field(factory=dict)

    def add(self, cause: Cause) -> None:
        """Add a finding. Findings of `JOINING` clauses must come last."""
        place = len(self._parent)
        pauses = (cause.pause,) if cause.pause else ()
        known = [self.first(self._owner[key]) for key in (*cause.keys, *pauses) if key in self._owner]
        if cause.finding.clause in JOINING:
            self._parent.append(known[0] if known else place)
            self._owner |= dict.fromkeys(pauses, self._parent[place])
            return
        self._parent.append(place)
        for other in known:
            one, more = sorted((self.first(other), self.first(place)))
            self._parent[more] = one
        self._owner |= dict.fromkeys((*cause.keys, *pauses), place)

    def first(self, place: int) -> int:
        """Returns the index of the first finding in the group of this finding."""
        while self._parent[place] != place:
            self._parent[place] = self._parent[self._parent[place]]
            place = self._parent[place]
        return place


def told_once(causes: Iterable[Cause]) -> list[Finding]:
    """Returns one finding for each cause; its `follows` lists the other findings with the same cause."""
    ordered = sorted(_with_pauses(causes), key=lambda cause: (cause.finding.clause in JOINING, *_rank(cause)))
    groups = _Groups()
    for cause in ordered:
        groups.add(cause)
    members: dict[int, list[Cause]] = {}
    for place, cause in enumerate(ordered):
        members.setdefault(groups.first(place), []).append(cause)
    return [_told(sorted(_with_first_falls(group), key=_rank)) for group in members.values()]


def _with_first_falls(causes: Sequence[Cause]) -> Iterator[Cause]:
    """Drop all but the first fall of each queue's end, because each window of a queue reports its own first fall."""
    falls = [cause for cause in causes if cause.finding.clause in OF_FALLS]
    falls.sort(key=lambda cause: cause.finding.window_end_ms, reverse=True)
    first = {_kind(cause.finding): cause for cause in falls}
    return (cause for cause in causes if first.get(_kind(cause.finding), cause) is cause)


def _told(causes: list[Cause]) -> Finding:
    group = [cause.finding for cause in causes]
    kinds: dict[tuple[object, ...], list[Finding]] = {}
    for other in group[1:]:
        kinds.setdefault(_kind(other), []).append(other)
    first, count = group[0], len({cause.finding.request for cause in causes if cause.pause})
    if causes[0].pause:
        why = first.why.partition("; it fits")[0]
        why = f"{why}; {count} answers were late at this instant, as if the broker or its host had stood still"
        first = msgspec.structs.replace(first, why=why)
    return msgspec.structs.replace(first, follows=[_follow(same) for same in kinds.values()])


def _follow(same: list[Finding]) -> Follow:
    first = same[0]
    return Follow(
        property=first.property,
        clause=first.clause,
        verdict=first.verdict,
        topic=first.topic,
        queue=first.queue,
        count=len(same),
        requests=[finding.request for finding in same if finding.request],
        why=first.why,
    )


def _kind(finding: Finding) -> tuple[object, ...]:
    return finding.clause, finding.verdict, finding.topic, finding.queue


def _rank(cause: Cause) -> tuple[object, ...]:
    finding = cause.finding
    place = RANKS.index(max((name for name in RANKS if finding.clause.startswith(name)), key=len))
    return (finding.verdict != "violated", place, *finding_order(finding))


def finding_order(finding: Finding) -> tuple[object, ...]:
    """Return the sort key of a finding: violations come first, then earlier findings."""
    rank = PROPERTIES.index(finding.property) if finding.property in PROPERTIES else len(PROPERTIES)
    place = (finding.topic, finding.queue, rank, finding.property, finding.request, finding.why)
    return (finding.verdict != "violated", finding.window_start_ms, *place)


ID_BYTES: Final = 8
"""Bytes of an id. Among 10^6 findings, a collision has a probability of 1 in 3 * 10^7."""
LATE: Final = "late"
WRONG: Final = "wrong"


def identified(findings: Iterable[Finding]) -> list[Finding]:
    """Returns the findings, each with its `id`. If an id would repeat an earlier one, a number is added to it."""
    seen: Counter[str] = Counter()
    named = []
    for finding in findings:
        name = _name_of(finding)
        seen[name] += 1
        more = f"-{seen[name]}" if seen[name] > 1 else ""
        named.append(msgspec.structs.replace(finding, id=name + more))
    return named


def _name_of(finding: Finding) -> str:
    """Returns the id of a finding, made from the events that the rule named, not from evidence that was added later."""
    kind = LATE if finding.clause in OF_LATENESS else WRONG if finding.clause in ANSWERS else finding.clause
    events = sorted(finding.evidence, key=order_of)
    own = [event for event in events if finding.request and event.get("request") == finding.request]
    names = ("source",) if own else ("source", "sequence")
    anchor = [each for one in own[:1] or events[-1:] for each in (one.get("broker", ""), *map(one.get, names))]
    # A user's property may report several findings about one request, so the reason of the finding is part of the id.
    asked = finding.why if kind.startswith("own.") else ""
    content = (finding.verdict, kind, finding.topic, finding.queue, finding.request, anchor, asked)
    return blake2b(msgspec.json.encode(content), digest_size=ID_BYTES).hexdigest()
