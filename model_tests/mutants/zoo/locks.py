"""Our own locks and guards, each removed alone; and wakeups that are moved or missing.

A critical section of one bytecode cannot be interrupted. Locks of the hold service whose absence changes nothing are
listed with reasons in `test_zoo.py`. Faults that need no interleaving: `ours`.
"""

from __future__ import annotations

from typing import Final

from model_tests.mutants.zoo.entry import (
    BROKER,
    CHANNEL,
    HOLD_SERVICE,
    STORE,
    Change,
    Entry,
    Kind,
)

DURABILITY: Final = f"{BROKER}/send/durability.py"
MESSAGE_STORE: Final = f"{STORE}/message_store.py"
THREADS: Final = "reference/longpoll_runtime/threads.py"
TRANSPORT: Final = f"{BROKER}/io/transport.py"
NOTHING: Final = '__import__("contextlib").nullcontext()'
LOST: Final = "Under load, and seldom, "


def _lock(name: str, says: str, file: str, before: str, after: str, *, units: tuple[str, ...] = ()) -> Entry:
    return Entry(name, "lock", "a lock of ours, taken away", says, (Change(file, before, after),), units)


def _shard(method: str, inside: str, says: str, indent: int = 8) -> Entry:
    """One `with shard.lock` of the hold service, by the text that follows it."""
    space = " " * indent
    before = f"{space}with shard.lock:\n{space}    {inside}"
    return _lock(f"lock-{method}", says, HOLD_SERVICE, before, before.replace("with shard.lock:", "if True:"))


def _moved(
    name: str,
    says: str,
    *changes: Change,
    units: tuple[str, ...] = (),
    kind: Kind = "ours",
    source: str = "a wakeup of ours",
) -> Entry:
    return Entry(name, kind, f"{source}, moved or forgotten", says, changes, units)


