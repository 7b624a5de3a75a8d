"""What one send does next, with plain values: no socket, no clock, no thread."""

from __future__ import annotations

from itertools import count

import pytest

from longpoll_client.errors import (
    AnswerTimeoutError,
    ClientError,
    ConnectionLostError,
    NoRouteError,
    RefusedError,
    UnreachableError,
)
from longpoll_client.link.routes import Route
from longpoll_client.produce.outgoing import OutgoingMessage, Parcel, batch_parcel, single_parcel
from longpoll_client.produce.tries import ATTEMPT_COUNT, RETRIED_CODES, Tries, is_lost, selector
from longpoll_protocol.bodies import MessageQueue
from longpoll_protocol.codes import SEND_SUCCESS_CODES, ResponseCode
from longpoll_protocol.frames.command import Command
from longpoll_protocol.headers import SendMessageResponseHeader
from longpoll_spec.errors import ConfigError

S = 1_000_000_000


def queue(name: str, queue_id: int) -> MessageQueue:
    """One queue of topic T."""
    return MessageQueue(topic="T", broker_name=name, queue_id=queue_id)


TWO = Route("T", (), tuple(queue(name, number) for name in "ab" for number in range(2)), {"a": "A:1", "b": "B:1"}, 0)
ONE = Route("T", (), (queue("a", 0), queue("a", 1)), {"a": "A:1"}, 0)


def parcel(messages: int = 1) -> Parcel:
    """One message, or a batch."""
    if messages == 1:
        return single_parcel("P", "T", OutgoingMessage(b"x"), "id-0", 0)
    ids = [f"id-{number}" for number in range(messages)]
    return batch_parcel("P", "T", [OutgoingMessage(b"x")] * messages, ids, 0)


def stored(msg_id: str = "broker-id", code: int = 0) -> Command:
    """A broker's answer: stored in queue 1 at offset 7."""
    return Command(code, ext_fields=SendMessageResponseHeader(msg_id=msg_id, queue_id=1, queue_offset=7).encode())


def asked(tries: Tries, route: Route, outcomes: list[Command | ClientError], step_ns: int = 0) -> list[str]:
    """The brokers asked while these outcomes come, each a step later."""
    turns, now_ns, found = count(), 0, []
    for outcome in outcomes:
        attempt = tries.begin(route, turns.__next__, now_ns)
        found.append(f"{attempt.queue.broker_name}{attempt.queue.queue_id}")
        now_ns += step_ns
        if tries.ended(outcome, now_ns) is not None:
            break
    return found


def test_queues_have_their_turn_and_a_second_try_goes_to_another_broker() -> None:
    """To the same one where there is no other."""
    lost = ConnectionLostError("gone")
    assert asked(Tries(parcel(), None, 3 * S), TWO, [lost, lost, stored()]) == ["a0", "b1", "a0"]
    assert asked(Tries(parcel(), None, 3 * S), ONE, [lost, stored()]) == ["a0", "a1"]


def test_a_select_picks_every_try_and_none_that_is_not_there() -> None:
    """By its number too; asked in both ways it is a mistake."""
    lost = AnswerTimeoutError("late")
    assert asked(Tries(parcel(), lambda queues: queues[-1], S), TWO, [lost, lost, stored()]) == ["b1"] * 3
    assert asked(Tries(parcel(), selector("T", 1, None), S), TWO, [lost, stored()]) == ["a1", "a1"]
    with pytest.raises(ConfigError, match="has no queue 5"):
        Tries(parcel(), selector("T", 5, None), S).begin(TWO, count().__next__, 0)
    with pytest.raises(ConfigError, match="not a writable queue"):
        Tries(parcel(), lambda _queues: queue("c", 0), S).begin(TWO, count().__next__, 0)
    with pytest.raises(ConfigError, match="cannot be used together"):
        selector("T", 1, lambda queues: queues[0])
    with pytest.raises(NoRouteError, match="permission lacks W"):
        Tries(parcel(), None, S).begin(Route("T", (), (), {}, 0), count().__next__, 0)


@pytest.mark.parametrize("code", sorted({1, 2, 13, 14, 15, 16, 17, 215, 1500}))
def test_only_answers_that_another_broker_may_not_give_are_tried_again(code: int) -> None:
    """And what was lost on the way: what it is raised with is the last failure. The codes are those of Java's 5.5.0."""
    assert {1, 2, 14, 16, 17, 1500} == RETRIED_CODES
    tries = Tries(parcel(), None, S)
    if code in RETRIED_CODES:
        assert asked(tries, TWO, [Command(code), stored()]) == ["a0", "b1"]
    else:
        with pytest.raises(RefusedError) as refused:
            asked(tries, TWO, [Command(code, remark="no"), stored()])
        assert (refused.value.code, refused.value.remark, tries.count) == (code, "no", 1)


def test_it_ends_after_three_tries_or_when_the_time_is_up() -> None:
    """With the last failure; the first try is made whatever the time, and each has what is left."""
    failures: list[ClientError] = [UnreachableError("1"), ConnectionLostError("2"), AnswerTimeoutError("3")]
    tries = Tries(parcel(), None, 10 * S)
    with pytest.raises(AnswerTimeoutError, match="3"):
        asked(tries, TWO, list(failures))
    assert tries.count == ATTEMPT_COUNT == 3
    tries = Tries(parcel(), None, 2 * S)
    with pytest.raises(ConnectionLostError, match="2"):
        asked(tries, TWO, list(failures), step_ns=S)
    assert tries.count == 2
    tries = Tries(parcel(), None, 0)
    assert tries.begin(TWO, count().__next__, S).timeout_s == -1.0
    assert tries.ended(stored(), S) is not None


def test_which_failures_cast_doubt_on_a_route() -> None:
    """Those in which the broker was not heard."""
    assert all(is_lost(error) for error in (UnreachableError(""), ConnectionLostError(""), AnswerTimeoutError("")))
    assert not is_lost(RefusedError("", ResponseCode.SYSTEM_ERROR, None))
    assert not is_lost(ClientError(""))


@pytest.mark.parametrize("code", sorted(SEND_SUCCESS_CODES))
def test_results_name_each_message_s_place(code: int) -> None:
    """The queue is the one that the broker names; a batch has an id for each, or shares the one that came."""
    tries = Tries(parcel(3), None, S)
    tries.begin(TWO, count().__next__, 0)
    found = tries.ended(stored("x,y,z", code), 0)
    assert found is not None
    assert [(one.msg_id, one.broker_msg_id, one.queue, one.queue_offset, one.code) for one in found] == [
        (f"id-{number}", "xyz"[number], queue("a", 1), 7 + number, code) for number in range(3)
    ]
    shared = tries.ended(stored("x"), 0)
    assert shared is not None
    assert [one.broker_msg_id for one in shared] == ["x"] * 3


def test_an_answer_that_cannot_be_read_is_not_tried_again() -> None:
    """The message may be stored: a second one would be a copy."""
    with pytest.raises(ClientError, match="cannot be read"):
        asked(Tries(parcel(), None, S), TWO, [Command(0, ext_fields={"queueId": "x"}), stored()])
