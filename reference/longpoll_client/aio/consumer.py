"""Consumers on an event loop: tasks call `poll` of a pull consumer, and a push consumer calls a listener.

Messages are delivered at least once, as by the consumers on threads.

Source: `RebalanceImpl.java`, `DefaultLitePullConsumerImpl.java`, `ConsumeMessageConcurrentlyService.java`.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from types import CoroutineType
from typing import Any, Self, TypeAlias, TypeVar, Unpack

from attrs import define, field

from longpoll_client.aio.instance import AsyncInstance
from longpoll_client.checks import Addresses, Sql, check_callable
from longpoll_client.consume.broker_requests import BrokerRequests
from longpoll_client.consume.consumer import POLL_S, ConsumerCore, Polled
from longpoll_client.consume.group_member import NO_LISTENER, GroupMember, Listening
from longpoll_client.consume.listener import HANG_CHECKS, ConsumeResult, OrderlyQueues, Reject, Retry, read_result
from longpoll_client.consume.puller import Batch, Puller
from longpoll_client.consume.statistics import HookCalls
from longpoll_client.lifecycle import AsyncCloseable, Closing
from longpoll_client.link.exchange import check_count, wait_ns
from longpoll_client.link.steps import Steps
from longpoll_client.messages import ReceivedMessage, all_as_shown, place_of
from longpoll_client.settings import DEAD_LEVEL, ConsumerOptions, MemberOptions, options_of
from longpoll_protocol.bodies import MessageQueue
from longpoll_runtime.recoverable import ANYTHING, FAULTS

T = TypeVar("T")


class AsyncMember(GroupMember):
    """Keeps this client in its group, and pulls its queues; `deliver` gets the messages.

    Invariant: an exchange that begins or gives up queues holds the lock `_rebalancing`.
    """

    def __init__(
        self, options: MemberOptions, deliver: Callable[[Batch], None], listening: Listening = NO_LISTENER
    ) -> None:
        """See `GroupMember`."""
        self._rebalancing = asyncio.Lock()
        self._instance = AsyncInstance(
            options.runtime, options.name_server, client_id=options.config.client_id, credentials=options.credentials
        )
        super().__init__(options, self._instance, self._instance, deliver, listening)
        self.broker_requests: BrokerRequests = BrokerRequests(self._instance, self, listening.direct)

    async def run(self, steps: Steps[T]) -> T:
        """Run an exchange (`link.steps`), and await each answer; raises a LongpollError."""
        return await self._instance.run(steps)

    async def _run_exclusively(self, make: Callable[[], Steps[T]]) -> T:
        async with self._rebalancing:
            return await self.run(make())

    def soon(self, make: Callable[[], Steps[object]], delay_s: float = 0.0, *, rebalances: bool = False) -> None:
        """Run an exchange in a task; otherwise see `GroupMember.soon`."""

        def begin() -> None:
            self._instance.begin(self._run_exclusively(make) if rebalances else self.run(make()))

        if delay_s:
            self.after(delay_s, begin)
        else:
            begin()

    def begin(self, work: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine in a task, unless the member is closed. Errors are logged."""
        self._instance.begin(work)

    def subscribe(self, topic: str, expression: str) -> None:
        """See `GroupMember.subscribe`."""
        subscription = self.membership.make(topic, expression)
        if isinstance(expression, Sql):
            self.lifecycle.check_created("a subscription by SQL92")
        else:
            self.lifecycle.check_open()
        self.membership.subscribe(subscription)
        self._subscription_changed()

    # ------------------------------------------------------------ life

    async def start(self) -> None:
        """Join the group and begin to pull; raises the errors of `Member.start`.

        A cancelled start may be tried again.
        """
        self.lifecycle.begin()
        try:
            await self.run(self.join())
            await self._run_exclusively(self.rebalancer.rebalance)
            self._start_periods()
        except ANYTHING as error:
            await self._undo_start(is_cancelled=not isinstance(error, Exception))
            raise

    async def _undo_start(self, *, is_cancelled: bool) -> None:
        """End every task and connection of a failed start, and give up its queues.

        After a cancellation this method waits for no broker, because the locks of queues end after 60 s anyway.
        """
        queues = sorted(self.assigned_queues.pullers())
        for queue in queues:
            self.assigned_queues.let_go(queue, is_for_good=True)
        try:
            if queues and not is_cancelled:
                await self.run(self.locks.unlock(queues))
        finally:
            self.assigned_queues.announce()
            # No request is needed to leave the group, because the brokers notice the lost connections.
            self.started_ms = 0
            self.lifecycle.begin_failed()
            ending = [*self._instance.cut_jobs(), *self._instance.disconnect()]
            await asyncio.gather(*ending, return_exceptions=True)

    async def close(self) -> None:
        """Stop pulling, store the offsets and leave the group, once. Errors are logged.

        Call `lifecycle.end` before this method.
        """
        # Wait for running exchanges instead of cancelling them, because a broker may apply the requests of a cancelled
        # exchange after later requests.
        async with self._rebalancing:
            await self._instance.end_jobs()
        await self.run(self.leave())
        await self._instance.written()
        await self._instance.close()

    async def store_now(self) -> None:
        """Store every changed offset; raises a LongpollError."""
        errors = await self._run_exclusively(self.rebalancer.persist)
        if errors:
            raise errors[0]


