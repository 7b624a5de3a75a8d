"""A relay injects wire faults into a correct broker's answers. Each fault fails its clause, and the bytes are shown."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import pytest
from attrs import evolve, field, frozen
from model_tests.conform.faulty_brokers import of_records
from model_tests.conform.relay import (
    Asked,
    Fault,
    Latency,
    Relay,
    Told,
    again,
    answers,
    at,
    body_of,
    field_of,
    plus,
    recoded,
    whole,
)
from model_tests.support.spec.cases import quick_if

from longpoll_broker.broker import Broker
from longpoll_conform.clauses import BY_VECTOR, CAPABILITIES, Capability
from longpoll_conform.compare import Difference
from longpoll_conform.connection import Address, SilentError
from longpoll_conform.play import Place
from longpoll_conform.suite import Result, Suite
from longpoll_conform.vectors import recorded

HAS: Final[frozenset[Capability]] = frozenset(CAPABILITIES) - {"sql92", "golden-store", "lite-pull"}
CONTROL: Final = ("lock-358", "client-348")


@frozen
class Planted:
    clause: str
    vectors: str
    fault: Fault = lambda _asked, _command, _frame: None
    request: Callable[[dict[str, Any]], bytes | None] = lambda _command: None
    is_slow: bool = False
    """Whether the fault takes seconds to show."""
    names: tuple[str, ...] = field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.vectors.split()))


def asking(code: int, **changed: str | None) -> Callable[[dict[str, Any]], bytes | None]:
    def spoil(command: dict[str, Any]) -> bytes | None:
        if command["code"] != code or command["extFields"] is None:
            return None
        fields = {**command["extFields"], **changed}
        return again(command, extFields={name: text for name, text in fields.items() if text is not None})

    return spoil


def pushes(tell: Callable[[bytes], Told]) -> Fault:
    """Send an additional request from the broker to the client."""
    return lambda _asked, command, frame: None if command["flag"] & 1 else tell(frame)


def with_field(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda command: {**command, "extFields": {**(command["extFields"] or {}), name: "1"}}


def json_body(change: Callable[[Any], Any]) -> Callable[[bytearray], bytes]:
    return lambda body: json.dumps(change(json.loads(bytes(body)))).encode()


def answers_first(extra: Callable[[dict[str, Any]], bytes]) -> Fault:
    return lambda asked, command, frame: [(0, extra(command) + frame)] if asked.command.get("code") == 11 else None


def recut(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame) - 4 - 5) + frame[4:]


def head(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[bytes], bytes]:
    def changed(frame: bytes) -> bytes:
        (mark,) = struct.unpack_from(">I", frame, 4)
        size = mark & 0xFFFFFF
        raw = json.dumps(change(json.loads(frame[8 : 8 + size]))).encode()
        rest = struct.pack(">I", len(raw)) + raw + frame[8 + size :]
        return struct.pack(">i", len(rest)) + rest

    return changed


def headed(raw: bytes) -> bytes:
    return struct.pack(">iI", 4 + len(raw), len(raw)) + raw


ODD: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "a flag of null": head(lambda header: {**header, "flag": None}),
    "a flag of text": head(lambda header: {**header, "flag": "1"}),
    "a code of text": head(lambda header: {**header, "code": "abc"}),
    "a code of null": head(lambda header: {**header, "code": None}),
    "fields in a list": head(lambda header: {**header, "extFields": []}),
    "fields of numbers": head(lambda header: {**header, "extFields": {"a": 5}}),
    "a remark of numbers": head(lambda header: {**header, "remark": 5}),
    "a deep header": lambda _frame: headed(b"[" * 200_000),
    "a long number": lambda _frame: headed(b'{"code":' + b"9" * 5_000 + b"}"),
    "no header": lambda _frame: headed(b""),
}


READ: Final = "PULL-READ-2"
FAULTS: Final[Mapping[str, Planted]] = {
    "next offset one less": Planted(READ, "pull-010", field_of(11, "nextBeginOffset", plus(-1))),
    "no next offset": Planted(READ, "pull-010", field_of(11, "nextBeginOffset", lambda _text: None)),
    "no begin": Planted(READ, "pull-010", field_of(11, "minOffset", lambda _text: None)),
    "end one less": Planted(READ, "pull-010", field_of(11, "maxOffset", plus(-1))),
    "no end": Planted(READ, "pull-010", field_of(11, "maxOffset", lambda _text: None)),
    "no broker to go on with": Planted(READ, "pull-010", field_of(11, "suggestWhichBrokerId", lambda _text: None)),
    "another broker to go on with": Planted(READ, "pull-010", field_of(11, "suggestWhichBrokerId", plus(1))),
    "a field that nobody knows": Planted(READ, "pull-010", answers(11, with_field("more"))),
    "found is nothing": Planted(READ, "pull-010", recoded(11, 0, 19)),
    "nothing is no match": Planted("PULL-READ-1", "pull-000", recoded(11, 19, 20)),
    "nothing is found": Planted("PULL-READ-1", "pull-000", recoded(11, 19, 0)),
    "moved is nothing": Planted("PULL-READ-7", "pull-016", recoded(11, 21, 19)),
    "moved to elsewhere": Planted("PULL-READ-7", "pull-016", field_of(11, "nextBeginOffset", lambda _text: "0")),
    "no topic is an error": Planted("PULL-CHECK-5", "pull-034", recoded(11, 17, 1)),
    "no permission is an error": Planted("PULL-CHECK-7", "pull-036", recoded(11, 16, 1)),
    "no group is no topic": Planted("PULL-CHECK-4", "pull-038", recoded(11, 16, 26)),
    "no subscription is an older one": Planted("PULL-CHECK-11", "pull-044", recoded(11, 24, 25)),
    "a wrong queue is none": Planted("PULL-CHECK-8", "pull-028", recoded(11, 1, 19)),
    "a wrong queue is 5.x's": Planted("PULL-CHECK-8", "pull-030", recoded(11, 1, 29)),
    "a parse error is an error": Planted("PULL-TAG-2", "pull-064", recoded(11, 23, 1)),
    "no tag comes": Planted("PULL-TAG-1", "pull-062", request=asking(11, subscription="none")),
    "one message fewer": Planted("PULL-READ-5", "pull-024", request=asking(11, maxMsgNums="31")),
    "always one message": Planted(READ, "pull-010", request=asking(11, maxMsgNums="1")),
    "the first message is missing": Planted(READ, "pull-010", of_records(lambda found: found[1:])),
    "a body's byte": Planted(READ, "pull-010", body_of(11, at(88, 1))),
    "a checksum": Planted(READ, "pull-010", body_of(11, at(8, 1, 4))),
    "a record's kind": Planted(READ, "pull-010", body_of(11, at(7, 1))),
    "a flag": Planted(READ, "pull-010", body_of(11, at(16, 1, 4))),
    "an offset": Planted(READ, "pull-010", body_of(11, at(20, 1, 8))),
    "a system flag": Planted(READ, "pull-010", body_of(11, at(36, 1, 4))),
    "a time of birth": Planted(READ, "pull-010", body_of(11, at(40, 1, 8))),
    "consumed again": Planted(READ, "pull-010", body_of(11, at(72, 1, 4))),
    "a property": Planted(READ, "pull-010", body_of(11, lambda body: body[:-1] + bytes([body[-1] ^ 1]))),
    "no body": Planted(READ, "pull-010", body_of(11, lambda _body: b"")),
    "a one-way answer": Planted(READ, "pull-010", answers(11, lambda command: {**command, "flag": 3})),
    "no remark": Planted(READ, "pull-010", answers(11, lambda command: {**command, "remark": None})),
    "an answer again after a while": Planted(READ, "pull-010", whole(11, lambda frame: [(0, frame), (0.1, frame)])),
    "closed instead": Planted(READ, "pull-010", whole(11, lambda _frame: [(0, b"")])),
    "a frame that ends early": Planted(READ, "pull-010", whole(11, lambda frame: [(0, frame[:-3]), (0, b"")])),
    "a frame that says fewer": Planted(READ, "pull-010", whole(11, lambda frame: [(0, recut(frame)), (0, b"")])),
    "a header that is no object": Planted(READ, "pull-010", whole(11, lambda f: [(0, f.replace(b"{", b"[", 1))])),
    "a header of another kind": Planted(READ, "pull-010", whole(11, lambda f: [(0, f[:4] + b"\x09" + f[5:])])),
    "late by a second": Planted(READ, "pull-010", whole(11, lambda frame: [(1.2, frame)]), is_slow=True),
    "never": Planted(READ, "pull-010", whole(11, lambda _frame: []), is_slow=True),
    "another's opaque": Planted(
        READ, "pull-010", answers(11, lambda command: {**command, "opaque": command["opaque"] + 999}), is_slow=True
    ),
    "a request for an answer": Planted(READ, "pull-010", answers(11, lambda c: {**c, "flag": 0}), is_slow=True),
    "a hold that is none": Planted(
        "PULL-HOLD-1", "hold-122", request=asking(11, suspendTimeoutMillis="0", sysFlag="4")
    ),
    "a wake that is late": Planted("PULL-WAKE-1", "hold-126", whole(11, lambda f: [(2.0, f)], when=0), is_slow=True),
    "a wake without a message": Planted("PULL-WAKE-1", "hold-126", recoded(11, 0, 19)),
    "a commit that is none": Planted("COMMIT-1", "commit-106", request=asking(11, sysFlag="4")),
    "a commit of less": Planted("COMMIT-3", "commit-114", request=asking(11, commitOffset="10")),
    "a send's queue": Planted("SEND-1", "send-206", field_of(310, "queueId", plus(1))),
    "no message's id": Planted("SEND-1", "send-206", field_of(310, "msgId", lambda _text: None)),
    "no region": Planted("SEND-1", "send-206", field_of(310, "MSG_REGION", lambda _text: None)),
    "a send that failed": Planted("SEND-1", "send-206", recoded(310, 0, 10)),
    "properties are lost": Planted("SEND-2", "send-208", request=asking(310, i="")),
    "a commit by itself": Planted("OFFSET-3", "offset-284", request=asking(15, commitOffset="77")),
    "a begin": Planted("OFFSET-6", "offset-302", field_of(31, "offset", plus(1))),
    "a time of storing": Planted("OFFSET-6", "offset-306", field_of(32, "timestamp", plus(7))),
    "an offset by time": Planted("OFFSET-8", "offset-314", field_of(29, "offset", plus(1))),
    "a heartbeat refused": Planted("CLIENT-1", "client-332", recoded(34, 0, 1)),
    "told twice": Planted("CLIENT-2", "client-336", pushes(lambda frame: [(0, frame + frame)])),
    "nothing is locked": Planted("LOCK-1", "lock-352", body_of(41, json_body(lambda _all: {"lockOKMQSet": []}))),
    "an unknown request succeeds": Planted("CODE-1", "misc-390", recoded(99999, 3, 0)),
    "no key is a key": Planted("VIEW-2", "view-330", recoded(12, 22, 0)),
    "no message is one": Planted("VIEW-1", "view-322", recoded(33, 1, 0)),
    "any name will do": Planted("TOPIC-1", "misc-394", recoded(17, 1, 0)),
    "nothing to delete": Planted("TOPIC-3", "misc-398", recoded(215, 0, 17)),
    "an id that is none": Planted("SEND-1", "send-206", field_of(310, "msgId", lambda _text: "garbage")),
    "a flag of five": Planted(READ, "pull-010", answers(11, lambda command: {**command, "flag": 5})),
    "an answer to nobody": Planted(READ, "pull-010", answers_first(lambda command: again(command, opaque=98_765))),
    "a record without an end": Planted(READ, "pull-010", body_of(11, lambda _body: bytes(91))),
    "a body of fewer than none": Planted(READ, "pull-010", body_of(11, at(84, -200, 4))),
    "deep JSON": Planted(
        "LOCK-1", "lock-352", body_of(41, lambda body: b"[" * 100_000 if b"queueId" in body else body)
    ),
    **{
        name: Planted(READ, "pull-010", whole(11, lambda frame, odd=odd: [(0, odd(frame))], when=0))  # type: ignore[misc] # bound early
        for name, odd in ODD.items()
    },
}


def suite_of(
    address: Address,
    names: Address,
    run_name: str,
    has: frozenset[Capability] = HAS,
    restart: Callable[[], None] | None = None,
) -> Suite:
    suite = Suite(Place(address, names), "rocketmq-4.9", run_name, restart=restart, makes_smaller=False)
    suite.capabilities = set(has)
    return suite


def asked(rocketmq: Broker, planted: Planted, run_name: str) -> tuple[dict[str, Result], int]:
    """Return the results of a fault's vectors and of unaffected vectors, and the number of changed frames."""
    wanted = {*planted.names, *CONTROL}
    with Relay(rocketmq.address, planted.fault, planted.request) as relay:
        suite = suite_of(relay.address, rocketmq.name_server_address, run_name)
        results = suite.run([vector for vector in recorded("4.9.7") if vector.id in wanted])
    return {result.vector.id: result for result in results}, relay.spoiled


