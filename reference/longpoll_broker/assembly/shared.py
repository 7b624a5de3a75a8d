"""Shared parts of a broker's services: runtime, settings, store and tables."""

from __future__ import annotations

from attrs import Factory, field, frozen

from longpoll_broker.assembly.history import NoHistory
from longpoll_broker.config import BrokerConfig, StoreConfig
from longpoll_broker.hold.pull import PullChecks
from longpoll_broker.io.processors import RequestCounts
from longpoll_broker.send.append import Appender
from longpoll_broker.shared.broker_role import BrokerRole
from longpoll_broker.shared.filters import FilterTable
from longpoll_broker.shared.offsets import Offsets
from longpoll_broker.shared.statistics import Statistics
from longpoll_broker.shared.subscription import Clients
from longpoll_broker.shared.timer_offsets import DelayOffsets, TimerCounts, TimerOffsets
from longpoll_broker.shared.topics import Groups, Topics
from longpoll_broker.shared.version_traits import Traits, traits_of
from longpoll_broker.store.message_store import MessageStore
from longpoll_protocol.log_record import host_bytes
from longpoll_protocol.names import PERM_READ
from longpoll_runtime import Address, Runtime
from longpoll_spec.policy import Policy


def _topics(shared: SharedServices) -> Topics:
    config = shared.config
    return Topics(
        config.auto_create_topic,
        config.default_topic_queue_count,
        shared.store_config.light_queues,
        guard=shared.runtime.lock(),
    )


def _standing(shared: SharedServices) -> BrokerRole:
    config = shared.config
    return BrokerRole(config.role, config.broker_id, config.slave_read, config.offset_check_in_slave)


def _desk(shared: SharedServices) -> PullChecks:
    return PullChecks(
        shared.topics,
        shared.groups,
        shared.clients,
        is_readable=bool(shared.config.permission & PERM_READ),
        property_filter=shared.config.property_filter,
        traits=shared.traits,
        standing=shared.standing,
    )


@frozen(eq=False)
class SharedServices:
    """Created once, before any service."""

    runtime: Runtime
    policy: Policy
    config: BrokerConfig
    store_config: StoreConfig
    store: MessageStore
    address: Address
    """The broker's listening address."""
    recording: NoHistory = field(factory=NoHistory)
    is_fast: bool = True
    """Whether services of `fast` replace the plain ones."""
    traits: Traits = field(init=False, default=Factory(lambda self: traits_of(self.policy), takes_self=True))
    topics: Topics = field(init=False, default=Factory(_topics, takes_self=True))
    groups: Groups = field(
        init=False,
        default=Factory(
            lambda self: Groups(
                self.config.auto_create_subscription_group,
                self.store_config.light_queues,
                self.traits.group_size_max,
                self.traits.validates_groups,
                guard=self.runtime.lock(),
            ),
            takes_self=True,
        ),
    )
    offsets: Offsets = field(
        init=False,
        default=Factory(
            lambda self: Offsets(
                guard=self.runtime.lock(),
                light=self.store_config.light_queues,
                pulled=Offsets(guard=self.runtime.lock()) if self.traits.tells_pull_offsets else None,
            ),
            takes_self=True,
        ),
    )
    delays: DelayOffsets = field(init=False, factory=DelayOffsets)
    timers: TimerOffsets = field(init=False, factory=TimerOffsets)
    timer_counts: TimerCounts = field(init=False, factory=TimerCounts)
    statistics: Statistics = field(
        init=False, default=Factory(lambda self: Statistics(self.runtime.lock()), takes_self=True)
    )
    request_counts: RequestCounts = field(init=False, factory=RequestCounts)
    clients: Clients = field(
        init=False,
        default=Factory(
            lambda self: Clients(FilterTable(self.traits.filters_outlive_groups, self.traits.filters_with_parts)),
            takes_self=True,
        ),
    )
    standing: BrokerRole = field(init=False, default=Factory(_standing, takes_self=True))
    desk: PullChecks = field(init=False, default=Factory(_desk, takes_self=True))
    store_host: bytes = field(init=False, default=Factory(lambda self: host_bytes(*self.address), takes_self=True))
    """The broker's address as in records."""
    appender: Appender = field(
        init=False,
        default=Factory(
            lambda self: Appender(self.runtime, self.store, self.recording.sends, self.statistics), takes_self=True
        ),
    )
