from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longpoll_spec.engines.packed import word_table, words
from longpoll_spec.engines.packed.word_table import WordTable
from longpoll_spec.engines.packed.words import distinct, first_head, key_of, mixed, unmixed, words_of

WORDS = st.integers(0, 40) | st.integers(0, 2**64 - 1)
WIDTHS = st.integers(1, 3)


def _keys(made: words.Words) -> list[int]:
    return [key_of(made, column) for column in range(made.shape[1])]


def _wide(numbers: list[int], width: int) -> list[int]:
    """Keys of so many words: a number says what each word is."""
    return [sum((number * (row + 1) % 2**64) << (64 * row) for row in range(width)) for number in numbers]


def _check_is_a_set(table: WordTable, batches: list[list[int]], width: int) -> None:
    members = set[int]()
    for batch in batches:
        new = _keys(unmixed(table.add(distinct(mixed(words_of(batch, width))))))
        assert sorted(new) == sorted(set(batch) - members)
        members |= set(batch)
    assert table.used == len(members)


@given(st.lists(st.lists(WORDS, max_size=30), max_size=12), st.integers(1, 6), WIDTHS)
@settings(max_examples=100)
def test_a_word_table_is_a_set(batches: list[list[int]], bits: int, width: int) -> None:
    """What is new comes out once, whatever came before, however small the table began and however it grew."""
    _check_is_a_set(WordTable(width, bits), [_wide(batch, width) for batch in batches], width)


@given(st.lists(st.lists(WORDS, max_size=30), max_size=12), st.integers(2, 5), st.data())
def test_a_table_of_a_share_is_a_set(batches: list[list[int]], shares: int, data: st.DataObject) -> None:
    """A table whose states have only a share of all heads spreads them over all its slots, and loses none."""
    number = data.draw(st.integers(0, shares - 1))
    first, end = first_head(number, shares), first_head(number + 1, shares)
    own = [[first + head % (end - first) for head in batch] for batch in batches]
    keys = [_keys(unmixed(words_of(batch, 1))) for batch in own]

    _check_is_a_set(WordTable(1, 2, number=number, shares=shares), keys, 1)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_words_that_begin_at_one_slot_stay_apart(upper: list[int]) -> None:
    """States whose heads share their upper bits collide in the table and are all kept."""
    heads = distinct(words_of([(top << 60) | low for low, top in enumerate(upper, start=1)], 1))
    table = WordTable(1, 4)

    assert table.add(heads.copy()).shape[1] == len(upper)
    assert not table.add(heads).shape[1]


@given(st.lists(st.integers(0, 2**130), max_size=40), WIDTHS)
def test_mixing_is_undone(keys: list[int], width: int) -> None:
    """Different states stay different when they are mixed, and come back."""
    short = [key % 2 ** (64 * width) for key in keys]
    stirred = mixed(words_of(short, width))

    assert len({tuple(column) for column in stirred.T.tolist()}) == len(set(short))
    assert _keys(unmixed(stirred)) == short


def test_a_table_that_is_moved_block_by_block_keeps_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Growing in many blocks, over chains that go round the end of the slots, loses nothing and adds nothing."""
    monkeypatch.setattr(word_table, "BLOCK_SLOTS", 3)
    high = [((1 << 64) - 1 - number, number) for number in range(20)]
    heads = [head for pair in high for head in pair]
    batches = [_keys(unmixed(words_of(heads[start : start + 5], 1))) for start in range(0, len(heads), 5)]

    _check_is_a_set(WordTable(1, 3), batches, 1)


def _colliding() -> list[int]:
    return [(low << 128) | (middle << 64) | head for low, middle, head in product(range(3), range(3), (0, 7))]


def test_states_of_one_head_stay_apart() -> None:
    """A head never stands for a state: with equal heads, the free slot's too, all states are kept, each once."""
    keys = _colliding()
    table = WordTable(3, 3)
    wide = words_of([*keys, *keys[::-1], *keys], 3)

    assert sorted(_keys(distinct(wide.copy()))) == sorted(keys)
    assert sum(table.add(words_of([key], 3)).shape[1] for key in keys[:9]) == 9
    assert sorted(_keys(table.add(distinct(wide.copy())))) == sorted(keys[9:])
    assert not table.add(distinct(wide)).shape[1]
    assert words.find(words_of([*keys, 1], 3), distinct(words_of(keys, 3)))[-1] == -1


@given(st.lists(st.integers(0, 30), max_size=20), st.lists(st.integers(0, 30), max_size=20), WIDTHS)
def test_what_is_found_is_there(wanted: list[int], there: list[int], width: int) -> None:
    """Every state is found where it is, and only there, heads being equal or not."""
    keys = [[(number // 4 << 64 * (width - 1)) | number % 4 for number in numbers] for numbers in (wanted, there)]
    among = distinct(words_of(keys[1], width))
    found = words.find(words_of(keys[0], width), among).tolist()

    for key, column in zip(keys[0], found, strict=True):
        assert (column >= 0) == (key in keys[1])
        assert column < 0 or key_of(among, column) == key
