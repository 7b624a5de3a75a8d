"""The client's stories against our own broker, short; `model_tests/peers` plays them to the Java brokers too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from longpoll_broker.broker import Broker
from longpoll_broker.testing import client_scenarios as stories
from longpoll_broker.testing.brokers import SMALL_STORE
from longpoll_broker.testing.client_scenarios import Log, explain
from longpoll_client import ConsumeStatus
from longpoll_client.consume import orderly, puller
from longpoll_client.consume.consumer import GroupMember
from longpoll_client.consume.orderly import OrderlyListening
from longpoll_client.consume.process_queue import ProcessQueue
from longpoll_client.consume.puller import Batch, Puller
from longpoll_client.consume.workers import ask_listener
from longpoll_client.messages import decode_messages
from longpoll_runtime.real import RealRuntime


@pytest.fixture
def name_server(tmp_path: Path) -> Iterator[str]:
    """The name server of an embedded broker."""
    with Broker.start(RealRuntime(), str(tmp_path / "store"), store_config=SMALL_STORE) as broker:
        yield "{}:{}".format(*broker.name_server_address)


def test_nothing_is_lost_while_members_come_and_go(name_server: str) -> None:
    """Every message comes, and one that comes twice comes after its queue changed hands."""
    report = stories.rebalance(name_server, 2_000)
    assert report.lost == ()
    assert report.distinct == report.sent == 2_000
    assert report.unexplained == ()
    assert report.handovers >= 8 + 4 + 2 + 2


def test_an_orderly_group_keeps_order_over_puttings_off(name_server: str) -> None:
    """Each queue's messages come one by one, and one that is put off comes again before its successor."""
    report = stories.orderly(name_server, 800)
    assert (report.count, report.out_of_order, report.at_once) == (800, 0, 0)
    assert report.put_off == 16


@pytest.mark.parametrize("name", stories.FLOW_LIMITS)
def test_flow_control_stops_pulling_and_lets_it_go_on(name_server: str, name: str) -> None:
    """With too many, too large or too widely spread messages waiting, pulling stops until they are consumed."""
    report = stories.flow_control(name_server, 80, 1_000, **stories.FLOW_LIMITS[name])
    assert report.stopped_by == name
    assert 0 < report.waiting < 80
    assert report.consumed == 80
    assert report.stopped_after is None


def test_everyone_gets_what_is_broadcast_and_goes_on_from_a_file(name_server: str, tmp_path: Path) -> None:
    """Two members get everything; the one that kept its offsets gets only what is new after a restart."""
    first, second, again = stories.broadcasting(name_server, 100, str(tmp_path / "offsets.json"))
    assert first == second == list(range(100))
    assert again == [0]


@pytest.mark.parametrize("raises", [False, pytest.param(True, marks=pytest.mark.long)])
def test_what_nobody_can_use_ends_among_the_dead_letters(name_server: str, raises: bool) -> None:
    """Two more tries from the retry topic under the message's own topic, then the dead letter with its tag."""
    report = stories.retry(name_server, raises=raises)
    assert report.reconsume_times == (0, 1, 2)
    assert len(report.topics) == 1
    assert not next(iter(report.topics)).startswith("%")
    assert report.dead == (b"poison",)
    assert report.tags == "red"


def test_a_group_goes_on_from_its_stored_offsets(name_server: str) -> None:
    """What the first member consumed does not come again, and everything else does."""
    first, second = stories.restart(name_server, 200)
    assert sorted(first + second) == list(range(200))


def test_planted_a_puller_that_skips_a_message_is_noticed(name_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One message less of each pull is a lost message of the story."""
    monkeypatch.setattr(puller, "decode_readable", lambda body: (decode_messages(body)[1:], None))
    monkeypatch.setattr(stories, "PATIENCE_S", 3.0)
    with pytest.raises(AssertionError, match="500 messages"):
        stories.rebalance(name_server, 500)


def test_planted_two_tasks_for_one_queue_are_noticed(name_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If every pull made a task of its own, two listeners would have one queue's messages at once."""

    def deliver(self: OrderlyListening, batch: Batch, /) -> None:
        with self._lock:
            self._active.setdefault(batch.puller, orderly._Active())
        for _task in range(3):
            self._submit(batch.puller)

    def consume(self: OrderlyListening, puller: Puller) -> None:
        messages = puller.first(1)
        if messages:
            answer = ask_listener(self._listener, messages, "G")
            if answer is ConsumeStatus.SUCCESS:
                puller.done(messages)
            self._submit(puller)

    monkeypatch.setattr(OrderlyListening, "deliver", deliver)
    monkeypatch.setattr(OrderlyListening, "_consume", consume)
    assert stories.orderly(name_server, 400).at_once > 0


def test_planted_flow_control_that_never_stops_is_noticed(name_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The story waits in vain for pulling to stop."""
    monkeypatch.setattr(ProcessQueue, "stop", lambda _self, _limits: None)
    monkeypatch.setattr(stories, "PATIENCE_S", 1.0)
    with pytest.raises(AssertionError, match="flow control"):
        stories.flow_control(name_server, 40, 10, cached_count_max=16, close_timeout_s=3.0)


def test_planted_messages_that_are_not_sent_back_are_noticed(name_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without code 36 a message that was put off never comes again."""
    monkeypatch.setattr(GroupMember, "send_back", lambda _self, _message, _queue, _level: None)
    monkeypatch.setattr(stories, "PATIENCE_S", 2.5)
    with pytest.raises(AssertionError, match="three tries"):
        stories.retry(name_server, raises=False)


@pytest.mark.parametrize(
    ("member", "handover", "unexplained"),
    [("a", ("a", 1), 1), ("a", ("a", 0), 0), ("c", ("c", 0), 0), ("a", ("c", 0), 1)],
)
def test_planted_a_second_arrival_is_explained_by_another_spell_only(
    member: str, handover: tuple[str, int], unexplained: int
) -> None:
    """By the member's getting that queue again or by another member's getting it; not by another queue or nobody."""
    log = Log()
    log.handovers.append(stories.Handover(1, "a", ("T", 0), is_ours=True))
    log.arrivals.append(stories.Arrival(2, "a", ("b", 0), 5, "id"))
    log.handovers.append(stories.Handover(3, handover[0], ("T", handover[1]), is_ours=True))
    log.arrivals.append(stories.Arrival(4, member, ("b", 0), 5, "id"))
    report = explain(log, ["id", "gone"])
    assert (report.duplicates, len(report.unexplained), report.lost) == (1, unexplained, ("gone",))
