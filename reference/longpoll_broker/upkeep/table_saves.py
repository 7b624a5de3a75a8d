"""Has changes of topics and groups answered when they stand on the disk, many of them by one save.

A change counts at once and is answered when `topics.json` and `subscriptionGroup.json` say it, so that a kill does not
take back what was told to be done. Java writes the files on the thread that serves the request
(`TopicConfigManager.updateTopicConfig`); here a thread of its own does, for nobody else is to wait for the disk.

A deletion is finished in the store before that, likewise without anybody else waiting for it.

Leaves out what is written (`config_files`), and what changes without a word of a client (`flush_service`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from attrs import define, field

from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import REMARK_SIZE_MAX, answer, failure, refuse
from longpoll_broker.upkeep.config_files import ConfigFiles
from longpoll_protocol.codes import ResponseCode
from longpoll_protocol.frames.command import Command
from longpoll_runtime import Condition, Runtime, Thread
from longpoll_runtime.recoverable import FAULTS

log = logging.getLogger(__name__)

WAITING_COUNT_MAX: Final = 10_000
"""Most answers that wait; over this who asks saves on its own thread, and so slows itself down."""

Work = Callable[[], None]
"""What has to be done on the disk for one change before all are saved; it may raise anything."""
_Waiting = tuple[Channel, Command, Parts, Work | None]


class WhenSaved(Protocol):
    """Gives the answer to a change of topics or groups when that is on the disk."""

    def __call__(self, channel: Channel, command: Command, parts: Parts, work: Work | None = None) -> Parts | None:
        """The answer where it is so already; None where it follows. `work` is done first."""
        ...


@define(slots=True, eq=False)
class TableSaves:
    """The thread and those who wait for it. Invariant: who takes an answer out of `_waiting` gives it."""

    runtime: Runtime
    config_files: ConfigFiles
    give: Callable[[Channel, Command, Parts, Outbox], None] = refuse
    """Gives the answer to a change that is on the disk."""
    _changed: Condition = field(init=False)
    _waiting: list[_Waiting] = field(factory=list, init=False)
    _running: bool = field(default=False, init=False)
    _thread: Thread | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._changed = self.runtime.condition()

    def start(self) -> None:
        """Start the thread."""
        self._running = True
        self._thread = self.runtime.spawn("table-saver", self._save_all)

    def stop(self) -> None:
        """Answer who waits, then end the thread; who comes later saves on its own."""
        with self._changed:
            self._running = False
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def answer_when_saved(
        self, channel: Channel, command: Command, parts: Parts, work: Work | None = None
    ) -> Parts | None:
        """The answer to a change that was made just now; None when it is given later, after its work and a save.

        In its place comes code 1 when the change cannot be saved, or its work fails.
        """
        with self._changed:
            if self._running and len(self._waiting) < WAITING_COUNT_MAX:
                self._waiting.append((channel, command, parts, work))
                self._changed.notify_all()
                return None
        parts = _worked(channel, command, parts, work)
        problem = self._problem_of_save()
        return parts if problem is None else _refusal(command, problem)

    def _save_all(self) -> None:
        outbox = Outbox()
        while True:
            with self._changed:
                while not self._waiting and self._running:
                    self._changed.wait()
                waiting, self._waiting = self._waiting, []
            if not waiting:
                return
            told = [(channel, command, _worked(channel, command, parts, work)) for channel, command, parts, work in waiting]  # noqa: E501 - one line each  # fmt: skip
            problem = self._problem_of_save()
            for channel, command, parts in told:
                self.give(channel, command, parts if problem is None else _refusal(command, problem), outbox)
            outbox.flush()

    def _problem_of_save(self) -> str | None:
        """Save what has changed; why it could not be saved."""
        try:
            self.config_files.save_names()
        except FAULTS as error:
            log.exception("topics and groups could not be saved; trying again")
            return f"the change counts, and could not be saved yet: {type(error).__name__}: {error}"
        return None


def _worked(channel: Channel, command: Command, parts: Parts, work: Work | None) -> Parts:
    """Do a change's work; its answer, or what failed."""
    try:
        if work is not None:
            work()
    except FAULTS as error:
        return failure(channel, command, error)
    return parts


def _refusal(command: Command, problem: str) -> Parts:
    return answer(command, ResponseCode.SYSTEM_ERROR, problem[:REMARK_SIZE_MAX])
