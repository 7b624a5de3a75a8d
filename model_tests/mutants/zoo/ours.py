"""Our own faults: those that we fixed, and likely ones in holding and waking.

The broker's faults that its tests once missed (`mutants/broker_faults.py`) are entries too. Removed locks and missing
wakeups: `locks`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from model_tests.mutants.broker_faults import FAULTS, Fault
from model_tests.mutants.zoo.entry import (
    BROKER,
    CHANNEL,
    CLIENT,
    HOLD,
    HOLD_SERVICE,
    NOTIFIER,
    PULL_PROCESSOR,
    RULES,
    Change,
    Entry,
    Kind,
)

TOLD: Final[Mapping[str, str]] = {
    "deadlines go by the wall clock": "A clock that is set back holds every pull for as long again; one that is set "
    "forward answers all of them at once.",
    "an earlier deadline does not wake the clock": "A pull with a short hold waits for the deadline of one with a "
    "long hold.",
    "the wrong queue is woken for ids above 7": "A topic with more than eight queues: who waits for queue 9 is told of "
    "nothing, and who waits for queue 1 reads in vain.",
    "an end is shown before its unit is written": "A reader on another thread finds an offset below the end and reads "
    "zeros there: an answer with a message that is none.",
    "a channel over its limit goes on": "A client that does not read costs memory without end.",
    "what is unsent is told the other way round": "A stopping broker waits for those who have everything, and closes "
    "on those who do not.",
    "a slice reaches past the end of the log": "An answer has bytes in it that were never appended.",
    "queues are not walked again to the end of a log that is shorter": "After a crash a queue points behind the end "
    "of the log: its consumers get nothing, or another message.",
    "what rotted since the checkpoint is cut off without a word": "A bit of the log flips after the last checkpoint, "
    "and the broker is killed: the next start takes the record for a torn one, and it goes with all that followed it.",
    "what rotted in a closed log's last millisecond takes whole records away": "By the time of the records before it "
    "nothing is missing, so the start cuts off what was stored in the same millisecond.",
    "what stands behind each frame of LZ4 is copied": "One message of 4 MB of empty frames keeps every consumer of its "
    "topic busy for a minute.",
    "each head behind damage is checked over all that follows it": "A producer sends bodies full of heads of records; "
    "one of them is torn by a kill, and the next start takes minutes.",
    "a verification says nothing of what starts cut off": "Who verifies a store that lost messages to damage "
    "is told that it is sound, and not where the bytes are.",
    "a search behind damage reads holes": "Verifying a sparse store reads gigabytes of zeros, and on a tmpfs turns "
    "them into memory.",
    "a queue is filled up to whatever number a record says": "A bit flips in the queue offset of a record that no "
    "checkpoint knows, and the broker is killed: the next start fills the queue up to it, until the disk is full.",
    "a record's topic becomes a path whatever it is": "A byte of a topic's name rots into a slash: the start makes a "
    "directory where no queue belongs.",
    "what follows a record of a time to come is stored then": "A bit flips in the store time of the log's last record: "
    "every message that comes after it is stored in the far future, for good, and what is delayed never comes.",
    "the second walk begins at a queue's oldest file": "After a crash a queue with many files is read as a whole, and "
    "the start takes minutes.",
    "a send that names no queue goes to 0": "All messages of a producer that leaves the choice to the broker are in "
    "one queue, and one consumer of the group has all the work.",
    "a deadline is rounded down": "A pull is answered up to a millisecond before its hold is over.",
    "a latency has the wrong sign": "The statistics tell of pulls that took less than no time.",
    "a message's store time goes back with the clock": "Messages are found by time in the wrong place after the clock "
    "was set back.",
    "a burst's store time goes back with the clock": "The same, for messages that came side by side.",
    "a message that no queue lists is recorded as appended to one": "A client that sends with the flag of a prepared "
    "message has the judge find two messages at offset 0, and convict a broker that did nothing wrong.",
    "a message that no queue lists is recorded as acknowledged in one": "The same, by what its producer was told.",
    "an offset that no history can hold is recorded": "One pull from an offset beyond 2^61 is a damaged line of the "
    "broker's own history, and leaves its verdict unknown.",
    "the proxy tells no answer to a send that is stored elsewhere": "Whoever sends a delayed message through "
    "`longpoll observe` has the judge say 10 s later that the broker never answered.",
    "the proxy tells an offset of another queue that lists the message": "Whoever reads a light queue through "
    "`longpoll observe` has the judge convict the broker of offsets out of order: they were those of another queue.",
    "the proxy tells the expression where a heartbeat names other hashes": "A client whose heartbeat names hashes of "
    "other tags than it subscribes to has the judge convict a broker of Java, which goes by the hashes.",
    "the proxy tells the last of two subscriptions with one version": "Two members that want different things under "
    "one number: the broker keeps what came first, and the judge convicts it for the other.",
    "the broker records the expression where it goes by a heartbeat's hashes": "The same of a broker's own history "
    "under rocketmq-4.9.",
    "a batch's messages are listed by the tag that is not the last in their records": "`longpoll store verify` finds "
    "the store damaged, and a queue that is rebuilt from the log has other messages for who asks by tag.",
    "offsets are committed without their guard": "An older commit overwrites a newer one that another thread made in "
    "between.",
    "a topic's offsets are forgotten without their guard": "A deletion goes through the table while another thread "
    "puts a group into it, and fails: the topic is gone, and its offsets are there for the next one of its name.",
    "the answer to a deleted topic's pull is told again": "A topic is made anew under its old name, and who waits "
    "for it gets the old one's messages.",
    "a pull at work puts the answer to a deleted topic's back": "The same, where the deletion comes while the pull is "
    "at work.",
    "a slave of 4.9 announces what is copied to it": "A slave wakes who waits there, which 4.9 leaves to its scan: it "
    "behaves as no broker of that version does.",
    "a broker that records answers pulls together": "Answers leave that the history does not have, and a judge finds "
    "pulls that nobody answered.",
    "a slave delivers what is delayed": "What is delayed is delivered by the master and by its slave: consumers get it "
    "twice.",
    "a one-way send is recorded as acknowledged": "A history tells of an acknowledgement that nobody was sent.",
    "a one-way send is recorded as refused": "A history tells of a refusal that nobody was sent.",
    "what a pass appended is left to the flush thread": "A message is visible and announced half a second after its "
    "acknowledgement.",
    "what is not durable is announced at each pass": "Who waits is woken for a message that nobody may see yet, once "
    "for each pass of the loop.",
    "a dispatcher that polls is not waited for": "A broker that is to poll announces at the append: it is prompt where "
    "RocketMQ is not, and what is measured of it says nothing.",
    "the schedule leaves the sync to the flush thread": "A delayed message that is due is visible half a second late.",
    "a stopped broker keeps its log mapped": "A broker that was stopped keeps its files: the disk is full of what was "
    "removed.",
    "statistics are counted without their guard": "What two threads count at once is counted once.",
    "the broker gives its offsets no guard": "The table stands any interleaving, and the broker gives it no lock.",
    "the broker gives its statistics no guard": "The same of what is counted.",
    "the count of held pulls has no guard": "The count of held pulls drifts, until the limit refuses everybody, or "
    "the broker thinks that nobody waits and tells nobody.",
}
"""A fault's name -> how it shows."""
GUARDS: Final = ("guard",)
MENDED: Final = "mended-"
"""How the entries begin that `mutants/broker_faults.py` gives; a new row there need not be in the table at once."""


