"""Hooks around every request: what they are told, and what becomes of a request when one of them raises."""

from __future__ import annotations

import pytest
from attrs import define, field
from model_tests.support.service_b import answer_of

from longpoll_broker.service.io.rpc_hooks import RequestAbortedError
from longpoll_broker.testing.brokers import Connect, StartBroker, wait_until
from longpoll_broker.testing.raw_client import pull_fields, records_of, send_fields, send_message
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
    broker = start_broker(policy=policy, hooks=[notes])
    client = connect(broker.address)
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
    broker = start_broker(policy=policy, hooks=[notes])
    puller, sender = connect(broker.address), connect(broker.address)
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


def test_a_hook_may_end_a_request_before_it_is_served(start_broker: StartBroker, connect: Connect) -> None:
    """The answer is the hook's code and text, nothing is stored, and no later hook is asked."""
    first, second = Notes(fails_before=RequestAbortedError(16, "not for you")), Notes()
    broker = start_broker(hooks=[first, second])
    reply = connect(broker.address).call(SEND, send_fields("T"), b"x")
    assert (reply.code, reply.remark) == (16, "not for you")
    assert broker.store.visible_end("T", 0) == 0
    assert first.told == [("before", SEND, None)]
    assert second.told == []


def test_a_hook_may_end_a_request_when_it_was_served(start_broker: StartBroker, connect: Connect) -> None:
    broker = start_broker(hooks=[Notes(fails_after=RequestAbortedError(14, "too late for you"))])
    reply = connect(broker.address).call(SEND, send_fields("T"), b"x")
    assert (reply.code, reply.remark) == (14, "too late for you")
    wait_until(lambda: broker.store.visible_end("T", 0) == 1)


def test_a_hook_that_fails_costs_its_request_only(start_broker: StartBroker, connect: Connect) -> None:
    notes = Notes(fails_before=ValueError("planted"))
    broker = start_broker(hooks=[notes])
    client = connect(broker.address)
    reply = client.call(SEND, send_fields("T"), b"x")
    assert reply.code == 1
    assert "planted" in (reply.remark or "")
    notes.fails_before = None
    assert client.call(SEND, send_fields("T"), b"x").code == 0


def test_a_hook_that_fails_after_a_hold_causes_no_second_answer(start_broker: StartBroker, connect: Connect) -> None:
    """The pull is in the table, which will answer it."""
    broker = start_broker()
    send_message(connect(broker.address), "T")
    broker.stop()
    broker = start_broker(hooks=[Notes(fails_after=RequestAbortedError(1, "planted"))])
    puller, sender = connect(broker.address), connect(broker.address)
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
