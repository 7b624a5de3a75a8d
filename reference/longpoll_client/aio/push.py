"""Gives messages to a coroutine, several at once; what it puts off is sent back to its broker.

Leaves out order. Source: `ConsumeMessageConcurrentlyService.java`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from attrs import define, frozen

from longpoll_client.aio.consumer import AsyncConsumer
from longpoll_client.aio.member import AsyncMember
from longpoll_client.consume.concurrent import HANG_CHECKS, LOCAL_RETRY_S
from longpoll_client.consume.listening import Deliveries
from longpoll_client.consume.own_queues import OnShare
from longpoll_client.consume.puller import Batch, Puller
from longpoll_client.consume.workers import Answer, ConsumeStatus, Later
from longpoll_client.credentials import Credentials
from longpoll_client.messages import ReceivedMessage, as_shown
from longpoll_client.settings import ConsumerConfig
from longpoll_runtime import Runtime
from longpoll_runtime.faults import FAULTS
from longpoll_spec.errors import LongpollError

log = logging.getLogger(__name__)

AsyncListener: TypeAlias = Callable[[Sequence[ReceivedMessage]], Awaitable[Answer]]
"""Is awaited by up to `thread_count` tasks at once."""


@frozen
class _Lot:
    """Messages that a listener is to be given."""

    puller: Puller
    messages: list[ReceivedMessage]
    """As they were pulled."""
    again_count: int
    """How often it had them already without the broker knowing."""


@define(slots=True, eq=False)
class _Given:
    """A call of the listener."""

    began_ns: int
    is_late: bool = False
    """Whether it was cancelled: its messages are sent back, unless it answers all the same."""


class AsyncPushConsumer(AsyncConsumer):
    """Gives messages to an `async def` listener, in `config.thread_count` tasks; `async with` starts and closes it.

    The listener answers SUCCESS, LATER or `Later(level)`; one that raises has put its messages off, and so has one that
    takes longer than `consume_timeout_s`, which is cancelled. Otherwise as `PushConsumer` without order.

    Invariant: `_working` are the tasks that give messages, from the start until the close; `_given` has each call of
    the listener that has not ended, by its task.
    """

    def __init__(
        self,
        runtime: Runtime,
        name_server: str,
        config: ConsumerConfig,
        listener: AsyncListener,
        *,
        on_share: OnShare | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """Raises ConfigError."""
        self._runtime = runtime
        self._config = config
        self._listener = listener
        self._lots: asyncio.Queue[_Lot | None] = asyncio.Queue()
        self._working: list[asyncio.Task[None]] = []
        self._deliveries = Deliveries(runtime, config)
        self._given: dict[asyncio.Task[Any], _Given] = {}
        self._member = AsyncMember(
            runtime, name_server, config, self._deliver, direct=self, on_share=on_share, credentials=credentials
        )

    async def start(self) -> None:
        """Join the group and begin to listen; raises as `PushConsumer.start`."""
        await self._member.start()
        self._member.every(self._config.consume_timeout_s / HANG_CHECKS, self._look_for_hanging)
        self._working = [asyncio.create_task(self._work()) for _number in range(self._config.thread_count)]

    async def close(self) -> None:
        """Let running listeners end, for `close_timeout_s` at most, store the offsets, and leave the group.

        A listener that does not end is cancelled, and its messages come again. In a listener this returns at once, and
        the consumer is closed as soon as the listener has answered.
        """
        if not self._member.lifecycle.end():
            return
        me = asyncio.current_task()
        if me in self._working:
            closing = asyncio.create_task(self._close([task for task in self._working if task is not me], me))
            self._working = [closing]
            return
        await self._close(self._working, None)

    async def _close(self, working: list[asyncio.Task[None]], last: asyncio.Task[None] | None) -> None:
        waited = [*working, last] if last is not None else working
        while not self._lots.empty():
            self._lots.get_nowait()
        for _task in waited:
            self._lots.put_nowait(None)
        if waited:
            _done, late = await asyncio.wait(waited, timeout=self._config.close_timeout_s)
            if late:
                log.warning(
                    "%d listeners of group %s still run after %g s and are cancelled; their messages come again",
                    len(late),
                    self._config.group,
                    self._config.close_timeout_s,
                )
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self._member.close()

    # ------------------------------------------------------------ for the member

    def _deliver(self, batch: Batch) -> None:
        """Share a pull's messages out in small lots."""
        size = self._config.consume_count_max
        for at in range(0, len(batch.messages), size):
            self._lots.put_nowait(_Lot(batch.puller, list(batch.messages[at : at + size]), 0))

    def give(self, message: ReceivedMessage, then: Callable[[bool], None]) -> None:
        """Give the listener one message at an administrator's wish (309), beside the others."""

        async def ask() -> None:
            then(await self._ask([message]) is ConsumeStatus.SUCCESS)

        self._member.reach.begin(ask())

    def _wake(self) -> None:
        """The queues' own lots come back by themselves."""

    # ------------------------------------------------------------ the listener's tasks

    def _look_for_hanging(self) -> None:
        """Cancel listeners that take too long: one look for all, for a timer of its own costs as much as a call."""
        due_ns = self._runtime.monotonic_ns() - int(self._config.consume_timeout_s * 1e9)
        for task, given in self._given.items():
            if given.began_ns < due_ns and not given.is_late:
                given.is_late = True
                task.cancel()

    async def _work(self) -> None:
        while (lot := await self._lots.get()) is not None and not self._member.lifecycle.is_closed:
            if not lot.puller.is_dropped and not lot.puller.defer(partial(self._lots.put_nowait, lot)):
                await self._consume(lot)

    async def _consume(self, lot: _Lot) -> None:
        began_ns = self._runtime.monotonic_ns()
        shown = [as_shown(message, self._member.retry_topic, lot.again_count) for message in lot.messages]
        answer = await self._ask(shown)
        is_consumed = answer is ConsumeStatus.SUCCESS
        counted = {"consumed_count" if is_consumed else "later_count": len(lot.messages)}
        took_ms = (self._runtime.monotonic_ns() - began_ns) / 1e6
        self._member.statistics.add(lot.puller.queue.topic, consume_ms=took_ms, **counted)
        if lot.puller.is_dropped:
            return
        kept = [] if is_consumed else await self._sent_back(lot, answer.delay_level if isinstance(answer, Later) else 0)
        lot.puller.done([message for message in lot.messages if message not in kept] if kept else lot.messages)
        if kept:
            again = _Lot(lot.puller, kept, lot.again_count + 1)
            self._member.reach.after(LOCAL_RETRY_S, lambda: self._lots.put_nowait(again))

    async def _sent_back(self, lot: _Lot, delay_level: int) -> list[ReceivedMessage]:
        """Send messages back to their broker; those that it did not take."""
        kept = []
        for message in lot.messages:
            try:
                await self._member.send_back(message, lot.puller.queue, delay_level)
            except LongpollError as error:
                log.warning("sending back failed: %s; it is given again in %g s", error, LOCAL_RETRY_S)
                kept.append(message)
        return kept

    async def _ask(self, messages: Sequence[ReceivedMessage]) -> Answer:
        """The listener's answer, of which the hooks are told."""
        if not self._config.hooks:
            return (await self._answer(messages))[0]
        delivery = self._deliveries.begin(messages)
        begun_ns = self._runtime.monotonic_ns()
        answer: Answer = ConsumeStatus.LATER
        error: Exception | None = TimeoutError("the consumer was closed before the listener answered")
        try:
            answer, error = await self._answer(messages)
        finally:
            self._deliveries.ended(
                delivery,
                messages,
                error,
                is_consumed=answer is ConsumeStatus.SUCCESS,
                latency_ns=self._runtime.monotonic_ns() - begun_ns,
            )
        return answer

    async def _answer(self, messages: Sequence[ReceivedMessage]) -> tuple[Answer, Exception | None]:
        """What the listener answers, or raises; one that raises, hangs, or answers what is none has put them off."""
        first = messages[0]
        place = f"{first.topic} queue {first.queue_id} offset {first.queue_offset}"
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        given = self._given[task] = _Given(self._runtime.monotonic_ns())
        try:
            answer: Answer = await self._listener(messages)
        except asyncio.CancelledError:
            if not given.is_late or task.cancelling() > 1:
                raise
            log.warning(
                "the listener of group %s has not answered for %g s at %s and is cancelled; it comes again",
                self._config.group,
                self._config.consume_timeout_s,
                place,
            )
            return ConsumeStatus.LATER, TimeoutError("the listener was cancelled")
        except FAULTS as error:
            log.warning("the listener of group %s failed at %s: %r; it comes again", self._config.group, place, error)
            return ConsumeStatus.LATER, error
        finally:
            del self._given[task]
            if given.is_late:
                task.uncancel()
        if not isinstance(answer, ConsumeStatus | Later):
            log.warning("the listener of group %s said %r at %s: it comes again", self._config.group, answer, place)
            return ConsumeStatus.LATER, None
        return answer, None
