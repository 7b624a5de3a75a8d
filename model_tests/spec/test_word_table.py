from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from longpoll_spec.engines.word_table import WordTable, mixed, unmixed

WORDS = st.integers(0, 40) | st.integers(0, 2**64 - 1)


@given(st.lists(st.lists(WORDS, max_size=30), max_size=12), st.integers(1, 6), st.sampled_from([0, 8]))
@settings(max_examples=100)
def test_a_word_table_is_a_set(batches: list[list[int]], bits: int, skipped: int) -> None:
    """What is new comes out once, whatever came before, however small the table began and however it grew."""
    table, members = WordTable(bits, skipped), set[int]()
    for batch in batches:
        new = table.add(np.array(batch, dtype=np.uint64)).tolist()
        assert sorted(new) == sorted(set(batch) - members)
        members |= set(batch)
    assert table.used == len(members)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_words_that_begin_at_one_slot_stay_apart(upper: list[int]) -> None:
    """Words whose mixed forms share their upper bits collide in the table and are all kept."""
    words = unmixed(np.array([(top << 60) | low for low, top in enumerate(upper, start=1)], dtype=np.uint64))
    table = WordTable(4)

    assert set(table.add(words).tolist()) == set(words.tolist())
    assert not table.add(words).size
    assert (unmixed(mixed(words)) == words).all()
