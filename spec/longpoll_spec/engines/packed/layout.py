"""The layout of a packed state: where each variable is stored, in as many 64-bit words as the bounds need.

| unit  | holds                                                                       |
|-------|-----------------------------------------------------------------------------|
| word  | eight lanes; lane k is bits 8k to 8k+7 of the word                          |
| lane  | whole fields, so that a chunk of states unpacks as byte columns             |
| field | one variable, as its value less its lower end, lowest bit first             |

A key has every bit of the state and is not a hash, so two states are equal exactly if their words are equal.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from attrs import field, frozen

from longpoll_spec.engines.packed.words import WORD_BITS
from longpoll_spec.engines.symmetry import slot_of
from longpoll_spec.errors import BoundsError
from longpoll_spec.model import Model
from longpoll_spec.state import Variable

LANE_BITS: Final = 8
LANES: Final = WORD_BITS // LANE_BITS
"""The number of lanes in a word."""


@frozen
class Field:
    """The bits of one variable in a packed state.

    Two fields are equal if their names and bits are equal; their terms do not matter.
    """

    variable: Variable = field(eq=attrgetter("name"))
    word: int
    shift_in_word: int
    """The number of bits below the field in its word."""

    @property
    def mask(self) -> int:
        """A mask with the field's number of bits, from bit 0."""
        return (1 << _width(self.variable)) - 1

    @property
    def lane(self) -> int:
        """The lane of the word that has the field's lowest bit."""
        return self.shift_in_word // LANE_BITS

    @property
    def shift(self) -> int:
        """The number of bits below the field in the lane that has the field's lowest bit."""
        return self.shift_in_word % LANE_BITS

    @property
    def straddles(self) -> bool:
        """Whether the field also has bits in the next lane."""
        return self.shift + _width(self.variable) > LANE_BITS

    @property
    def shift_in_key(self) -> int:
        """The number of bits below the field in the key of the whole state."""
        return self.word * WORD_BITS + self.shift_in_word


@frozen
class Layout:
    """The fields of all variables, in the order of `Model.variables`."""

    fields: tuple[Field, ...]

    @property
    def words(self) -> int:
        """The number of words in a state."""
        return 1 + max(place.word for place in self.fields)

    def pack(self, state: Sequence[int]) -> int:
        """Pack a state into its key. The method asserts that each value is in its variable's range."""
        key = 0
        for place, value in zip(self.fields, state, strict=True):
            offset = value - place.variable.lower
            assert 0 <= offset <= place.mask, f"{place.variable.name} is {value}"
            key |= offset << place.shift_in_key
        return key

    def unpack(self, key: int) -> tuple[int, ...]:
        """Unpack a key into the state, in the order of `Model.variables`."""
        return tuple(((key >> place.shift_in_key) & place.mask) + place.variable.lower for place in self.fields)


@frozen
class Group:
    """The bits of one request, which are in one word. Each request has its fields in the same order."""

    word: int
    shift: int
    """The number of bits below the group in its word."""


def layout_of(model: Model) -> Layout:
    """The layout of a model. The widest variables are placed first, each in the first lane that has room for it.

    Raises `BoundsError` if a variable has no upper end.
    """
    assert sys.byteorder == "little", "lanes are cut from words as little-endian bytes"
    room: list[int] = []
    places: dict[str, Field] = {}
    for variable in sorted(model.variables, key=lambda each: -_width(each)):
        width = _width(variable)
        assert width <= LANE_BITS, variable.name
        lane = next((number for number, left in enumerate(room) if left >= width), len(room))
        room += [LANE_BITS] * (lane == len(room))
        word, lane_in_word = divmod(lane, LANES)
        places[variable.name] = Field(variable, word, lane_in_word * LANE_BITS + LANE_BITS - room[lane])
        room[lane] -= width
    return Layout(tuple(places[variable.name] for variable in model.variables))


def grouped_layout_of(model: Model) -> tuple[Layout, tuple[Group, ...], int]:
    """A layout for symmetry reduction, in which each request's variables form one group of bits that can be moved.

    Returns the layout, the groups, and the number of bits in a group. A field may reach into the next lane, but not
    into the next word. Raises `BoundsError` as `layout_of` does, and if a request needs more bits than a word has.
    """
    slots = [[each for each in model.variables if slot_of(each.name) == slot] for slot in range(model.bounds.requests)]
    shelf = _Shelf()
    places = {
        each.name: Field(each, *shelf.put(_width(each))) for each in model.variables if slot_of(each.name) is None
    }
    width = sum(map(_width, slots[0]))
    if width > WORD_BITS:
        raise BoundsError(
            f"a request needs {width} bits, more than the 64 of a word; check these bounds without --symmetry"
        )
    groups: list[Group] = []
    for slot in slots:
        word, shift = shelf.put(width)
        groups.append(Group(word, shift))
        for variable in slot:
            places[variable.name] = Field(variable, word, shift)
            shift += _width(variable)
    return Layout(tuple(places[variable.name] for variable in model.variables)), tuple(groups), width


class _Shelf:
    """Allocates bits one after another. Invariant: no allocation crosses a word boundary."""

    at: int = 0

    def put(self, width: int) -> tuple[int, int]:
        """Allocate `width` bits; returns the index of their word, and the number of bits below them in that word."""
        if self.at % WORD_BITS + width > WORD_BITS:
            self.at += -self.at % WORD_BITS
        place = divmod(self.at, WORD_BITS)
        self.at += width
        return place


def _width(variable: Variable) -> int:
    if variable.upper is None:
        raise BoundsError("exploring needs a number of messages; only a proof can leave the log unbounded")
    return max(1, (variable.upper - variable.lower).bit_length())
