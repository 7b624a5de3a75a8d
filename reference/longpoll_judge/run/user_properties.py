"""The user's own properties: functions over the columns of all pulls.

A function gets one Arrow table, a row per pull in the order of receipt, and returns pairs of a row number and a
sentence. It runs in the calling process, so every engine gives it the same table. A finding is `violated` if the row's
times are certain and its answer was seen, else `unknown`. If a function raises an error or returns something else, the
result has a gap and is `unknown`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import pyarrow as pa

from longpoll_judge.contract.result import Finding, FindingVerdict, Gap
from longpoll_judge.evidence.survey import Context
from longpoll_judge.read.schema import EVENT_SCHEMA, NAMES, compute, event_dict
from longpoll_judge.rules.cross_queue import Tables
from longpoll_judge.rules.queue_columns import MS, PULL_CODES

OwnProperty = Callable[[pa.Table], Iterable[tuple[int, str]]]
"""From the pulls to the numbers of rows that are wrong, and why each is."""

ASKED: Final = (
    *("source", "broker", "topic", "queue", "request", "connection", "group", "offset", "count_max", "may_hold"),
    *("timeout_ms", "expression_type", "expression"),
)
ANSWERED: Final = ("code", "offset_next", "offset_min", "offset_max", "offsets")
"""Null where no answer was seen."""
FINDINGS_MAX: Final = 1_000
"""Most findings of one property that are listed; the rest is counted."""
WHY_LENGTH_MAX: Final = 1_000
PREFIX: Final = "own."
USERS_FAULTS: Final = (Exception, SystemExit)
"""Whatever code that is not ours may raise, which is told of; a property that exits with 0 has found nothing valid."""


def name_of(own: OwnProperty) -> str:
    """How the findings of a property name it."""
    return PREFIX + getattr(own, "__name__", type(own).__name__).strip("<>")


def judge_own(
    properties: Sequence[OwnProperty], tables: Tables, context: Context
) -> tuple[list[Finding], int, list[Gap], dict[str, int]]:
    """Ask each property; findings, how many more there are, gaps, and how many pulls each was asked of."""
    findings: list[Finding] = []
    gaps: list[Gap] = []
    left_out = 0
    judged = {name_of(own): 0 for own in properties}
    pulls = pulls_of(tables) if properties else None
    for own in properties:
        assert pulls is not None, "there are pulls where there are properties"
        name = name_of(own)
        try:
            found = sorted(_checked(row, why, len(pulls)) for row, why in own(pulls))
        except USERS_FAULTS as error:
            gaps.append(Gap("not judged", "", 0, f"the property {name} ended with {type(error).__name__}: {error}"))
            continue
        findings += [_finding(name, pulls, row, why, context) for row, why in found[:FINDINGS_MAX]]
        left_out += len(found[FINDINGS_MAX:])
        judged[name] = len(pulls)
    return findings, left_out, gaps, judged


def pulls_of(tables: Tables) -> pa.Table:
    """All pulls and the first answer of each, in the order of their receipt."""
    asked, answered = [_empty(ASKED)], [_empty(ANSWERED)]
    for _number, table in tables():
        event = table["event"].cast(pa.string())
        is_pull = compute.is_in(table["code"], pa.array(PULL_CODES, pa.int64()))
        asked.append(_plain(table.filter(compute.and_(compute.equal(event, "request_received"), is_pull)), ASKED))
        answered.append(_plain(table.filter(compute.equal(event, "answer_sent")), ANSWERED))
    order = [(name, "ascending") for name in ("after_ns", "before_ns", "source", "sequence")]
    requests = pa.concat_tables(asked).filter(compute.field("request") != "").sort_by(order)
    answers = pa.concat_tables(answered).sort_by(order)
    return _joined(requests, answers)


def _empty(names: Sequence[str]) -> pa.Table:
    return _plain(EVENT_SCHEMA.empty_table(), names)


def _plain(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """These columns and what orders and joins them, with texts as texts."""
    wanted = list(dict.fromkeys((*names, "source", "request", "sequence", "after_ns", "before_ns")))
    columns = [table[name].cast(pa.string()) if name in NAMES else table[name] for name in wanted]
    return pa.table(columns, names=wanted)


def _joined(requests: pa.Table, answers: pa.Table) -> pa.Table:
    keys = ["source", "request"]
    numbered = answers.select(keys).append_column("answer", pa.array(range(len(answers)), pa.int64()))
    first = numbered.group_by(keys).aggregate([("answer", "min")])
    mine = requests.select(keys).append_column("pull", pa.array(range(len(requests)), pa.int64()))
    pairs = mine.join(first, keys, join_type="left outer").sort_by("pull")
    pulls = requests.take(pairs["pull"])
    told = answers.take(pairs["answer_min"].combine_chunks())
    columns = {name: pulls[name] for name in ASKED}
    columns |= {f"received_{name}": pulls[name] for name in ("after_ns", "before_ns")}
    columns |= {f"answered_{name}": told[name] for name in ("after_ns", "before_ns")}
    columns |= {name: told[name] for name in ANSWERED}
    columns |= {"received_sequence": pulls["sequence"], "answered_sequence": told["sequence"]}
    return pa.table(columns)


def _checked(row: Any, why: Any, count: int) -> tuple[int, str]:
    """A row's number and a sentence, as the function returned them; raises TypeError or IndexError."""
    if isinstance(row, bool) or not hasattr(row, "__index__") or not isinstance(why, str):
        raise TypeError(f"it returned {row!r:.100} and {why!r:.100}, instead of a row number and a sentence")
    number = int(row.__index__())
    if not 0 <= number < count:
        raise IndexError(f"it returned the row {number}, but there are {count} rows")
    return number, why[:WHY_LENGTH_MAX]


def _finding(name: str, pulls: pa.Table, number: int, why: str, context: Context) -> Finding:
    (row,) = pulls.slice(number, 1).to_pylist()
    is_answered = row["answered_after_ns"] is not None
    certain = context.orders(row["source"], row["broker"]) and row["source"] not in context.settable
    verdict: FindingVerdict = "violated" if certain and is_answered else "unknown"
    evidence = [_event("request_received", "received", row, ASKED)]
    if is_answered:
        evidence.append(_event("answer_sent", "answered", row, (*ASKED[:6], *ANSWERED)))
    return Finding(
        property=name,
        clause=name,
        verdict=verdict,
        topic=row["topic"],
        queue=row["queue"],
        request=row["request"],
        window_start_ms=min(event["after_ns"] for event in evidence) / MS,
        window_end_ms=max(event["before_ns"] for event in evidence) / MS,
        why=why,
        evidence=evidence,
    )


def _event(event: str, moment: str, row: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """An event of a row, as the history has it."""
    moments = {name: row[f"{moment}_{name}"] for name in ("after_ns", "before_ns", "sequence")}
    return event_dict({"event": event, **moments, **{name: row[name] for name in names}})