class AsyncConsumer(ConsumerCore, AsyncCloseable):
    """A consumer that is a member of its group: `async with` starts and closes it."""

    _member: AsyncMember

    async def __aenter__(self) -> Self:
        """Join the group; raises the errors of `start`."""
        await self.start()
        return self

    async def topic_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """See `PushConsumer.topic_queues`."""
        return await self._member.run(self._member.topic_queues(topic))

    async def committed(self, queue: MessageQueue) -> int | None:
        """See `PushConsumer.committed`."""
        return await self._member.run(self._member.committed(queue))

    async def offset_for_timestamp(self, queue: MessageQueue, timestamp: datetime) -> int:
        """See `PushConsumer.offset_for_timestamp`."""
        return await self._member.run(self._member.find(queue, timestamp))

    @abstractmethod
    async def start(self) -> None:
        """Join the group."""


class AsyncPullConsumer(AsyncConsumer):
    """Gives messages to a task that awaits `poll`. `async with` starts and closes the consumer.

    The next `poll`, or `commit`, marks the returned messages as consumed. A cancelled poll takes no message.
    """

    def __init__(self, name_server: Addresses, **options: Unpack[ConsumerOptions]) -> None:
        """See `PullConsumer`. Raises ConfigError."""
        given = options_of(name_server, **options)
        self._member = AsyncMember(given, self._deliver)
        self._polled = Polled(given, self._member)
        self._now_ns = given.runtime.monotonic_ns
        self._came = asyncio.Event()
        self._closing = Closing()

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Yield every message until the close. Asking for the next message marks the previous message as consumed."""
        while not self._member.lifecycle.is_closed:
            for message in await self.poll(POLL_S, 1):
                yield message

    async def start(self) -> None:
        """Join the group and begin to pull; raises the errors of `PullConsumer.start`."""
        await self._member.start()

    # ------------------------------------------------------------ which queues, and from where

    def assign(self, queues: Collection[MessageQueue], expression: str = "*") -> None:
        """See `PullConsumer.assign`."""
        self._member.assign(tuple(queues), expression)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """See `PullConsumer.seek`."""
        await self._member.run(self._member.seek(queue, offset))

    async def seek_to_beginning(self, queue: MessageQueue) -> None:
        """See `PullConsumer.seek_to_beginning`."""
        await self._member.run(self._member.seek_to(queue, "first"))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """See `PullConsumer.seek_to_end`."""
        await self._member.run(self._member.seek_to(queue, "last"))

    # ------------------------------------------------------------ messages

    async def poll(self, timeout_s: float = 1.0, count_max: int | None = None) -> list[ReceivedMessage]:
        """Return the next messages of one queue, in order, or [] after the time-out or if the consumer is closed.

        Raises ConfigError for a `count_max` under 1, and LifecycleError before the start and after the close.
        """
        check_count(count_max)
        self._polled.settle()
        begun_ns = self._now_ns()
        batch = self._polled.rest() or await self._next_batch(timeout_s)
        return [] if batch is None else self._polled.give(batch, count_max, begun_ns)

    async def retry(self, message: ReceivedMessage, delay_s: float | None = None) -> None:
        """See `PullConsumer.retry`."""
        await self._member.run(self._polled.put_off(message, Retry(delay_s).level))

    async def reject(self, message: ReceivedMessage) -> None:
        """See `PullConsumer.reject`."""
        await self._member.run(self._polled.put_off(message, DEAD_LEVEL))

    async def commit(self, *, sync: bool = True) -> None:
        """Mark every returned message as consumed, and store the offsets; otherwise see `PullConsumer.commit`."""
        self._polled.settle()
        if sync:
            await self._member.store_now()

    async def close(self) -> None:
        """Leave the group, once. Messages that were returned and not committed come again. A waiting poll returns.

        If the caller is cancelled, the close continues, and a second call waits for it.
        """
        self._member.lifecycle.end()
        self._came.set()
        await self._closing.wait(self._member.close)

    def _deliver(self, batch: Batch) -> None:
        self._polled.waiting.append(batch)
        self._came.set()

    async def _next_batch(self, timeout_s: float) -> Batch | None:
        try:
            async with asyncio.timeout(wait_ns(timeout_s) / 1e9):
                while not self._member.lifecycle.is_closed:
                    batch = self._polled.first()
                    if batch is not None:
                        return batch
                    self._came.clear()
                    await self._came.wait()
        except TimeoutError:
            return None
        return None

    def _wake(self) -> None:
        self._came.set()


log: logging.Logger = logging.getLogger(__name__)

AsyncListener: TypeAlias = Callable[[Sequence[ReceivedMessage]], object]
"""A coroutine function that up to `thread_count` tasks await at once, or a plain function that returns quickly."""


@define(slots=True, eq=False)
class _Lot:
    """Messages for the listener, from which every free task takes a few at a time."""

    puller: Puller
    messages: Sequence[ReceivedMessage]
    again_count: int
    """How often the listener already got these messages without the broker's knowledge."""
    taken_count: int = 0

    def rest(self, at: int) -> _Lot:
        self.taken_count = len(self.messages)
        return _Lot(self.puller, self.messages[at:], self.again_count)


