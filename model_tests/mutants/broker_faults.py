"""Mutants of the broker or its recorder that tests once missed: one change of text, and the test that misses it.

Add a row for each fault that is found in the broker or survives its tests. Mutants of the spec:
`longpoll_spec.mutants.generated`. Locks of the hold service: `zoo.locks`.
"""

from __future__ import annotations

from typing import Final

from attrs import frozen

BROKER: Final = "reference/longpoll_broker"
STORE: Final = "reference/longpoll_broker/store"
TESTS: Final = "model_tests"


@frozen
class Fault:
    """One change of one file, and the test that must be red with it."""

    name: str
    file: str
    before: str
    """Stands in the file exactly once."""
    after: str
    missed_by: str
    """A test's identifier, or a file's."""


FAULTS: Final = (
    Fault(
        "deadlines go by the wall clock",
        "reference/longpoll_runtime/real.py",
        "self.monotonic_ns: Callable[[], int] = time.monotonic_ns",
        "self.monotonic_ns: Callable[[], int] = lambda: self.unix_ms() * 1_000_000",
        f"{TESTS}/service/test_pull_service.py::test_deadlines_are_monotonic",
    ),
    Fault(
        "an earlier deadline does not wake the clock",
        f"{BROKER}/hold/hold_service.py",
        "if deadline_ms < self._clock_sleeps_until_ms and outbox",
        "if deadline_ms > self._clock_sleeps_until_ms and outbox",
        f"{TESTS}/service/test_hold_service.py::test_a_deadline_before_all_others_wakes_the_clock",
    ),
    Fault(
        "the wrong queue is woken for ids above 7",
        f"{BROKER}/hold/hold_service.py",
        "self.hold_service.notify((arrival.topic, arrival.queue_id), visible_end",
        "self.hold_service.notify((arrival.topic, arrival.queue_id & 7), visible_end",
        f"{TESTS}/service/test_pull_service.py::test_a_message_wakes_its_queue_alone",
    ),
    Fault(
        "an end is shown before its unit is written",
        f"{STORE}/consume_queue.py",
        "        segment = self._segment\n        position = (offset - self._segment_offset) * UNIT_SIZE\n        if",
        "        self.offset_end = offset + 1\n        segment = self._segment\n"
        "        position = (offset - self._segment_offset) * UNIT_SIZE\n        if",
        f"{TESTS}/simulate/test_preempted.py::test_a_unit_is_written_before_it_is_shown",
    ),
    Fault(
        "new connections come before one that was slow once",
        f"{BROKER}/io/transport.py",
        "(new if channel.is_new else known).append(channel)",
        "known.append(channel)",
        f"{TESTS}/service/test_turns.py::test_slow_once_before_a_flood",
    ),
    Fault(
        "a channel over its limit goes on",
        f"{BROKER}/io/channel.py",
        'its loop closes it."""\n        self.broken = True\n',
        'its loop closes it."""\n        self.broken = False\n',
        f"{TESTS}/service/test_channel.py",
    ),
    Fault(
        "what is unsent is told the other way round",
        f"{BROKER}/io/channel.py",
        "return bool(self._pending or self._out) and not",
        "return not bool(self._pending or self._out) and not",
        f"{TESTS}/service/test_channel.py",
    ),
    Fault(
        "a slice reaches past the end of the log",
        f"{STORE}/commit_log.py",
        "physical_offset + size > min(self.end, segment.stop) or",
        "physical_offset + size > segment.stop or",
        f"{TESTS}/store/test_commit_log.py::test_no_slice_reaches_past_the_end",
    ),
    Fault(
        "queues are not walked again to the end of a log that is shorter",
        f"{STORE}/recovery.py",
        "if queue.physical_end > end:",
        "if False:",
        f"{TESTS}/store/test_recovery.py::test_units_of_records_that_the_log_has_lost_are_forgotten",
    ),
    Fault(
        "the second walk begins at a queue's oldest file",
        f"{STORE}/recovery.py",
        "            _walk_queue(queue, _file_before(queue, end), end)\n    if store_ms",
        "            _walk_queue(queue, 0, None)\n    if store_ms",
        f"{TESTS}/store/test_recovery.py::test_units_of_records_that_the_log_has_lost_are_forgotten",
    ),
    Fault(
        "a send that names no queue goes to 0",
        f"{BROKER}/send/send_processor.py",
        "queue_id = next(self._next_queue) % max(topic.write_queue_nums, 1)",
        "queue_id = 0",
        f"{TESTS}/service/test_send.py::test_the_broker_picks_each_queue_in_turn",
    ),
    Fault(
        "a deadline is rounded down",
        f"{BROKER}/hold/pull_processor.py",
        "deadline_ms=-(-channel.received_ns // 1_000_000) + timeout_ms",
        "deadline_ms=channel.received_ns // 1_000_000 + timeout_ms",
        f"{TESTS}/service/test_pull_processor.py::test_a_deadline_is_rounded_up",
    ),
    Fault(
        "a latency has the wrong sign",
        f"{BROKER}/hold/pull_processor.py",
        "latency_ms = (self.runtime.monotonic_ns() - begun_ns) // 1_000_000",
        "latency_ms = (begun_ns - self.runtime.monotonic_ns()) // 1_000_000",
        f"{TESTS}/service/test_pull_service.py::test_latencies_are_counted",
    ),
    Fault(
        "a message's store time goes back with the clock",
        f"{STORE}/message_store.py",
        "store_ms = max(self._runtime.unix_ms(), self._store_ms)\n        listed",
        "store_ms = self._runtime.unix_ms()\n        listed",
        f"{TESTS}/store/test_message_store.py::test_store_times_never_go_back",
    ),
    Fault(
        "a burst's store time goes back with the clock",
        f"{STORE}/message_store.py",
        "            store_ms = max(self._runtime.unix_ms(), self._store_ms)\n            burst",
        "            store_ms = self._runtime.unix_ms()\n            burst",
        f"{TESTS}/store/test_message_store.py::test_store_times_never_go_back",
    ),
    Fault(
        "offsets are committed without their guard",
        f"{BROKER}/shared/offsets.py",
        "        with self.guard:\n            queues",
        "        if True:\n            queues",
        f"{TESTS}/simulate/test_preempted.py::test_what_threads_share_needs_its_guard",
    ),
    Fault(
        "statistics are counted without their guard",
        f"{BROKER}/shared/statistics.py",
        "        with self.guard:\n            # One message",
        "        if True:\n            # One message",
        f"{TESTS}/simulate/test_preempted.py::test_what_threads_share_needs_its_guard",
    ),
    Fault(
        "the broker gives its offsets no guard",
        "reference/longpoll_broker/assembly.py",
        "Offsets(guard=lock(), light=light",
        "Offsets(light=light",
        f"{TESTS}/simulate/test_preempted.py::test_a_broker_guards_what_its_threads_share",
    ),
    Fault(
        "the broker gives its statistics no guard",
        "reference/longpoll_broker/assembly.py",
        "Statistics(lock())",
        "Statistics()",
        f"{TESTS}/simulate/test_preempted.py::test_a_broker_guards_what_its_threads_share",
    ),
    Fault(
        "the count of held pulls has no guard",
        f"{BROKER}/hold/hold_service.py",
        "else None, runtime.lock())\n",
        "else None)\n",
        f"{TESTS}/simulate/test_preempted.py::test_the_hold_table_stands_every_interleaving",
    ),
    Fault(
        "the answer to a deleted topic's pull is told again",
        "reference/longpoll_broker/assembly.py",
        "        self.runner.forget_last()\n        if",
        "        if",
        f"{TESTS}/service/test_delete_topic.py::test_no_message_of_a_deleted_topic_is_given_to_who_waits_for_the_next_of_its_name",
    ),
    Fault(
        "a pull at work puts the answer to a deleted topic's back",
        "reference/longpoll_broker/fast/woken_herd.py",
        "        self._since = object()\n",
        "",
        f"{TESTS}/service/test_delete_topic.py::test_nor_where_a_pull_was_at_work_while_the_topic_was_deleted",
    ),
    Fault(
        "a slave of 4.9 announces what is copied to it",
        "reference/longpoll_broker/assembly.py",
        "not shared.role.is_slave or shared.traits.slave_notifies",
        "True",
        f"{TESTS}/service/test_slave.py::test_copied_messages_wake_held_pulls",
    ),
    Fault(
        "a broker that records answers pulls together",
        "reference/longpoll_broker/assembly.py",
        "HerdRunner if is_fast and shared.recording.recorder is None and access is None else",
        "HerdRunner if is_fast and access is None else",
        f"{TESTS}/service/test_record.py::test_each_woken_pull_has_its_events",
    ),
    Fault(
        "a slave delivers what is delayed",
        "reference/longpoll_broker/assembly.py",
        "        if not self.is_slave:\n",
        "        if True:\n",
        f"{TESTS}/service/test_slave.py::test_a_slave_delivers_nothing_that_is_delayed",
    ),
    Fault(
        "a one-way send is recorded as acknowledged",
        f"{BROKER}/history.py",
        "            return\n        after_ns, connection = ",
        "            pass\n        after_ns, connection = ",
        f"{TESTS}/service/test_record.py::test_refused_requests_are_answers",
    ),
    Fault(
        "a one-way send is recorded as refused",
        f"{BROKER}/history.py",
        "            return\n        after_ns, connection, header = ",
        "            pass\n        after_ns, connection, header = ",
        f"{TESTS}/service/test_record.py::test_refused_requests_are_answers",
    ),
    Fault(
        "a message that no queue lists is recorded as appended to one",
        f"{BROKER}/history.py",
        '            if each[0].in_queue:\n                self.recorder.put("append"',
        '            if True:\n                self.recorder.put("append"',
        f"{TESTS}/service/test_record.py::test_prepared_messages",
    ),
    Fault(
        "a message that no queue lists is recorded as acknowledged in one",
        f"{BROKER}/history.py",
        "                if each[0].in_queue:\n",
        "                if True:\n",
        f"{TESTS}/service/test_record.py::test_prepared_messages",
    ),
    Fault(
        "an offset that no history can hold is recorded",
        "reference/longpoll_recorder/recorder.py",
        "return max(-NUMBER_MAX, min(number, NUMBER_MAX))",
        "return number",
        f"{TESTS}/service/test_record.py::test_numbers_beyond_the_schema_are_cut",
    ),
    Fault(
        "the proxy tells no answer to a send that is stored elsewhere",
        "reference/longpoll_observe/tap.py",
        "if stored is None or not sent.tags:",
        "if stored is None:",
        f"{TESTS}/service/test_observe_tap.py::test_what_a_broker_stores_elsewhere_is_no_message_of_the_queue",
    ),
    Fault(
        "the proxy tells an offset of another queue that lists the message",
        "reference/longpoll_observe/events.py",
        "_offset_in(record, topic, queue) if has_inner else",
        "_offset_in(record, topic, queue) if False else",
        f"{TESTS}/service/test_groups.py::test_the_proxy_tells_where_a_message_is_in_the_queue_that_was_asked_for",
    ),
    Fault(
        "the proxy tells the expression where a heartbeat names other hashes",
        "reference/longpoll_observe/events.py",
        "        if not hashes or wanted.code_set != hashes:\n",
        "        if not hashes:\n",
        f"{TESTS}/service/test_observe_tap.py::test_what_a_broker_may_match_otherwise_is_no_subscription",
    ),
    Fault(
        "the proxy tells the last of two subscriptions with one version",
        "reference/longpoll_observe/events.py",
        'self._latest[key] = (said[0], "", "")',
        "self._latest[key] = said",
        f"{TESTS}/service/test_observe_tap.py::test_a_pull_without_subscription_has_its_groups",
    ),
    Fault(
        "the broker records the expression where it goes by a heartbeat's hashes",
        f"{BROKER}/history.py",
        " or not is_as_said(wanted) else wanted",
        " else wanted",
        f"{TESTS}/service/test_record.py::test_an_expression_is_told_where_the_broker_goes_by_it",
    ),
    Fault(
        "a batch's messages are listed by the tag that is not the last in their records",
        f"{BROKER}/send/send_processor.py",
        'tag = shared.get(TAGS) or read_properties(part.properties).get(TAGS, "")',
        'tag = read_properties(part.properties).get(TAGS) or shared.get(TAGS, "")',
        f"{TESTS}/service/test_send_processor.py::test_a_batchs_tag_is_the_one_that_a_reader_of_its_records_finds",
    ),
    Fault(
        "what a pass appended is left to the flush thread",
        f"{BROKER}/hold/hold_service.py",
        "if not self.polls and self.store.dispatched_end < self.store.dispatchable_end:",
        "if False:",
        f"{TESTS}/service/test_broker.py::test_what_is_acknowledged_is_visible",
    ),
    Fault(
        "what is not durable is announced at each pass",
        f"{BROKER}/hold/hold_service.py",
        "if not self.polls and self.store.dispatched_end < self.store.dispatchable_end:",
        "if not self.polls:",
        f"{TESTS}/service/test_dispatch_service.py::test_the_end_of_a_pass_shows_what_may_be_shown",
    ),
    Fault(
        "a dispatcher that polls is not waited for",
        f"{BROKER}/hold/hold_service.py",
        "if not self.polls and self.store.dispatched_end < self.store.dispatchable_end:",
        "if self.store.dispatched_end < self.store.dispatchable_end:",
        f"{TESTS}/service/test_dispatch_service.py::test_the_end_of_a_pass_shows_what_may_be_shown",
    ),
    Fault(
        "the schedule leaves the sync to the flush thread",
        f"{BROKER}/hold/hold_service.py",
        "if self.makes_durable and LOG not in self.store.troubles:",
        "if False:",
        f"{TESTS}/service/test_send.py::test_a_delayed_message_is_seen_too",
    ),
    Fault(
        "a stopped broker keeps its log mapped",
        "reference/longpoll_broker/broker.py",
        "        self.pulling.runner.forget_last()\n",
        "",
        f"{TESTS}/service/test_broker.py::test_a_stopped_broker_lets_go_of_its_log",
    ),
    Fault(
        "a deleted topic comes back after a clean stop",
        f"{STORE}/message_store.py",
        "self._deletions.forget_before(self._log.start, self._table.left)",
        "self._deletions.forget_before(recovered.cursor, self._table.left)",
        f"{TESTS}/store/test_outsiders.py::test_a_rebuild_brings_no_deleted_topic_back",
    ),
    Fault(
        "a deletion speaks of what is written after a crash",
        f"{STORE}/message_store.py",
        "        self._deletions.limit(self._log.end)\n",
        "",
        f"{TESTS}/store/test_failed_sync.py::test_a_deletion_says_nothing_of_what_comes_after_a_lost_end",
    ),
    Fault(
        "a batch is stored in part when a queue cannot be made",
        f"{STORE}/message_store.py",
        "                self._make_room(self._table.make(*place), count)\n            end_before",
        "                pass\n            end_before",
        f"{TESTS}/store/test_failed_sync.py::test_a_batch_is_stored_as_a_whole_or_not_at_all",
    ),
    Fault(
        "the names that a killed process made are never synced",
        f"{STORE}/segment.py",
        "if lengthen and self.segments:",
        "if False:",
        f"{TESTS}/store/test_failed_sync.py::test_names_that_a_killed_process_made_are_synced_with_the_next_flush",
    ),
    Fault(
        "files dropped by a recovery come back",
        f"{STORE}/segment.py",
        "could then follow the next writes.\n            self._sync_directory(self.directory)\n",
        "could then follow the next writes.\n",
        f"{TESTS}/store/test_segment_list.py::test_what_is_cut_off_does_not_come_back",
    ),
    Fault(
        "the zeros after a torn record are not durable",
        f"{STORE}/recovery.py",
        "    log.sync_rest()\n",
        "",
        f"{TESTS}/store/test_failed_sync.py::test_nothing_old_follows_what_is_new",
    ),
    Fault(
        "a record goes whose unit no disk has",
        f"{STORE}/message_store.py",
        "        self.flush_queues()\n        with self._queues_lock",
        "        with self._queues_lock",
        f"{TESTS}/store/test_failed_sync.py::test_a_queue_keeps_its_end_when_its_records_expire",
    ),
    Fault(
        "a file that got no length is left behind",
        f"{STORE}/segment.py",
        "                self._files.remove(path)\n            raise\n        self._changed",
        "                pass\n            raise\n        self._changed",
        f"{TESTS}/store/test_failed_sync.py::test_a_file_that_got_no_length_is_no_damage",
    ),
    Fault(
        "a deletion that failed takes effect later",
        f"{STORE}/retention.py",
        "                self._write(known)\n",
        "                pass\n",
        f"{TESTS}/store/test_failed_sync.py::test_a_deletion_that_failed_takes_no_effect_later",
    ),
    Fault(
        "a file that could not be removed is forgotten",
        f"{STORE}/segment.py",
        "                segment.is_gone = False\n                raise\n",
        "                segment.is_gone, self.segments = False, self.segments[1:]\n                raise\n",
        f"{TESTS}/store/test_failed_sync.py::test_a_file_that_cannot_be_removed_leaves_no_gap",
    ),
    Fault(
        "one queue that cannot be removed keeps the others",
        f"{STORE}/consume_queue.py",
        "failed = failed or error\n",
        "raise\n",
        f"{TESTS}/store/test_failed_sync.py::test_one_queue_that_cannot_be_removed_keeps_no_other",
    ),
    Fault(
        "a file is too short while it is being cleared",
        "reference/longpoll_runtime/files.py",
        "if _LIBC.fallocate(descriptor, _PUNCH_HOLE | _KEEP_SIZE, start, size - start) != 0:",
        "if True:",
        f"{TESTS}/store/test_segment_list.py::test_a_file_keeps_its_length_while_it_is_cleared",
    ),
    Fault(
        "what is recovered is shown before it is durable",
        f"{STORE}/message_store.py",
        "        if self._config.visible_when_durable:\n            # Messages that a killed",
        "        if False:\n            # Messages that a killed",
        f"{TESTS}/store/test_failed_sync.py::test_what_a_killed_process_had_not_flushed_is_durable_before_it_is_shown",
    ),
    Fault(
        "a deletion that the disk fails tells nobody who waits",
        f"{BROKER}/rocketmq/admin/topic_processor.py",
        "        self.topic_deleted(name, outbox)\n        work = partial(self._finish_deletion, name)\n",
        "\n        def work() -> None:\n            self._finish_deletion(name)\n"
        "            self.topic_deleted(name, outbox)\n\n",
        f"{TESTS}/service/test_delete_topic.py::test_who_waits_is_told_although_the_disk_keeps_the_queues",
    ),
    Fault(
        "what rotted since the checkpoint is cut off without a word",
        f"{STORE}/recovery.py",
        "set_aside = _keep_what_goes(log, end, is_short=store_ms < checkpoint.physic_ms, crashed=True)",
        "set_aside = 0",
        f"{TESTS}/store/test_outsiders.py::test_rot_after_the_checkpoint_is_kept",
    ),
    Fault(
        "what rotted in a closed log's last millisecond takes whole records away",
        f"{STORE}/recovery.py",
        "is_short = store_ms < checkpoint.physic_ms or end <= checkpoint.durable_offset",
        "is_short = store_ms < checkpoint.physic_ms",
        f"{TESTS}/store/test_outsiders.py::test_rot_in_the_last_millisecond_removes_nothing",
    ),
    Fault(
        "a queue is filled up to whatever number a record says",
        f"{STORE}/consume_queue.py",
        "return ahead * FIXED_SIZE <= physical_offset - max(self.physical_end, 0)",
        "return ahead * FIXED_SIZE <= physical_offset * 1_000_000",
        f"{TESTS}/store/test_outsiders.py::test_a_record_that_cannot_be_where_it_says_is_shown_to_nobody",
    ),
    Fault(
        "a record's topic becomes a path whatever it is",
        f"{STORE}/message_store.py",
        "        check_place(topic, queue_id, size_max=FOUND_NAME_SIZE_MAX)\n        return",
        "        return",
        f"{TESTS}/store/test_outsiders.py::test_a_record_that_cannot_be_where_it_says_is_shown_to_nobody",
    ),
    Fault(
        "what follows a record of a time to come is stored then",
        f"{STORE}/commit_log.py",
        "if not store_ms or store_ms <= unix_ms() + FUTURE_MS:",
        "if not store_ms or store_ms >= 0:",
        f"{TESTS}/store/test_outsiders.py::test_a_record_of_the_future_is_lost_alone",
    ),
    Fault(
        "each head behind damage is checked over all that follows it",
        f"{STORE}/commit_log.py",
        "if size > self.left:",
        "if size < 0:",
        f"{TESTS}/store/test_outsiders.py::test_a_body_of_heads_slows_no_start",
    ),
    Fault(
        "a verification says nothing of what starts cut off",
        f"{STORE}/verify.py",
        "self._verdict.cut_files, self._verdict.cut_bytes = self._store.set_aside()",
        "self._verdict.cut_files = 0",
        f"{TESTS}/store/test_outsiders.py::test_verification_reads_no_holes_and_tells_of_cuts",
    ),
    Fault(
        "a search behind damage reads holes",
        f"{STORE}/inspect.py",
        "while (at := file.data_from(at)) < len(view):",
        "while at < len(view):",
        f"{TESTS}/store/test_outsiders.py::test_verification_reads_no_holes_and_tells_of_cuts",
    ),
    Fault(
        "what stands behind each frame of LZ4 is copied",
        "reference/longpoll_protocol/compression.py",
        "for at in range(0, len(body), LZ4_PIECE_SIZE):\n        rest: Buffer | None = body[at : at + LZ4_PIECE_SIZE]",
        "for at in (0,):\n        rest: Buffer | None = body[at:]",
        f"{TESTS}/client/test_messages.py::test_many_small_frames_of_lz4_take_no_longer_than_their_bytes",
    ),
)
