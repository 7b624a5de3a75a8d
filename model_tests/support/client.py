"""Helpers for client tests: listeners, groups, scripted brokers, and checks that no thread or socket is left."""

from __future__ import annotations

import asyncio
import errno
import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from attrs import define, field
from model_tests.support.broker.brokers import SMALL_STORE, wait_until
from model_tests.support.broker.client_scenarios import member_options
from model_tests.support.broker.raw_client import PATIENCE_S
from model_tests.support.broker.scripted_server import Peer, ScriptedServer
from msgspec.structs import replace

from longpoll_broker.broker import Broker
from longpoll_client import (
    Admin,
    AsyncAdmin,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    AsyncTransactionProducer,
    LongpollError,
    OutgoingMessage,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    Sending,
    TransactionProducer,
    TransactionState,
)
from longpoll_client.consume.listener import Listener
from longpoll_client.consume.offsets import is_retry
from longpoll_client.consume.puller import Puller
from longpoll_client.link.steps import Ask, Call, Question, Steps, Together
from longpoll_client.link.steps import run as run_steps
from longpoll_client.produce.hooks import Outcome
from longpoll_client.produce.outgoing import single_parcel
from longpoll_client.settings import MemberConfig
from longpoll_protocol.admin_headers import GetRouteInfoRequestHeader
from longpoll_protocol.bodies import BrokerData, MessageQueue, QueueData, TopicRouteData
from longpoll_protocol.codes import MessageSysFlag, RequestCode, ResponseCode
from longpoll_protocol.frames import Command
from longpoll_protocol.headers import SendMessageResponseHeader
from longpoll_runtime import Poller, Socket, Thread
from longpoll_runtime.real import RealRuntime
from longpoll_runtime.services import Closeable

RUNTIME: Final = RealRuntime()
BAD: Final = b"not packed"
"""A body that `send` marks as compressed although no client can decompress it."""
QUEUE: Final = MessageQueue(topic="T", broker_name="b", queue_id=0)
STORED: Final = SendMessageResponseHeader(msg_id="id", queue_id=0, queue_offset=7).encode()
"""The header fields of a broker's answer to a send."""


@contextmanager
def serving(directory: Path) -> Iterator[str]:
    """Start a broker; yields the address of its name server."""
    with Broker.start(RUNTIME, str(directory / "store"), store_config=SMALL_STORE) as broker:
        yield name_server_of(broker)


def name_server_of(broker: Broker) -> str:
    return "{}:{}".format(*broker.name_server_address)


# ---------------------------------------------------------------- listeners and groups


class Heard:
    """A listener that keeps its messages, and returns the result of `answer` for the first message of each call."""

    def __init__(self, answer: Callable[[ReceivedMessage], Any] = lambda _message: None) -> None:
        self.messages: list[ReceivedMessage] = []
        self._answer = answer

    def __call__(self, messages: Sequence[ReceivedMessage]) -> Any:
        self.messages.extend(messages)
        return self._answer(messages[0])

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    @property
    def tries(self) -> list[tuple[bytes, int]]:
        """Body and `reconsume_times` of each message."""
        return [(message.body, message.reconsume_times) for message in self.messages]

    def wait(self, count: int) -> list[bytes]:
        """Wait until the listener has this many messages, and return their bodies."""
        wait_until(lambda: len(self.messages) >= count)
        return self.bodies


