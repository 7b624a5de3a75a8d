"""The story of a producer and a group that lose one of two brokers for a while, whichever way it is lost.

Clients reach both brokers and the name server through relays of their own, so many stories can be told of the same two
brokers at once. Leaves out the brokers' processes (`failing.servers`).
"""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Final

from attrs import define, field, frozen
from model_tests.client.failing.servers import Server
from model_tests.client.relay import BACK_S, FAULTS, Fault, Relay

from longpoll_broker.testing import client_scenarios as stories
from longpoll_client import Admin, ConsumerConfig, ConsumeStatus, Producer, PushConsumer, ReceivedMessage, StartAt
from longpoll_client.errors import ClientError, NoRouteError
from longpoll_client.link.routes import ROUTE_AGE_S_MAX

WAYS: Final[tuple[Fault, ...]] = (*FAULTS, "unreachable")
"""The ways in which a network loses a broker; another is that its process is killed."""
QUEUES: Final = 2
"""Of each broker."""
PART: Final = 40
LOST_S: Final = 8.0
GAP_S: Final = 0.05


@frozen
class Two:
    """Two brokers that one name server knows; the second one is lost."""

    kept: Server
    lost: Server

    @property
    def name_server(self) -> tuple[str, int]:
        """That of the first, which knows both."""
        return self.kept.name_server


@frozen
class TwoReport:
    """What came of messages that were sent before, during and after the loss."""

    way: str
    is_orderly: bool
    acknowledged: int
    lost: frozenset[int]
    again_sent: int
    """Copies beyond each message's first."""
    tried_again: int
    """Tries of sends beyond each one's first, and sends that failed."""
    again_given: int
    """Deliveries beyond each place's first; not those of a killed broker, which forgets the last seconds' offsets."""
    forgotten: int
    """Those of a killed broker."""
    out_of_order: int
    kept_gap_s: float
    """The longest between two acknowledged sends while one broker was lost."""
    kept_late_s: float
    """The longest from an acknowledgement by the living broker to the listener, meanwhile."""
    back_s: float
    """From the end of the loss to the first send that its broker acknowledges."""

    def faults(self) -> list[str]:
        """Everything that is wrong."""
        found = [f"lost {sorted(self.lost)[:5]}"] if self.lost else []
        found += ["out of order"] if self.out_of_order else []
        found += [f"{self.again_given} given again"] if self.again_given else []
        found += [f"{self.again_sent} copies after {self.tried_again}"] if self.again_sent > self.tried_again else []
        found += [f"no send for {self.kept_gap_s:.1f} s"] if self.kept_gap_s > BACK_S else []
        found += (
            [f"the other broker's messages came after {self.kept_late_s:.1f} s"] if self.kept_late_s > BACK_S else []
        )
        return found + ([f"back after {self.back_s:.1f} s"] if self.back_s > self.back_limit_s else [])

    @property
    def back_limit_s(self) -> float:
        """How soon its broker must have sends again.

        A name server takes a killed broker out of its routes, so there it is as soon as its route is asked for, every
        30 s as in Java, and once the broker has registered; until then the other broker has them all.
        """
        return BACK_S + ROUTE_AGE_S_MAX if self.way == "killed" else BACK_S


