"""Where each variable stands in a packed state: exact keys, one 64-bit word.

| unit  | holds                                                                       |
|-------|-----------------------------------------------------------------------------|
| word  | eight lanes; lane k is bits 8k to 8k+7 of the word                           |
| lane  | whole fields, so that a chunk of states unpacks as eight byte columns        |
| field | one variable, as its value less its lower end, lowest bit first               |

Nothing is hashed or cut off: equal words are equal states. Leaves out bounds that need a second word: they are refused.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from attrs import frozen

from longpoll_spec.engines.symmetry import slot_of
from longpoll_spec.errors import BoundsError
from longpoll_spec.model import Model
from longpoll_spec.state import Variable

LANES: Final = 8
LANE_BITS: Final = 8
WORD_BITS: Final = LANES * LANE_BITS
Words = npt.NDArray[np.uint64]


@frozen
class Field:
    """The place of one variable."""

    variable: Variable
    lane: int
    shift: int
    """Bits below it in its lane."""

    @property
    def mask(self) -> int:
        """Its bits, when it is shifted down to the lowest."""
        return (1 << _width(self.variable)) - 1

    @property
    def straddles(self) -> bool:
        """Whether it has bits in the next lane too."""
        return self.shift + _width(self.variable) > LANE_BITS

    @property
    def shift_in_word(self) -> int:
        """Bits below it in the word."""
        return self.lane * LANE_BITS + self.shift


@frozen
class Layout:
    """The places of all variables, in the model's order."""

    fields: tuple[Field, ...]

    def pack(self, state: Sequence[int]) -> int:
        """A state as its word."""
        word = 0
        for place, value in zip(self.fields, state, strict=True):
            offset = value - place.variable.lower
            assert 0 <= offset <= place.mask, f"{place.variable.name} is {value}"
            word |= offset << place.shift_in_word
        return word

    def unpack(self, word: int) -> tuple[int, ...]:
        """The state of a word."""
        return tuple(((word >> place.shift_in_word) & place.mask) + place.variable.lower for place in self.fields)


def layout_of(model: Model) -> Layout:
    """The layout of a model: widest fields first, each into the first lane that has room for it.

    Raises `BoundsError` when the variables do not fit one word or one has no upper end.
    """
    assert sys.byteorder == "little", "lanes are cut from words as little-endian bytes"
    room = [LANE_BITS] * LANES
    places: dict[str, Field] = {}
    for variable in sorted(model.variables, key=lambda each: -_width(each)):
        width = _width(variable)
        lane = next((number for number, left in enumerate(room) if left >= width), None)
        if lane is None:
            raise _too_wide(sum(_width(each) for each in model.variables))
        places[variable.name] = Field(variable, lane, LANE_BITS - room[lane])
        room[lane] -= width
    return Layout(tuple(places[variable.name] for variable in model.variables))


def grouped_layout_of(model: Model) -> tuple[Layout, int, int]:
    """A layout in which each request's variables are one group of bits, alike for all requests.

    Gives the layout, the bits below the first group, and the bits of a group. A field may reach into the next lane.
    Raises `BoundsError` as `layout_of` does.
    """
    slots = [[each for each in model.variables if slot_of(each.name) == slot] for slot in range(model.bounds.requests)]
    others = [each for each in model.variables if slot_of(each.name) is None]
    places: dict[str, Field] = {}
    at = 0
    for variable in (*others, *(each for slot in slots for each in slot)):
        places[variable.name] = Field(variable, *divmod(at, LANE_BITS))
        at += _width(variable)
    if at > WORD_BITS:
        raise _too_wide(at)
    layout = Layout(tuple(places[variable.name] for variable in model.variables))
    return layout, sum(map(_width, others)), sum(map(_width, slots[0]))


def _too_wide(bits: int) -> BoundsError:
    return BoundsError(
        f"these bounds need {bits} bits a state and the packed engine has one word of {WORD_BITS}; "
        "lower --requests or --messages, or use --engine python"
    )


def _width(variable: Variable) -> int:
    if variable.upper is None:
        raise BoundsError("exploring needs a number of messages; only a proof can leave the log unbounded")
    return max(1, (variable.upper - variable.lower).bit_length())