class Held:
    """A listener whose calls block until `go` is set, and that counts the calls that run at the same time."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.bodies: list[bytes] = []
        self.running = self.running_max = 0

    def __call__(self, messages: Sequence[ReceivedMessage]) -> None:
        self.bodies += [message.body for message in messages]
        self.running += 1
        self.running_max = max(self.running_max, self.running)
        assert self.go.wait(PATIENCE_S)
        self.running -= 1

    def wait(self) -> None:
        wait_until(lambda: self.running > 0)


def consumed(_messages: Sequence[ReceivedMessage]) -> None:
    """Consume messages at once; a listener for a thread."""


async def awaited(_messages: Sequence[ReceivedMessage]) -> None:
    """Consume messages at once; a listener for an event loop."""


def from_first(group: str = "G", **options: Any) -> MemberConfig:
    """Returns the configuration of a group member that starts at the first message."""
    return MemberConfig(group=group, start_at="first", **options)


def listening(
    name_server: str, topic: str, listener: Listener, *, is_orderly: bool = False, group: str = "G", **options: Any
) -> PushConsumer:
    """Create a push consumer of one topic that starts at the first message; `with` starts the consumer."""
    return PushConsumer(
        name_server, topics=topic, listener=listener, **member_options(from_first(group, **options)), orderly=is_orderly
    )


def polling(name_server: str, topic: str, group: str = "G", **options: Any) -> PullConsumer:
    """Create a pull consumer of one topic that starts at the first message; `with` starts the consumer."""
    return PullConsumer(name_server, topics=topic, **member_options(from_first(group, **options)))


def polled(consumer: PullConsumer, count: int, most: int | None = None) -> list[ReceivedMessage]:
    """Poll until there are `count` messages; each poll returns `most` messages at most."""
    found: list[ReceivedMessage] = []
    while len(found) < count:
        came = consumer.poll(PATIENCE_S, most)
        assert came, f"{len(found)} of {count} messages came"
        found += came
    return found


def bodies_of(consumer: PullConsumer, count: int) -> list[bytes]:
    return [message.body for message in polled(consumer, count)]


def send(name_server: str, topic: str, *bodies: bytes) -> None:
    with Producer(name_server) as producer:
        for number, body in enumerate(bodies):
            parcel = single_parcel("P", topic, OutgoingMessage(body), f"{number:032X}", RUNTIME.unix_ms())
            sys_flag = MessageSysFlag.COMPRESSED if body == BAD else 0
            producer._send(replace(parcel, sys_flag=int(sys_flag)), lambda queues: queues[0], PATIENCE_S)


async def fill(name_server: str, topic: str, count: int) -> None:
    async with AsyncProducer(name_server) as producer:
        await asyncio.gather(*(producer.send(topic, b"%d" % number) for number in range(count)))


def lag(name_server: str, topic: str, group: str = "G") -> int:
    """Returns how many messages of the topic the group has not consumed, as the broker reports."""
    with Admin(name_server) as admin:
        return sum(row.lag for row in admin.offsets(group, topic))


# ---------------------------------------------------------------- event loops, and what is left


def run(story: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine on an event loop, and check that no task is left."""

    async def limited() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await story()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(limited())


class Loop(Closeable):
    """An event loop on a separate thread, so that a plain test can call asynchronous clients."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        async def called() -> Any:
            found = function(*arguments, **options)
            return await found if inspect.isawaitable(found) else found

        return asyncio.run_coroutine_threadsafe(called(), self.loop).result(2 * PATIENCE_S)

    def close(self) -> None:
        """Wait for the loop's tasks and close the loop."""

        async def rest() -> None:
            await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)

        self.call(rest)
        self.call(self.loop.shutdown_default_executor)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class OnLoop(Closeable):
    """Wraps an asynchronous client so that calls block until its event loop has finished them."""

    def __init__(self, loop: Loop, client: Any) -> None:
        self.client = client
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.client, name)
        return partial(self._loop.call, found) if callable(found) and not name.startswith("_") else found

    def close(self) -> None:
        self._loop.call(self.client.close)


