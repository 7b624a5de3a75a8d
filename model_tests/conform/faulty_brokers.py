"""Faulty brokers, made by a relay that injects one fault in front of a correct broker, and the clauses that find it.

`python -m model_tests.conform.faulty_brokers FAULT HOST:PORT` relays to a broker until its standard input ends.
"""

from __future__ import annotations

import itertools
import json
import struct
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Final

from attrs import field, frozen
from model_tests.conform.relay import Asked, Early, Fault, Relay, Told, again, answers, at, body_of, field_of, plus

from longpoll_conform.connection import Address
from longpoll_conform.wire import properties_text, read_properties

Spoil = Callable[[dict[str, Any]], bytes | Early | None]
PULL, SEND, COMMIT, COMMITTED, END, BEAT = 11, 310, 15, 14, 30, 34
SUSPEND, COMMITS = 2, 1
RARE: Final = 1_000
LATE_S: Final = 4.0


def untouched(_asked: object, _command: object, _frame: bytes) -> None:
    """Leave every answer unchanged."""


def as_asked(_command: object) -> None:
    """Leave every request unchanged."""


# -- helpers ---------------------------------------------------------------------------------------------------------


def every(number: int, fault: Fault) -> Fault:
    """Apply the fault to one of every `number` answers that it would change."""
    count = itertools.count(1)

    def sometimes(asked: Asked, command: dict[str, Any], frame: bytes) -> Told | None:
        told = fault(asked, command, frame)
        return told if told is not None and next(count) % number == 0 else None

    return sometimes


def asking(change: Callable[[dict[str, str]], Mapping[str, str] | None], code: int = PULL, every: int = 1) -> Spoil:
    """Change fields of requests to the broker, in each request or in one of `every` requests."""
    count = itertools.count(1)

    def spoil(command: dict[str, Any]) -> bytes | None:
        if command["code"] != code or command["extFields"] is None:
            return None
        changed = change(command["extFields"])
        if changed is None or next(count) % every:
            return None
        return again(command, extFields={**command["extFields"], **changed})

    return spoil


def held(change: Callable[[int], int], every: int = 1) -> Spoil:
    def changed(fields: dict[str, str]) -> Mapping[str, str] | None:
        if not int(fields.get("sysFlag", "0")) & SUSPEND:
            return None
        return {"suspendTimeoutMillis": str(max(0, change(int(fields["suspendTimeoutMillis"]))))}

    return asking(changed, every=every)


def flags(change: Callable[[int], int], every: int = 1) -> Spoil:
    def changed(fields: dict[str, str]) -> Mapping[str, str] | None:
        flag = int(fields.get("sysFlag", "0"))
        return {"sysFlag": str(change(flag))} if change(flag) != flag else None

    return asking(changed, every=every)


def uncommitted(every: int) -> Spoil:
    """Acknowledge one of `every` commits, explicit or by a pull, without committing the offset."""
    count = itertools.count(1)

    def spoil(command: dict[str, Any]) -> bytes | Early | None:
        fields = dict(command["extFields"] or {})
        flag = int(fields.get("sysFlag", "0")) if command["code"] == PULL else 0
        if (command["code"] != COMMIT and not flag & COMMITS) or next(count) % every:
            return None
        if not flag:
            return Early(again(command, code=0, flag=1, extFields=None, body=b""), None)
        return again(command, extFields={**fields, "sysFlag": str(flag & ~COMMITS)})

    return spoil


def told_later(after_s: float, codes: set[int], when: Callable[[Asked], bool] = lambda _asked: True) -> Fault:
    def fault(asked: Asked, command: dict[str, Any], frame: bytes) -> Told | None:
        fits = asked.command.get("code") == PULL and command["code"] in codes and when(asked)
        return [(after_s, frame)] if fits else None

    return fault


def is_held(asked: Asked) -> bool:
    return bool(int((asked.command.get("extFields") or {}).get("sysFlag", "0")) & SUSPEND)


def never(asked: Asked, command: dict[str, Any], _frame: bytes) -> Told | None:
    return [] if asked.command.get("code") == PULL and is_held(asked) and command["code"] == 0 else None


def twice(asked: Asked, command: dict[str, Any], frame: bytes) -> Told | None:
    return [(0.0, frame + frame)] if asked.command.get("code") == PULL and command["flag"] & 1 else None


