"""A run as text, and as a token.

The text has each actor's points, line by line, and the turns that differ from the default order.

A token is a short, URL-safe word that can be replayed:

| part                    | content                                                                               |
|-------------------------|---------------------------------------------------------------------------------------|
| `sim1.`                 | the format's version                                                                  |
| base64url, unpadded, of | deflated MessagePack [kind of run, [its settings], seed, grain, [parts left out],     |
|                         | [turns: actor, point, to, ...]], then the CRC-32 of it, big-endian                    |

The runner interprets the settings. A token of another version of the code may replay as a run that ends well.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import linecache
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
from attrs import define, field, frozen

from longpoll_simulation.world import Actor, Turn
from longpoll_spec.errors import TokenError
from longpoll_spec.tables import with_table

EDGE: Final = 3
"""Points shown at the start and the end of a long stretch."""
LINES_MAX: Final = 400
"""The longest story; its end is kept."""


@define
class Told:
    """One point."""

    actor: str
    number: int
    point: int
    what: str


@define(eq=False)
class Notes:
    """Records a run's points, as a world's `note`. Invariant: `told` are in order of occurrence."""

    told: list[Told] = field(factory=list)

    def __call__(self, actor: Actor, operation: str, thing: object) -> None:
        """Record a point."""
        what = _line(str(thing)) if operation == "line" else f"{operation} {'' if thing is None else thing}".rstrip()
        self.told.append(Told(str(actor), actor.number, actor.points, what))


def _line(place: str) -> str:
    path, _, number = place.rpartition(":")
    return f"{Path(path).name}:{number}  {linecache.getline(path, int(number)).strip()}"


def tell(told: Sequence[Told], turns: Iterable[Turn], names: Sequence[str]) -> str:
    """The story, one actor's stretch after another; `>>` marks a turn that differs from the default order.

    Only the first and last points of a long stretch are shown; a repeated stretch is only counted.
    """
    turned = {(turn.actor, turn.point): turn.to for turn in turns}
    width = max((len(one.actor) for one in told), default=0)
    lines: list[str] = []
    seen: set[tuple[str, ...]] = set()
    alike = 0
    for stretch in _stretches(told):
        end = stretch[-1]
        to = turned.get((end.number, end.point))
        said = [f"{one.actor:{width}}  {one.what}" if one else f"{'':{width}}  ..." for one in _edges(stretch)]
        if to is None and tuple(said) in seen:
            alike += 1
            continue
        seen.add(tuple(said))
        if alike:
            lines.append(f"{'':{width}}  ({alike} like some above)")
            alike = 0
        lines += said
        if to is not None:
            lines.append(f"{'':{width}}  >> {f'{names[to]} goes on' if to >= 0 else f'stands still for {-to} ms'}")
    if len(lines) > LINES_MAX:
        lines = [f"({len(lines) - LINES_MAX} lines before)", *lines[-LINES_MAX:]]
    return "\n".join(lines)


def _stretches(told: Sequence[Told]) -> Iterator[Sequence[Told]]:
    """One actor's consecutive points."""
    start = 0
    for place in range(1, len(told) + 1):
        if place == len(told) or told[place].number != told[start].number:
            yield told[start:place]
            start = place


def _edges(stretch: Sequence[Told]) -> list[Told | None]:
    if len(stretch) <= 2 * EDGE + 1:
        return list(stretch)
    return [*stretch[:EDGE], None, *stretch[-EDGE:]]


PREFIX: Final = "sim1."
LENGTH_MAX: Final = 65_536
"""The longest accepted token; its content may be eight times as long. Hostile input is cheap to reject."""
CRC_BYTES: Final = 4


@with_table
class _Payload(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    kind: str
    settings: list[str]
    seed: int
    grain: str
    left_out: list[int]
    turns: list[int]


@frozen
class RunToken:
    """The content of a token: kind, settings as text, seed, granularity of scheduling points, and turns.

    `left_out` are numbers of parts of the seed's plan.
    """

    kind: str
    settings: tuple[str, ...]
    seed: int
    grain: str = "operation"
    left_out: tuple[int, ...] = ()
    turns: tuple[Turn, ...] = ()


def encode_token(token: RunToken) -> str:
    """The token. Raises TokenError if the run has too many turns."""
    numbers = list(itertools.chain.from_iterable((turn.actor, turn.point, turn.to) for turn in token.turns))
    payload = _Payload(token.kind, list(token.settings), token.seed, token.grain, list(token.left_out), numbers)
    content = msgspec.msgpack.encode(payload)
    content += zlib.crc32(content).to_bytes(CRC_BYTES)
    word = PREFIX + base64.urlsafe_b64encode(zlib.compress(content, 9)).decode().rstrip("=")
    if len(word) > LENGTH_MAX:
        raise TokenError(f"{len(token.turns)} steps are too many for a token; shorten the run first")
    return word


def decode_token(word: str) -> RunToken:
    """Parse a token. Raises TokenError with a text for the user."""
    if not word.startswith(PREFIX):
        raise TokenError(f"not a token of a simulated run, which begins with {PREFIX!r}")
    if len(word) > LENGTH_MAX:
        raise TokenError(f"the token has {len(word)} characters; at most {LENGTH_MAX} are allowed")
    packed = word[len(PREFIX) :]
    try:
        inflate = zlib.decompressobj()
        content = inflate.decompress(
            base64.b64decode(packed + "=" * (-len(packed) % 4), b"-_", validate=True), 8 * LENGTH_MAX
        )
        if (
            not inflate.eof
            or inflate.unused_data
            or zlib.crc32(content[:-CRC_BYTES]) != int.from_bytes(content[-CRC_BYTES:])
        ):
            raise TokenError("the token is damaged; copy the whole token again")
        payload = msgspec.msgpack.decode(content[:-CRC_BYTES], type=_Payload)
    except (binascii.Error, zlib.error, ValueError, msgspec.MsgspecError):
        raise TokenError("the token is damaged; copy the whole token again") from None
    turns = _turns_of(payload.turns)
    return RunToken(payload.kind, tuple(payload.settings), payload.seed, payload.grain, tuple(payload.left_out), turns)


def _turns_of(numbers: Sequence[int]) -> tuple[Turn, ...]:
    if len(numbers) % 3 or any(number < 0 for number in [*numbers[::3], *numbers[1::3]]):
        raise TokenError("the token is from another version; run the search again")
    return tuple(Turn(*numbers[place : place + 3]) for place in range(0, len(numbers), 3))