class Clients:
    """Creates clients of one name server, either on threads or on an event loop, so that one test covers both."""

    def __init__(self, name_server: str, stack: ExitStack, *, is_loop: bool) -> None:
        self.name_server = name_server
        self.is_loop = is_loop
        self._stack = stack
        self._loop = stack.enter_context(Loop()) if is_loop else None

    def producer(self, group: str = "P", **options: Any) -> Any:
        return self._made(AsyncProducer if self.is_loop else Producer, group=group, **options)

    def transactions(self, check: Callable[[ReceivedMessage], TransactionState], **options: Any) -> Any:
        """Create a transaction producer of the group PG."""
        kind = AsyncTransactionProducer if self.is_loop else TransactionProducer
        return self._made(kind, group="PG", check_transaction=self.plain(check), **options)

    def admin(self) -> Any:
        return self._made(AsyncAdmin if self.is_loop else Admin)

    def pull(self, config: MemberConfig, **options: Any) -> Any:
        kind = AsyncPullConsumer if self.is_loop else PullConsumer
        return self._made(kind, **member_options(config), **options)

    def push(self, config: MemberConfig, listener: Listener, *, is_orderly: bool = False, **options: Any) -> Any:
        """Create a push consumer with a listener that may block, so on an event loop it runs on a separate thread."""
        kind = AsyncPushConsumer if self.is_loop else PushConsumer
        called = self.plain(listener)
        return self._made(kind, topics=(), listener=called, orderly=is_orderly, **member_options(config), **options)

    def pushing(
        self,
        topic: str,
        listener: Listener,
        config: MemberConfig | None = None,
        *,
        is_orderly: bool = False,
        **options: Any,
    ) -> Any:
        return self._begun(self.push(config or from_first(**options), listener, is_orderly=is_orderly), topic)

    def pulling(self, topic: str, config: MemberConfig | None = None, **options: Any) -> Any:
        return self._begun(self.pull(config or from_first(**options)), topic)

    @staticmethod
    def _begun(consumer: Any, topic: str) -> Any:
        consumer.subscribe(topic)
        consumer.start()
        return consumer

    def consumer(self, _name_server: str, *, listener: Listener, **options: Any) -> Any:
        """Create a consumer with the parameters of `PushConsumer`, for client scenarios."""
        return self._made(AsyncPushConsumer if self.is_loop else PushConsumer, listener=self.plain(listener), **options)

    def plain(self, called: Callable[..., Any]) -> Any:
        """Returns a function as it is for clients on threads, or as a coroutine that runs it on a thread.

        The coroutine ends only when the function has ended, even if it is cancelled.
        """

        async def on_a_thread(*arguments: Any) -> Any:
            running = asyncio.ensure_future(asyncio.to_thread(called, *arguments))
            while not running.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([running])
            return running.result()

        return on_a_thread if self.is_loop else called

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function directly, or on the clients' event loop if they have one."""
        return function(*arguments) if self._loop is None else self._loop.call(function, *arguments)

    def member(self, consumer: Any) -> Any:
        return (consumer.client if self.is_loop else consumer)._member

    def persist(self, consumer: Any) -> None:
        member = self.member(consumer)
        self.call(lambda: member.run(member.rebalancer.persist()))

    def pullers(self, consumer: Any) -> Mapping[MessageQueue, Puller]:
        found: Mapping[MessageQueue, Puller] = self.member(consumer).assigned_queues.pullers()
        return {queue: puller for queue, puller in found.items() if not is_retry(queue)}

    def _made(self, kind: Callable[..., Any], **options: Any) -> Any:
        if self._loop is None:
            return self._stack.enter_context(closing(kind(self.name_server, **options)))
        made = self._loop.call(kind, self.name_server, **options)
        return self._stack.enter_context(OnLoop(self._loop, made))


def client_threads() -> set[threading.Thread]:
    """Returns the running threads that clients have started."""
    return {each for each in threading.enumerate() if each.name.startswith(("client-", "listener-", "consumer-"))}


def socket_count() -> int:
    links = []
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208 - links, of which some are gone by now
        try:
            links.append(os.readlink(f"/proc/self/fd/{number}"))  # noqa: PTH115 - as above
        except OSError:
            continue
    return sum(link.startswith("socket:") for link in links)


class Machine(RealRuntime):
    """A runtime that records the threads and connections of clients, and can run out of threads and descriptors."""

    def __init__(self, threads_max: int = 1000) -> None:
        self.died: list[str] = []
        """The names of threads that ended with an error."""
        super().__init__(thread_died=lambda name, _error: self.died.append(name))
        self.threads: list[Thread] = []
        self.sockets: list[Socket] = []
        self.threads_max = threads_max
        self.has_descriptors = True

    def spawn(self, name: str, target: Callable[[], None]) -> Thread:
        if len(self.threads) >= self.threads_max:
            raise RuntimeError("can't start new thread")
        self.threads.append(super().spawn(name, target))
        return self.threads[-1]

    def connect(self, host: str, port: int, timeout_s: float) -> Socket:
        self.sockets.append(super().connect(host, port, timeout_s))
        return self.sockets[-1]

    def poller(self) -> Poller:
        if not self.has_descriptors:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().poller()

    def left(self) -> list[str]:
        """Returns the threads that ended with an error, and the threads and connections that have not ended."""
        alive = [str(thread) for thread in self.threads if thread.is_alive()]
        return [*self.died, *alive, *(f"socket {each.fileno()}" for each in self.sockets if each.fileno() != -1)]


# ---------------------------------------------------------------- brokers without a network


