"""The services for sends: storing messages, send-backs, transactions and recalls."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attrs import frozen

from longpoll_broker.assembly.shared import SharedServices
from longpoll_broker.fast.send_heads import PatchedSendProcessor
from longpoll_broker.io.channel import Outbox
from longpoll_broker.io.processors import Processor
from longpoll_broker.rocketmq.replication.replicator import Replicator
from longpoll_broker.rocketmq.timers import RecallProcessor
from longpoll_broker.rocketmq.transactions import EndTransactionProcessor, ProducerOf, TransactionChecks
from longpoll_broker.send.durability import Durability, WhenTold
from longpoll_broker.send.group_commit import GroupCommit
from longpoll_broker.send.inner_queues import InnerQueues
from longpoll_broker.send.message_builder import MessageBuilder
from longpoll_broker.send.send_back_processor import SendBackProcessor
from longpoll_broker.send.send_processor import SendProcessor


@frozen(eq=False)
class SendServices:
    """The services, and the threads of `SYNC_FLUSH`."""

    send: SendProcessor
    back: SendBackProcessor
    transactions: EndTransactionProcessor
    recalls: RecallProcessor
    checks: TransactionChecks
    commits: GroupCommit | None

    @property
    def processors(self) -> Mapping[int, Processor]:
        """The processors of all these services."""
        found = {**self.send.processors, **self.back.processors, **self.transactions.processors}
        return found | self.recalls.processors if self.send.traits.serves_timers else found

    @property
    def stores_at_once(self) -> bool:
        """Whether a send needs only storing and an answer; only such sends are stored in bursts."""
        return not self.send.keepers.are_there and not self.send.traits.returns_transaction_id

    def start(self) -> None:
        """Start the threads."""
        if self.commits is not None:
            self.commits.start()

    def stop(self) -> None:
        """Answer the sends that wait for the disk, and end the threads."""
        if self.commits is not None:
            self.commits.stop()


def send_services_of(
    shared: SharedServices,
    *,
    flushed: Callable[[Outbox], None],
    save_topics: Callable[[], None],
    producer_of: ProducerOf,
    replicator: Replicator | None = None,
    when_told: WhenTold | None = None,
) -> SendServices:
    """Create the services.

    `flushed` is called after each sync of `SYNC_FLUSH`, `save_topics` before a sync for new topics. `producer_of` finds
    a group's connection. `replicator` is set if sends wait for slaves, `when_told` if new topics wait for name servers.
    """
    runtime, config, store = shared.runtime, shared.config, shared.store
    commits = None
    if shared.store_config.flush_disk_sync:
        commits = GroupCommit(runtime, store, shared.store_config.sync_flush_timeout_ms, flushed, save_topics)
    level_count = len(shared.store_config.delay_levels_ms)
    inner_queues = InnerQueues.of(store, shared.store_config)
    maker = MessageBuilder(
        runtime,
        config.cluster_name,
        shared.topics,
        shared.groups,
        shared.store_host,
        shared.traits,
        inner_queues,
        config.broker_name,
        shared.timers,
        level_count=level_count,
    )
    keepers = Durability(commits, replicator, when_told)
    kind = PatchedSendProcessor if shared.is_fast else SendProcessor
    transactions = EndTransactionProcessor(runtime, shared.appender, store, shared.store_host, shared.traits)
    return SendServices(
        kind(
            shared.topics,
            maker,
            shared.appender,
            shared.recording.sends,
            keepers,
            shared.traits,
        ),
        SendBackProcessor(
            config,
            shared.topics,
            shared.groups,
            store,
            shared.appender,
            keepers,
            shared.store_host,
            shared.traits,
            level_count=level_count,
        ),
        transactions,
        RecallProcessor(
            runtime,
            config,
            shared.standing,
            shared.topics,
            shared.appender,
            shared.store_host,
            shared.traits.properties_form,
        ),
        TransactionChecks(transactions, config, shared.store_config.file_reserved_hours, shared.offsets, producer_of),
        commits,
    )