LOCKS: Final = (
    _lock(
        "lock-all-shards",
        "No shard of the hold table has a lock. Buckets are walked while pulls are put in: wakeups are lost, pulls are "
        "run twice, and now and then a dictionary changes its size under its reader.",
        HOLD_SERVICE,
        "                runtime.lock(),\n",
        f"                {NOTHING},\n",
    ),
    _shard(
        "hold",
        "cause = self._hold_locked",
        LOST + "a pull is put into a bucket that is being taken away, and no notifier finds it.",
    ),
    _shard(
        "hold-together",
        "left_out += shard.table.hold_together(part)",
        LOST + "the same for pulls that one connection brings side by side.",
        indent=16,
    ),
    _shard(
        "find-bucket",
        "return shard.table.find_bucket(key)",
        LOST + "two pulls each make the bucket of one queue; the first one's pull is in a bucket that nobody has.",
    ),
    _shard(
        "recheck",
        "    removed = shard.table.recheck(pull)".strip(),
        LOST + "a recheck takes a pull out while a notifier does: it is run twice, or a count is wrong for good.",
        indent=12,
    ),
    _shard(
        "walk-start",
        "taken = traversal.start()",
        LOST + "a walk meets a bucket that changes under its hands, and ends by an error; those in it are not told.",
    ),
    _shard(
        "walk-end",
        "traversal.end()\n            return None",
        LOST + "channels and deadlines are forgotten twice or not at all after a large herd was woken.",
        indent=16,
    ),
    _shard(
        "look-at-each",
        "if not shard.table.queue_taken(wake.pull):",
        LOST + "a pull whose connection closes is run while it is forgotten.",
        indent=16,
    ),
    _shard(
        "keep", "kept = traversal.end()", LOST + "what a notifier puts back is put into a bucket that is being taken."
    ),
    _shard(
        "wait",
        "deadline_ms = shard.table.deadline_next_ms()",
        LOST + "the heap of deadlines is changed by two at once, and the clock sleeps beyond one of them.",
        indent=12,
    ),
    _shard(
        "run",
        "late = shard.table.expire(",
        LOST + "a pull expires while a message wakes it, and is answered twice.",
        indent=12,
    ),
    _shard(
        "drop-channel",
        "dropped += len",
        LOST + "the pulls of a closed connection are forgotten while one of them is woken: a count is wrong for good.",
        indent=12,
    ),
    _shard(
        "topic-deleted",
        "held = shard.table.drain(topic, left)",
        LOST + "a deletion takes out what a message wakes at the same time.",
        indent=12,
    ),
    _shard(
        "answer-all",
        "held = shard.table.drain()\n            for pull in held:\n"
        '                self._queue(pull, "stopped", outbox)\n\n    def _wake',
        LOST + "the master's return answers pulls that a notifier has taken.",
        indent=12,
    ),
    _shard(
        "wake-all",
        "taken = shard.table.take(key)",
        LOST + "the master's return takes a bucket that a notifier takes as well.",
        indent=16,
    ),
    _shard(
        "stop",
        "held = shard.table.drain()\n            self._events.record",
        LOST + "the stop misses a pull that is put in meanwhile; its client hears nothing.",
        indent=12,
    ),
    _lock(
        "lock-channel-flush",
        "Two threads send on one connection at once: the halves of two answers are mixed, and the client closes a "
        "connection that brings it garbage.",
        CHANNEL,
        "        with self._lock:\n            self.queued_size = 0\n",
        "        if True:\n            self.queued_size = 0\n",
    ),
    _lock(
        "lock-channel-close",
        "A connection is closed while another thread sends on it: the bytes go to a socket that is closed, or to the "
        "next connection that has its number.",
        CHANNEL,
        "        with self._lock:\n            if self.closed:\n                return\n",
        "        if True:\n            if self.closed:\n                return\n",
    ),
    _lock(
        "lock-append",
        "Two producers append at once: their records overlap in the log, and neither can be read again.",
        MESSAGE_STORE,
        "        with self._append_lock:\n            return self._append(message, self._log.end)\n",
        "        return self._append(message, self._log.end)\n",
        units=("simulate/test_locksets.py", "service/test_send.py"),
    ),
    _lock(
        "lock-append-burst",
        "The same for the sends that one connection brings side by side: they overlap another producer's.",
        MESSAGE_STORE,
        "        with self._append_lock:\n"
        "            store_ms = max(self._runtime.unix_ms(), self._store_ms)\n            burst",
        "        if True:\n            store_ms = max(self._runtime.unix_ms(), self._store_ms)\n            burst",
        units=("store/test_message_store.py", "service/test_send.py"),
    ),
    _lock(
        "lock-append-batch",
        "The same for a batch: another producer's message stands inside it, or over it.",
        MESSAGE_STORE,
        "        with self._append_lock:\n            for message in checked:\n",
        "        if True:\n            for message in checked:\n",
        units=("store/test_message_store.py", "service/test_long_batches.py"),
    ),
    _lock(
        "lock-delete-topic",
        "A topic is deleted while others append and make visible: what was handed over is lost with it, and messages "
        "of other topics are passed over.",
        MESSAGE_STORE,
        "            with self._dispatch_lock, self._append_lock:\n                if refused is not None:\n",
        "            if True:\n                if refused is not None:\n",
        units=("store/test_retention.py", "service/test_delete_topic.py"),
    ),
    _lock(
        "lock-begin-deletion",
        "A topic leaves while somebody appends to it: the record is in the log, and its queue is known to nobody who "
        "would list it, or is made anew beside the deletion.",
        MESSAGE_STORE,
        "        with self._dispatch_lock, self._append_lock:\n            self._table.leave(topic, queue_ids)\n",
        "        self._table.leave(topic, queue_ids)\n",
        units=("store/test_retention.py", "service/test_delete_topic.py"),
    ),
    _lock(
        "lock-finish-deletion",
        "Two deletions of one topic end at once: the second finds nothing to end, or ends what the first is still at.",
        MESSAGE_STORE,
        "        with self._deletion_lock:\n            if topic not in table.leaving:\n",
        "        if True:\n            if topic not in table.leaving:\n",
        units=("store/test_retention.py", "service/test_delete_topic.py"),
    ),
    _lock(
        "lock-remove-left",
        "What a deletion before could not remove is removed while a producer makes a queue of the name.",
        MESSAGE_STORE,
        "                with self._append_lock:\n                    table.remove_left(topic)\n",
        "                if True:\n                    table.remove_left(topic)\n",
        units=("store/test_retention.py",),
    ),
    _lock(
        "lock-remove-expired",
        "The log's oldest files go while a producer appends the next one: that one is forgotten with them, and what "
        "stands in it cannot be read.",
        MESSAGE_STORE,
        "            with self._flush_lock, self._dispatch_lock, self._append_lock:\n"
        "                count = expired()\n",
        "            if True:\n                count = expired()\n",
        units=("store/test_store_door.py", "store/test_retention.py"),
    ),
    _lock(
        "lock-flush-queues",
        "Two threads make the queues durable at once: one says that a queue is while the other has not done it.",
        MESSAGE_STORE,
        "                with self._queues_lock:\n                    for queue in queues[start : start + a_turn]:\n",
        "                if True:\n                    for queue in queues[start : start + a_turn]:\n",
        units=("store/test_message_store.py", "store/test_store_door.py"),
    ),
    _lock(
        "lock-put-prepared",
        "A batch that was prepared takes its place in the log while another producer takes the same one: one of the "
        "two overwrites the other, and both are acknowledged.",
        MESSAGE_STORE,
        "        with self._append_lock:\n            # First, as in `put_batch`.\n",
        "        if True:\n            # First, as in `put_batch`.\n",
        units=("store/test_store_door.py",),
    ),
    _lock(
        "lock-queues-listed",
        "Which queues there are is asked while a topic begins to leave, or stays after all: for a moment it is in "
        "neither table, its queues are not made durable, and the checkpoint says that they are.",
        MESSAGE_STORE,
        "            with self._dispatch_lock:\n                # Under the lock, so that",
        "            if True:\n                # Under the lock, so that",
        units=("store/test_store_troubles.py",),
    ),
    _lock(
        "lock-checkpoint",
        "Two threads write the checkpoint at once: it forgets what the other wrote into it, and a recovery walks a log "
        "that needs no walk.",
        MESSAGE_STORE,
        "            with self._queues_lock:\n                known = self._checkpoint\n",
        "            if True:\n                known = self._checkpoint\n",
        units=("store/test_store_troubles.py",),
    ),
    _lock(
        "lock-expired-queues",
        "Queues forget their oldest files while somebody syncs them, or while their topic is deleted: what is removed "
        "twice is an error, and the rest of the queues keeps what the log has no longer.",
        MESSAGE_STORE,
        "        with self._queues_lock, self._deletion_lock:\n            with self._flush_lock",
        "        if True:\n            with self._flush_lock",
        units=("store/test_store_troubles.py",),
    ),
    _lock(
        "lock-trim",
        "A queue forgets its oldest files while the dispatcher gives it a new one: that one is forgotten with them.",
        MESSAGE_STORE,
        "                with self._dispatch_lock:\n                    for queue in queues[start",
        "                if True:\n                    for queue in queues[start",
        units=("store/test_store_troubles.py",),
    ),
    _lock(
        "lock-dispatch",
        "Two threads that have appended make messages visible at once: one message is put into its queue twice, or "
        "the cursor passes one over.",
        MESSAGE_STORE,
        "        with self._dispatch_lock:\n            arrivals = self._dispatcher.dispatch(limit)\n",
        "        if True:\n            arrivals = self._dispatcher.dispatch(limit)\n",
        units=("store/test_message_store.py", "service/test_dispatch_service.py"),
    ),
    _lock(
        "lock-flush",
        "Two threads make the log durable at once: one says that it is while the other has not done it.",
        MESSAGE_STORE,
        "        with self._flush_lock:\n            if self._log.flushed_end == self._log.end:\n",
        "        if True:\n            if self._log.flushed_end == self._log.end:\n",
        units=("store/test_message_store.py", "service/test_send.py", "simulate/test_locksets.py"),
    ),
    _lock(
        "lock-dispatcher-reads",
        "The dispatcher looks whether it has caught up without the append lock: a record that comes between is "
        "neither handed over nor read, and stays unseen until the next one.",
        f"{STORE}/dispatch.py",
        "            with self._append_lock:\n                if self.handed:\n",
        "            if True:\n                if self.handed:\n",
    ),
    _lock(
        "lock-group-commit-answer",
        "The committer and the watcher answer one send: the producer gets two answers, one of which says that the "
        "message is not durable.",
        DURABILITY,
        "        with self._changed:\n            if request not in self._open:\n"
        "                return\n            del self._open[request]\n"
        "            if not self._running and not self._open:\n",
        "        if request not in self._open:\n            return\n        del self._open[request]\n"
        "        with self._changed:\n            if not self._running and not self._open:\n",
    ),
    _lock(
        "lock-queue-locks",
        "Two consumers of one group ask for a queue at once, and both get it: messages that must be in order are "
        "consumed by two.",
        f"{BROKER}/rocketmq/admin/lock_processor.py",
        "            with self.guard:\n                now_ms = ",
        "            if True:\n                now_ms = ",
        units=("core/test_offsets.py", "service/test_clients.py"),
    ),
    # -- wakeups -----------------------------------------------------------------------------------------------------
    _moved(
        "idle-look-before-visible",
        "Whether anybody waits is looked at before the messages are made visible. A pull that is put in between the "
        "look and the message is told by nobody: its recheck came too early, and the dispatcher thinks it is idle.",
        Change(
            HOLD_SERVICE,
            '            after_ns = self.events.now_ns()\n            self.runtime.step("make_visible")\n'
            "            try:\n",
            "            after_ns = self.events.now_ns()\n"
            "            is_idle = self.passes_idle and not len(self.hold_service)\n"
            '            self.runtime.step("make_visible")\n            try:\n',
        ),
        Change(
            HOLD_SERVICE,
            "not self.before_visible and not (self.passes_idle and not len(self.hold_service)):",
            "not self.before_visible and not is_idle:",
        ),
    ),
    _moved(
        "keep-tells-no-clock",
        "What a notifier puts back is due earlier than what the clock sleeps for, and nobody wakes the clock.",
        Change(
            HOLD_SERVICE,
            '        if kept and self._policy.expiry == "own_deadline":\n'
            "            self._tell_clock(min(pull.deadline_ms for pull in kept), outbox)\n",
            "",
        ),
    ),
    _moved(
        "stop-is-told-last",
        "The stop lets everybody go, and only then says that nothing is held any more: a pull that comes in between "
        "is held by a broker that has stopped.",
        Change(
            HOLD_SERVICE,
            "        self._stopping = True\n        if self._policy.on_stop",
            "        if self._policy.on_stop",
        ),
        Change(
            HOLD_SERVICE,
            '            self._events.record("stop", held, after_ns)\n            for pull in held:\n'
            '                self._queue(pull, "stopped", outbox)\n',
            '            self._events.record("stop", held, after_ns)\n            for pull in held:\n'
            '                self._queue(pull, "stopped", outbox)\n        self._stopping = True\n',
        ),
    ),
    _moved(
        "stop-is-looked-at-before",
        "Whether the broker stops is looked at before the lock of the insert is taken: a pull that waits for the lock "
        "meanwhile is held by a broker that has stopped.",
        Change(
            HOLD_SERVICE,
            '        self._runtime.step("hold")\n        with shard.lock:\n            cause = self._hold_locked',
            '        stops = self._stopping and self._policy.on_stop == "answer"\n        self._runtime.step("hold")\n'
            '        with shard.lock:\n            cause: Cause | None = "stopped" if stops else self._hold_locked',
        ),
        Change(
            HOLD_SERVICE,
            '        if self._stopping and self._policy.on_stop == "answer":\n            return "stopped"\n',
            "",
        ),
    ),
    _moved(
        "queue-tells-nobody",
        "A task is put into the pool's queue and no worker is told: it waits until one wakes by itself, half a second "
        "later.",
        Change(
            THREADS,
            "            self._ring()\n            self._items.append(item)\n",
            "            self._items.append(item)\n",
        ),
        units=("service/test_channel.py", "service/test_runtime.py", "service/test_executors.py"),
    ),
    _moved(
        "queue-has-no-time-left",
        "A thread is woken for an item that another takes, and looks only when its time is over: what time is left, "
        "less than none, is taken for no limit, and it waits for ever (`SimpleQueue.get` of CPython up to 3.12).",
        Change(
            THREADS,
            "timeout=-1 if end_s is None else max(0.0, end_s - time.monotonic())",
            "timeout=-1 if end_s is None or end_s < time.monotonic() else max(0.0, end_s - time.monotonic())",
        ),
        units=("service/test_channel.py", "service/test_runtime.py"),
        source="a wait of CPython's",
    ),
    _moved(
        "committer-is-not-told",
        "A send that waits for the disk is put down, and the committer is not woken: it is answered by the watcher, as "
        "not durable, when its time is over.",
        Change(
            DURABILITY,
            "                self._gathered.append(request)\n                self._changed.notify_all()\n",
            "                self._gathered.append(request)\n",
        ),
    ),
    _moved(
        "watcher-is-not-told-of-the-end",
        "The last request that waits is answered while the broker stops, and the watcher sleeps on to its deadline: "
        "the stop takes five seconds more.",
        Change(
            DURABILITY,
            "                # Wake the watcher, which would otherwise wait for the deadline of an answered request.\n"
            "                self._changed.notify_all()\n",
            "                pass\n",
        ),
    ),
    _moved(
        "close-wakes-no-loop",
        "A connection that must be closed is put down for its loop, and the loop sleeps on: a client that does not "
        "read keeps its connection until something else happens.",
        Change(
            TRANSPORT,
            "        self._to_close.append(channel)\n        self.poller.wake()\n",
            "        self._to_close.append(channel)\n",
        ),
    ),
    _moved(
        "accepted-wakes-no-loop",
        "A connection that one loop accepted for another waits until that one happens to wake, up to ten seconds.",
        Change(
            TRANSPORT,
            "        self._to_adopt.append(accepted)\n        self.poller.wake()\n",
            "        self._to_adopt.append(accepted)\n",
        ),
    ),
    _moved(
        "timer-is-not-told",
        "The client's timer is given something that is due earlier than what it sleeps for, and sleeps on: what was "
        "to be tried again after 20 ms is tried after three seconds, or never.",
        Change(
            "reference/longpoll_client/timer.py",
            "            heapq.heappush(self._entries, (due_ns, self._count, action))\n"
            "            self._changed.notify()\n",
            "            heapq.heappush(self._entries, (due_ns, self._count, action))\n",
        ),
    ),
    _moved(
        "rest-is-not-watched",
        "A socket takes half of an answer, and the loop is not told to go on when it takes more: the client waits for "
        "the rest until something else is sent to it.",
        Change(
            CHANNEL,
            "                if bool(pending) != self._watches_write:\n",
            "                if not pending and self._watches_write:\n",
        ),
    ),
)