@define(slots=True, eq=False)
class _Giving:
    """A task that calls the listener repeatedly."""

    task: asyncio.Task[Any]
    began_ns: int = 0
    """When the running call of the listener began; 0 if no call is running."""
    is_late: bool = False
    """Whether the listener call was cancelled because it took too long. The client then sends the call's messages back
    to the broker, unless the call still returns a result."""
    lot: _Lot | None = None
    puller: Puller | None = None
    consumed: list[ReceivedMessage] = field(factory=list)
    """Messages that the listener consumed in this loop iteration, not yet reported."""
    consumed_ns: int = 0
    took_ns: int = 0
    is_due: bool = False
    """Whether the next loop iteration reports `consumed`, before it runs tasks that the listener has woken."""


class _Lots:
    """The lots that wait for a task, and the tasks that wait for a lot. `asyncio.Queue` would take three times as long.

    Only one task is woken at a time, and it wakes the next task if messages are left. If listeners return at once, one
    task does all the work. Invariant: while `ready` has a lot and tasks wait, one task was woken and has not run yet.
    """

    def __init__(self) -> None:
        self.ready: deque[_Lot | None] = deque()
        """The waiting lots in order. A None ends one task."""
        self._idle: deque[asyncio.Future[None]] = deque()

    def put(self, lot: _Lot | None) -> None:
        self.ready.append(lot)
        self._wake()

    def next_of(self, lot: _Lot, count: int) -> Sequence[ReceivedMessage]:
        at = lot.taken_count
        lot.taken_count = end = at + count
        if end >= len(lot.messages) and self.ready and self.ready[0] is lot:
            self.ready.popleft()
        if self._idle and self.ready:
            self._wake()
        return lot.messages[at:end]

    def take_first(self) -> None:
        self.ready.popleft()
        if self._idle and self.ready:
            self._wake()

    async def first(self) -> _Lot | None:
        """Wait until a lot is ready, without removing it."""
        while not self.ready:
            waiting = asyncio.get_running_loop().create_future()
            self._idle.append(waiting)
            try:
                await waiting
            except asyncio.CancelledError:
                if self.ready:
                    self._wake()
                raise
        return self.ready[0]

    def _wake(self) -> None:
        while self._idle:
            waiting = self._idle.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return


