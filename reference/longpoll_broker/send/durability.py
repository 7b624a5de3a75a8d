"""Answers a send when its message is durable (`SYNC_FLUSH`).

A new topic must also be saved in `topics.json` and known to the name servers before the answer. The broker waits for
the disk, the topic table and the name servers concurrently. The wait for name servers: see
`rocketmq.name_server.registrar`.

`GroupCommit` makes many sends durable with one sync. Each appended send submits its log end and a callback. The
committer takes all waiting requests, saves `topics.json` if a request waits for it, syncs the log once, and answers
each request. A watcher thread answers overdue requests as not durable while the sync continues.

Sources: `CommitLog.asyncPutMessage`, `submitFlushRequest`, `CommitLog.GroupCommitService` and `FlushDiskWatcher.java`
4.9.7.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from attrs import define, field, frozen

from longpoll_broker.io.channel import Outbox
from longpoll_broker.store.message_store import MessageStore
from longpoll_protocol.codes import ResponseCode
from longpoll_runtime import Condition, Lock, Runtime, Thread
from longpoll_runtime.recoverable import FAULTS, KeepGoing

log = logging.getLogger(__name__)

WAITING_COUNT_MAX: Final = 100_000
"""Maximum waiting requests; beyond this limit, the appending thread syncs the log itself and slows its producers."""

WhenFlushed = Callable[[bool, Outbox], None]
"""Called with true if the bytes are durable, otherwise with false; the callback writes the answer to the outbox."""


@frozen(eq=False)
class _Request:
    log_end: int
    deadline_ns: int
    done: WhenFlushed
    wants_topics: bool
    """Whether the message's topic is not yet saved."""


@define(slots=True, eq=False)
class GroupCommit:
    """Syncs the log for many sends at once, with a committer thread and a watcher thread.

    `_changed` protects `_gathered` and `_open`. Invariants: every request of `_gathered` is also in `_open`; the thread
    that removes a request from `_open` answers it. `_open` is ordered by deadline.
    """

    runtime: Runtime
    store: MessageStore
    timeout_ms: int
    """`syncFlushTimeout`: a request that waits longer than this is answered as not durable, ms."""
    flushed: Callable[[Outbox], None]
    """Called after a sync, to make the durable messages visible before their sends are answered."""
    save_topics: Callable[[], None]
    """Saves the topic table if it has changed; raises OSError."""
    _changed: Condition = field(init=False)
    _gathered: list[_Request] = field(factory=list, init=False)
    _open: dict[_Request, None] = field(factory=dict, init=False)
    _running: bool = field(default=False, init=False)
    _threads: list[Thread] = field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self._changed = self.runtime.condition()

    def start(self) -> None:
        """Start the committer and the watcher."""
        self._running = True
        self._threads = [
            self.runtime.spawn("committer", self._commit_all),
            self.runtime.spawn("commit-watcher", self._watch),
        ]

    def stop(self) -> None:
        """Answer the waiting requests, then end the threads. Later appends sync the log themselves."""
        with self._changed:
            self._running = False
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def submit(self, log_end: int, done: WhenFlushed, outbox: Outbox, *, wants_topics: bool) -> None:
        """Call `done` on another thread when the log is durable up to `log_end`, or after a failed sync or a timeout.

        A `log_end` of 0 needs no sync. With `wants_topics` the topic table is saved before the sync. If too many
        requests wait, or after `stop`, `done` is called at once with `outbox`.
        """
        deadline_ns = self.runtime.monotonic_ns() + self.timeout_ms * 1_000_000
        request = _Request(log_end, deadline_ns, done, wants_topics)
        with self._changed:
            waits = self._running and len(self._open) < WAITING_COUNT_MAX
            self._open[request] = None
            if waits:
                self._gathered.append(request)
                self._changed.notify_all()
        if not waits:
            self._commit([request], outbox)

    def _commit_all(self) -> None:
        outbox = Outbox()
        while True:
            with self._changed:
                while not self._gathered and self._running:
                    self._changed.wait()
                gathered, self._gathered = self._gathered, []
            if not gathered:
                return
            self._commit(gathered, outbox)
            outbox.flush()

    def _commit(self, requests: list[_Request], outbox: Outbox) -> None:
        are_topics_saved = False
        if any(request.wants_topics for request in requests):
            # Topics are saved before the log, so that a durable message has a durable topic.
            with KeepGoing(log, "topics could not be saved; trying again"):
                self.save_topics()
                are_topics_saved = True
        flushed_end = self._flushed_end(outbox) if any(request.log_end for request in requests) else 0
        for request in requests:
            is_durable = flushed_end >= request.log_end and (are_topics_saved or not request.wants_topics)
            self._answer(request, is_durable, outbox)

    def _flushed_end(self, outbox: Outbox) -> int:
        try:
            flushed_end = self.store.flush()
        except FAULTS:
            log.exception("messages could not be made durable")
            flushed_end = self.store.flushed_end
        with KeepGoing(log, "what became durable could not be made visible"):
            self.flushed(outbox)
        return flushed_end

    def _answer(self, request: _Request, is_durable: bool, outbox: Outbox) -> None:
        with self._changed:
            if request not in self._open:
                return
            del self._open[request]
            if not self._running and not self._open:
                # Wake the watcher, because it would otherwise wait for the deadline of an answered request.
                self._changed.notify_all()
        try:
            request.done(is_durable, outbox)
        except FAULTS:
            log.exception("a send gets no answer")

    def _watch(self) -> None:
        outbox = Outbox()
        while True:
            with self._changed:
                if not self._running and not self._open:
                    return
                oldest = next(iter(self._open), None)
                left_ns = oldest.deadline_ns - self.runtime.monotonic_ns() if oldest is not None else None
                if oldest is None or (left_ns is not None and left_ns > 0):
                    self._changed.wait(left_ns / 1e9 if left_ns is not None else None)
                    continue
            self._answer(oldest, False, outbox)
            outbox.flush()


