"""A queue's puller between its calls: what it asks, how long it waits for that, and when it asks again."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from attrs import define, field

from longpoll_client.consume.consumer import GroupMember
from longpoll_client.consume.process_queue import FlowLimits
from longpoll_client.consume.puller import Puller, PullSettings
from longpoll_client.consume.statistics import Statistics
from longpoll_client.settings import ConsumerConfig
from longpoll_protocol.bodies import MessageQueue, SubscriptionData
from longpoll_protocol.codes import ResponseCode
from longpoll_protocol.frames.command import Command
from longpoll_protocol.headers import PullMessageRequestHeader, PullMessageResponseHeader
from longpoll_runtime.real import RealRuntime


@define
class Calls:
    """A client, its connection and its timer. Invariant: `asked` has each pull's offset, and `rests` each rest, s."""

    runtime: RealRuntime = field(factory=RealRuntime)
    asked: list[int] = field(factory=list)
    answers: list[Callable[[Any], None]] = field(factory=list)
    rests: list[float] = field(factory=list)
    commits: list[bool] = field(factory=list)
    """Whether each pull commits the offset that it carries."""

    def client(self, _address: str) -> Calls:
        """The connection."""
        return self

    def broker_address_of(self, _broker_name: str, _broker_id: int) -> str:
        """Anywhere."""
        return "127.0.0.1:1"

    def call_async(
        self, _code: int, header: PullMessageRequestHeader, *, callback: Callable[[Any], None], timeout_s: float
    ) -> None:
        """Note the pull."""
        self.asked.append(header.queue_offset)
        self.commits.append(header.has_commit_offset)
        self.answers.append(callback)

    def after(self, delay_s: float, _action: Callable[[], None]) -> None:
        """Note the rest."""
        self.rests.append(delay_s)


def puller_of(calls: Calls) -> Puller:
    """A puller that stands at offset 5."""
    any_of: Any = calls
    limits = FlowLimits(1000, 1 << 20, 2000)
    return Puller(
        instance=any_of,
        timer=any_of,
        statistics=Statistics(calls.runtime),
        settings=PullSettings("G", 32, 15_000, 30.0, limits, commits=True),
        queue=MessageQueue(topic="T", broker_name="b", queue_id=0),
        subscription=SubscriptionData(topic="T", sub_string="*"),
        offset=5,
        deliver=lambda _batch: None,
        pass_over=lambda _message: None,
    )


def answer(code: int) -> Command:
    """An answer that says to go on at 2."""
    header = PullMessageResponseHeader(suggest_which_broker_id=0, next_begin_offset=2, min_offset=0, max_offset=2)
    return Command(code, 1, 1, header.encode())


def test_an_offset_that_has_moved_is_gone_on_from_at_once() -> None:
    """And one that is not served rests before it is tried again from the same offset."""
    calls = Calls()
    puller_of(calls).pull()
    calls.answers[-1](answer(ResponseCode.PULL_OFFSET_MOVED))
    assert (calls.asked, calls.rests) == ([5, 2], [])

    calls.answers[-1](answer(ResponseCode.SYSTEM_ERROR))
    assert calls.asked == [5, 2]
    assert len(calls.rests) == 1


def test_a_pull_commits_nothing_once_the_lock_of_its_queue_has_run_out() -> None:
    """Another member may have the queue, and have committed more; a queue that needs no lock has none to run out."""
    for lock_s, commits in ((None, True), (1000.0, True), (-0.001, False)):
        calls = Calls()
        puller = puller_of(calls)
        puller.locked_until_ns = None if lock_s is None else calls.runtime.monotonic_ns() + int(lock_s * 1e9)
        puller.pull()

        assert calls.commits == [commits]


def test_a_consumer_waits_longer_than_it_asks_to_be_held() -> None:
    """An answer at the deadline has its way to make still; the settings say how long that may take."""
    delivery: Any = SimpleNamespace(deliver=None, is_busy=None)
    config = ConsumerConfig(group="G")
    consumer = GroupMember(RealRuntime(), "127.0.0.1:1", config, delivery)
    try:
        settings = consumer._settings
        assert settings.timeout_s == config.pull_timeout_s
        assert settings.timeout_s > settings.hold_ms / 1000
    finally:
        cast("Any", consumer)._timer.close()