QUICK: Final = [
    name for number, name in enumerate(FAULTS) if name in ODD or (number % 6 == 0 and not FAULTS[name].is_slow)
]


@pytest.mark.parametrize("name", quick_if(FAULTS, lambda name: name in QUICK))
def test_an_injected_fault_fails_its_clause(name: str, rocketmq: Broker) -> None:
    planted = FAULTS[name]
    results, spoiled = asked(rocketmq, planted, f"{sorted(FAULTS).index(name)}f")

    assert spoiled
    for vector in planted.names:
        result = results[vector]
        assert (result.outcome, result.clause.id) == ("FAIL", planted.clause), result.why
        assert result.differences
        assert any(one.content for one in result.spoken)
    assert {results[vector].outcome for vector in CONTROL} == {"PASS"}


def test_the_vectors_pass_without_a_fault(rocketmq: Broker) -> None:
    vectors = " ".join({name for planted in FAULTS.values() for name in planted.names})
    results, spoiled = asked(rocketmq, Planted("", vectors), "ok")

    assert spoiled == 0
    assert {vector: result.why for vector, result in results.items() if result.outcome != "PASS"} == {}


def test_without_a_name_server_its_vectors_are_untested(rocketmq: Broker) -> None:
    """Vectors that need a name server are untested without a name server, and run with it."""
    (vector,) = [each for each in recorded("4.9.7") if each.id == "send-222"]
    outcomes = []
    for lacking in (frozenset({"name-server"}), frozenset()):
        suite = Suite(
            Place(rocketmq.address, rocketmq.name_server_address), "rocketmq-4.9", "noname", makes_smaller=False
        )
        suite.capabilities = set(HAS - lacking)
        outcomes += [(result.outcome, result.why) for result in suite.run([vector])]

    assert outcomes == [("UNTESTED", "the broker lacks: name-server"), ("PASS", "")]


