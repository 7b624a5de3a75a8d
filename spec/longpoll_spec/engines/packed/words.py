"""Operations of the packed and the Spark engine on arrays of packed states. A state is a column of 64-bit words.

| array   | shape                        | column                                               |
|---------|------------------------------|------------------------------------------------------|
| `Words` | (words a state, states)      | one state; word k has bits 64k to 64k+63 of its key  |

A key is the whole state as one Python integer, so equal keys mean equal states. For lookup, states are `mixed`: this
bijection spreads every bit of the state over word 0, which is called the head, and keeps the other words. The head of a
mixed state says where to look for the state, as a hash would. Equality is never decided by the head alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

WORD_BITS: Final = 64
Words: TypeAlias = npt.NDArray[np.uint64]
Rows: TypeAlias = npt.NDArray[np.intp]
"""Indices of columns in `Words`, which choose states of a chunk."""
BLOCK_STATES: Final = 1 << 15
"""The number of states mixed at once, so that they stay in the second-level cache."""
_FOLD: Final = np.uint64(WORD_BITS // 2)
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_FACTOR_INVERSE: Final = np.uint64(pow(int(_FACTOR), -1, 1 << WORD_BITS))
_WORD_MASK: Final = (1 << WORD_BITS) - 1


def words_of(keys: Iterable[int], width: int) -> Words:
    """Keys as an array of shape (width, number of keys), with the lowest word in row 0."""
    columns = [[(key >> (WORD_BITS * row)) & _WORD_MASK for row in range(width)] for key in keys]
    return np.array(columns, dtype=np.uint64).reshape(-1, width).T.copy()


def key_of(words: Words, column: int) -> int:
    """The key of the state in a column."""
    return sum(int(word) << (WORD_BITS * row) for row, word in enumerate(words[:, column]))


def no_words(width: int) -> Words:
    """An array without states, of shape (width, 0)."""
    return np.empty((width, 0), dtype=np.uint64)


def joined(parts: Iterable[Words], width: int) -> Words:
    """The columns of all parts, one part after another."""
    return np.concatenate([no_words(width), *parts], axis=1)


def taken(words: Words, rows: Rows) -> Words:
    """A copy of the columns with these indices, in this order."""
    made = np.empty((len(words), rows.size), dtype=np.uint64)
    for word, copy in zip(words, made, strict=True):
        word.take(rows, out=copy, mode="clip")  # with `out`, the other modes make one more copy
    return made


def mixed(words: Words) -> Words:
    """Spread every bit of the states over their heads, in place, by a bijection that maps 0 to 0."""
    for start in range(0, words.shape[1], BLOCK_STATES):
        block = words[:, start : start + BLOCK_STATES]
        head = block[0]
        _stir(head, block[1:])
        head ^= head >> _FOLD
        head *= _FACTOR
    return words


def unmixed(words: Words) -> Words:
    """The inverse of `mixed`, in place."""
    head = words[0]
    head *= _FACTOR_INVERSE
    head ^= head >> _FOLD
    _stir(head, words[1:])
    return words


def first_head(number: int, shares: int) -> int:
    """The first head of range `number` of `shares` equal ranges of heads; 2**64 if `number` equals `shares`."""
    return (number << WORD_BITS) // shares


def lesser(words: Words, head: int) -> int:
    """The number of states with a head less than `head`, which may be 2**64. The states must be sorted by heads."""
    return words.shape[1] if head >> WORD_BITS else int(words[0].searchsorted(np.uint64(head)))


def _stir(head: Words, rest: Words) -> None:
    """XOR the head with a function of the other words. The function is its own inverse."""
    if not rest.size:
        return
    stirred = np.zeros_like(head)
    for word in rest:
        stirred ^= word
        stirred *= _FACTOR
        stirred ^= stirred >> _FOLD
    head ^= stirred


def merged(parts: Iterable[Words], width: int) -> Words:
    """Merge parts that are sorted by heads, and drop duplicates."""
    # NumPy's stable sort finds runs that are sorted already and merges them, which is ten times as fast here.
    return distinct(joined(parts, width), "stable")


def distinct(words: Words, kind: Literal["quicksort", "stable"] = "quicksort") -> Words:
    """Sort states by their heads, and drop duplicates. This may overwrite `words`; `kind` is as for `numpy.sort`."""
    if len(words) == 1:
        words[0].sort(kind=kind)
    else:
        words = taken(words, words[0].argsort(kind=kind))
        if _interleaved(words):
            words = taken(words, np.lexsort(words[::-1]))
    first = np.empty(words.shape[1], dtype=bool)
    first[:1] = True
    np.not_equal(words[0, 1:], words[0, :-1], out=first[1:])
    for word in words[1:]:
        first[1:] |= word[1:] != word[:-1]
    return taken(words, np.flatnonzero(first))


def _interleaved(words: Words) -> bool:
    """Whether different states have the same head, in which case sorting by heads may separate equal states."""
    alike = np.flatnonzero(words[0, 1:] == words[0, :-1])
    return any(bool((word[1:].take(alike) != word[:-1].take(alike)).any()) for word in words[1:])


def differ(words: Words, others: Words) -> npt.NDArray[np.bool_]:
    """For each column, whether the two states in it differ."""
    apart: npt.NDArray[np.bool_] = words[0] != others[0]
    for word, other in zip(words[1:], others[1:], strict=True):
        apart |= word != other
    return apart


def less(words: Words, others: Words) -> npt.NDArray[np.bool_]:
    """For each column, whether the key in `words` is less than the key in `others`."""
    is_less: npt.NDArray[np.bool_] = words[0] < others[0]
    for word, other in zip(words[1:], others[1:], strict=True):
        is_less = (word < other) | ((word == other) & is_less)
    return is_less


def least(words: Words, rows: Rows) -> int:
    """Return the index of the column with the least key among the columns with the indices `rows`."""
    for word in words[::-1]:
        values = word.take(rows)
        rows = rows.compress(values == values.min())
    return int(rows[0])


def find(states: Words, among: Words) -> Rows:
    """For each state its column in `among`, or -1 if absent. `among` must be sorted by heads."""
    found = np.full(states.shape[1], -1, dtype=np.intp)
    open_ = np.arange(states.shape[1])
    at = among[0].searchsorted(states[0])
    while open_.size:
        inside = np.flatnonzero(at < among.shape[1])
        open_, at = open_.take(inside), at.take(inside)
        alike = np.flatnonzero(among[0].take(at) == states[0].take(open_))
        open_, at = open_.take(alike), at.take(alike)
        apart = differ(taken(among, at), taken(states, open_))
        found[open_[~apart]] = at[~apart]
        open_, at = open_[apart], at[apart] + 1
    return found
