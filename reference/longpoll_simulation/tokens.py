"""Tokens: a simulated run as one short, URL-safe word that can be replayed.

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
import zlib
from collections.abc import Sequence
from typing import Final

import msgspec
from attrs import frozen

from longpoll_simulation.world import Turn
from longpoll_spec.errors import TokenError
from longpoll_spec.tables import with_table

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
