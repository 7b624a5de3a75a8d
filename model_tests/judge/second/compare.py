"""Compares the judge with the second judge on a history, and shrinks a disagreement."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from attrs import define, field, frozen
from model_tests.judge.second.faults import Event
from model_tests.judge.second.judge import Opinion, weigh
from model_tests.judge.second.observer import History, write

from longpoll_judge.run.pipeline import judge


@frozen
class Judged:
    verdict: str
    violated: frozenset[str]
    """The certainly violated clauses. If an answer violates several clauses, only the first one is included."""
    reasons: tuple[str, ...]


def judge_it(history: History, directory: Path) -> Judged:
    write(history, directory)
    result = judge([directory], engine="local")
    return Judged(
        result.verdict,
        frozenset(finding.clause for finding in result.findings if finding.verdict == "violated"),
        (
            *(f"{finding.clause} {finding.verdict}: {finding.why}" for finding in result.findings),
            *(f"gap {gap['kind']}: {gap['why']}" for gap in result.gaps),
        ),
    )


def disagreement(first: Judged, second: Opinion) -> str:
    """Why the two judges disagree; empty if they agree.

    If the judge says `valid`, the second judge must not find a violation. If the judge says `invalid`, the second judge
    must report the same clauses. The judge may answer `unknown` where the second judge does not; the rate of such
    answers has a limit over many histories.
    """
    if first.verdict == "valid" and second.verdict != "valid":
        return f"the judge says valid, the second {second.verdict}: {second.clauses}"
    if first.verdict == "invalid":
        if second.verdict != "invalid":
            return f"the judge says invalid ({', '.join(sorted(first.violated))}), the second {second.verdict}"
        if first.violated - second.violated:
            return f"the judge alone convicts of {', '.join(sorted(first.violated - second.violated))}"
    return ""


def caution(first: Judged, second: Opinion) -> str:
    if first.verdict == "unknown" and second.verdict != "unknown":
        return f"unknown for {second.verdict}"
    if first.verdict == "invalid" and second.violated - first.violated:
        return f"not convicted of {', '.join(sorted(second.violated - first.violated))}"
    return ""


def difference(history: History) -> str:
    with tempfile.TemporaryDirectory(prefix="longpoll-second-") as directory:
        return disagreement(judge_it(history, Path(directory) / "history"), weigh(history.meta, history.events))


Judge = Callable[[History, Path], Judged]
EVIDENCE_FIELDS: Final = ("event", "source", "sequence", "after_ns", "before_ns")
"""Fields without which an event is not evidence. If one of them is wrong, the verdict is mostly `unknown`."""
OF_EVIDENCE: Final = ("forget", "write twice", "say-moved", *(f"set {name}" for name in EVIDENCE_FIELDS))


def kind_of(operation: str) -> str:
    words = operation.partition(" (")[0].split(" ")
    return " ".join(words[:2] if words[0] in {"set", "write"} else [words[0]])


@define
class Agreement:
    judge: Judge = judge_it
    pairs: Counter[tuple[str, str]] = field(factory=Counter)
    """(Verdict of the judge, verdict of the second judge) -> number of histories."""
    sound_pairs: Counter[tuple[str, str]] = field(factory=Counter)
    """Like `pairs`, but only for histories that were valid before the fault.

    Renumbering an incomplete history may hide its gap, and then the missing events look like a fault."""
    by_kind: Counter[tuple[str, str]] = field(factory=Counter)
    """(Kind of operation, verdict of the judge) -> number of histories that were valid before the operation.

    Histories with a missing field are not counted."""
    cautions: Counter[str] = field(factory=Counter)
    disagreements: list[tuple[str, History]] = field(factory=list)

    def compare(self, history: History, what: str, directory: Path, *, was_open: bool = False) -> None:
        """Write one more history to the directory and compare the two judges on it.

        If `was_open` is true, the history could not be `valid` even before the fault.
        """
        first, second = self.judge(history, directory), weigh(history.meta, history.events)
        self.pairs[first.verdict, second.verdict] += 1
        self.sound_pairs[first.verdict, second.verdict] += not was_open
        # An event that lacks a required field is left out.
        is_event = not any(reason.startswith("evidence.field_missing") for reason in second.reasons)
        self.by_kind[kind_of(what), first.verdict] += is_event and not was_open
        why, careful = disagreement(first, second), caution(first, second)
        if why:
            self.disagreements.append((f"{what}: {why}", history))
        if careful:
            self.cautions[careful] += 1

    @property
    def count(self) -> int:
        return self.pairs.total()

    def share(self, verdict: str, second: str = "", *, sound: bool = False) -> float:
        """Return the share of a verdict of the judge, among the histories with the second judge's verdict `second`.

        `sound` counts only histories that were valid before the fault.
        """
        pairs = self.sound_pairs if sound else self.pairs
        told = Counter({pair: count for pair, count in pairs.items() if second in {"", pair[1]}})
        return sum(count for (first, _second), count in told.items() if first == verdict) / max(told.total(), 1)

    def unknown_share(self, *, of_evidence: bool) -> float:
        mine = {pair: count for pair, count in self.by_kind.items() if (pair[0] in OF_EVIDENCE) == of_evidence}
        unknown = sum(count for (_kind, verdict), count in mine.items() if verdict == "unknown")
        return unknown / max(sum(mine.values()), 1)

    def told(self) -> str:
        rows = [f"judge {first}, second {second}: {count}" for (first, second), count in sorted(self.pairs.items())]
        rows += [f"unknown after {kind}: {count}" for (kind, what), count in self.by_kind.items() if what == "unknown"]
        rows += [f"caution: {text}: {count}" for text, count in self.cautions.most_common()]
        rows.append(f"{len(self.disagreements)} disagreements of {self.count}")
        for why, history in self.disagreements[:SHOWN]:
            kind = difference(history)
            small = shrunk(history, partial(_differs_so, kind)) if kind else history
            rows += [why, as_text(small)]
        return "\n".join(rows)


SHOWN: Final = 3


def _differs_so(kind: str, history: History) -> bool:
    return difference(history) == kind


def shrunk(history: History, differs: Callable[[History], bool]) -> History:
    events = list(history.events)
    size = len(events) // 2
    while size:
        start = 0
        while start < len(events):
            fewer = history.with_events(_without(events, start, size))
            if differs(fewer):
                events = list(fewer.events)
            else:
                start += size
        size //= 2
    return history.with_events(events)


def _without(events: list[Event], start: int, size: int) -> list[Event]:
    """Return the events without a part, with later numbers reduced so that gaps and repeated numbers stay."""
    gone = Counter(one["source"] for one in events[start : start + size])
    later = [one | {"sequence": one["sequence"] - gone[one["source"]]} for one in events[start + size :]]
    return events[:start] + later


def as_text(history: History) -> str:
    encoder = msgspec.json.Encoder()
    return "\n".join(encoder.encode(one).decode() for one in (history.meta, *history.events))
