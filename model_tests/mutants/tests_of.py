"""Which tests know a file, as data: the zoo runs the first ones (`quick`), the mutants of the code all of them."""

from __future__ import annotations

from typing import Final

from attrs import frozen

BROKER: Final = "reference/longpoll_broker"
STORE: Final = f"{BROKER}/store"
RULES: Final = "reference/longpoll_judge/rules"
HELD_WHILE_IT_GROWS: Final = "reference/longpoll_judge/run/incremental/held_pulls.py"


@frozen
class Known:
    """A file or a room, and the tests of it, relative to `model_tests`."""

    place: str
    quick: tuple[str, ...] = ()
    """What the zoo's `units` runs; with none, those of the next place that fits."""
    more: tuple[str, ...] = ()
    """What the mutants of the code meet besides."""


PULLED: Final = ("service/test_pull_service.py",)
LEFT_OUT: Final = ("planted", "each_lock_is_missed", "without_its_locks", "in_every_process")
"""Parts of the names of tests that the mutants never meet: tests that plant a fault of their own, and one that compares
this process with another one, in which nothing is changed."""
LET_IN: Final = (
    "service/test_accounts.py",
    "service/test_resources.py",
)
SCHEDULED: Final = ("simulate/test_refinement.py", "simulate/test_preempted.py", "simulate/test_two_pulls.py")
DISPATCHED: Final = (
    "store/test_dispatcher.py",
    "store/test_dispatcher.py",
    "store/test_retention.py",
    "store/test_recovery.py",
)
KEPT_TIDY: Final = (
    "store/test_failed_sync.py",
    "store/test_retention.py",
    "store/test_message_store.py",
    "store/test_index.py",
    "store/test_consume_queue.py",
)
"""What becomes of messages that are old, unsynced, asked for by key or deleted."""
STORED: Final = (
    "store/test_message_store.py",
    "store/test_commit_log.py",
    "store/test_segment_list.py",
    "store/test_recovery.py",
    "store/test_selection.py",
    *KEPT_TIDY,
    "store/test_verify.py",
    "store/test_failed_sync.py",
    "store/test_golden.py",
    "machines/test_store.py",
)
SENT: Final = (
    "service/test_send.py",
    "service/test_long_batches.py",
    "service/test_fast.py",
    "service/test_groups.py",
    "service/test_delayed.py",
    "service/test_bad_input.py",
    "service/test_bad_input.py",
    "service/test_record.py",
    "service/test_pull_service.py",
)
HELD: Final = (
    "core/test_hold.py",
    "core/test_notifier.py",
    "core/test_filter.py",
    "service/test_hold_service.py",
    "service/test_hold_sections.py",
    "service/test_hold_sections.py",
    *PULLED,
    "service/test_groups.py",
    *SCHEDULED,
    "machines/test_core.py",
)

