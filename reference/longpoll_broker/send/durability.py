"""Answers a send when its copies exist: on disk (`SYNC_FLUSH`) and on slaves (`SYNC_MASTER`).

For a new topic, name servers must also know it. These waits run concurrently; a slave's result takes precedence over
the disk's. Each wait: see `group_commit`, `rocketmq.replication.replicator`, `rocketmq.replication.registrar`.

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
"""Called with the response code; writes the answer to the outbox."""

WhenTold = Callable[[Callable[[Outbox], None], Outbox], None]
"""Calls its first argument when name servers know all topics."""


class Slaves(Protocol):
    """The slaves, as the replicator offers them."""

    def is_near(self, log_end: int, /) -> bool:
        """Whether a slave is near enough to this log end to wait for it."""
        ...

    def submit(self, log_end: int, done: Callable[[bool, Outbox], None], outbox: Outbox, /) -> None:
        """Call `done` when slaves have the log up to this end, or at a timeout."""
        ...


@define(slots=True, eq=False)
class _Waiting:
    """One send. Invariant: the thread that decrements `_open` to 0 under the lock answers it."""

    done: Done
    lock: Lock
    copy_code: int
    _open: int
    _flush_code: int = field(default=ResponseCode.SUCCESS, init=False)

    def flushed(self, is_durable: bool, outbox: Outbox) -> None:
        """The disk has the message, or a timeout occurred."""
        if not is_durable:
            self._flush_code = ResponseCode.FLUSH_DISK_TIMEOUT
        self.tell(outbox)

    def copied(self, is_copied: bool, outbox: Outbox) -> None:
        """Slaves have the message, or a timeout occurred."""
        if not is_copied:
            self.copy_code = ResponseCode.FLUSH_SLAVE_TIMEOUT
        self.tell(outbox)

    def tell(self, outbox: Outbox) -> None:
        """One of the waits ended; the last one answers."""
        with self.lock:
            self._open -= 1
            is_last = not self._open
        if is_last:
            self.done(self.copy_code or self._flush_code, outbox)


@frozen
class Durability:
    """The copies that must exist before a send is answered."""

    commits: GroupCommit | None
    replicator: Slaves | None
    when_told: WhenTold | None = None
    """Set when the broker registers at name servers."""

    @property
    def are_there(self) -> bool:
        """Whether messages need any copy."""
        return self.commits is not None or self.replicator is not None

    @property
    def of_topics_are_there(self) -> bool:
        """Whether a new topic needs any copy."""
        return self.commits is not None or self.when_told is not None

    def submit(self, log_end: int | None, done: Done, lock: Lock, outbox: Outbox, *, wants_topics: bool) -> None:
        """Call `done` when the log is kept up to `log_end`, or at a timeout; `lock` belongs to this send.

        With `wants_topics` the topic table must be durable and known to name servers. Without `log_end`, only this
        counts.

        Calls `done` at once, with this outbox, if there is nothing to wait for; with 11 if no slave is near enough.
        """
        replicator = self.replicator if log_end is not None else None
        log_end = log_end or 0
        is_near = replicator is not None and replicator.is_near(log_end)
        code = ResponseCode.SUCCESS if is_near or replicator is None else ResponseCode.SLAVE_NOT_AVAILABLE
        # One extra count for this method, so that no wait is the last before all have started.
        when_told = self.when_told if wants_topics else None
        waiting = _Waiting(done, lock, code, 1 + (self.commits is not None) + is_near + (when_told is not None))
        if replicator is not None and is_near:
            replicator.submit(log_end, waiting.copied, outbox)
        if self.commits is not None:
            self.commits.submit(log_end, waiting.flushed, outbox, wants_topics=wants_topics)
        if when_told is not None:
            when_told(waiting.tell, outbox)
        waiting.tell(outbox)
