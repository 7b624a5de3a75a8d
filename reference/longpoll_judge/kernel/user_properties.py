"""Runs the user's own properties, which are functions of the pulls of a window, in the process of the kernel.

A function gets one Arrow table, with a row for each pull of the window's queues in the order of receipt, and returns
pairs of a row number and a sentence. A finding is `violated` if the row's times are certain and its answer was
recorded, else `unknown`. If a function raises an error or returns a value of another type, the result has a gap and is
`unknown`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from longpoll_judge.columns.lookup import Booleans, is_one_of
from longpoll_judge.contract.result import Finding, FindingVerdict
from longpoll_judge.evidence.survey import OWN, Context, OwnProperty
from longpoll_judge.kernel.gathered import have_request, rows_where
from longpoll_judge.kernel.pulls import MS, PULL_CODES
from longpoll_judge.kernel.rows import BESIDE, ENDED, LEFT_OUT_BESIDE, Row
from longpoll_judge.read.schema import NAMES, event_dict, fill, integers_of

ASKED: Final = (
    *("source", "broker", "topic", "queue", "request", "connection", "group", "offset", "count_max", "may_hold"),
    *("timeout_ms", "expression_type", "expression"),
)
ANSWERED: Final = ("code", "offset_next", "offset_min", "offset_max", "offsets")
"""The columns of each pull's first answer; they are null if the record shows no answer."""
FINDINGS_MAX: Final = 1_000
"""The maximum number of findings of one property in one window that are listed; further findings are only counted."""
WHY_LENGTH_MAX: Final = 1_000
USERS_FAULTS: Final = (Exception, SystemExit)
"""The exceptions of a user's property that the judge reports. A property that exits the process, even with code 0, has
no result."""


def name_of(own: OwnProperty) -> str:
    """Returns the name of a user's property in its findings."""
    return OWN + getattr(own, "__name__", type(own).__name__).strip("<>")


def judge_own(table: pa.Table, native: Booleans, context: Context) -> Iterator[Row]:
    """Call each user property with the pulls of the native queues in a window; yields rows of `RESULT_SCHEMA`."""
    if not context.own:
        return
    pulls = pulls_of(table, native)
    for own in context.own if len(pulls) else ():
        name = name_of(own)
        try:
            found = sorted(_checked(row, why, len(pulls)) for row, why in own(pulls))
        except USERS_FAULTS as error:
            yield ENDED, 0, 1, f"the property {name} ended with {type(error).__name__}: {error}"
            continue
        for row, why in found[:FINDINGS_MAX]:
            yield BESIDE, 0, 1, msgspec.json.encode(_finding(name, pulls, row, why, context)).decode()
        yield LEFT_OUT_BESIDE, 0, len(found[FINDINGS_MAX:]), ""
        yield "judged", 0, len(pulls), name


def pulls_of(table: pa.Table, native: Booleans) -> pa.Table:
    """Returns the pulls of native queues, each with its first answer, in the order of receipt."""
    is_pull = rows_where(table, "request_received") & is_one_of(integers_of(table, "code"), PULL_CODES)
    requests = _plain(table, is_pull & native & have_request(table), ASKED)
    answers = _plain(table, rows_where(table, "answer_sent"), ANSWERED)
    keys = ["source", "request"]
    numbered = answers.select(keys).append_column("answer", pa.array(np.arange(len(answers))))
    first = numbered.group_by(keys).aggregate([("answer", "min")])
    mine = requests.select(keys).append_column("pull", pa.array(np.arange(len(requests))))
    pairs = mine.join(first, keys, join_type="left outer").sort_by("pull")
    pulls = requests.take(pairs["pull"])
    told = answers.take(pairs["answer_min"].combine_chunks())
    columns = {name: pulls[name] for name in ASKED}
    columns |= {f"received_{name}": pulls[name] for name in ("after_ns", "before_ns")}
    columns |= {f"answered_{name}": told[name] for name in ("after_ns", "before_ns")}
    columns |= {name: told[name] for name in ANSWERED}
    columns |= {"received_sequence": pulls["sequence"], "answered_sequence": told["sequence"]}
    return pa.table(columns)


def _plain(table: pa.Table, rows: Booleans, names: Sequence[str]) -> pa.Table:
    """Returns these columns as plain values, sorted by time, with the columns that order and join the rows."""
    wanted = list(dict.fromkeys((*names, "source", "request", "sequence", "after_ns", "before_ns")))
    chosen = fill(table, wanted).filter(pa.array(rows))
    columns = [chosen[name].cast(pa.string()) if name in NAMES else chosen[name] for name in wanted]
    order = [(name, "ascending") for name in ("after_ns", "before_ns", "source", "sequence")]
    return pa.table(columns, names=wanted).sort_by(order)


def _checked(row: Any, why: Any, count: int) -> tuple[int, str]:
    """Check the values that the user's function returned.

    Raises TypeError if they are not a row number and a sentence, and IndexError if the table has no such row.
    """
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
    moments = {name: row[f"{moment}_{name}"] for name in ("after_ns", "before_ns", "sequence")}
    return event_dict({"event": event, **moments, **{name: row[name] for name in names}})