Done = Callable[[int, Outbox], None]
"""Called with the response code; the callback writes the answer to the outbox."""

WhenRegistered = Callable[[Callable[[Outbox], None], Outbox], None]
"""Calls its first argument when the name servers know all topics."""


@define(slots=True, eq=False)
class _Waiting:
    """Counts the events for which one send waits.

    Invariant: the thread that decrements `_open` to 0 under the lock answers the send.
    """

    done: Done
    lock: Lock
    _open: int
    _code: int = field(default=ResponseCode.SUCCESS, init=False)

    def flushed(self, is_durable: bool, outbox: Outbox) -> None:
        """Called when the message is on disk or the timeout has passed."""
        if not is_durable:
            self._code = ResponseCode.FLUSH_DISK_TIMEOUT
        self.ended(outbox)

    def ended(self, outbox: Outbox) -> None:
        """Called after each awaited event; the last call answers the send."""
        with self.lock:
            self._open -= 1
            is_last = not self._open
        if is_last:
            self.done(self._code, outbox)


@frozen
class Durability:
    """Decides what must be durable or registered before a send is answered."""

    commits: GroupCommit
    when_registered: WhenRegistered | None = None
    """Waits for name servers; None if the broker does not register at name servers."""
    syncs: bool = False
    """Whether messages wait for the disk (`SYNC_FLUSH`)."""

    def submit(self, log_end: int | None, done: Done, lock: Lock, outbox: Outbox, *, wants_topics: bool) -> None:
        """Call `done` when the log is durable up to `log_end`, or at a timeout; `lock` belongs to this send.

        With `wants_topics` the topic table must also be durable and known to name servers. If `log_end` is None, this
        method does not wait for the log. If there is nothing to wait for, `done` is called at once with `outbox`.
        """
        needs_log = self.syncs and log_end is not None
        needs_disk = wants_topics or needs_log
        when_registered = self.when_registered if wants_topics else None
        # This method holds one count itself, so that the count cannot reach 0 before all waits have started.
        waiting = _Waiting(done, lock, 1 + needs_disk + (when_registered is not None))
        if needs_disk:
            self.commits.submit((log_end or 0) if needs_log else 0, waiting.flushed, outbox, wants_topics=wants_topics)
        if when_registered is not None:
            when_registered(waiting.ended, outbox)
        waiting.ended(outbox)
