"""A finding as a story: each event with its time, in order.

Colours and exit codes: `longpoll.commands.dojo`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from longpoll_dojo.errors import HINTS
from longpoll_dojo.explore import Finding, Played, Turn
from longpoll_dojo.model import SHOWN_MAX, Answer, At, Message, Reply, shown, token_of


def lines_of(played: Played) -> Iterator[str]:
    """The story, one line per event; the last shows the violation."""
    made = iter(played.moves)
    last_ms = 0
    for place, turn in enumerate(played.turns):
        move = next(made, None) if place else None
        if turn.message is None:
            yield f"{last_ms:>7} ms  the wall clock is set back by an hour"
            continue
        last_ms = turn.message["now_ms"]
        if turn.message["type"] != "reset":
            yield f"{last_ms:>7} ms  {_said(turn.message, is_end=move is None)}"
        yield from (f"{'':>10}      {_did(reply)}" for reply in turn.replies if told(reply))


def told(reply: Reply) -> bool:
    """Whether a reply is more than the end of a turn."""
    return isinstance(reply, Answer | At)


def _said(message: Message, *, is_end: bool) -> str:
    number = message["id"]
    match message["type"]:
        case "pull":
            said = f"connection {message['connection']} pulls queue {message['queue']} from {message['offset']}, and "
            said += f"waits up to {message['wait_ms']} ms"
        case "arrive":
            body = message["message"]
            said = f"{body if len(body) <= SHOWN_MAX else shown(body.encode())} arrives in queue {message['queue']}"
        case "close":
            said = f"connection {message['connection']} closes"
        case "go":
            said = "goes on"
        case _:
            said = "tick"
    return f"{number}: {said}" + (" (the end of the order)" if is_end else "")


def _did(reply: Reply) -> str:
    match reply:
        case Answer(answer=number, messages=messages, offset_next=offset_next):
            what = shown(", ".join(messages).encode()) if messages else "nothing"
            return f"pull {number} is answered with {what}, to go on from {offset_next}"
        case At(at=name, id=number):
            return f"{number} stops at {shown(name.encode())}"
        case _:
            raise AssertionError(reply)


def as_json(finding: Finding) -> dict[str, Any]:
    """The finding for other tools."""
    return {
        "property": finding.violation.property,
        "said": str(finding.violation),
        "hint": HINTS[finding.violation.property],
        "token": token_of(finding.played.moves),
        "story": list(lines_of(finding.played)),
        "turns": [_turn(turn) for turn in finding.played.turns],
        "complaint": finding.complaint,
    }


def _turn(turn: Turn) -> dict[str, Any]:
    return {"message": turn.message, "replies": [msgspec.to_builtins(reply) for reply in turn.replies]}
