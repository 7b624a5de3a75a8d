"""Faults of the reference broker that its tests once passed over: each as a change of one text, with who misses it.

A fault that somebody finds in the broker, or that survives its tests, gets a row here. Leaves out the law's slips
(`longpoll_spec.testing.slips`), and the locks of the hold service (`simulate.hold_stress`).
"""

from __future__ import annotations

from typing import Final

from attrs import frozen

SERVICE: Final = "reference/longpoll_broker/service"
STORE: Final = "reference/longpoll_broker/store"
CORE: Final = "reference/longpoll_broker/core"
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
        f"{TESTS}/service/test_pull_moments.py::test_deadlines_do_not_go_by_the_wall_clock",
    ),
    Fault(
        "an earlier deadline does not wake the clock",
        f"{SERVICE}/pull/hold_service.py",
        "if deadline_ms < self._clock_sleeps_until_ms and outbox",
        "if deadline_ms > self._clock_sleeps_until_ms and outbox",
        f"{TESTS}/service/test_hold_service.py::test_a_deadline_before_all_others_wakes_the_clock",
    ),
    Fault(
        "the wrong queue is woken for ids above 7",
        f"{SERVICE}/pull/dispatch_service.py",
        "self.hold_service.notify((arrival.topic, arrival.queue_id), visible_end",
        "self.hold_service.notify((arrival.topic, arrival.queue_id & 7), visible_end",
        f"{TESTS}/service/test_pull_moments.py::test_a_message_wakes_who_waits_for_its_queue_and_nobody_else",
    ),
    Fault(
        "an end is shown before its unit is written",
        f"{STORE}/queues/consume_queue.py",
        "        segment = self._segment\n        position = (offset - self._segment_offset) * UNIT_SIZE\n        if",
        "        self.offset_end = offset + 1\n        segment = self._segment\n"
        "        position = (offset - self._segment_offset) * UNIT_SIZE\n        if",
        f"{TESTS}/simulate/test_preempted.py::test_a_unit_is_written_before_it_is_shown",
    ),
    Fault(
        "a channel over its limit goes on",
        f"{SERVICE}/io/channel.py",
        "        self.broken = True\n",
        "        self.broken = False\n",
        f"{TESTS}/service/test_channel.py",
    ),
    Fault(
        "what is unsent is told the other way round",
        f"{SERVICE}/io/channel.py",
        "return bool(self._pending or self._out) and not",
        "return not bool(self._pending or self._out) and not",
        f"{TESTS}/service/test_channel.py",
    ),
    Fault(
        "a slice reaches past the end of the log",
        f"{STORE}/log/commit_log.py",
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
        f"{SERVICE}/send/send_processor.py",
        "return next(self._next_queue) % max(topic.write_queue_nums, 1)",
        "return 0",
        f"{TESTS}/service/test_send.py::test_a_send_that_names_no_queue_goes_to_each_in_turn",
    ),
    Fault(
        "a deadline is rounded down",
        f"{SERVICE}/pull/pull_processor.py",
        "deadline_ms=-(-channel.received_ns // 1_000_000) + timeout_ms",
        "deadline_ms=channel.received_ns // 1_000_000 + timeout_ms",
        f"{TESTS}/service/test_pull_moments.py::test_a_deadline_is_never_early_and_less_than_a_millisecond_late",
    ),
    Fault(
        "a latency has the wrong sign",
        f"{SERVICE}/pull/pull_runner.py",
        "latency_ms = (self.runtime.monotonic_ns() - begun_ns) // 1_000_000",
        "latency_ms = (begun_ns - self.runtime.monotonic_ns()) // 1_000_000",
        f"{TESTS}/service/test_pull_moments.py::test_what_is_counted_as_latency_is_not_negative",
    ),
    Fault(
        "a message's store time goes back with the clock",
        f"{STORE}/message_store.py",
        "store_ms = max(self._runtime.unix_ms(), self._store_ms)\n        listed",
        "store_ms = self._runtime.unix_ms()\n        listed",
        f"{TESTS}/store/test_store_times.py::test_store_times_never_go_back",
    ),
    Fault(
        "a row's store time goes back with the clock",
        f"{STORE}/message_store.py",
        "            store_ms = max(self._runtime.unix_ms(), self._store_ms)\n            row",
        "            store_ms = self._runtime.unix_ms()\n            row",
        f"{TESTS}/store/test_store_times.py::test_store_times_never_go_back",
    ),
    Fault(
        "offsets are committed without their guard",
        f"{CORE}/tables/offsets.py",
        "        with self.guard:\n            queues",
        "        if True:\n            queues",
        f"{TESTS}/simulate/test_preempted.py::test_what_threads_share_needs_its_guard",
    ),
    Fault(
        "statistics are counted without their guard",
        f"{CORE}/tables/statistics.py",
        "        with self.guard:\n            # One message",
        "        if True:\n            # One message",
        f"{TESTS}/simulate/test_preempted.py::test_what_threads_share_needs_its_guard",
    ),
    Fault(
        "the broker gives its offsets no guard",
        "reference/longpoll_broker/assembly/shared.py",
        "Offsets(guard=self.runtime.lock(), light",
        "Offsets(light",
        f"{TESTS}/simulate/test_preempted.py::test_a_broker_guards_what_its_threads_share",
    ),
    Fault(
        "the broker gives its statistics no guard",
        "reference/longpoll_broker/assembly/shared.py",
        "Statistics(self.runtime.lock())",
        "Statistics()",
        f"{TESTS}/simulate/test_preempted.py::test_a_broker_guards_what_its_threads_share",
    ),
    Fault(
        "the count of held pulls has no guard",
        f"{SERVICE}/pull/hold_service.py",
        "else None, runtime.lock())\n",
        "else None)\n",
        f"{TESTS}/simulate/test_preempted.py::test_the_hold_table_stands_every_interleaving",
    ),
)