@define(eq=False)
class _Seen:
    """What the listener got, by place: broker's name, queue and offset. Invariant: changes under `lock`."""

    lock: threading.Lock = field(factory=threading.Lock)
    given: Counter[tuple[str, int, int]] = field(factory=Counter)
    moments: dict[int, float] = field(factory=dict)
    """When each number came first."""
    places: dict[int, set[tuple[str, int, int]]] = field(factory=lambda: defaultdict(set))
    last: dict[tuple[str, int], int] = field(factory=dict)
    out_of_order: int = 0

    def listen(self, messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
        """Note them; one that was not given before comes after all that were."""
        with self.lock:
            for message in messages:
                queue = message.store_host, message.queue_id
                place = *queue, message.queue_offset
                if not self.given[place]:
                    self.out_of_order += message.queue_offset < self.last.get(queue, -1)
                    self.last[queue] = message.queue_offset
                self.given[place] += 1
                self.places[int(message.body)].add(place)
                self.moments.setdefault(int(message.body), time.monotonic())
        return ConsumeStatus.SUCCESS


@frozen
class _Sent:
    number: int
    moment_s: float
    broker_name: str


@define(eq=False)
class _Story:
    """One story; its parts in the order in which they happen."""

    producer: Producer
    topic: str
    sent: list[_Sent] = field(factory=list)
    failed: int = 0

    def send(self) -> None:
        """The next message, until a broker has it."""

        def is_sent() -> bool:
            number = len(self.sent)
            try:
                result = self.producer.send(self.topic, b"%d" % number, timeout_s=3.0)
            except ClientError:
                self.failed += 1
                return False
            self.sent.append(_Sent(number, time.monotonic(), result.queue.broker_name))
            return True

        stories.wait_for(is_sent, f"message {len(self.sent)} is sent")

    def send_while(self, condition: Callable[[], bool]) -> None:
        """Messages a moment apart."""
        pause = threading.Event()
        while condition():
            self.send()
            pause.wait(GAP_S)


def wait_for_topic(two: Two, topic: str) -> None:
    """Until the name server knows that both brokers have it."""
    with Admin(stories.RUNTIME, "{}:{}".format(*two.name_server)) as admin:

        def is_known() -> bool:
            try:
                return len(admin.topic(topic).readable) == 2 * QUEUES
            except NoRouteError:
                return False

        stories.wait_for(is_known, "both brokers have the topic")


@contextmanager
def relays(two: Two) -> Iterator[tuple[str, Relay]]:
    """The name server's address by its relay, and the relay of the broker that is to be lost."""
    with Relay(two.kept.address) as kept, Relay(two.lost.address) as lost, Relay(two.name_server) as names:
        for server, relay in ((two.kept, kept), (two.lost, lost)):
            there, here = ("{}:{}".format(*address).encode() for address in (server.address, relay.address))
            assert len(there) == len(here), "ports of five digits"
            names.rewrites[there] = here
        yield "{}:{}".format(*names.address), lost


def live_through_one(
    two: Two, topic: str, way: str, *, is_orderly: bool, lose: Callable[[Relay], None], find: Callable[[Relay], None]
) -> TwoReport:
    """Send and listen before, during and after the loss of the second broker; `lose` and `find` are each called once.

    `topic` has `QUEUES` queues on either broker.
    """
    seen = _Seen()
    with ExitStack() as stack:
        name_server, relay = stack.enter_context(relays(two))
        config = ConsumerConfig(f"group-{topic}", start_at=StartAt.FIRST, pull_timeout_s=4.0, hold_ms=2_000)
        producer = stack.enter_context(Producer(stories.RUNTIME, name_server))
        consumer = stack.enter_context(
            PushConsumer(stories.RUNTIME, name_server, config, seen.listen, is_orderly=is_orderly)
        )
        consumer.subscribe(topic)
        consumer.start()
        story = _Story(producer, topic)
        story.send_while(lambda: len(story.sent) < PART)
        assert len({sent.broker_name for sent in story.sent}) == 2
        stories.wait_for(lambda: len(seen.moments) == PART, "all messages from before the loss")
        lost_s = time.monotonic()
        lose(relay)
        first = len(story.sent)
        story.send_while(lambda: time.monotonic() < lost_s + LOST_S)
        meanwhile = story.sent[first:]
        found_s = time.monotonic()
        find(relay)
        if way == "half-open":
            found_s = lost_s
        after = len(story.sent) if way != "half-open" else first
        name = ({sent.broker_name for sent in story.sent[:PART]} - _names_at(story.sent, seen, two.kept)).pop()

        def is_back() -> bool:
            return any(sent.broker_name == name for sent in story.sent[after:])

        patience_s = 2 * BACK_S + ROUTE_AGE_S_MAX
        story.send_while(lambda: not is_back() and time.monotonic() < found_s + patience_s)
        count = len(story.sent) + PART
        story.send_while(lambda: len(story.sent) < count)
        wanted = set(range(len(story.sent)))
        stories.wait_for(lambda: wanted <= set(seen.places), "every acknowledged message is given")
        back = [sent.moment_s - found_s for sent in story.sent[after:] if sent.broker_name == name]
        again = sum(count - 1 for count in seen.given.values())
        lost_at = "{}:{}".format(*two.lost.address)
        forgotten = sum(count - 1 for place, count in seen.given.items() if way == "killed" and place[0] == lost_at)
        moments = [lost_s, *(sent.moment_s for sent in meanwhile)]
        return TwoReport(
            way=way,
            is_orderly=is_orderly,
            acknowledged=len(story.sent),
            lost=frozenset(wanted - set(seen.places)),
            again_sent=sum(len(places) - 1 for places in seen.places.values()),
            tried_again=producer.metrics().retries + story.failed,
            again_given=again - forgotten,
            forgotten=forgotten,
            out_of_order=seen.out_of_order if is_orderly else 0,
            kept_gap_s=max(after - before for before, after in itertools.pairwise(moments)),
            kept_late_s=max(
                (seen.moments[sent.number] - sent.moment_s for sent in meanwhile if sent.broker_name != name),
                default=BACK_S + 1,
            ),
            back_s=back[0] if back else patience_s,
        )


def _names_at(sent: Sequence[_Sent], seen: _Seen, server: Server) -> set[str]:
    """The name that the broker at this address has."""
    address = "{}:{}".format(*server.address)
    return {one.broker_name for one in sent if any(place[0] == address for place in seen.places[one.number])}


def all_ways(two: Two, make_topic: Callable[[], str]) -> list[TwoReport]:
    """Every way in which a network can lose a broker, to listeners in order and on threads, all at once."""

    def one(told: tuple[Fault, bool]) -> TwoReport:
        way, is_orderly = told

        def lose(relay: Relay) -> None:
            relay.begin(way)

        def find(relay: Relay) -> None:
            relay.end()

        return live_through_one(two, make_topic(), way, is_orderly=is_orderly, lose=lose, find=find)

    told = [(way, is_orderly) for way in WAYS for is_orderly in (False, True)]
    with ThreadPoolExecutor(len(told)) as pool:
        return list(pool.map(one, told))


def killed(two: Two, make_topic: Callable[[], str]) -> list[TwoReport]:
    """The broker's process is killed and started again, before listeners in order and on threads, both at once."""

    def start() -> None:
        two.lost.start()
        with Admin(stories.RUNTIME, "{}:{}".format(*two.name_server)) as admin:
            stories.wait_for(lambda: len(admin.masters()) == 2, "both brokers are registered")

    before = threading.Barrier(2, action=lambda: two.lost.stop(signal.SIGKILL))
    after = threading.Barrier(2, action=start)

    def one(is_orderly: bool) -> TwoReport:
        return live_through_one(
            two,
            make_topic(),
            "killed",
            is_orderly=is_orderly,
            lose=lambda _relay: _wait(before),
            find=lambda _relay: _wait(after),
        )

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, (False, True)))


def _wait(barrier: threading.Barrier) -> None:
    barrier.wait(stories.PATIENCE_S)


def check_reports(reports: Sequence[TwoReport]) -> None:
    """Nothing is wrong in any of them; each is printed, for its figures."""
    for report in reports:
        print(report)  # noqa: T201 - the figures
    assert [(report.way, report.is_orderly, report.faults()) for report in reports if report.faults()] == []
