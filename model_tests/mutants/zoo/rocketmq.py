"""RocketMQ's bugs of holding and waking that no knob is, each put into our own code where it does the same thing."""

from __future__ import annotations

from typing import Final

from model_tests.mutants.zoo.entry import (
    BROKER,
    CLIENT,
    HOLD,
    HOLD_SERVICE,
    NOTIFIER,
    PULL_PROCESSOR,
    STORE,
    Change,
    Entry,
)

HANDLER: Final = "reference/longpoll_broker/handler.py"
PULLING: Final = "reference/longpoll_broker/assembly.py"


def _bug(name: str, source: str, says: str, *changes: Change, units: tuple[str, ...] = (), slip: str = "") -> Entry:
    return Entry(f"rocketmq-{name}", "historic", f"Apache RocketMQ, {source}", says, changes, units, slip=slip)


ROCKETMQ: Final = (
    _bug(
        "wakeup-lost-at-reset",
        "issue #10543 (`ServiceThread.wakeup`; known since #1643 and #5710)",
        "A thread that is about to sleep forgets that it was woken: a wakeup between its look and its sleep is lost. "
        "Here the clock's thread does not say that it looks, so an earlier deadline that comes meanwhile wakes nobody, "
        "and that pull is answered when the next one is due.",
        Change(
            HOLD_SERVICE,
            '        self._clock_sleeps_until_ms = float("inf")\n        if not self._hold_limit.used:\n',
            "        if not self._hold_limit.used:\n",
        ),
    ),
    _bug(
        "counter-drifts",
        "issue #4072 (`totalPollingNum`)",
        "The count of held requests is lowered also when there was nothing to take out. It drifts until the limit "
        "means nothing, and the metric shows fewer waiting than there are.",
        Change(
            HOLD,
            "            return False\n        self._remove([pull])",
            "            self._leave(1)\n            return False\n        self._remove([pull])",
        ),
    ),
    _bug(
        "recheck-only-of-the-first",
        "issue #8472 (notify after suspend only where some count is left)",
        "The recheck after the insert is made on a condition that says nothing about this request: here, only by the "
        "one that finds its bucket empty. Whoever joins a bucket while a message comes is lost to it.",
        Change(
            HOLD_SERVICE,
            '        if policy.recheck_after_hold == "after_insert":\n',
            '        if policy.recheck_after_hold == "after_insert" and len(shard.table.held(key)) <= 1:\n',
        ),
        slip="hold recheck if bucket looked empty",
    ),
    _bug(
        "retry-topic-by-another-name",
        "issue #9632 (retry topics of the first version are not awakened)",
        "Who holds and who notifies write the name of a retry topic differently, so a message to be tried again wakes "
        "nobody: the consumer gets it at its deadline, up to 15 s late, although every other topic is prompt.",
        Change(
            HOLD_SERVICE,
            "self.hold_service.notify((arrival.topic, arrival.queue_id), visible_end",
            'self.hold_service.notify((arrival.topic.replace("%RETRY%", "%RETRY%_"), arrival.queue_id), visible_end',
        ),
    ),
    _bug(
        "cleanup-answers-nobody",
        "issue #10071 (`cleanUnusedResource`)",
        "When a topic is cleaned up, the requests that are held for it are taken out of the table and forgotten. Their "
        "clients hear nothing at all, and wait until their own time is over.",
        Change(
            HOLD_SERVICE,
            "                held = shard.table.drain(topic, left)\n            left -= len(held)\n"
            "            for pull in held:\n"
            '                self._queue(pull, "error", outbox)\n',
            "                left -= len(shard.table.drain(topic, left))\n",
        ),
        units=("service/test_delete_topic.py", "service/test_hold_service.py"),
    ),
    _bug(
        "evicted-unanswered",
        "issue #9579 and pull request #9581 (a cache evicts held requests)",
        "The table is a cache with a largest size: when it is full, somebody who waits is put out of it to make room, "
        "without an answer. Under load clients hang for as long as they are ready to wait.",
        Change(
            HOLD,
            "        if self.hold_limit is not None and not self._reserve(pull, self.hold_limit):\n"
            "            return False\n",
            "        if self.hold_limit is not None and not self._reserve(pull, self.hold_limit):\n"
            "            if not self._held:\n                return False\n"
            "            oldest = next(pull for bucket in self._buckets.values() for pull in bucket.pulls)\n"
            "            self._remove([oldest])\n            self._reserve(pull, self.hold_limit)\n",
        ),
    ),
    _bug(
        "deadline-as-an-int",
        "`PopLongPollingService.COMPARATOR`, which casts a difference of longs to int",
        "Deadlines are compared by numbers of 31 bits. On a machine that has been up for 25 days their order is wrong, "
        "and requests are kept that are long over.",
        Change(HOLD, "heapq.heappush(self._heap, deadline_ms)", "heapq.heappush(self._heap, deadline_ms & 0x7FFFFFFF)"),
    ),
    _bug(
        "closed-waiter-spends-the-notification",
        "`PopLongPollingService.wakeUp`, by reading: a notification goes to a request whose channel is inactive",
        "A notifier meets a request whose connection has closed meanwhile, and takes its work for done. Those behind "
        "it in the list are neither woken nor put back.",
        Change(
            HOLD_SERVICE,
            "                    if not shard.table.queue_taken(wake.pull):\n                        continue\n",
            "                    if not shard.table.queue_taken(wake.pull):\n                        return\n",
        ),
    ),
    _bug(
        "thrown-request-is-dropped",
        "issue #8842 (`catch (ConsumeQueueException) { continue; }`)",
        "The exception of one request is caught, and the loop goes on to the next: the one that threw is neither "
        "answered nor put back. Its client waits for ever.",
        Change(
            NOTIFIER,
            '                self._waiting.popleft()\n                return Wake(pull, "thrown")\n',
            "                self._waiting.popleft()\n                return None\n",
        ),
    ),
    _bug(
        "queue-looked-up-in-vain",
        "issue #10615 (a flag of one store switches every notification off)",
        "One part of the store says that it notifies by itself, and nobody notifies for the others any more: all "
        "topics but a few are delivered at the deadline only.",
        Change(
            HOLD_SERVICE,
            "            if self.notifies and not self.before_visible and not (",
            "            if self.in_batches and self.notifies and not self.before_visible and not (",
        ),
    ),
    _bug(
        "inverted-hold-time",
        "alibaba/RocketMQ issue #29 (`if (isLongPollingEnable) timeout = shortPolling`)",
        "The condition is the wrong way round: with long polling on, every pull is held for one second, whatever it "
        "asked for. Clients poll once a second, and the broker does ten times the work.",
        Change(PULL_PROCESSOR, "        if not self.config.long_polling:\n", "        if self.config.long_polling:\n"),
    ),
    _bug(
        "cursor-skips-what-failed",
        "issue #1164 and pull request #1181 (a dispatch error must not skip `reputFromOffset`)",
        "The dispatcher goes on behind a record that it could not put into its queue: the message is in the log, and "
        "no consumer ever sees it.",
        Change(
            f"{STORE}/dispatch.py",
            "                self.behind[queue] = deque((arrival,))\n",
            "                return\n",
        ),
        units=("store/test_dispatcher.py", "store/test_dispatcher.py"),
    ),
    _bug(
        "full-queue-is-ignored",
        "pull request #6507 (`ColdDataPullRequestHoldService` ignores what `offer` says)",
        "A request is offered to a full queue and nobody looks whether it was taken: it is in no queue and in no "
        "table, and its client hears nothing.",
        Change(
            PULL_PROCESSOR,
            "        return self.offer(\n            lambda worker_outbox: self.run(pull, cause, worker_outbox),\n"
            '            lambda worker_outbox: self.refuse(pull, "busy", worker_outbox),\n        )\n',
            "        self.offer(\n            lambda worker_outbox: self.run(pull, cause, worker_outbox),\n"
            '            lambda worker_outbox: self.refuse(pull, "busy", worker_outbox),\n        )\n'
            "        return True\n",
        ),
    ),
    _bug(
        "failure-is-swallowed",
        "issue #11172 and pull request #5754 (a future without `exceptionally`)",
        "What a request's handler raises ends a future that nobody looks at: no answer is written, not even an error. "
        "One request in a million hangs its client for 30 s.",
        Change(
            f"{BROKER}/io/processors.py",
            "    except FAULTS as error:\n        return failure(channel, command, error)\n",
            '    except FAULTS:\n        log.exception("a request failed")\n        return None\n',
        ),
        units=("service/test_bad_input.py", "service/test_bad_input.py"),
    ),
    _bug(
        "unwritable-is-not-answered",
        "issue #5066 (`channelIsWritable`)",
        "A connection that has bytes unsent gets no answer to a woken pull at all. A client whose network is slow for "
        "a moment loses its pull, and with it the queue.",
        Change(
            PULL_PROCESSOR,
            "        # Java answers a woken pull in JSON, its default, whatever the request used.\n",
            "        if channel.unsent():\n            pull.phase = ANSWERED\n            return\n",
        ),
    ),
    _bug(
        "hold-without-a-cap",
        "`PullMessageProcessor`, by reading: `suspendTimeoutMillis` has no cap",
        "A pull may ask to be held for ever, and is: the table fills with requests of clients that are long gone, and "
        "a sum that overflows expires at once.",
        Change(
            PULL_PROCESSOR,
            "        return min(max(asked_ms, 0), self.config.hold_timeout_ms_max)",
            "        return asked_ms",
        ),
        units=("service/test_bad_input.py", "service/test_pull_service.py"),
    ),
    _bug(
        "slave-does-not-notify",
        "4.9's dispatcher on a slave, until RIP-34 (5.0.0)",
        "A slave makes messages visible and tells nobody: who waits there is answered by the scan or at the deadline, "
        "so consumers of a slave are seconds behind those of its master.",
        Change(
            PULLING,
            "(not shared.role.is_slave or shared.traits.slave_notifies)",
            "(not shared.role.is_slave)",
        ),
        units=("service/test_slave.py",),
    ),
    _bug(
        "slave-holds-beside-its-master",
        "issues #548 and #8322 (the slave's redirect is not reached)",
        "A slave whose master is alive holds a pull instead of sending it there: its consumer waits for what the "
        "replication has not brought yet.",
        Change(
            f"{BROKER}/hold/pull.py",
            "    return decision if code == decision.code else OffsetMoved(read, code)",
            "    return decision",
        ),
        units=("service/test_slave.py", "core/test_topics.py"),
    ),
    _bug(
        "dispatcher-dies-of-an-error",
        "issue #7902 (the dispatcher's thread catches only some exceptions)",
        "The loop that makes messages visible catches what its author thought of; another exception ends its thread. "
        "The broker takes messages, and delivers none until it is started again.",
        Change(
            HOLD_SERVICE,
            "            except FAULTS as error:\n                # The records are in the log.",
            "            except KeyError as error:\n                # The records are in the log.",
        ),
        units=("service/test_hold_sections.py", "service/test_dispatch_service.py"),
    ),
    _bug(
        "scanner-dies-of-an-error",
        "4.9's `checkHoldRequest`, whose exceptions its thread's loop has to catch",
        "One exception of a scan ends the scanner: no deadline is noticed any more, and every hold lasts until a "
        "message comes.",
        Change(
            HOLD_SERVICE,
            "scan(outbox)\n            except FAULTS:\n",
            "scan(outbox)\n            except KeyError:\n",
        ),
        units=("service/test_hold_sections.py",),
    ),
    _bug(
        "late-task-is-not-told",
        "ROCKETMQ-22, alibaba #366 and #379 (`castRunnable` of `BrokerFastFailure`)",
        "Who looks for tasks that have waited too long cannot read a woken pull's task: it stays in the queue, and "
        "its client is told nothing while every worker is busy.",
        Change(
            PULL_PROCESSOR,
            "                _do(late.too_late, outbox)\n",
            "                continue\n",
        ),
    ),
    _bug(
        "cached-size-drifts",
        "issue #7538 (`cachedMsgSize`; also #1190, #3937)",
        "The client counts the bytes of what it has consumed wrongly, so flow control thinks that the queue is full: "
        "it is never pulled again, and the group's lag grows until a restart.",
        Change(
            f"{CLIENT}/consume/puller.py",
            "                del waiting[offset]\n                self.size -= len(message.body)\n",
            "                del waiting[offset]\n",
        ),
    ),
    _bug(
        "client-stops-at-an-error",
        "issue #1918 and pull request #9278 (`PullMessageService.run` catches too little)",
        "An answer that cannot be read ends the client's pulling of that queue: nothing asks again, and the queue "
        "stands still while everything looks alive.",
        Change(
            f"{CLIENT}/consume/puller.py",
            "        self._timer.after(retry_s, self.pull)\n",
            "",
        ),
        units=("client/test_puller.py",),
    ),
    _bug(
        "moved-offset-waits",
        "issue #7635 (an illegal offset made the client wait ten seconds)",
        "After an answer that its offset has moved, the client rests before it asks again. Every cut of a queue costs "
        "each of its consumers that long.",
        Change(
            f"{CLIENT}/consume/puller.py",
            "        if is_no_further:\n",
            "        if answer.code == ResponseCode.PULL_OFFSET_MOVED:\n"
            "            self._timer.after(RETRY_S, self.pull)\n        elif is_no_further:\n",
        ),
        units=("client/test_puller.py",),
    ),
    _bug(
        "announced-once",
        "`ReputMessageService.doReput`, which announces again what threw",
        "The dispatcher goes on after a walk that threw, as if everybody had been told. Those whom the walk did not "
        "reach wait for the next message.",
        Change(HOLD_SERVICE, "ANNOUNCED_MAX: Final = 16", "ANNOUNCED_MAX: Final = 1"),
        units=("service/test_fuzz.py", "service/test_dispatch_service.py", "service/test_hold_service.py"),
    ),
    _bug(
        "light-queues-are-not-told",
        "`notifyMessageArrive4MultiQueue`, which 4.9.3 had to add",
        "A message that further queues list is announced for its own queue only. Whoever waits for a light queue "
        "(MQTT) gets it at the deadline.",
        Change(
            f"{STORE}/dispatch.py",
            "offset, self._levels_ms), arrivals)\n        try:\n",
            "offset, self._levels_ms), [])\n        try:\n",
        ),
        units=("service/test_groups.py",),
    ),
    _bug(
        "wakes-by-the-hash-of-another",
        "the filter of a wake by `byConsumeQueue` alone, before ROCKETMQ-121",
        "A pull with an expression over properties is woken by every message of its topic: the wake looks at the "
        "tag's hash alone, so it reads for nothing each time.",
        Change(
            NOTIFIER,
            "            verdict = self._verdicts[wanted] = wanted.matches_properties(self._properties)\n",
            "            verdict = self._verdicts[wanted] = True\n",
        ),
    ),
    _bug(
        "retry-answer-is-overwritten",
        "issues #1828 and #1829 (a slave's answer is overwritten by what follows)",
        "The code that sends a slave's reader away is set, and set again by the next lines: who asks a slave at an "
        "offset that it does not know is told to begin elsewhere.",
        Change(
            f"{BROKER}/shared/broker_role.py",
            "        if code == _OFFSET_MOVED and not self.corrects_offsets:\n            return _RETRY_IMMEDIATELY\n",
            "",
        ),
        units=("service/test_slave.py", "core/test_topics.py"),
    ),
)