@pytest.mark.parametrize("late", [2, 1_000])
def test_conform_waits_for_a_late_route(rocketmq: Broker, late: int) -> None:
    """A broker registers a new topic one-way, so conform waits for the route; a route that never comes is a failure."""
    (vector,) = [each for each in recorded("4.9.7") if each.id == "send-222"]
    *steps, route = vector.case["after"]
    vector = evolve(vector, case={**vector.case, "after": [*steps, {**route, "limit_ms": 200 if late > 2 else 10_000}]})
    told: list[int] = []
    with Relay(rocketmq.name_server_address, answers(105, partial(_not_known_at_first, told, late))) as relay:
        suite = suite_of(rocketmq.address, relay.address, f"late{late}")
        (result,) = suite.run([vector])

    if late == 2:
        assert (result.outcome, len(told)) == ("PASS", 3)
    else:
        assert (result.outcome, result.why) == ("FAIL", "after[2].code: expected 0, got 17")
        assert len(told) > 1


def _not_known_at_first(told: list[int], late: int, command: dict[str, Any]) -> dict[str, Any] | None:
    told.append(command["code"])
    return {**command, "code": 17} if len(told) <= late else None


def test_there_are_at_least_sixty_faults() -> None:
    assert len(FAULTS) >= 60
    assert len({planted.clause for planted in FAULTS.values()}) >= 25


