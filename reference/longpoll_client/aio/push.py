"""A consumer that awaits a listener, several calls at once, or for each queue in order.

Source: `ConsumeMessageConcurrentlyService.java`, `ConsumeMessageOrderlyService.java`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import CoroutineType
from typing import Any, TypeAlias, Unpack

from attrs import define, field

from longpoll_client.aio.consumer import AsyncConsumer, AsyncMember
from longpoll_client.checks import Addresses, check_callable
from longpoll_client.consume.listener import HANG_CHECKS, ConsumeResult, Reject, Retry, read_result
from longpoll_client.consume.orderly import OrderlyQueues
from longpoll_client.consume.puller import Batch, Puller
from longpoll_client.consume.statistics import HookCalls
from longpoll_client.lifecycle import Closing
from longpoll_client.messages import ReceivedMessage, all_as_shown, place_of
from longpoll_client.settings import ConsumerOptions, options_of
from longpoll_runtime.recoverable import ANYTHING, FAULTS

log: logging.Logger = logging.getLogger(__name__)

AsyncListener: TypeAlias = Callable[[Sequence[ReceivedMessage]], object]
"""A coroutine function, awaited by up to `thread_count` tasks at once; a plain function must not wait."""


@define(slots=True, eq=False)
class _Lot:
    """Messages for the listener. Every free task takes a few at a time."""

    puller: Puller
    messages: Sequence[ReceivedMessage]
    """As they were pulled."""
    again_count: int
    """How often it had them already without the broker knowing."""
    taken_count: int = 0
    """How many of them tasks have taken."""

    def rest(self, at: int) -> _Lot:
        """Take everything from an index on, as a separate lot."""
        self.taken_count = len(self.messages)
        return _Lot(self.puller, self.messages[at:], self.again_count)


@define(slots=True, eq=False)
class _Giving:
    """A task that calls the listener repeatedly."""

    task: asyncio.Task[Any]
    began_ns: int = 0
    """When the listener was called that has not answered yet; 0: none."""
    is_late: bool = False
    """Whether that was cancelled: its messages are sent back, unless it answers all the same."""
    puller: Puller | None = None
    """Of which queue `consumed` are."""
    consumed: list[ReceivedMessage] = field(factory=list)
    """What the listener has consumed in this turn of the loop, and nobody was told of yet."""
    consumed_ns: int = 0
    """How long it had these."""
    took_ns: int = 0
    """How long the last call of the listener took."""
    is_due: bool = False
    """Whether they will be told of in the loop's next turn, before anything that the listener has woken."""