class AsyncPushConsumer(AsyncConsumer):
    """Gives messages to an `async def` listener, in `thread_count` tasks. `async with` starts and closes the consumer.

    A listener that takes longer than `consume_timeout_s` is cancelled, and its messages come again. Otherwise see
    `PushConsumer`.

    Invariant: `_working` has the tasks that give messages, from the start until the close; `_giving` has every task
    that may call the listener.
    """

    def __init__(
        self,
        name_server: Addresses,
        *,
        listener: AsyncListener,
        orderly: bool = False,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        """See `PushConsumer`. Raises ConfigError."""
        check_callable("listener", listener)
        given = options_of(name_server, **options)
        self._runtime = runtime = given.runtime
        self._now_ns = runtime.monotonic_ns
        self._config = given.config
        self._listener = listener
        self._lots = _Lots()
        self._working: list[asyncio.Task[None]] = []
        self._closing = Closing()
        self._hook_calls = HookCalls(runtime, given.config)
        self._giving: set[_Giving] = set()
        self._member = AsyncMember(
            given,
            self._deliver_in_order if orderly else self._deliver,
            Listening(
                self._give_directly,
                is_orderly=orderly,
                is_busy=lambda puller: self._is_busy(puller) or self._orderly_queues.is_busy(puller),
            ),
        )
        self._statistics = self._member.statistics
        self._is_orderly = orderly
        self._orderly_queues = OrderlyQueues(runtime, self._look, self._member)

    async def start(self) -> None:
        """Join the group and begin to listen; raises the errors of `PushConsumer.start`."""
        await self._member.start()
        if self._member.lifecycle.is_closed:
            # `on_assigned` or another task closed the member meanwhile, so no later close would end tasks that start
            # now.
            return
        self._member.every(self._config.consume_timeout_s / HANG_CHECKS, self._look_for_hanging)
        self._working = [asyncio.create_task(self._work()) for _number in range(self._config.thread_count)]

    async def close(self) -> None:
        """Wait for running listeners, store the offsets, and leave the group.

        A listener that runs longer than `close_timeout_s` is cancelled, and its messages come again. If the cancelled
        listener still runs after another `close_timeout_s`, the close no longer waits for it. If a listener calls this
        method, the method returns at once, and the consumer closes when the listener returns. If the caller is
        cancelled, the close continues, and a second call waits for it.
        """
        self._member.lifecycle.end()
        closing = self._closing.begin(self._close)
        if not any(giving.task is asyncio.current_task() for giving in self._giving):
            await asyncio.shield(closing)

    async def _close(self) -> None:
        self._lots.ready.clear()
        for _task in self._working:
            self._lots.put(None)
        late = await self._ended({*self._working, *(giving.task for giving in self._giving)}, "cancelled")
        for task in late:
            task.cancel()
        await self._ended(late, "left behind")
        await self._member.close()

    async def _ended(self, tasks: set[asyncio.Task[Any]], fate: str) -> set[asyncio.Task[Any]]:
        """Wait for tasks for at most `close_timeout_s`. Returns and logs the tasks that have not ended."""
        if not tasks:
            return tasks
        _done, late = await asyncio.wait(tasks, timeout=self._config.close_timeout_s)
        if late:
            log.warning(
                "%d listeners of group %s still run after %g s and are %s; their messages come again",
                len(late), self._config.group, self._config.close_timeout_s, fate,
            )  # fmt: skip
        return late

    # ------------------------------------------------------------ for the member

    def _deliver(self, batch: Batch) -> None:
        self._lots.put(_Lot(batch.puller, batch.messages, 0))

    def _is_busy(self, puller: Puller) -> bool:
        """Whether a task has messages of the queue, if the listener is not orderly."""
        return any(giving.lot is not None and giving.lot.puller is puller for giving in self._giving)

    def _deliver_in_order(self, batch: Batch) -> None:
        self._orderly_queues.deliver(batch)

    def _look(self, puller: Puller) -> None:
        self._lots.put(_Lot(puller, (), 0))

    def _give_directly(self, message: ReceivedMessage, then: Callable[[bool], None]) -> None:
        """Give the listener one message that a broker sent to be consumed (CONSUME_MESSAGE_DIRECTLY, 309)."""

        async def ask() -> None:
            with self._calling() as giving:
                then(await self._asked(giving, [message]) is None)

        self._member.begin(ask())

    # ------------------------------------------------------------ the listener's tasks

    @contextmanager
    def _calling(self) -> Iterator[_Giving]:
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        giving = _Giving(task)
        self._giving.add(giving)
        try:
            yield giving
        finally:
            self._giving.discard(giving)

    def _look_for_hanging(self) -> None:
        """Cancel listeners that take too long. All calls share one timer, because a timer costs as much as a call."""
        due_ns = self._runtime.monotonic_ns() - int(self._config.consume_timeout_s * 1e9)
        for giving in self._giving:
            if 0 < giving.began_ns < due_ns and not giving.is_late:
                giving.is_late = True
                giving.task.cancel()

    async def _work(self) -> None:
        lots, lifecycle = self._lots, self._member.lifecycle
        give = self._give_in_order if self._is_orderly else self._give_lot
        with self._calling() as giving:
            while (lot := await lots.first()) is not None:
                if lifecycle.is_closed:
                    return
                try:
                    await give(giving, lot)
                except FAULTS:
                    log.exception("a listener's task of group %s failed at its lot", self._config.group)
            lots.take_first()

    async def _give_lot(self, giving: _Giving, lot: _Lot) -> None:
        giving.lot = lot
        try:
            await self._consume(giving, lot)
        finally:
            self._settle(giving)
            giving.lot = None
            if lot.puller.is_dropped:
                self._member.release_soon(lot.puller)

    async def _give_in_order(self, giving: _Giving, lot: _Lot) -> None:
        self._lots.take_first()
        await self._member.run(self._orderly_queues.consume(lot.puller, partial(self._asked, giving)))

    async def _asked(self, giving: _Giving, messages: Sequence[ReceivedMessage]) -> ConsumeResult:
        answer, _error = await (self._answer_with_hooks if self._config.hooks else self._answer)(giving, messages)
        return answer

    async def _consume(self, giving: _Giving, lot: _Lot) -> None:
        """Give the listener the rest of a lot, a few messages at a time, unless other tasks take them."""
        puller, size, lifecycle = lot.puller, self._config.consume_count_max, self._member.lifecycle
        topic, retry_topic = puller.queue.topic, self._member.retry_topic
        is_plain = topic != retry_topic and not lot.again_count
        ask = self._answer_with_hooks if self._config.hooks else self._answer
        while not lifecycle.is_closed and (messages := self._lots.next_of(lot, size)):
            if not puller.is_open:
                rest = lot.rest(lot.taken_count - size)
                if not puller.is_dropped:
                    puller.defer(partial(self._lots.put, rest))
                return
            if not giving.is_due:
                giving.is_due = True
                asyncio.get_running_loop().call_soon(self._turned, giving)
            shown = list(messages) if is_plain else all_as_shown(messages, topic, retry_topic, lot.again_count)
            answer, _error = await ask(giving, shown)
            if answer is None:
                if giving.puller is not puller:
                    self._settle(giving)
                    giving.puller = puller
                giving.consumed += messages
                giving.consumed_ns += giving.took_ns
                if not giving.is_due:
                    self._settle(giving)
                continue
            self._statistics.given(topic, len(messages), giving.took_ns, is_consumed=False)
            if not puller.is_dropped:
                await self._member.run(self._member.put_off(puller, messages, answer.level, partial(self._again, lot)))

    def _again(self, lot: _Lot, messages: list[ReceivedMessage]) -> None:
        self._lots.put(_Lot(lot.puller, messages, lot.again_count + 1))

    def _turned(self, giving: _Giving) -> None:
        giving.is_due = False
        self._settle(giving)

    def _settle(self, giving: _Giving) -> None:
        """Mark the messages of `consumed` as consumed in their queue, and count them in the statistics."""
        puller = giving.puller
        if puller is not None:
            took_ns, consumed = giving.consumed_ns, giving.consumed
            giving.puller, giving.consumed_ns, giving.consumed = None, 0, []
            self._statistics.given(puller.queue.topic, len(consumed), took_ns, is_consumed=True)
            puller.done(consumed)

    async def _answer_with_hooks(
        self, giving: _Giving, messages: Sequence[ReceivedMessage]
    ) -> tuple[ConsumeResult, Exception | None]:
        """Call the listener as `_answer` does, and call the hooks before and after it."""
        delivery = self._hook_calls.begin(messages)
        begun_ns = self._runtime.monotonic_ns()
        answer: ConsumeResult = Retry()
        error: Exception | None = TimeoutError("the consumer was closed before the listener answered")
        try:
            answer, error = await self._answer(giving, messages)
        finally:
            self._hook_calls.ended(delivery, messages, error, is_consumed=answer is None, begun_ns=begun_ns)
        return answer, error

    async def _answer(
        self, giving: _Giving, messages: Sequence[ReceivedMessage]
    ) -> tuple[ConsumeResult, Exception | None]:
        """Call the listener; return its result and its error. After an error or time-out, the messages come again."""
        first = messages[0]  # Read the first message before the call, because the listener may change the list.
        giving.began_ns = self._now_ns()
        try:
            given = self._listener(messages)
            # A plain function has finished its work by now, so its result counts despite the time limit.
            if type(given) is CoroutineType or isinstance(given, Awaitable):
                given = await given
            return (None if given is None else read_result(given)), None
        except (Retry, Reject) as answer:
            return answer, None
        except asyncio.CancelledError:
            if giving.task.cancelling() > giving.is_late:
                raise
            if not giving.is_late:
                # This task was not cancelled: the listener awaited another task that was cancelled, and did not catch
                # its error.
                log.warning(
                    "the listener of group %s was cancelled at %s; it comes again", self._config.group, place_of(first)
                )
                return Retry(), RuntimeError("the listener raised CancelledError")
            log.warning(
                "the listener of group %s has not answered for %g s at %s and is cancelled; it comes again",
                self._config.group,
                self._config.consume_timeout_s,
                place_of(first),
            )
            return Retry(), TimeoutError("the listener was cancelled")
        except (KeyboardInterrupt, GeneratorExit):
            # The event loop handles Ctrl-C, and a task that is closed with its loop must not continue.
            raise
        except ANYTHING as error:
            log.warning(
                "the listener of group %s failed at %s: %r; it comes again",
                self._config.group, place_of(first), error,
            )  # fmt: skip
            return Retry(), error if isinstance(error, Exception) else RuntimeError(f"it raised {error!r}")
        finally:
            giving.took_ns = self._now_ns() - giving.began_ns
            giving.began_ns = 0
            if giving.is_late:
                giving.is_late = False
                giving.task.uncancel()