KNOWN: Final = (
    Known("spec/longpoll_spec/policy.py", ("service/test_hold_service.py", "core/test_notifier.py")),
    Known(
        f"{BROKER}/hold/hold_table.py",
        ("core/test_hold.py", "core/test_notifier.py", "service/test_hold_service.py"),
        HELD,
    ),
    Known(f"{BROKER}/hold/notifier.py", ("core/test_notifier.py", "service/test_hold_service.py"), HELD),
    Known(
        f"{BROKER}/hold/pull.py",
        ("core/test_pull.py", "service/test_pull_service.py"),
        ("service/test_pull_service.py", "service/test_delete_topic.py"),
    ),
    Known(
        f"{BROKER}/shared/offsets.py",
        ("core/test_offsets.py",),
        ("simulate/test_preempted.py", "service/test_broker.py"),
    ),
    Known(
        f"{BROKER}/shared/statistics.py",
        ("core/test_offsets.py",),
        ("simulate/test_preempted.py", "service/test_administered.py", *PULLED),
    ),
    Known(f"{BROKER}/shared/filters.py", (), ("core/test_filter.py",)),
    Known(f"{BROKER}/shared/sql92", (), ("core/test_filter.py",)),
    Known(f"{BROKER}/shared/broker_role.py", (), ("core/test_topics.py",)),
    Known(f"{BROKER}/rocketmq/accounts/access.py", (), ("core/test_access.py", *LET_IN)),
    Known(f"{BROKER}/rocketmq/admin/lock_processor.py", (), ("core/test_offsets.py", "service/test_clients.py")),
    Known(f"{BROKER}/shared/subscription.py", (), ("core/test_topics.py",)),
    Known(f"{BROKER}/shared/topics.py", (), ("core/test_topics.py",)),
    Known(
        f"{BROKER}/io/channel.py",
        ("service/test_channel.py", "service/test_transport.py"),
        ("simulate/test_stress.py", "simulate/test_whole_broker.py"),
    ),
    Known(f"{BROKER}/io/transport.py", ("service/test_channel.py", "service/test_transport.py")),
    Known(
        f"{BROKER}/hold/hold_service.py",
        ("service/test_hold_service.py", "service/test_dispatch_service.py", "service/test_pull_service.py"),
        (*HELD, "service/test_send.py", "service/test_fuzz.py"),
    ),
    Known(f"{BROKER}/hold/pull_processor.py", ("service/test_executors.py",), ("service/test_pull_processor.py",)),
    Known(
        f"{BROKER}/hold/",
        PULLED,
        (
            "core/test_pull.py",
            "service/test_executors.py",
            "service/test_fast.py",
            "service/test_broker.py",
            "service/test_hold_sections.py",
            "service/test_record.py",
            "service/test_slave.py",
            "service/test_groups.py",
            "service/test_bad_input.py",
            "service/test_bad_input.py",
        ),
    ),
    Known(f"{BROKER}/rocketmq/accounts/", (), LET_IN),
    Known(
        f"{BROKER}/send/durability.py",
        ("simulate/test_group_commit.py", "service/test_send.py"),
        ("service/test_send.py", "simulate/test_whole_broker.py"),
    ),
    Known(f"{BROKER}/send/append.py", (), ("service/test_message_maker.py",)),
    Known(f"{BROKER}/send/message_builder.py", (), ("service/test_message_maker.py",)),
    Known(f"{BROKER}/send/send_processor.py", (), ("service/test_send_processor.py", "service/test_message_maker.py")),
    Known(f"{BROKER}/send/", ("service/test_send.py",), SENT),
    Known(
        f"{STORE}/recovery.py",
        ("store/test_recovery.py",),
        (
            "store/test_outsiders.py",
            "store/test_recovery.py",
            "store/test_message_store.py",
            "store/test_failed_sync.py",
        ),
    ),
    Known(
        f"{STORE}/message_store.py",
        (),
        (
            "store/test_store_door.py",
            "store/test_store_troubles.py",
            "simulate/test_locksets.py",
            "store/test_message_store.py",
            "store/test_recovery.py",
            "store/test_failed_sync.py",
            *KEPT_TIDY,
        ),
    ),
    Known(
        f"{STORE}/commit_log.py",
        (),
        (
            "store/test_commit_log.py",
            "store/test_message_store.py",
            "store/test_recovery.py",
            "store/test_failed_sync.py",
        ),
    ),
    Known(
        f"{STORE}/segment.py",
        (),
        ("store/test_segment_list.py", "store/test_maps.py", "store/test_failed_sync.py"),
    ),
    Known(
        f"{STORE}/consume_queue.py",
        (),
        ("store/test_consume_queue.py", "store/test_queue_table.py", "store/test_retention.py"),
    ),
    Known(f"{STORE}/dispatch.py", ("service/test_dispatch_service.py", "store/test_message_store.py"), DISPATCHED),
    Known(f"{STORE}/index.py", (), ("store/test_index_list.py", "store/test_indexer.py", "store/test_index.py")),
    Known(f"{STORE}/selection.py", (), ("store/test_selection.py",)),
    Known(f"{STORE}/", ("store/test_message_store.py", "store/test_commit_log.py"), STORED),
    Known(f"{BROKER}/fast/", ("service/test_fast.py",)),
    Known(f"{BROKER}/", ("service/test_pull_service.py",)),
    Known(HELD_WHILE_IT_GROWS, (), ("judge/test_held_pulls.py",)),
    Known(f"{RULES}/queue_case.py", (), ("judge/test_answer_columns.py", "judge/test_counting.py")),
    Known(f"{RULES}/holding.py", (), ("judge/test_holding.py", "judge/test_holds.py", "judge/test_pulls.py")),
    Known(f"{RULES}/logs.py", (), ("judge/test_logs.py", "judge/test_falls.py", "judge/test_shown.py")),
    Known(f"{RULES}/commits.py", (), ("judge/test_committed_offsets.py",)),
    Known(f"{RULES}/sends.py", (), ("judge/test_sends_told.py",)),
    Known(f"{RULES}/connections.py", (), ("judge/test_falls.py", "judge/test_outsider.py")),
    Known(f"{RULES}/filters.py", (), ("judge/test_outsider.py",)),
    Known(f"{RULES}/pull_answers.py", (), ("judge/test_rightness.py", "judge/test_pulls.py")),
    Known(f"{RULES}/promptness.py", (), ("judge/test_promptness.py", "judge/test_columns.py")),
    Known(
        f"{RULES}/",
        (),
        (
            "judge/test_faults.py",
            "judge/test_commits.py",
            "judge/test_holds.py",
            "judge/test_windows.py",
            "judge/test_recordings.py",
            "judge/test_second_smallest.py",
            "judge/test_second_beside.py",
        ),
    ),
    Known(
        "reference/longpoll_client/",
        ("client/test_puller.py", "client/test_push.py"),
    ),
    Known("reference/longpoll_runtime/", ("service/test_channel.py", "service/test_runtime.py")),
)


def quick_tests(file: str) -> tuple[str, ...]:
    """The zoo's tests for a file: those of the first matching entry that names some."""
    return next(known.quick for known in KNOWN if known.quick and file.startswith(known.place))


def known_tests(file: str) -> tuple[str, ...]:
    """The tests for a file's mutants, each once."""
    known = next(each for each in KNOWN if file.startswith(each.place))
    return tuple(dict.fromkeys([*known.quick, *known.more]))