class _Lots:
    """The lots that wait for a task, and the tasks that wait for a lot, at a third of the cost of `asyncio.Queue`.

    One task is woken at a time. It wakes the next one if it leaves something. If listeners return at once, one task
    does all the work. Invariant: while `ready` has anything and tasks wait, one was woken and has not run yet.
    """

    def __init__(self) -> None:
        self.ready: deque[_Lot | None] = deque()
        """In order; None is the end of one task."""
        self._idle: deque[asyncio.Future[None]] = deque()

    def put(self, lot: _Lot | None) -> None:
        """Add a lot for one task."""
        self.ready.append(lot)
        self._wake()

    def next_of(self, lot: _Lot, count: int) -> Sequence[ReceivedMessage]:
        """Take `count` messages of the first lot; empty if none is left."""
        at = lot.taken_count
        lot.taken_count = end = at + count
        if end >= len(lot.messages) and self.ready and self.ready[0] is lot:
            self.ready.popleft()
        if self._idle and self.ready:
            self._wake()
        return lot.messages[at:end]

    def take_first(self) -> None:
        """Remove the first lot."""
        self.ready.popleft()
        if self._idle and self.ready:
            self._wake()

    async def first(self) -> _Lot | None:
        """Wait for a lot, and leave it in its place."""
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
    """Gives messages to an `async def` listener, in `thread_count` tasks. `async with` starts and closes it.

    A listener that takes longer than `consume_timeout_s` is cancelled, and its messages come again. Otherwise as
    `PushConsumer`.

    Invariant: `_working` are the tasks that give messages, from the start until the close; `_giving` has every task
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
        """As `PushConsumer`; raises ConfigError."""
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
            direct=self._give_directly,
            is_orderly=orderly,
            is_busy=lambda puller: orderly and self._orderly_queues.is_busy(puller),
        )
        self._statistics = self._member.statistics
        self._is_orderly = orderly
        self._orderly_queues = OrderlyQueues(runtime, self._look, self._member)

    async def start(self) -> None:
        """Join the group and begin to listen; raises as `PushConsumer.start`."""
        await self._member.start()
        if self._member.lifecycle.is_closed:
            # Meanwhile, by `on_assigned` or another task: nobody would end what is begun now.
            return
        self._member.every(self._config.consume_timeout_s / HANG_CHECKS, self._look_for_hanging)
        self._working = [asyncio.create_task(self._work()) for _number in range(self._config.thread_count)]

    async def close(self) -> None:
        """Wait for running listeners, store the offsets, and leave the group.

        After `close_timeout_s` a listener is cancelled, and its messages come again. After the same time again it is
        left behind. In a listener, this returns at once, and the consumer closes when the listener returns. If the
        caller is cancelled, the close continues, and a second call waits for it.
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
        """Wait for tasks, at most `close_timeout_s`; those that have not ended, which are logged."""
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
        """Have a pull's messages given to the listener."""
        self._lots.put(_Lot(batch.puller, batch.messages, 0))

    def _deliver_in_order(self, batch: Batch) -> None:
        self._orderly_queues.deliver(batch)

    def _look(self, puller: Puller) -> None:
        """Have a task deliver the first messages of a queue."""
        self._lots.put(_Lot(puller, (), 0))

    def _give_directly(self, message: ReceivedMessage, then: Callable[[bool], None]) -> None:
        """Give the listener one message that a broker wants consumed (309)."""

        async def ask() -> None:
            with self._calling() as giving:
                then(await self._asked(giving, [message]) is None)

        self._member.begin(ask())

    def _wake(self) -> None:
        """The queues' own lots come back by themselves."""

    # ------------------------------------------------------------ the listener's tasks

    @contextmanager
    def _calling(self) -> Iterator[_Giving]:
        """Mark this task as one that may call the listener."""
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        giving = _Giving(task)
        self._giving.add(giving)
        try:
            yield giving
        finally:
            self._giving.discard(giving)

    def _look_for_hanging(self) -> None:
        """Cancel listeners that take too long. One timer for all, because a timer costs as much as a call."""
        due_ns = self._runtime.monotonic_ns() - int(self._config.consume_timeout_s * 1e9)
        for giving in self._giving:
            if 0 < giving.began_ns < due_ns and not giving.is_late:
                giving.is_late = True
                giving.task.cancel()

    async def _work(self) -> None:
        lots, lifecycle = self._lots, self._member.lifecycle
        give = self._give_in_order if self._is_orderly else self._consume
        with self._calling() as giving:
            while (lot := await lots.first()) is not None:
                if lifecycle.is_closed:
                    return
                try:
                    await give(giving, lot)
                except FAULTS:
                    log.exception("a listener's task of group %s failed at its lot", self._config.group)
            lots.take_first()

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
        """Mark what the listener has consumed, in the queue and in the statistics."""
        puller = giving.puller
        if puller is not None:
            took_ns, consumed = giving.consumed_ns, giving.consumed
            giving.puller, giving.consumed_ns, giving.consumed = None, 0, []
            self._statistics.given(puller.queue.topic, len(consumed), took_ns, is_consumed=True)
            puller.done(consumed)

    async def _answer_with_hooks(
        self, giving: _Giving, messages: Sequence[ReceivedMessage]
    ) -> tuple[ConsumeResult, Exception | None]:
        """As `_answer`, with calls of the hooks before and after."""
        delivery = self._hook_calls.begin(messages)
        begun_ns = self._runtime.monotonic_ns()
        answer: ConsumeResult = Retry()
        error: Exception | None = TimeoutError("the consumer was closed before the listener answered")
        try:
            answer, error = await self._answer(giving, messages)
        finally:
            self._hook_calls.ended(
                delivery,
                messages,
                error,
                is_consumed=answer is None,
                latency_ns=self._runtime.monotonic_ns() - begun_ns,
            )
        return answer, error

    async def _answer(
        self, giving: _Giving, messages: Sequence[ReceivedMessage]
    ) -> tuple[ConsumeResult, Exception | None]:
        """The listener's result, and its error. After an error or a time-out the messages come again."""
        first = messages[0]  # The listener may do with the list what it likes.
        giving.began_ns = self._now_ns()
        try:
            given = self._listener(messages)
            # A plain function has done its work by now: it is taken at its word.
            if type(given) is CoroutineType or isinstance(given, Awaitable):
                given = await given
            return (None if given is None else read_result(given)), None
        except (Retry, Reject) as answer:
            return answer, None
        except asyncio.CancelledError:
            if giving.task.cancelling() > giving.is_late:
                raise
            if not giving.is_late:
                # Nobody has cancelled this task: what the listener awaited was, and it let that through.
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
            # Ctrl-C is the loop's to take; and a task that is closed, for its loop has ended, goes on with nothing.
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
