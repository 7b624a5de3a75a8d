"""The room of everything that is asked and changed beside sends and pulls."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attrs import frozen

from longpoll_broker.assembly.shared import Shared
from longpoll_broker.core.tables.queue_locks import QueueLocks
from longpoll_broker.service.admin.admin import AdminService
from longpoll_broker.service.admin.clients import ClientService
from longpoll_broker.service.admin.lock_service import LockService
from longpoll_broker.service.admin.query_service import QueryService
from longpoll_broker.service.admin.statistics_service import StatisticsService
from longpoll_broker.service.io.channel import Outbox
from longpoll_broker.service.io.exchange import Processor


@frozen(eq=False)
class Administering:
    """The services."""

    clients: ClientService
    admin: AdminService
    locks: LockService
    queries: QueryService
    statistics: StatisticsService

    @property
    def processors(self) -> Mapping[int, Processor]:
        """Of all of them."""
        services = (self.clients, self.admin, self.locks, self.queries, self.statistics)
        return {code: processor for service in services for code, processor in service.processors.items()}


def administering_of(shared: Shared, *, topic_deleted: Callable[[str, Outbox], None]) -> Administering:
    """Make the room; `topic_deleted` is called when a topic is gone."""
    runtime, traits = shared.runtime, shared.traits
    return Administering(
        ClientService(
            shared.topics,
            shared.groups,
            shared.clients,
            runtime.lock(),
            property_filter=shared.config.property_filter,
            traits=traits,
        ),
        AdminService(shared.topics, shared.groups, shared.offsets, shared.store, topic_deleted, traits),
        LockService(runtime, QueueLocks(), runtime.lock()),
        QueryService(shared.store),
        StatisticsService(shared.statistics, shared.config.cluster_name),
    )