class Answers:
    def __init__(self, ask: Callable[[Ask], object]) -> None:
        self._ask = ask

    def run(self, steps: Steps[Any]) -> Any:
        """Run the steps, and get the result of each question from `ask`; raises the error of a step."""
        return run_steps(steps, self._answer)

    def _answer(self, question: Question) -> object:
        if isinstance(question, Together):
            return [self._outcome(each) for each in question.steps]
        if isinstance(question, Call):
            return question.work()
        assert isinstance(question, Ask)
        return self._ask(question)

    def _outcome(self, steps: Steps[object]) -> object:
        try:
            return self.run(steps)
        except LongpollError as error:
            return error


# ---------------------------------------------------------------- scripted servers


def route_of(*brokers: tuple[str, str], queue_count: int = 2) -> bytes:
    """Encode a route as a name server sends it: brokers by name and address, with `queue_count` queues each."""
    return TopicRouteData(
        broker_datas=[BrokerData(broker_name=name, broker_addrs={0: address}) for name, address in brokers],
        queue_datas=[
            QueueData(broker_name=name, read_queue_nums=queue_count, write_queue_nums=queue_count, perm=6)
            for name, _address in brokers
        ],
    ).encode()


def take(peer: Peer, command: Command) -> None:
    peer.answer(command, ResponseCode.SUCCESS, STORED)


def mute(_peer: Peer, _command: Command) -> None:
    """Answer no request."""


class OneServer:
    """A combined name server and broker that answers sends with `codes` first, and then with success."""

    def __init__(self, *codes: int, route: Callable[[str], bytes] = lambda address: route_of(("b", address))) -> None:
        self.codes = list(codes)
        self.address = ""
        self._route = route

    def __call__(self, peer: Peer, command: Command) -> None:
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            peer.answer(command, body=self._route(self.address))
        elif not command.is_one_way:
            peer.answer(command, self.codes.pop(0) if self.codes else ResponseCode.SUCCESS, STORED)

    @contextmanager
    def served(self, wrapped: Callable[[Peer, Command], None] | None = None) -> Iterator[ScriptedServer]:
        with ScriptedServer(wrapped or self) as server:
            self.address = server.address
            yield server


@define
class Cluster:
    """A name server, and a scripted broker for each topic."""

    stack: ExitStack
    brokers: dict[str, str] = field(factory=dict)
    """Maps each topic to its broker's address."""
    is_mute: bool = False
    is_empty: bool = False
    asked: int = 0
    """The number of route requests so far."""
    name_server: str = field(default="", init=False)

    def __attrs_post_init__(self) -> None:
        self.name_server = self.stack.enter_context(ScriptedServer(self.route)).address

    def route(self, peer: Peer, command: Command) -> None:
        topic = GetRouteInfoRequestHeader.decode(command.ext_fields).topic
        self.asked += 1
        if self.is_mute:
            return
        if self.is_empty or topic not in self.brokers:
            peer.answer(command, ResponseCode.TOPIC_NOT_EXIST)
            return
        peer.answer(command, body=route_of((topic, self.brokers[topic]), queue_count=4))

    def serve(self, topic: str, handler: Callable[[Peer, Command], None] = take) -> ScriptedServer:
        server = self.stack.enter_context(ScriptedServer(handler))
        self.brokers[topic] = server.address
        return server


# ---------------------------------------------------------------- hooks


@define
class Told:
    """Records a hook's calls in order. If `is_bad` is set, each call raises ValueError."""

    is_bad: bool = False
    events: list[tuple[Any, ...]] = field(factory=list)

    def before_send(self, sending: Sending) -> None:
        self._note("before", sending)

    def after_send(self, sending: Sending, outcome: Outcome, latency_s: float, address: str) -> None:
        self._note("after", sending, outcome, latency_s, address)

    def before_consume(self, group: str, delivery: str, messages: Sequence[ReceivedMessage]) -> None:
        self._note("before", group, delivery, messages)

    def after_consume(
        self,
        group: str,
        delivery: str,
        messages: Sequence[ReceivedMessage],
        error: Exception | None,
        *,
        is_consumed: bool,
        latency_s: float,
    ) -> None:
        self._note("after", group, delivery, messages, error, is_consumed, latency_s)

    def _note(self, *event: object) -> None:
        self.events.append(event)
        if self.is_bad:
            raise ValueError("planted")
