"""Fields of events that no broker would make, for tests that only ask how events are stored, cut and summed up."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st


def drawn_fields(offset_most: int) -> dict[str, st.SearchStrategy[Any]]:
    """Strategies by field: messages have offsets up to `offset_most`, ends lie at most one above; -1 is none."""
    offsets, ends = st.integers(-1, offset_most), st.integers(-1, offset_most + 1)
    return {
        "offset": offsets,
        "may_hold": st.booleans(),
        "timeout_ms": st.sampled_from([-1, 0, 1]),
        "expression": st.sampled_from(["*", "a"]),
        "offset_next": ends,
        "offset_max": ends,
        "offsets": st.lists(st.integers(0, offset_most), max_size=3),
        "queue_offset": offsets,
        "tag": st.sampled_from(["", "a"]),
        "visible_end": ends,
    }
