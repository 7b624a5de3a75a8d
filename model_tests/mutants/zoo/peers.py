"""Bugs of other systems' hold tables, each put into our own code where it does the same thing.

Kafka's purgatories, Pulsar's waiting cursors, NATS's and Redis's waiting requests, Dragonfly's, Nacos's and a second
implementation of RocketMQ's own table. Issue numbers are each project's. Leaves out RocketMQ (`findings`, `rocketmq`).
"""

from __future__ import annotations

from typing import Final

from model_tests.mutants.zoo.entry import (
    BROKER,
    CLIENT,
    FAST,
    HOLD,
    HOLD_SERVICE,
    NOTIFIER,
    PULL_PROCESSOR,
    Change,
    Entry,
)

PULLING: Final = "reference/longpoll_broker/assembly.py"


def _bug(
    name: str,
    source: str,
    says: str,
    *changes: Change,
    units: tuple[str, ...] = (),
    slip: str = "",
    policy: str = "strict",
) -> Entry:
    return Entry(name, "historic", source, says, changes, units, slip=slip, policy=policy)


PEERS: Final = (
    # -- Kafka -------------------------------------------------------------------------------------------------------
    _bug(
        "kafka-checked-and-expired",
        "Apache Kafka, KAFKA-385",
        "A request is satisfied and expires at once, and both complete it: there is no one place that says who was "
        "first. A client gets two answers to one request, or the answer of an expired one with data in it.",
        Change(
            HOLD,
            "        if pull.phase is not HELD:\n            return False\n        self._remove([pull])",
            "        if pull.phase is ANSWERED:\n            return False\n"
            "        if pull.phase is HELD:\n            self._remove([pull])",
        ),
    ),
    _bug(
        "kafka-completed-stays-armed",
        "Apache Kafka, KAFKA-1989 (and KAFKA-1430): completed operations stay in the timer",
        "A request that was answered stays in the timer's queue until its deadline. With holds of 30 s and prompt "
        "messages nearly all of the memory is of requests that are done.",
        Change(
            HOLD,
            "            if own_deadlines:\n                disarm(pull, pull.deadline_ms)",
            "            if own_deadlines and pull.spent:\n                disarm(pull, pull.deadline_ms)",
        ),
    ),
    _bug(
        "kafka-empty-lists-stay",
        "Apache Kafka, KAFKA-2160 (per-key lists are never removed)",
        "The list of those who wait for a key stays when the last has gone. A broker with many partitions that come "
        "and go ends by running out of memory.",
        Change(
            HOLD,
            "            bucket.known -= 1\n            if not bucket.known and not self.keeps_empty:\n"
            "                del self._buckets[bucket.key]\n",
            "            bucket.known -= 1\n",
        ),
    ),
    _bug(
        "kafka-removed-by-key",
        "Apache Kafka, KAFKA-2253 and `removeKeyIfEmpty` (identity is compared under the lock)",
        "An empty list is taken out of the table by its key, whoever's list stands there by now. A request that was "
        "put into a new list of that key is in no table.",
        Change(
            HOLD,
            "        if not bucket.known and not self.keeps_empty:\n            del self._buckets[key]\n"
            "        self._leave(len(gone))",
            "        if not self.keeps_empty:\n            del self._buckets[key]\n        self._leave(len(gone))",
        ),
    ),
    _bug(
        "kafka-locks-in-two-orders",
        "Apache Kafka, KAFKA-2253 and KAFKA-3994 (deadlocks)",
        "Two threads take two locks in two orders: one that completes requests, and one that looks how many there are. "
        "Sooner or later each has what the other waits for, and the broker stands still.",
        Change(
            HOLD_SERVICE,
            "            with shard.lock:\n                deadline_ms = shard.table.deadline_next_ms()\n",
            "            with self._hold_limit.guard, shard.lock:\n"
            "                deadline_ms = shard.table.deadline_next_ms()\n",
        ),
    ),
    _bug(
        "kafka-busy-lock-is-passed-over",
        "Apache Kafka, KAFKA-6653 (completion is missed under contention)",
        "Whoever wants to complete requests tries the lock, and goes away if somebody has it, who will look, it seems. "
        "That one has looked already: the request waits for its deadline although all it needs is there.",
        Change(
            HOLD_SERVICE,
            "        with shard.lock:\n            taken = traversal.start()\n",
            "        if not shard.lock.acquire(blocking=False):\n            return None\n        try:\n"
            "            taken = traversal.start()\n        finally:\n            shard.lock.release()\n",
        ),
    ),
    _bug(
        "kafka-recheck-tries-the-lock",
        "Apache Kafka, KAFKA-8334 and pull request #8657 (the story about the lock)",
        "The second look after the insert needs the lock, tries it, and is given up when another thread has it. Only "
        "under load, and only sometimes, a request waits its whole time.",
        Change(
            HOLD_SERVICE,
            "            with shard.lock:\n                removed = shard.table.recheck(pull)\n",
            "            if shard.lock.acquire(blocking=False):\n                removed = shard.table.recheck(pull)\n"
            "                shard.lock.release()\n",
        ),
    ),
    _bug(
        "kafka-deletion-completes-nothing",
        "Apache Kafka, KAFKA-9198 (a stopped replica's operations stay in purgatory)",
        "A partition goes away and nobody completes the requests that wait for it: each hears of it at its deadline.",
        Change(
            PULLING,
            '        if self.pull_processor.policy.on_truncate == "wake":\n'
            "            self.hold_service.topic_deleted(topic, outbox)\n",
            "",
        ),
        units=("service/test_delete_topic.py",),
    ),
    _bug(
        "kafka-resigned-leader-tells-some",
        "Apache Kafka, KAFKA-10677 (fetches stay in purgatory after the leader has resigned)",
        "A change of leadership completes the requests of one part of the table, and those of the others stay: some "
        "clients go to the new leader at once, others after their hold.",
        Change(
            HOLD_SERVICE,
            '            for pull in held:\n                self._queue(pull, "stopped", outbox)\n\n    def _wake_all',
            '            for pull in held:\n                self._queue(pull, "stopped", outbox)\n'
            "            if held:\n                return\n\n    def _wake_all",
        ),
        units=("service/test_slave.py", "service/test_hold_service.py"),
        slip="role_change first only",
    ),
    _bug(
        "kafka-slot-of-a-refused-one",
        "Apache Kafka, KAFKA-17848 (what is acquired for an operation that is over is not given back)",
        "A slot is taken before it is known whether the request may stay, and not given back when it may not. After "
        "enough refusals the table is full while nobody is in it.",
        Change(
            HOLD,
            "        if bucket is not None and self.queue_limit is not None and bucket.known >= "
            "self.queue_limit:\n            return False\n"
            "        if self.hold_limit is not None and not self._reserve(pull, self.hold_limit):\n"
            "            return False\n",
            "        if self.hold_limit is not None and not self._reserve(pull, self.hold_limit):\n"
            "            return False\n"
            "        if bucket is not None and self.queue_limit is not None and bucket.known >= "
            "self.queue_limit:\n            return False\n",
        ),
    ),
    _bug(
        "kafka-completes-twice-at-stop",
        "Apache Kafka, KAFKA-19312 (`onComplete` beside `tryComplete`)",
        "An operation is completed by force while another thread is about to complete it, and its callback runs "
        "twice: here what a notifier has taken is let go at its deadline as well.",
        Change(
            HOLD,
            "            elif pull.phase is TAKEN:\n                pull.spent = True\n",
            "            elif pull.phase is TAKEN:\n                pull.bucket.pulls[pull] = None\n"
            "                late.append(pull)\n",
        ),
    ),
    _bug(
        "kafka-forgets-the-second-list",
        "Apache Kafka, `cancelForKey` and KAFKA-2960 (an operation that is watched in several lists)",
        "A request stands in more than one list, and is taken out of one. When its connection closes, it is taken for "
        "somebody who waits, and let go a second time.",
        Change(
            HOLD,
            "            channel = channels[pull.channel]\n            del channel[pull]\n"
            "            if not channel:\n                del channels[pull.channel]\n",
            "            channel = channels[pull.channel]\n            if pull.phase is not QUEUED:\n"
            "                del channel[pull]\n            if not channel:\n"
            "                del channels[pull.channel]\n",
        ),
    ),
    # -- Pulsar ------------------------------------------------------------------------------------------------------
    _bug(
        "pulsar-recycled-answer",
        "Apache Pulsar, issue #24551 (a recycled operation is used by another)",
        "What was made for one request is used for the next one, which is not alike: a consumer gets the answer to "
        "somebody else's question, of an older state.",
        Change(f"{FAST}/woken_herd.py", "        if self._herd_key(ran[0]) != herd.key:\n            return\n", ""),
        units=("service/test_pull_service.py", "service/test_executors.py", "service/test_fast.py"),
    ),
    _bug(
        "pulsar-registered-twice",
        "Apache Pulsar, issue #24551 (one cursor waits thousands of times)",
        "A waiter that is put back is counted as a new one. The number of those who wait grows with every message, "
        "until the limit refuses everybody or the memory is gone.",
        Change(
            HOLD,
            "            pull.phase = HELD\n            kept.append(pull)\n",
            "            pull.phase = HELD\n            self._held += 1\n            kept.append(pull)\n",
        ),
    ),
    _bug(
        "pulsar-read-never-completes",
        "Apache Pulsar, issue #24515 (a read that is pending for ever)",
        "Between two states of a waiter there is one in which nobody cares for it: taken out of the list, and not yet "
        "read for. Here a walk that has taken pulls ends without putting them back when it wakes none.",
        Change(
            HOLD_SERVICE,
            "        return self._keep(steps, shard, traversal, outbox)"
            ' if self._policy.take == "clone_and_clear" else None',
            "        return self._keep(steps, shard, traversal, outbox) if len(traversal._kept) != 1 else None",
        ),
    ),
    _bug(
        "pulsar-stale-completion",
        "Apache Pulsar, issue #26174 (a stale completion strands a subscription)",
        "The completion of a read that was given up is taken for one of its successor. Here a notifier that has a pull "
        "in hand whose connection closed meanwhile runs it all the same.",
        Change(
            HOLD,
            "        if pull.phase is not TAKEN:\n            return False\n        self._forget([pull])\n"
            "        pull.phase = QUEUED\n",
            "        if pull.phase is TAKEN:\n            self._forget([pull])\n        pull.phase = QUEUED\n",
        ),
    ),
    _bug(
        "pulsar-cursor-state-races",
        "Apache Pulsar, issue #24569 (races of a cursor's states)",
        "A state stays what it was although what it says is over: a pull that its closing connection has given up is "
        "still taken for one that a notifier has in hand, and is let go a second time.",
        Change(
            HOLD,
            "        for pull in dropped:\n            pull.phase = ANSWERED\n",
            "        for pull in held:\n            pull.phase = ANSWERED\n",
        ),
    ),
    # -- NATS --------------------------------------------------------------------------------------------------------
    _bug(
        "nats-lone-waiter-never-expires",
        "NATS JetStream, issue #3099 (`MaxWaiting` 1)",
        "A queue of waiting requests that has exactly one in it looks like one that needs no look: the one never "
        "expires, and keeps every other out.",
        Change(
            HOLD,
            "        while self._heap and self._heap[0] <= now_ms:\n",
            "        while len(self._heap) > 1 and self._heap[0] <= now_ms:\n",
        ),
    ),
    _bug(
        "nats-evicts-the-oldest",
        "NATS JetStream, before issue #3099: a new request put an old one out",
        "At the limit of one queue the oldest waiter has to go, and hears nothing of it. Two clients that share a "
        "consumer push each other out for ever.",
        Change(
            HOLD,
            "        if bucket is not None and self.queue_limit is not None and bucket.known >= "
            "self.queue_limit:\n            return False\n",
            "        if bucket is not None and self.queue_limit is not None and bucket.known >= "
            "self.queue_limit:\n            if not bucket.pulls:\n                return False\n"
            "            self._remove([next(iter(bucket.pulls))])\n"
            "            bucket = self._buckets.get((pull.topic, pull.queue_id))\n",
        ),
    ),
    _bug(
        "nats-client-waits-no-longer",
        "NATS, nats.js issue #149 (the client's own padding of an expiry)",
        "A client waits exactly as long as it asks to be held, so an answer at the deadline comes too late for it: "
        "every quiet hold ends in an error and a new connection.",
        Change(
            f"{CLIENT}/consume/puller.py",
            "                timeout_s=self._config.pull_timeout_s,\n",
            "                timeout_s=self._config.hold_s,\n",
        ),
    ),
    _bug(
        "nats-expires-lazily",
        "NATS JetStream, waiting requests that are looked at only when another one comes",
        "An expired request is noticed when the next message or the next request is there. On a quiet stream nobody is "
        "told that the wait is over.",
        Change(
            HOLD_SERVICE,
            "        if now_ms < self._clock_sleeps_until_ms:\n            return\n        count = 0\n",
            "        if now_ms < self._clock_sleeps_until_ms or len(self) < 2:\n            return\n"
            "        count = 0\n",
        ),
    ),
    # -- Redis and Dragonfly -----------------------------------------------------------------------------------------
    _bug(
        "redis-timeout-begins-anew",
        "Redis, issue #12998 (a command that is executed again gets its whole timeout again)",
        "Whoever is looked at and has to wait on gets a new deadline: a client that asked for 10 s waits 15, or for "
        "ever on a busy key.",
        Change(
            NOTIFIER,
            "        self._kept.append(pull)\n        return None\n",
            "        pull.deadline_ms = self.now_ms + max(pull.timeout_ms, 2)\n"
            "        self._kept.append(pull)\n        return None\n",
        ),
        slip="notify_each renews what it keeps",
        policy="strict-clone",
    ),
    _bug(
        "redis-processed-for-ever",
        "Redis, issue #12301 (blocked commands are processed again and again)",
        "A command that is tried again and has to wait on makes its key ready once more, so it is tried again: the "
        "one thread turns in a circle, and no other client is served.",
        Change(
            HOLD_SERVICE,
            "        return visible_end if any(wants_visible(pull, self._ends, visible_end) for pull in held) "
            "else None",
            "        return visible_end if held else None",
        ),
    ),
    _bug(
        "redis-deleted-key-wakes-nobody",
        "Redis, issue #6887 (`DEL` does not wake who waits with `XREADGROUP`)",
        "A topic is deleted while a pull is on its way into the table: the deletion has looked before, and the pull "
        "waits its whole time for a queue that is gone.",
        Change(
            PULL_PROCESSOR,
            '                if self.checks.topics.get(pull.topic) is None and self.policy.on_truncate == "wake":\n',
            '                if False and self.policy.on_truncate == "wake":\n',
        ),
        units=("service/test_delete_topic.py",),
    ),
    _bug(
        "redis-last-come-first-served",
        "Redis, the promise of `BLPOP` to serve in the order of waiting",
        "Those who wait are woken last come first: under load the first waits until its time is over, while others "
        "have their second turn.",
        Change(NOTIFIER, "        self._ready.extend(woken)\n", "        self._ready.extend(reversed(woken))\n"),
    ),
    _bug(
        "dragonfly-head-hides-the-others",
        "Dragonfly, issue #8067 (only the front waiter is looked at)",
        "The first who waits wants something else, and nobody behind it is looked at: a message stays with the broker "
        "although a client waits for exactly that.",
        Change(
            NOTIFIER,
            "                if not self._wakes(pull):\n                    continue\n",
            "                if not self._wakes(pull):\n                    break\n",
        ),
    ),
    _bug(
        "dragonfly-deletion-wakes-the-first",
        "Dragonfly, issue #7903 (waiters are not woken when a key is deleted or changes its type)",
        "A deletion wakes one of those who wait for the key; the others wait on for what cannot come.",
        Change(
            HOLD_SERVICE,
            '            for pull in held:\n                self._queue(pull, "error", outbox)\n',
            '            for pull in held[:1]:\n                self._queue(pull, "error", outbox)\n',
        ),
        units=("service/test_delete_topic.py", "service/test_hold_service.py"),
        slip="queue_deleted first only",
    ),
    # -- Nacos and others --------------------------------------------------------------------------------------------
    _bug(
        "nacos-timer-before-the-add",
        "Nacos, issues #5561 and #8175 (the timeout is scheduled before the client is added)",
        "The clock is told of a deadline before the request is in the table: it looks, finds nothing, and sleeps. The "
        "request has no timer any more.",
        Change(
            HOLD_SERVICE,
            '        after_ns = self._events.now_ns()\n        self._runtime.step("hold")\n        with shard.lock:\n',
            '        if policy.expiry == "own_deadline":\n            self._tell_clock(pull.deadline_ms, outbox)\n'
            '        after_ns = self._events.now_ns()\n        self._runtime.step("hold")\n        with shard.lock:\n',
        ),
        Change(
            HOLD_SERVICE,
            '        if policy.expiry == "own_deadline" and pull.phase is HELD:\n'
            "            self._tell_clock(pull.deadline_ms, outbox)\n",
            "",
        ),
    ),
    _bug(
        "nacos-second-listener-waits",
        "Nacos, issue #373 (the second listener waits a whole period)",
        "Of two who wait for one key the first is told of a change, and the second waits for its period to end.",
        Change(
            NOTIFIER,
            "            woken.append(pull)\n            if self.now_ms < pull.deadline_ms:\n"
            "                offset, wanted = pull.offset, pull.filter\n",
            "            woken.append(pull)\n            break\n",
        ),
    ),
    _bug(
        "rocketmq-rust-counts-twice",
        "mxsm/rocketmq-rust, issue #2509 (the counter of waiting requests is raised twice)",
        "Each request counts twice, so the table is full at half of what it may hold, and never counts as empty.",
        Change(
            HOLD,
            "            self.used += count\n            return True\n",
            "            self.used += 2 * count\n            return True\n",
        ),
    ),
    _bug(
        "rocketmq-rust-answers-twice",
        "mxsm/rocketmq-rust, issue #9226 (callbacks, exactly once)",
        "What is woken is handed to the executor twice, once with its herd and once by itself: the client gets a "
        "second answer to a request that it has forgotten.",
        Change(
            f"{BROKER}/hold/pull_processor.py",
            '            later.add((pull, "woken") for pull in pulls)\n        return ()\n',
            '            later.add((pull, "woken") for pull in pulls)\n        return pulls\n',
        ),
    ),
)