def records(body: bytes) -> list[bytes]:
    found, place = [], 0
    while place < len(body):
        (size,) = struct.unpack_from(">i", body, place)
        found.append(body[place : place + size])
        place += size
    return found


def of_records(change: Callable[[list[bytes]], list[bytes]], least: int = 1) -> Fault:
    def changed(body: bytearray) -> bytes:
        found = records(bytes(body))
        return b"".join(change(found)) if len(found) >= least else bytes(body)

    return body_of(PULL, changed)


def early_acks(after_s: float | None, every: int) -> tuple[Fault, Spoil]:
    """Acknowledge sends of the load before the broker stores the messages, or without storing them."""
    ends: dict[tuple[str, str], int] = defaultdict(int)
    count, lock = itertools.count(1), threading.Lock()

    def spoil(command: dict[str, Any]) -> Early | None:
        fields = command["extFields"] or {}
        if command["code"] != SEND or not fields.get("b", "").endswith("-load"):
            return None
        key = (fields["b"], fields["e"])
        with lock:
            if next(count) % every:
                return None
            end = ends[key]
            ends[key] += after_s is not None
        told = {"queueId": fields["e"], "queueOffset": str(end), "msgId": "7F00000100002A9F0000000000000000"}
        return Early(again(command, code=0, flag=1, extFields=told, body=b""), after_s)

    def fault(asked: Asked, command: dict[str, Any], _frame: bytes) -> Told | None:
        fields = asked.command.get("extFields") or {}
        if asked.command.get("code") == SEND and fields.get("b", "").endswith("-load") and command["code"] == 0:
            key = (fields["b"], fields["e"])
            with lock:
                ends[key] = max(ends[key], int(command["extFields"]["queueOffset"]) + 1)
        return None

    return fault, spoil


def undelayed(command: dict[str, Any]) -> bytes | None:
    fields = dict(command["extFields"] or {})
    properties = read_properties(fields.get("i", "")) if command["code"] == SEND else {}
    if properties.pop("DELAY", None) is None:
        return None
    return again(command, extFields={**fields, "i": properties_text(properties)})


def unheard(command: dict[str, Any]) -> bytes | None:
    if command["code"] != BEAT or not command["body"]:
        return None
    try:
        told = json.loads(command["body"])
        return again(command, body=json.dumps({**told, "consumerDataSet": []}).encode())
    except (ValueError, TypeError):
        return None


def unasked(command: dict[str, Any], number: int = 7) -> dict[str, Any]:
    return {**command, "opaque": command["opaque"] + 1_000_000 * number}


# -- the table -------------------------------------------------------------------------------------------------------


@frozen
class Faulty:
    clauses: tuple[str, ...]
    answers: Fault = untouched
    requests: Spoil = as_asked
    more: Mapping[str, Any] = field(factory=dict)


