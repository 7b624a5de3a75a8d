"""The result of judging a window as rows that can be added up: counts, latencies and findings."""

from __future__ import annotations

from typing import Final

import msgspec
import pyarrow as pa

from longpoll_judge.contract.result import Finding
from longpoll_spec.tables import with_table

FINDING: Final = "finding"
"""The kind of a row whose text is a finding about one queue."""
BESIDE: Final = "beside"
"""The kind of a row whose text is a finding about something other than the pulls or the log of a queue."""
LEFT_OUT: Final = "left_out"
"""The kind of a row that counts the findings of one group that are not listed; the text names the group."""
LEFT_OUT_BESIDE: Final = "left_out_beside"
"""The kind of a row that counts the unlisted findings among those of kind `beside`; the row's text is empty."""
ENDED: Final = "ended"
"""The kind of a row whose text gives the reason why a user's property returned no findings."""
RESULT_SCHEMA: Final = pa.schema(
    [("kind", pa.string()), ("bucket", pa.int64()), ("count", pa.int64()), ("text", pa.string())]
)
"""The columns of a result row. `kind` is one of:

- `finding` (text: JSON of a `Found`), `beside` (text: JSON of a `Finding`), `left_out`, `left_out_beside`, `ended`;
- `wake` or `late` (a latency bucket), `wake_max` or `late_max` (count: nanoseconds);
- `missed` (text: a property about time), `woken` and `unwoken` (pops that a message woke, or did not wake in time);
- `refused` and `asked`, `share` and `share_of` (text: what is counted), `busy` or `served` (text: a queue and a group),
  `queue`, `pulls`, `judged` (text: a property, or `pulls`);
- `missing` (text: the field and its event), or `note` (text: the missing evidence; count: how often).
"""
Row = tuple[str, int, int, str]


@with_table
class Found(msgspec.Struct, frozen=True):
    """A finding with its position in time among the findings of the same queue, property and verdict."""

    group: str
    order: tuple[int, int, str, int]
    """The after_ns, before_ns, source and sequence of the event that determines the finding's position."""
    keys: tuple[str, ...]
    """The keys of the finding's possible causes (`contract.causes`)."""
    finding: Finding


def as_table(rows: list[Row]) -> pa.Table:
    """Convert rows to a table of `RESULT_SCHEMA`."""
    columns = list(zip(*rows, strict=True)) or [()] * len(RESULT_SCHEMA)
    return pa.table(
        [pa.array(column, kind.type) for column, kind in zip(columns, RESULT_SCHEMA, strict=True)], RESULT_SCHEMA
    )