def test_a_request_that_silences_the_broker_is_reported(rocketmq: Broker) -> None:
    """After a request that silences the broker, the other vectors are untested unless a restart is possible."""
    with Relay(rocketmq.address, _silenced_by_heartbeat) as silent:
        suite = suite_of(silent.address, rocketmq.name_server_address, "gone")
        wanted = ("pull-000", "client-332", "lock-358", "lock-360")
        vectors = [vector for vector in recorded("4.9.7") if vector.id in wanted]
        results = {result.vector.id: result for result in suite.run(vectors)}
        restarted = suite_of(silent.address, rocketmq.name_server_address, "back", restart=silent.kept.clear)
        silent.kept.clear()
        again_asked = {result.vector.id: result.outcome for result in restarted.run(vectors)}

    assert suite.silenced_by == ["client-332"]
    assert "stopped answering after it" in results["client-332"].why
    assert [results[name].outcome for name in wanted] == ["PASS", "FAIL", "UNTESTED", "UNTESTED"]
    assert restarted.silenced_by == ["client-332"]
    assert [again_asked[name] for name in wanted] == ["PASS", "FAIL", "PASS", "PASS"]


def _silenced_by_heartbeat(asked: Asked, command: dict[str, Any], _frame: bytes) -> Told | None:
    if asked.command.get("code") == 34:
        asked.relay.kept["gone"] = True
    return [(0.0, b"")] if asked.relay.kept.get("gone") and command["flag"] & 1 else None


