"""The services for all requests other than sends and pulls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from attrs import frozen

from longpoll_broker.assembly.shared import SharedServices
from longpoll_broker.io.channel import Outbox
from longpoll_broker.io.processors import Processor
from longpoll_broker.rocketmq.accounts.access_control import AccessControl
from longpoll_broker.rocketmq.admin.client_calls import ClientCalls
from longpoll_broker.rocketmq.admin.client_processor import ClientProcessor
from longpoll_broker.rocketmq.admin.lock_processor import AssignmentProcessor, LockProcessor, QueueLocks
from longpoll_broker.rocketmq.admin.offset_processor import OffsetProcessor
from longpoll_broker.rocketmq.admin.progress_processor import ProgressProcessor
from longpoll_broker.rocketmq.admin.table_processor import TableProcessor
from longpoll_broker.rocketmq.admin.topic_processor import TopicProcessor
from longpoll_broker.upkeep.table_saves import WhenSaved
from longpoll_protocol.bodies import HAStatus, MessageQueue


@frozen(eq=False)
class AdminServices:
    """The services."""

    clients: ClientProcessor
    offsets: OffsetProcessor
    locks: LockProcessor
    progress: ProgressProcessor
    tables: TableProcessor
    calls: ClientCalls
    topics: TopicProcessor
    assignments: AssignmentProcessor
    unknown: frozenset[int]
    """Codes that this version does not know."""

    @property
    def processors(self) -> Mapping[int, Processor]:
        """The processors of all these services."""
        services = (
            self.clients,
            self.offsets,
            self.locks,
            self.progress,
            self.tables,
            self.calls,
            self.topics,
            self.assignments,
        )
        found = {code: processor for service in services for code, processor in service.processors.items()}
        return {code: processor for code, processor in found.items() if code not in self.unknown}


def admin_services_of(
    shared: SharedServices,
    *,
    topic_deleted: Callable[[str, Outbox], None],
    when_saved: WhenSaved,
    clean_soon: Callable[[], None],
    pull_queue: Callable[[], tuple[int, int]],
    ha_status: Callable[[], HAStatus],
    queues_elsewhere: Callable[[str], Iterable[MessageQueue]],
    access: AccessControl | None = None,
) -> AdminServices:
    """Create the services; `topic_deleted` is called after a topic's deletion."""
    runtime, traits = shared.runtime, shared.traits
    clients = ClientProcessor(
        shared.topics,
        shared.groups,
        shared.clients,
        runtime.lock(),
        property_filter=shared.config.property_filter,
        traits=traits,
        now_ms=runtime.unix_ms,
        may_get=(lambda _channel, _record, _right: True) if access is None else access.may_get,
    )
    address = "{}:{}".format(*shared.address)
    return AdminServices(
        clients,
        OffsetProcessor(shared.topics, shared.groups, shared.offsets, shared.store, traits),
        LockProcessor(runtime, QueueLocks(), runtime.lock(), shared.groups.size_max),
        ProgressProcessor(
            shared.topics,
            shared.offsets,
            shared.store,
            shared.clients,
            clients.lock,
            shared.statistics,
            shared.config.broker_name,
            shared.groups,
            address,
            runtime.unix_ms,
            traits,
        ),
        TableProcessor(
            runtime,
            shared.config,
            shared.store_config,
            pull_queue,
            ha_status,
            clean_soon,
            shared.topics,
            shared.groups,
            shared.offsets,
            shared.delays,
            shared.timers,
            shared.timer_counts,
            shared.store,
            shared.statistics,
            shared.request_counts,
            traits,
            shared.policy.name,
        ),
        ClientCalls(
            runtime,
            shared.topics,
            shared.offsets,
            shared.store,
            clients,
            shared.config.broker_name,
            address,
            runtime.lock(),
        ),
        TopicProcessor(shared.topics, shared.groups, shared.offsets, shared.store, topic_deleted, when_saved, traits),
        AssignmentProcessor(
            shared.topics, clients, shared.config.broker_name, queues_elsewhere, bool(shared.config.name_servers)
        ),
        traits.unknown_codes,
    )
