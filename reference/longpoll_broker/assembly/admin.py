"""The services for all requests other than sends and pulls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from attrs import frozen

from longpoll_broker.assembly.shared import SharedServices
from longpoll_broker.io.channel import Outbox
from longpoll_broker.io.processors import Processor
from longpoll_broker.rocketmq.accounts.access_control import AccessControl
from longpoll_broker.rocketmq.admin.admin_processor import AdminProcessor
from longpoll_broker.rocketmq.admin.client_calls import ClientCalls
from longpoll_broker.rocketmq.admin.client_processor import ClientProcessor
from longpoll_broker.rocketmq.admin.connection_processor import ConnectionProcessor
from longpoll_broker.rocketmq.admin.list_processor import ListProcessor
from longpoll_broker.rocketmq.admin.lock_processor import AssignmentProcessor, LockProcessor
from longpoll_broker.rocketmq.admin.progress_processor import ProgressProcessor
from longpoll_broker.rocketmq.admin.query_processor import QueryProcessor
from longpoll_broker.rocketmq.admin.statistics_processor import StatisticsProcessor
from longpoll_broker.rocketmq.admin.table_processor import TableProcessor
from longpoll_broker.rocketmq.admin.upkeep_processor import UpkeepProcessor
from longpoll_broker.rocketmq.tables.queue_locks import QueueLocks
from longpoll_broker.upkeep.table_saves import WhenSaved
from longpoll_protocol.bodies import HAStatus, MessageQueue


@frozen(eq=False)
class AdminServices:
    """The services."""

    clients: ClientProcessor
    admin: AdminProcessor
    locks: LockProcessor
    queries: QueryProcessor
    statistics: StatisticsProcessor
    progress: ProgressProcessor
    connections: ConnectionProcessor
    tables: TableProcessor
    calls: ClientCalls
    lists: ListProcessor
    upkeep: UpkeepProcessor
    assignments: AssignmentProcessor
    unknown: frozenset[int]
    """Codes that this version does not know."""

    @property
    def processors(self) -> Mapping[int, Processor]:
        """The processors of all these services."""
        services = (
            self.clients,
            self.admin,
            self.locks,
            self.queries,
            self.statistics,
            self.progress,
            self.connections,
            self.tables,
            self.calls,
            self.lists,
            self.upkeep,
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
        AdminProcessor(shared.topics, shared.groups, shared.offsets, shared.store, topic_deleted, when_saved, traits),
        LockProcessor(runtime, QueueLocks(), runtime.lock(), shared.groups.size_max),
        QueryProcessor(shared.store),
        StatisticsProcessor(shared.statistics, shared.config.cluster_name),
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
        ConnectionProcessor(clients),
        TableProcessor(
            runtime,
            shared.config,
            shared.store_config,
            pull_queue,
            ha_status,
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
        ListProcessor(shared.topics, shared.groups, when_saved, traits),
        UpkeepProcessor(shared.topics, clean_soon),
        AssignmentProcessor(
            shared.topics, clients, shared.config.broker_name, queues_elsewhere, bool(shared.config.name_servers)
        ),
        traits.unknown_codes,
    )