def test_a_broker_that_answers_no_send_gets_no_further_vectors(rocketmq: Broker) -> None:
    """More vectors would only wait for answers that never come."""
    with pytest.raises(SilentError, match="does not answer"):
        asked(rocketmq, Planted("", "pull-010", whole(310, lambda _frame: [(0, b"")])), "mute")


def test_a_deliberate_difference_of_a_policy_is_checked() -> None:
    """The strict policy answers with code 3 where the name server of 4.9.7 sends no answer; any other answer fails."""
    vector = next(each for each in recorded("4.9.7") if each.id == "route-384")
    suite = Suite(Place(("127.0.0.1", 1), ("127.0.0.1", 1)), "strict", "p")
    clause = BY_VECTOR[vector.id]
    other = (Difference("response", "no answer", "something"),)

    assert suite._outcome(vector, clause, other, {"response": {"code": 3}})[0] == "NON-STRICT"
    assert suite._outcome(vector, clause, other, {"response": {"code": 1}})[0] == "FAIL"
    assert suite._outcome(vector, clause, (), {"response": None})[0] == "FAIL"


@pytest.mark.parametrize("echo", [None, Latency(400.0)], ids=["prompt", "slow"])
def test_a_broker_that_falls_silent_keeps_its_earlier_results(echo: Latency | None, rocketmq: Broker) -> None:
    """Without a restart the earlier results stay, the failed vector is named, and the other vectors are untested."""
    with Relay(rocketmq.address, _silenced_by_message) as silent:
        suite = suite_of(silent.address, rocketmq.name_server_address, f"many{echo is None}")
        suite.echo = echo
        wanted = [f"hold-{number}" for number in range(118, 146, 2) if number != 134]
        results = suite.run([vector for vector in recorded("4.9.7") if vector.id in wanted])
    outcomes = [result.outcome for result in results]

    assert "FAIL" in outcomes
    assert suite.silenced_by == [result.vector.id for result in results if result.outcome == "FAIL"]
    assert outcomes[-1] == "UNTESTED"


def _silenced_by_message(asked: Asked, command: dict[str, Any], _frame: bytes) -> Told | None:
    topic = (asked.command.get("extFields") or {}).get("topic", "")
    if asked.command.get("code") == 11 and command["code"] == 19 and not topic.startswith("twell"):
        asked.relay.kept["gone"] = True
    return [(0.0, b"")] if asked.relay.kept.get("gone") and command["flag"] & 1 else None