def _mended(fault: Fault) -> Entry:
    name = re.sub(r"[^a-z0-9]+", "-", fault.name.lower()).strip("-")
    sentence = fault.name[0].upper() + fault.name[1:]
    kind: Kind = "lock" if any(word in fault.name for word in GUARDS) else "ours"
    change = Change(fault.file, fault.before, fault.after)
    units = (fault.missed_by.removeprefix("model_tests/"),)
    return Entry(
        f"{MENDED}{name}", kind, "a fault that was mended here", f"{sentence}. {TOLD.get(fault.name, '')}".strip(),
        (change,), units,
    )  # fmt: skip


def _slip(name: str, says: str, *changes: Change, units: tuple[str, ...] = ()) -> Entry:
    return Entry(name, "ours", "a slip in our own code", says, changes, units)


OURS: Final = (
    *map(_mended, FAULTS),
    _slip(
        "a-list-that-lacks-a-number-is-read",
        "An event whose list of offsets has a null in it is taken for an event: the judge counts with a number that "
        "nobody wrote.",
        Change(
            "reference/longpoll_judge/read/ndjson.py",
            "return are_intervals(table) and are_filled(table) and _are_small(table)",
            "return are_intervals(table) and _are_small(table)",
        ),
        units=("judge/test_source.py",),
    ),
    _slip(
        "the-first-of-two-pulls-gets-every-answer",
        "A recorder numbers requests anew on each connection: the judge holds the answers of several pulls against the "
        "first that had their identifier, and convicts a broker that did nothing wrong.",
        Change(
            f"{RULES}/queue_columns.py",
            '    if events.batch.has_repeated("request_received"):\n'
            "        keys = events.request_key[received]\n"
            "        received = received[np.bincount(keys)[keys] == 1]\n"
            '    row = received[is_one_of(events.integers("code", received), PULL_CODES)]\n',
            '    row = received[is_one_of(events.integers("code", received), PULL_CODES)]\n'
            '    row = row[events.firsts(row, "request_received") == row]\n',
        ),
        units=("judge/test_whose_answer.py",),
    ),
    _slip(
        "a-send-hangs-on-the-order-of-reading",
        "Of several acknowledgements that one message is at odds with the judge shows the one that was read first: "
        "what is told of a history, and under which name, hangs on how its files are cut.",
        Change(
            f"{RULES}/cross_queue.py",
            "    ordered = in_order(events, members)\n"
            "    return ordered[np.sort(np.unique(cause[ordered], return_index=True)[1])]\n",
            "    return members[np.sort(np.unique(cause[members], return_index=True)[1])]\n",
        ),
        units=("judge/test_sends_told.py",),
    ),
    _slip(
        "a-buffer-is-measured-in-items",
        "A body that is a memoryview of four-byte words passes for a quarter of its size: what is too long is sent.",
        Change(
            f"{CLIENT}/produce/outgoing.py",
            "size = len(body) if type(body) is bytes else _size_of(body)",
            "size = len(body)",
        ),
        units=("client/test_failures.py::test_a_buffer_is_as_long_as_its_bytes",),
    ),
    _slip(
        "a-resting-reader-looks-and-falls-asleep-apart",
        "A send that comes between is left to a reader that is taken for awake and sleeps: it goes out with the next "
        "one, or never.",
        Change(
            f"{CLIENT}/remoting.py",
            "                self._send_output()\n            self._is_awake = False\n",
            "                self._send_output()\n        with self._lock:\n            self._is_awake = False\n",
        ),
        units=("simulate/test_rest_stress.py::test_a_resting_reader_keeps_no_call_waiting",),
    ),
    _slip(
        "a-forked-child-closes-its-parents-consumer",
        "A process that forks within a consumer's `with` puts older offsets over its own when the child leaves it, "
        "and messages that were consumed come again.",
        Change(
            f"{CLIENT}/lifecycle.py",
            "return self._started_in is not None and self._started_in != self._now_in()",
            "return False",
        ),
        units=("client/test_failed_starts.py",),
    ),
    _slip(
        "a-start-that-fails-leaves-its-connections",
        "A program that tries to start a consumer again and again, while its topic is not there, has two threads and "
        "sockets more each time that it makes a new one.",
        Change(
            f"{CLIENT}/consume/member.py",
            "            undo.callback(self._instance.disconnect)\n",
            "",
        ),
        units=("client/test_failed_starts.py::test_a_start_that_fails_leaves_nothing",),
    ),
    _slip(
        "text-of-a-batch-that-is-no-unicode-raises-pythons-error",
        "Who catches the client's errors around a batch is surprised by one of Python's.",
        Change(
            "reference/longpoll_protocol/message.py",
            "        except UnicodeEncodeError as error:\n            raise LocalProtocolError(",
            "        except RecursionError as error:\n            raise LocalProtocolError(",
        ),
        units=("client/test_producer.py::test_a_batch_that_no_broker_takes_is_refused_before_it_is_sent",),
    ),
    _slip(
        "woken-are-counted-alone",
        "A walk counts down those that it wakes, and not those whose filter raised: the bucket is never empty again, "
        "and at the queue's limit everybody is refused.",
        Change(HOLD, "        bucket.known -= len(gone)\n", "        bucket.known -= len(woken)\n"),
    ),
    _slip(
        "thrown-stay-in-the-bucket",
        "Those whose filter raised are answered and stay in the bucket, to be answered again at the next message.",
        Change(
            HOLD,
            "            for pull in gone:\n                del bucket.pulls[pull]\n",
            "            for pull in woken:\n                del bucket.pulls[pull]\n",
        ),
    ),
    _slip(
        "large-herd-is-never-settled",
        "What a large herd has woken stays known to channels and deadlines: memory is kept, and a closing connection "
        "finds pulls that were answered.",
        Change(
            NOTIFIER,
            "        self.table.settle(self._unsettled)\n        self._unsettled = []\n",
            "        self._unsettled = []\n",
        ),
    ),
    _slip(
        "herd-is-not-settled-after-a-fault",
        "Handing a large herd out fails in the middle, and what it has taken is never settled.",
        Change(
            HOLD_SERVICE,
            "            try:\n                self._hand_out(steps, shard, traversal, outbox)\n"
            "            finally:\n                with shard.lock:\n                    traversal.end()\n",
            "            self._hand_out(steps, shard, traversal, outbox)\n            with shard.lock:\n"
            "                traversal.end()\n",
        ),
    ),
    _slip(
        "late-ones-in-a-herd",
        "A pull whose deadline is now goes out with the herd of those that are woken: its answer says that a message "
        "came for it.",
        Change(
            NOTIFIER,
            "        if herd and min(map(_DEADLINE_MS, herd)) <= self.now_ms:\n",
            "        if herd and min(map(_DEADLINE_MS, herd)) < self.now_ms:\n",
        ),
    ),
    _slip(
        "deadline-a-millisecond-later",
        "A walk takes a deadline for over only when it is past: at the very millisecond a pull is kept, and waits for "
        "the clock.",
        Change(
            NOTIFIER,
            "        return self._has_news(pull) or self.now_ms >= pull.deadline_ms\n",
            "        return self._has_news(pull) or self.now_ms > pull.deadline_ms\n",
        ),
    ),
    _slip(
        "pop-due-a-millisecond-later",
        "The clock comes at a deadline, finds that it is not over yet, and turns in circles for a millisecond.",
        Change(
            HOLD,
            "        while self._heap and self._heap[0] <= now_ms:\n",
            "        while self._heap and self._heap[0] < now_ms:\n",
        ),
    ),
    _slip(
        "recheck-at-the-end-itself",
        "A recheck takes the end that a pull waits at for news: every hold is answered at once, with nothing.",
        Change(
            HOLD_SERVICE,
            "        if visible_end > pull.offset and not walks:\n",
            "        if visible_end >= pull.offset and not walks:\n",
        ),
    ),
    _slip(
        "recheck-forgets-to-queue",
        "A recheck takes its pull out of the table and nobody runs it.",
        Change(
            HOLD_SERVICE,
            '        if removed:\n            self._queue(pull, "woken", outbox)\n        elif walks:\n',
            "        if walks:\n",
        ),
    ),
    _slip(
        "spent-deadline-is-not-armed-again",
        "A deadline fires while a notifier has the pull in hand; it is put back, and no deadline is armed for it.",
        Change(
            HOLD,
            "                pull.spent = False\n                self._deadlines.add(pull, pull.deadline_ms)\n",
            "                pull.spent = False\n",
        ),
    ),
    _slip(
        "closed-channel-keeps-the-taken",
        "A connection closes while a notifier has one of its pulls: the pull is put back, and waits for nobody.",
        Change(HOLD, "        self._forget(taken)\n        dropped = held + taken\n", "        dropped = held\n"),
    ),
    _slip(
        "deletion-takes-every-topic",
        "The deletion of one topic lets the pulls of all topics go: each asks again, and none knows why.",
        Change(HOLD, "if topic in {None, key[0]})", "if topic is None or key[0])"),
    ),
    _slip(
        "keep-forgets-one",
        "A notifier that has more than one pull to put back forgets the last.",
        Change(
            NOTIFIER, "        return self.table.keep(self._kept)\n", "        return self.table.keep(self._kept[:1])\n"
        ),
    ),
    _slip(
        "walk-takes-the-known-end-alone",
        "A walk does not ask the store again for a pull that the told end does not help: of two messages at once the "
        "one who waits for the second is not woken.",
        Change(
            NOTIFIER,
            "            newest = self.read_visible_end()\n",
            "            newest = self.visible_end\n",
        ),
    ),
    _slip(
        "expression-asks-the-wrong-message",
        "A filter over properties is tried on the message behind the one that came: who wants it is not woken.",
        Change(
            HOLD_SERVICE,
            "self._ends.properties_at(topic, queue_id, visible_end - 1)",
            "self._ends.properties_at(topic, queue_id, visible_end)",
        ),
        units=("service/test_hold_service.py", "service/test_pull_service.py", "service/test_groups.py"),
    ),
    _slip(
        "expires-one-shard-a-turn",
        "At a deadline the pulls of one shard are let go, and those of the others at the next look.",
        Change(
            HOLD_SERVICE,
            '                self._queue(pull, "expired", outbox)\n',
            '                self._queue(pull, "expired", outbox)\n            if late:\n                return\n',
        ),
    ),
    _slip(
        "expiry-loses-what-is-over-the-count",
        "Of many deadlines at one millisecond those over the count of one turn are forgotten.",
        Change(
            HOLD,
            "                for item in due[len(due) - left :]:\n                    del items[item]\n"
            "                break\n",
            "                del self._due[heapq.heappop(self._heap)]\n                break\n",
        ),
    ),
    _slip(
        "pruned-heap-is-no-heap",
        "When stale entries are thrown away the rest is no heap any more, and deadlines are noticed in any order.",
        Change(HOLD, "                heapq.heapify(self._heap)\n", "                self._heap.sort(reverse=True)\n"),
    ),
    _slip(
        "scan-walks-nothing-new",
        "A scan tells the end that it has read before, so who waits for less than that is passed over.",
        Change(
            HOLD_SERVICE,
            "                    self._traverse(SCAN, key, visible_end, None, outbox)\n",
            "                    self._traverse(SCAN, key, 0, None, outbox) if visible_end else None\n",
        ),
    ),
    _slip(
        "one-pass-of-the-dispatcher",
        "A burst of more than 256 messages: the first 256 are made visible and told, the rest waits for the next send.",
        Change(HOLD_SERVICE, "        while store.dispatched_end < end or", "        if store.dispatched_end < end or"),
    ),
    _slip(
        "first-of-the-arrivals",
        "Of the messages that are made visible together the first alone is announced.",
        Change(
            HOLD_SERVICE,
            "                for arrival in self._announced(arrivals):\n",
            "                for arrival in list(self._announced(arrivals))[:1]:\n",
        ),
    ),
    _slip(
        "stopped-without-a-word",
        "A pull that is let go at the stop is counted as answered, and no answer is written.",
        Change(
            PULL_PROCESSOR,
            "            self.answer(pull, Miss(self._unread(pull), _NO_FILTER), cause, outbox)\n",
            "            pull.phase = ANSWERED\n",
        ),
        units=("service/test_broker.py", "service/test_delete_topic.py", "service/test_pull_service.py"),
    ),
    _slip(
        "busy-without-a-word",
        "A pull that no room is left for is refused without an answer.",
        Change(
            PULL_PROCESSOR,
            '            self.answer(pull, Refused(ResponseCode.SYSTEM_BUSY, "too many pulls, '
            'try again later"), cause, outbox)\n',
            "            pull.phase = ANSWERED\n",
        ),
        units=("service/test_pull_service.py", "service/test_bad_input.py"),
    ),
    _slip(
        "older-commit-wins",
        "An offset that a pull carries is stored only when it is older than what is there.",
        Change(
            f"{BROKER}/shared/offsets.py",
            "            if forward_only and offset < queues.get(queue_id, offset):\n",
            "            if forward_only and offset > queues.get(queue_id, offset):\n",
        ),
    ),
    _slip(
        "durable-at-the-byte-after",
        "A send is told to be durable only when something behind it is: the last of each sync is refused.",
        Change(
            f"{BROKER}/send/durability.py",
            "is_durable = flushed_end >= request.log_end and (",
            "is_durable = flushed_end > request.log_end and (",
        ),
    ),
    _slip(
        "half-sent-is-sent-again",
        "A socket takes a part of a buffer, and all of it is sent again: the client's frames are out of step.",
        Change(CHANNEL, "                pending[0] = memoryview(pending[0])[sent:]\n", "                pass\n"),
    ),
    _slip(
        "busy-channels-lose-answers",
        "A connection that has much to be told is flushed early, and what was written to it is counted as waiting "
        "still, until no part of a large herd is ever large enough.",
        Change(
            CHANNEL,
            "            self._count -= self._channels.pop(channel)\n",
            "            self._channels.pop(channel)\n",
        ),
    ),
    _slip(
        "told-before-it-left",
        "The recorder is told of an answer before the sockets have it: a history in which consumers know the future.",
        Change(
            CHANNEL,
            "        for channel in reversed(channels):\n            channel.flush()\n        for told in sent:\n"
            '            with KeepGoing(log, "an answer that was sent could not be noted"):\n                told()\n',
            "        for told in sent:\n"
            '            with KeepGoing(log, "an answer that was sent could not be noted"):\n                told()\n'
            "        for channel in reversed(channels):\n            channel.flush()\n",
        ),
        units=("service/test_channel.py", "service/test_record.py"),
    ),
    _slip(
        "hold-forgets-its-channel",
        "A pull is held and its connection does not know it: when that closes, the pull stays.",
        Change(
            HOLD,
            "        channel[pull] = None\n        self._held += 1\n",
            "        self._held += 1\n        if len(channel):\n            channel[pull] = None\n",
        ),
    ),
    _slip(
        "shard-by-queue-number",
        "Notifiers find the shard by another rule than pulls: who waits for a queue is held in one shard and looked "
        "for in another, but for the first queue of a topic.",
        Change(
            HOLD_SERVICE,
            "shard_of(*key, len(self._shards))]\n        again: int",
            "shard_of(key[0], key[1] // 2, len(self._shards))]\n        again: int",
        ),
    ),
)
