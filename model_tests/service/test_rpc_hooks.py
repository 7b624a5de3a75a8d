"""Hooks around every request: what they are told, and what becomes of a request when one of them raises."""

from __future__ import annotations

import pytest
from attrs import define, field
from model_tests.support.broker.brokers import Connect, StartBroker, wait_until
from model_tests.support.broker.raw_client import pull_fields, records_of, send_fields, send_message
from model_tests.support.service import answer_of, served, served_two

from longpoll_broker.io.rpc_hooks import RequestAbortedError
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames.command import Command
from longpoll_spec.policy import ROCKETMQ_4_9, STRICT, Policy

LONG_MS = 30_000
PULL = RequestCode.PULL_MESSAGE.value
SEND = RequestCode.SEND_MESSAGE_V2.value


@define
class Notes:
    """A hook that notes what it is told, and raises where it should."""

    fails_before: BaseException | None = None
    fails_after: BaseException | None = None
    told: list[tuple[str, int, int | None]] = field(factory=list)
    """When, the request's code, and the answer's: None for none yet, and before."""
    peers: set[str] = field(factory=set)
    bodies: list[bytes] = field(factory=list)

    def before_request(self, peer: str, request: Command) -> None:
        self.peers.add(peer)
        self.told.append(("before", request.code, None))
        if self.fails_before is not None:
            raise self.fails_before

    def after_response(self, peer: str, request: Command, response: Command | None) -> None:
        self.peers.add(peer)
        self.told.append(("after", request.code, None if response is None else response.code))
        if response is not None:
            self.bodies.append(bytes(response.body))
        if self.fails_after is not None:
            raise self.fails_after


@pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_4_9], ids=lambda policy: policy.name)
def test_a_hook_sees_every_request_and_answer(policy: Policy, start_broker: StartBroker, connect: Connect) -> None:
    notes = Notes()
    broker, client = served(start_broker, connect, policy=policy, hooks=[notes])
    send_message(client, "T", b"body")
    wait_until(lambda: broker.store.visible_end("T", 0) == 1)
    reply = client.call(PULL, pull_fields("T", 0))
    assert [bytes(record.body) for record in records_of(reply)] == [b"body"]
    assert notes.told == [("before", SEND, None), ("after", SEND, 0), ("before", PULL, None), ("after", PULL, 0)]
    assert notes.bodies[1] == bytes(reply.body)
    assert len(notes.peers) == 1
    assert next(iter(notes.peers)).startswith("127.0.0.1:")


@pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_4_9], ids=lambda policy: policy.name)
def test_a_hook_sees_no_answer_of_a_held_pull(policy: Policy, start_broker: StartBroker, connect: Connect) -> None:
    notes = Notes()
    broker, puller, sender = served_two(start_broker, connect, policy=policy, hooks=[notes])
    send_message(sender, "T")
    wait_until(lambda: broker.store.visible_end("T", 0) == 1)
    notes.told.clear()
    opaque = puller.send(PULL, pull_fields("T", 1, timeout_ms=LONG_MS))
    wait_until(lambda: len(notes.told) == 2)
    assert notes.told == [("before", PULL, None), ("after", PULL, None)]
    send_message(sender, "T")
    reply = answer_of(puller, opaque)
    assert reply.code == 0
    assert notes.told[2:] == [("before", SEND, None), ("after", SEND, 0)]


@pytest.mark.parametrize(
    ("hook", "code", "remark", "stored"),
    [
        (Notes(fails_before=RequestAbortedError(16, "not for you")), 16, "not for you", 0),
        (Notes(fails_after=RequestAbortedError(14, "too late for you")), 14, "too late for you", 1),
        (Notes(fails_before=ValueError("injected")), 1, "ValueError: injected", 0),
    ],
    ids=["before", "after", "a fault"],
)
def test_a_hook_may_end_a_request(
    hook: Notes, code: int, remark: str, stored: int, *, start_broker: StartBroker, connect: Connect
) -> None:
    second = Notes()
    broker, client = served(start_broker, connect, hooks=[hook, second])
    reply = client.call(SEND, send_fields("T"), b"x")
    assert (reply.code, reply.remark) == (code, remark)
    assert len(second.told) == (0 if hook.fails_before else 1)
    wait_until(lambda: broker.store.visible_end("T", 0) == stored)
    hook.fails_before = hook.fails_after = None
    assert client.call(SEND, send_fields("T"), b"x").code == 0


def test_a_hook_that_fails_after_a_hold_causes_no_second_answer(start_broker: StartBroker, connect: Connect) -> None:
    """The pull is in the table, which will answer it."""
    broker = start_broker()
    send_message(connect(broker.address), "T")
    broker.stop()
    broker, puller, sender = served_two(
        start_broker, connect, hooks=[Notes(fails_after=RequestAbortedError(1, "planted"))]
    )
    opaque = puller.send(PULL, pull_fields("T", 1, timeout_ms=LONG_MS))
    wait_until(lambda: len(broker.hold_service) == 1)
    sender.send(SEND, send_fields("T"), b"x")
    reply = answer_of(puller, opaque)
    assert reply.code == 0


def test_what_no_processor_serves_has_no_hooks(start_broker: StartBroker, connect: Connect) -> None:
    """An unknown code is answered before them."""
    notes = Notes()
    broker = start_broker(hooks=[notes])
    assert connect(broker.address).call(9999, {}).code == 3
    assert notes.told == []
