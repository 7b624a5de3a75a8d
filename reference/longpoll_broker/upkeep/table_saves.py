"""Answers changes of topics and groups when they are on disk, with one save for many.

A change takes effect at once, but its answer waits for `topics.json` and `subscriptionGroup.json`, so that a kill does
not undo an acknowledged change. Java writes the files on the serving thread (`TopicConfigManager.updateTopicConfig`);
here a separate thread does, so that other requests do not wait for the disk. It also finishes deletions in the store.

File contents: see `config_files`. Changes without a client: see `flush_service`.
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
"""Maximum waiting answers; above this the requesting thread saves itself, which slows its clients down."""

Work = Callable[[], None]
"""Disk work of one change, done before the save; it may raise anything."""
_Waiting = tuple[Channel, Command, Parts, Work | None]


class WhenSaved(Protocol):
    """Answers a change of topics or groups when it is on disk."""

    def __call__(self, channel: Channel, command: Command, parts: Parts, work: Work | None = None) -> Parts | None:
        """Returns the answer if the change is on disk already; None if it follows. `work` runs first."""
        ...


@define(slots=True, eq=False)
class TableSaves:
    """The thread and its waiting answers. Invariant: the thread that removes an answer from `_waiting` sends it."""

    runtime: Runtime
    config_files: ConfigFiles
    give: Callable[[Channel, Command, Parts, Outbox], None] = refuse
    """Sends the answer to a saved change."""
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
        """Answer the waiting changes, then end the thread; later changes save themselves."""
        with self._changed:
            self._running = False
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def answer_when_saved(
        self, channel: Channel, command: Command, parts: Parts, work: Work | None = None
    ) -> Parts | None:
        """Returns the answer to a new change; None when it follows, after its work and a save.

        The answer becomes code 1 if the save or the work fails.
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
        try:
            self.config_files.save_names()
        except FAULTS as error:
            log.exception("topics and groups could not be saved; trying again")
            return f"the change counts, and could not be saved yet: {type(error).__name__}: {error}"
        return None


def _worked(channel: Channel, command: Command, parts: Parts, work: Work | None) -> Parts:
    try:
        if work is not None:
            work()
    except FAULTS as error:
        return failure(channel, command, error)
    return parts


def _refusal(command: Command, problem: str) -> Parts:
    return answer(command, ResponseCode.SYSTEM_ERROR, problem[:REMARK_SIZE_MAX])
