"""Has a send answered when those who must have its message have it: the disk (`SYNC_FLUSH`), slaves (`SYNC_MASTER`).

Name servers must have heard of a topic that the send made. All are waited for side by side; what a slave says
counts before what the disk says. How each is waited for: `group_commit`, `rocketmq.replication.replicator`,
`rocketmq.replication.registrar`.

Source: `CommitLog.asyncPutMessage`, `submitFlushRequest`, `submitReplicaRequest` 4.9.7.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from attrs import define, field, frozen

from longpoll_broker.io.channel import Outbox
from longpoll_broker.send.group_commit import GroupCommit
from longpoll_protocol.codes import ResponseCode
from longpoll_runtime import Lock

Done = Callable[[int, Outbox], None]
"""Told the response code; writes its answer to the outbox."""

WhenTold = Callable[[Callable[[Outbox], None], Outbox], None]
"""Calls its first argument when name servers have heard of all topics."""


class Slaves(Protocol):
    """Those who copy the log, as the replicator knows them."""

    def is_near(self, log_end: int, /) -> bool:
        """Whether a slave is near enough to this end to be waited for."""
        ...

    def submit(self, log_end: int, done: Callable[[bool, Outbox], None], outbox: Outbox, /) -> None:
        """Call `done` when slaves have the log up to this end, or not in time."""
        ...


@define(slots=True, eq=False)
class _Waiting:
    """One send. Invariant: the thread that brings `_open` to 0, under the lock, answers it."""

    done: Done
    lock: Lock
    copy_code: int
    _open: int
    _flush_code: int = field(default=ResponseCode.SUCCESS, init=False)

    def flushed(self, is_durable: bool, outbox: Outbox) -> None:
        """The disk has the message, or not in time."""
        if not is_durable:
            self._flush_code = ResponseCode.FLUSH_DISK_TIMEOUT
        self.tell(outbox)

    def copied(self, is_copied: bool, outbox: Outbox) -> None:
        """Slaves have it, or not in time."""
        if not is_copied:
            self.copy_code = ResponseCode.FLUSH_SLAVE_TIMEOUT
        self.tell(outbox)

    def tell(self, outbox: Outbox) -> None:
        """One of those that are waited for has spoken."""
        with self.lock:
            self._open -= 1
            is_last = not self._open
        if is_last:
            self.done(self.copy_code or self._flush_code, outbox)


@frozen
class Durability:
    """Who must have a message before its send is answered."""

    commits: GroupCommit | None
    replicator: Slaves | None
    when_told: WhenTold | None = None
    """Where the broker registers at name servers."""

    @property
    def are_there(self) -> bool:
        """Whether anybody must have every message."""
        return self.commits is not None or self.replicator is not None

    @property
    def of_topics_are_there(self) -> bool:
        """Whether anybody must have a topic that a send made."""
        return self.commits is not None or self.when_told is not None

    def submit(self, log_end: int | None, done: Done, lock: Lock, outbox: Outbox, *, wants_topics: bool) -> None:
        """Have `done` called when the log is kept up to `log_end`, or cannot be in time, under a lock of this send.

        With `wants_topics` the disk must also have the table of topics, and name servers must have heard of it. Without
        `log_end` only this is waited for.
        At once, with this outbox, where nothing can be waited for; with 11 where no slave is near enough.
        """
        replicator = self.replicator if log_end is not None else None
        log_end = log_end or 0
        is_near = replicator is not None and replicator.is_near(log_end)
        code = ResponseCode.SUCCESS if is_near or replicator is None else ResponseCode.SLAVE_NOT_AVAILABLE
        # One for this method: nobody is the last before everybody was asked.
        when_told = self.when_told if wants_topics else None
        waiting = _Waiting(done, lock, code, 1 + (self.commits is not None) + is_near + (when_told is not None))
        if replicator is not None and is_near:
            replicator.submit(log_end, waiting.copied, outbox)
        if self.commits is not None:
            self.commits.submit(log_end, waiting.flushed, outbox, wants_topics=wants_topics)
        if when_told is not None:
            when_told(waiting.tell, outbox)
        waiting.tell(outbox)