def faults(rare: int = RARE) -> Mapping[str, Faulty]:
    """Return every fault with its clauses. Each call makes new fault functions, because some of them count answers."""
    lost, kept = early_acks(None, 100), early_acks(0.5, 1)
    return {
        # hold times
        "holds half as long": Faulty(("POLL-3",), requests=held(lambda ms: ms // 2)),
        "holds twice as long": Faulty(("POLL-3",), requests=held(lambda ms: 2 * ms)),
        "never holds": Faulty(("POLL-1", "POLL-2", "POLL-3"), requests=flags(lambda flag: flag & ~SUSPEND)),
        "does not hold one of 1,000": Faulty(("POLL-3",), requests=flags(lambda flag: flag & ~SUSPEND, rare)),
        "holds without the suspend bit": Faulty(("PULL-HOLD-2",), requests=flags(lambda flag: flag | SUSPEND)),
        "ends holds 300 ms early": Faulty(("POLL-3",), requests=held(lambda ms: ms - 300)),
        "ends holds 300 ms late": Faulty(("POLL-3",), told_later(0.3, {19, 20, 21}, is_held)),
        "ends one of 1,000 holds 4 s late": Faulty(("POLL-3",), every(rare, told_later(LATE_S, {19}, is_held))),
        "wakes late by 1 s": Faulty(("POLL-2",), told_later(1.0, {0}, is_held)),
        "wakes one of 1,000 late by 4 s": Faulty(("POLL-2",), every(rare, told_later(LATE_S, {0}, is_held))),
        "wakes one of 1,000 never": Faulty(("POLL-2",), every(rare, never)),
        "closes connections after 3 s": Faulty(("POLL-3",), more={"idle_s": 3.0}),
        "delivers delayed messages at once": Faulty(("PULL-WAKE-6",), requests=undelayed),
        # answers
        "another opaque": Faulty(("POLL-2", "POLL-3"), answers(PULL, unasked)),
        "another opaque in one of 1,000": Faulty(("POLL-2", "RUN-3"), every(rare, answers(PULL, unasked))),
        "answers twice": Faulty(("PULL-READ-2", "RUN-3"), twice),
        "answers one of 1,000 twice": Faulty(("RUN-3",), every(rare, twice)),
        "next offset one too high": Faulty(("PULL-READ-2", "RUN-4"), field_of(PULL, "nextBeginOffset", plus(1))),
        "next offset of one of 1,000 too high": Faulty(
            ("RUN-4",), every(rare, field_of(PULL, "nextBeginOffset", plus(1)))
        ),
        "end one too high in pulls": Faulty(("PULL-READ-1",), field_of(PULL, "maxOffset", plus(1))),
        "begin one too high in pulls": Faulty(("PULL-READ-1",), field_of(PULL, "minOffset", plus(1))),
        "a message twice": Faulty(("PULL-READ-2", "RUN-4"), of_records(lambda found: [*found, found[-1]])),
        "a message twice in one of 1,000": Faulty(
            ("RUN-4",), every(rare, of_records(lambda found: [*found, found[-1]]))
        ),
        "the last message missing": Faulty(("PULL-READ-2",), of_records(lambda found: found[:-1], 2)),
        "the only message of one of 1,000 missing": Faulty(
            ("RUN-4",), every(rare, of_records(lambda found: found[1:]))
        ),
        "messages in the other order": Faulty(("PULL-READ-2",), of_records(lambda found: found[::-1], 2)),
        "the queue of a message": Faulty(("PULL-READ-2",), body_of(PULL, at(12, 1, 4))),
        "a truncated body": Faulty(("PULL-READ-2",), body_of(PULL, lambda body: body[:-5])),
        "a truncated body in one of 1,000": Faulty(("RUN-10",), every(rare, body_of(PULL, lambda body: body[:-5]))),
        "19 instead of 20": Faulty(
            ("PULL-TAG-7",), answers(PULL, lambda told: {**told, "code": 19} if told["code"] == 20 else None)
        ),
        "an error in one of 1,000": Faulty(
            ("POLL-2", "POLL-3"), every(rare, answers(PULL, lambda told: {**told, "code": 1, "body": b""}))
        ),
        # requests
        "ignores tags": Faulty(("PULL-TAG-1",), requests=asking(lambda _fields: {"subscription": "*"})),
        "ignores heartbeats": Faulty(("PULL-CHECK-13",), requests=unheard),
        "notifies no member": Faulty(
            ("CLIENT-2",), lambda _asked, command, _frame: None if command["flag"] & 1 else []
        ),
        # offsets and sends
        "drops every third commit": Faulty(("RUN-6", "RUN-9"), requests=uncommitted(3)),
        "drops every tenth commit": Faulty(("RUN-6", "RUN-9"), requests=uncommitted(10)),
        "committed offset one too high": Faulty(("OFFSET-3",), field_of(COMMITTED, "offset", plus(1))),
        "end of a queue one too high": Faulty(("OFFSET-6",), field_of(END, "offset", plus(1))),
        "place of a send one too high": Faulty(("SEND-1",), field_of(SEND, "queueOffset", plus(1))),
        "acknowledges 500 ms before it stores": Faulty(("RUN-4", "RUN-1"), *kept),
        "stores one of 100 never": Faulty(("RUN-8", "RUN-5"), *lost),
    }


FAULTS: Final = tuple(faults())


def relay_of(name: str, broker: Address, rare: int = RARE) -> Relay:
    faulty = faults(rare)[name]
    return Relay(broker, faulty.answers, faulty.requests, **faulty.more)


if __name__ == "__main__":
    host, port = sys.argv[2].rsplit(":", 1)
    with relay_of(sys.argv[1], (host, int(port))) as running:
        sys.stdout.write("{}:{}\n".format(*running.address))
        sys.stdout.flush()
        sys.stdin.read()
