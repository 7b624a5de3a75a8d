"""The moves of the dojo, and how a list of moves is encoded as a token.

    p1a2070  connection 1 pulls queue a and waits up to 2070 ms     c1  connection 1 closes
    aa       a message arrives in queue a                           w   the wall clock is set back by an hour
    la       the same, exactly at the next deadline                 g3  message 3 continues at its scheduling point
    ba       a message of 2,000 letters arrives in queue a
    tb       a tick one millisecond before the next deadline        td  a tick at the next deadline

Which moves are possible: `model`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal

from attrs import evolve, frozen

from longpoll_dojo.errors import TokenError

Kind = Literal["pull", "arrive", "arrive_late", "arrive_large", "tick_before", "tick", "close", "set_back", "go"]
PREFIX: Final = "dojo1"
TOKEN_MAX: Final = 20_000
"""Letters of a token: some thousand moves."""
WORDS: Final[dict[str, Kind]] = {
    "p": "pull", "a": "arrive", "l": "arrive_late", "b": "arrive_large",
    "tb": "tick_before", "td": "tick", "c": "close", "w": "set_back", "g": "go",
}  # fmt: skip
LETTERS: Final = {kind: letters for letters, kind in WORDS.items()}
WORD: Final = re.compile(
    r"(?P<pull>p)(?P<of>[1-9])(?P<at>[a-z])(?P<wait>[1-9]\d{0,6})"
    r"|(?P<arrive>[alb])(?P<in>[a-z])|(?P<tick>tb|td|w)|(?P<close>c)(?P<closed>[1-9])|(?P<go>g)(?P<id>[1-9]\d{0,5})"
)


@frozen
class Step:
    """One move; fields that its kind does not use are 0 or empty."""

    kind: Kind
    connection: int = 0
    queue: str = ""
    wait_ms: int = 0
    message_id: int = 0
    """Of `go`: the message that continues."""

    def __str__(self) -> str:
        letters = LETTERS[self.kind]
        match self.kind:
            case "pull":
                return f"{letters}{self.connection}{self.queue}{self.wait_ms}"
            case "arrive" | "arrive_late" | "arrive_large":
                return letters + self.queue
            case "close":
                return f"{letters}{self.connection}"
            case "go":
                return f"{letters}{self.message_id}"
            case _:
                return letters


def token_of(moves: Sequence[Step]) -> str:
    """The moves as a token."""
    return ".".join([PREFIX, *map(str, moves)])


def steps_of(token: str) -> list[Step]:
    """The moves of a token. Raises TokenError."""
    prefix, *words = token.split(".")
    if prefix != PREFIX or len(token) > TOKEN_MAX:
        raise TokenError(f"{token[:40]!r} is not a dojo token; copy one from a finding, it begins with {PREFIX}.")
    return [_move_of(word) for word in words]


def _move_of(word: str) -> Step:
    found = WORD.fullmatch(word)
    if found is None:
        raise TokenError(f"the token's part {word[:40]!r} is invalid; copy the whole token")
    said = found.groupdict()
    if said["pull"]:
        return Step("pull", int(said["of"]), said["at"], int(said["wait"]))
    if said["arrive"]:
        return Step(WORDS[said["arrive"]], queue=said["in"])
    if said["close"]:
        return Step("close", int(said["closed"]))
    if said["go"]:
        return Step("go", message_id=int(said["id"]))
    return Step(WORDS[word])


def without(moves: Sequence[Step], place: int) -> list[Step]:
    """The moves without one and without those that continue its message; later messages are renumbered."""
    left = [*moves[:place], *moves[place + 1 :]]
    if moves[place].kind in {"go", "set_back"}:
        return left
    number = 1 + sum(move.kind not in {"go", "set_back"} for move in moves[:place])
    return [
        evolve(move, message_id=move.message_id - 1) if move.message_id > number else move
        for move in left
        if move.message_id != number
    ]
