"""Creates and connects the services of a broker, in the order of their dependencies.

Each service declares its request codes and the objects that it needs. This module decides which services exist under a
policy and a configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from attrs import define, field, frozen

from longpoll_broker.config import BrokerConfig, StoreConfig
from longpoll_broker.history import BrokerHistory
from longpoll_broker.hold.hold_service import DispatchService, HoldService, ScanService
from longpoll_broker.hold.hold_table import Pull
from longpoll_broker.hold.pull import PullChecks, check
from longpoll_broker.hold.pull_pool import PoolExecutor
from longpoll_broker.hold.pull_processor import PullProcessor
from longpoll_broker.hold.pull_runner import InlineExecutor, LaterRuns, PullAnswers, PullRunner, ignore_moved_offset
from longpoll_broker.io.channel import Outbox
from longpoll_broker.io.processors import Processor, RequestCounts, Serving
from longpoll_broker.rocketmq.accounts.access_control import AccessControl
from longpoll_broker.rocketmq.admin.client_calls import ClientCalls
from longpoll_broker.rocketmq.admin.client_processor import ClientProcessor
from longpoll_broker.rocketmq.admin.lock_processor import AssignmentProcessor, LockProcessor, QueueLocks
from longpoll_broker.rocketmq.admin.offset_processor import OffsetProcessor
from longpoll_broker.rocketmq.admin.progress_processor import ProgressProcessor
from longpoll_broker.rocketmq.admin.role_processor import RoleProcessor
from longpoll_broker.rocketmq.admin.table_processor import TableProcessor
from longpoll_broker.rocketmq.admin.topic_processor import TopicProcessor
from longpoll_broker.rocketmq.delay_levels import ScheduleService
from longpoll_broker.rocketmq.name_server.peer_client import address_in
from longpoll_broker.rocketmq.name_server.registrar import Registrar
from longpoll_broker.rocketmq.offset_moved import OffsetMovedEvents
from longpoll_broker.rocketmq.timers import RecallProcessor, TimerService
from longpoll_broker.rocketmq.transactions import EndTransactionProcessor, ProducerOf, TransactionChecks
from longpoll_broker.send.append import Appender
from longpoll_broker.send.durability import Durability, GroupCommit, WhenRegistered
from longpoll_broker.send.message_builder import InnerQueues, MessageBuilder
from longpoll_broker.send.send_back_processor import SendBackProcessor
from longpoll_broker.send.send_processor import SendProcessor
from longpoll_broker.shared.broker_role import BrokerRole
from longpoll_broker.shared.filters import FilterTable, prepare_parser
from longpoll_broker.shared.offsets import Offsets
from longpoll_broker.shared.queues import NewQueues
from longpoll_broker.shared.statistics import Statistics
from longpoll_broker.shared.subscription import Clients
from longpoll_broker.shared.timer_offsets import DelayOffsets, TimerCounts, TimerOffsets
from longpoll_broker.shared.topics import Groups, Topics
from longpoll_broker.shared.version_traits import Traits, traits_of
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.upkeep.config_files import TableSaves, WhenSaved
from longpoll_broker.upkeep.flush_service import FlushService, Retention
from longpoll_protocol.bodies import MessageQueue
from longpoll_protocol.log_record import host_bytes
from longpoll_protocol.names import PERM_READ
from longpoll_runtime import Address, Runtime
from longpoll_spec.policy import Policy


@define(eq=False)
class SharedServices:
    """The state that all services share; it is created once, before any service."""

    runtime: Runtime
    policy: Policy
    config: BrokerConfig
    store_config: StoreConfig
    store: MessageStore
    address: Address
    """The address on which the broker listens."""
    recording: BrokerHistory
    traits: Traits = field(init=False)
    topics: Topics = field(init=False)
    groups: Groups = field(init=False)
    offsets: Offsets = field(init=False)
    queues: NewQueues = field(init=False)
    delays: DelayOffsets = field(init=False, factory=DelayOffsets)
    timers: TimerOffsets = field(init=False, factory=TimerOffsets)
    timer_counts: TimerCounts = field(init=False, factory=TimerCounts)
    statistics: Statistics = field(init=False)
    request_counts: RequestCounts = field(init=False, factory=RequestCounts)
    clients: Clients = field(init=False)
    role: BrokerRole = field(init=False)
    checks: PullChecks = field(init=False)
    store_host: bytes = field(init=False)
    """The broker's address as records store it: the IP address's bytes, then the port in 4 bytes."""
    appender: Appender = field(init=False)

    def __attrs_post_init__(self) -> None:
        config, lock, light = self.config, self.runtime.lock, self.store_config.light_queues
        self.traits = traits = traits_of(self.policy)
        self.topics = Topics(config.auto_create_topic, config.default_topic_queue_count, light, guard=lock())
        self.groups = Groups(
            config.auto_create_subscription_group,
            light,
            traits.group_size_max,
            traits.validates_groups,
            guard=lock(),
        )
        pulled = Offsets(guard=lock()) if traits.tells_pull_offsets else None
        self.offsets = Offsets(guard=lock(), light=light, pulled=pulled)
        self.topics.on_new = self.offsets.forget_strays
        self.queues = NewQueues(self.store.has_queue, lock())
        self.queues.note_loaded(self.store.all_queues())
        self.statistics = Statistics(lock())
        self.clients = Clients(FilterTable(traits.filters_outlive_groups, traits.filters_with_parts))
        if config.property_filter:
            prepare_parser(with_parts=traits.filters_with_parts)
        self.role = BrokerRole(config.role, config.broker_id, config.slave_read, config.offset_check_in_slave)
        self.checks = PullChecks(
            self.topics,
            self.groups,
            self.clients,
            is_readable=bool(config.permission & PERM_READ),
            property_filter=config.property_filter,
            traits=traits,
            role=self.role,
        )
        self.store_host = host_bytes(*self.address)
        self.appender = Appender(self.runtime, self.store, self.recording.sends, self.statistics)


SHORT_SCAN_MS = 1_000
"""While long polling is off, the table is scanned at this interval, ms (`shortPollingTimeMills`)."""


@frozen(eq=False)
class PullServices:
    """The services that serve pulls, and the threads that some policies need for them."""

    runner: PullRunner
    pool: PoolExecutor | None
    inline: InlineExecutor | None
    """Runs pulls at the end of each pass of the I/O loop if the policy has no pull pool."""
    hold_service: HoldService
    pull_processor: PullProcessor
    roles: RoleProcessor
    dispatch_service: DispatchService
    scan: ScanService | None

    @property
    def processors(self) -> Mapping[int, Processor]:
        """Returns the processors of all pull services, by request code."""
        return {**self.pull_processor.processors, **self.roles.processors}

    def start(self, dispatcher_sleep_ms: int) -> None:
        """Start the threads."""
        if self.dispatch_service.polls:
            self.dispatch_service.start(dispatcher_sleep_ms)
        if self.pool is not None:
            self.pool.start()
        if self.scan is not None:
            self.scan.start()

    def queue(self) -> tuple[int, int]:
        """Returns the number of pulls that wait for a thread, and how long the oldest of them has waited, ms."""
        return (0, 0) if self.pool is None else self.pool.waiting()

    def finish(self, outbox: Outbox) -> None:
        """Answer held pulls as the policy says, and run the queued pulls. Call this when no notifier runs any more."""
        self.hold_service.stop(outbox)
        if self.inline is not None:
            self.inline.finish(outbox)

    def stop_notifying(self) -> None:
        """Stop every thread that could take pulls from the hold table or put them back; queued pulls still run."""
        if self.scan is not None:
            self.scan.stop()
        self.dispatch_service.stop()
        if self.pool is not None:
            self.pool.stop()

    def topic_deleted(self, topic: str, outbox: Outbox) -> None:
        """Answer the held pulls of a deleted topic; RocketMQ answers them only at the scan after their deadline."""
        self.runner.forget_last()
        if self.pull_processor.policy.on_truncate == "wake":
            self.hold_service.topic_deleted(topic, outbox)

    def resubscribed(self, group: str, topics: Iterable[str], outbox: Outbox) -> None:
        """Apply a group's new subscriptions to held pulls at once; RocketMQ applies them when it next checks a pull."""
        if self.pull_processor.policy.on_truncate == "wake":
            checks = self.pull_processor.checks
            for topic in topics:
                self.hold_service.resubscribed(group, topic, lambda pull: check(pull, checks), outbox)


def pull_services_of(shared: SharedServices, access: AccessControl | None = None) -> PullServices:
    """Create the services that serve pulls under the given policy and configuration."""
    runtime, policy, config = shared.runtime, shared.policy, shared.config
    runner = _runner(shared, access)
    pool: PoolExecutor | None = None
    inline: InlineExecutor | None = None
    executor: PoolExecutor | InlineExecutor
    if policy.notify == "dispatcher_poll":
        wait_ms_max = config.pull_wait_ms_max if config.fast_failure else None
        executor = pool = PoolExecutor(
            runtime, runner.run, runner.refuse, config.pull_thread_count, config.pull_queue_capacity, wait_ms_max
        )
    else:
        executor = inline = InlineExecutor(runner.run, runner.run_alike, LaterRuns(runtime.lock()))
    hold_service = HoldService(
        runtime,
        policy,
        shared.store,
        executor,
        refuse=runner.refuse,
        held_count_max=config.held_count_max,
        queue_held_count_max=config.queue_held_count_max,
        events=shared.recording.pulls,
    )
    scan_period_ms = config.scan_period_ms if config.long_polling else SHORT_SCAN_MS
    return PullServices(
        runner,
        pool,
        inline,
        hold_service,
        PullProcessor(
            runtime, policy, config, shared.checks, shared.offsets, runner, hold_service, shared.recording.pulls
        ),
        RoleProcessor(
            shared.role,
            shared.traits,
            hold_service,
            config.broker_name,
            config.slave_acting_master,
            policy.on_master_return == "answer",
        ),
        DispatchService(
            runtime,
            shared.store,
            hold_service,
            shared.recording.pulls,
            notifies=config.long_polling and (not shared.role.is_slave or shared.traits.slave_notifies),
            polls=policy.notify == "dispatcher_poll",
            in_batches=policy.notify_grain == "batch",
            before_visible=policy.notify == "before_visible",
            passes_idle=policy.empty_shortcut,
            makes_durable=shared.store_config.visible_when_durable,
        ),
        ScanService(runtime, hold_service, scan_period_ms) if policy.expiry == "scan" else None,
    )


def _runner(shared: SharedServices, access: AccessControl | None) -> PullRunner:
    events, checks = shared.recording.pulls, shared.checks
    answers = PullAnswers(checks, events)
    moved: Callable[[Pull, int], None] = ignore_moved_offset
    if shared.traits.stores_moved_offsets and not shared.role.is_slave:
        moved = OffsetMovedEvents(shared.runtime, shared.appender, shared.config.broker_name, shared.store_host).tell
    return PullRunner(
        shared.runtime,
        shared.policy,
        checks,
        shared.store,
        shared.statistics,
        events,
        answers,
        offset_moved=moved,
        may_still_pull=None if access is None else access.may_still_pull,
        # An answer may be reused only if every pull gets the same answer. Accounts may get different answers, and a
        # history needs the events of every pull.
        reuses_answers=answers.has_offsets_only and shared.recording.recorder is None and access is None,
    )


@frozen(eq=False)
class SendServices:
    """The services that serve sends, and the threads that flush messages to disk."""

    send: SendProcessor
    back: SendBackProcessor
    transactions: EndTransactionProcessor
    recalls: RecallProcessor
    checks: TransactionChecks
    commits: GroupCommit

    @property
    def processors(self) -> Mapping[int, Processor]:
        """Returns the processors of all send services, by request code."""
        found = {**self.send.processors, **self.back.processors, **self.transactions.processors}
        return found | self.recalls.processors if self.send.traits.serves_timers else found

    def start(self) -> None:
        """Start the threads."""
        self.commits.start()

    def stop(self) -> None:
        """Answer the sends that wait for the disk, and stop the threads."""
        self.commits.stop()


def send_services_of(
    shared: SharedServices,
    *,
    flushed: Callable[[Outbox], None],
    save_topics: Callable[[], None],
    producer_of: ProducerOf,
    when_registered: WhenRegistered | None = None,
) -> SendServices:
    """Create the services that serve sends.

    `flushed` is called after each sync of `SYNC_FLUSH`, and `save_topics` after new topics were created. `producer_of`
    returns a producer connection of a group. `when_registered` is set if a new topic must be registered at name servers
    before its send is answered.
    """
    runtime, config, store = shared.runtime, shared.config, shared.store
    commits = GroupCommit(runtime, store, shared.store_config.sync_flush_timeout_ms, flushed, save_topics)
    level_count = len(shared.store_config.delay_levels_ms)
    builder = MessageBuilder(
        runtime,
        config.cluster_name,
        shared.topics,
        shared.groups,
        shared.store_host,
        shared.traits,
        InnerQueues.of(store, shared.store_config, shared.queues, runtime.lock()),
        config.broker_name,
        shared.timers,
        level_count=level_count,
        queues=shared.queues,
    )
    durability = Durability(commits, when_registered, shared.store_config.flush_disk_sync)
    transactions = EndTransactionProcessor(runtime, shared.appender, store, shared.store_host, shared.traits)
    return SendServices(
        SendProcessor(shared.topics, builder, shared.appender, shared.recording.sends, durability, shared.traits),
        SendBackProcessor(
            config,
            shared.topics,
            shared.groups,
            store,
            shared.appender,
            durability,
            shared.store_host,
            shared.traits,
            level_count=level_count,
        ),
        transactions,
        RecallProcessor(
            runtime,
            config,
            shared.role,
            shared.topics,
            shared.appender,
            shared.store_host,
            shared.traits.properties_form,
        ),
        TransactionChecks(transactions, config, shared.store_config.file_reserved_hours, shared.offsets, producer_of),
        commits,
    )


def registrar_of(shared: SharedServices, address: str) -> Registrar | None:
    """Create the registration at name servers, if any are configured; raises ConfigError."""
    config = shared.config
    found = (address_in(text.strip(), "namesrvAddr") for text in config.name_servers.split(";"))
    name_servers = tuple(address for address in found if address is not None)
    if not name_servers:
        return None
    return Registrar(shared.runtime, config, shared.topics, name_servers, address, shared.runtime.unix_ms())


@frozen(eq=False)
class AdminServices:
    """The services for group membership, the broker's tables and administration."""

    clients: ClientProcessor
    locks: LockProcessor
    tables: TableProcessor
    calls: ClientCalls
    others: tuple[Serving, ...]
    unknown: frozenset[int]
    """Request codes that this version of RocketMQ does not know."""

    @property
    def processors(self) -> Mapping[int, Processor]:
        """Returns the processors of all administration services, by request code."""
        services = (self.clients, self.locks, self.tables, self.calls, *self.others)
        found = {code: processor for service in services for code, processor in service.processors.items()}
        return {code: processor for code, processor in found.items() if code not in self.unknown}


def admin_services_of(
    shared: SharedServices,
    *,
    topic_deleted: Callable[[str, Outbox], None],
    resubscribed: Callable[[str, Iterable[str], Outbox], None],
    when_saved: WhenSaved,
    clean_soon: Callable[[], None],
    pull_queue: Callable[[], tuple[int, int]],
    queues_elsewhere: Callable[[str], Iterable[MessageQueue]],
    access: AccessControl | None = None,
) -> AdminServices:
    """Create the administration services.

    `topic_deleted` and `resubscribed` are called after a topic's deletion and after a change of subscriptions.
    """
    runtime, traits = shared.runtime, shared.traits
    clients = ClientProcessor(
        shared.topics,
        shared.groups,
        shared.clients,
        runtime.lock(),
        property_filter=shared.config.property_filter,
        traits=traits,
        now_ms=runtime.unix_ms,
        resubscribed=resubscribed,
        may_get=(lambda _channel, _record, _right: True) if access is None else access.may_get,
    )
    address = "{}:{}".format(*shared.address)
    topics, name = shared.topics, shared.config.broker_name
    return AdminServices(
        clients,
        LockProcessor(runtime, QueueLocks(), runtime.lock(), shared.groups.size_max),
        TableProcessor(
            runtime,
            shared.config,
            shared.store_config,
            pull_queue,
            clean_soon,
            topics,
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
            shared.role.is_slave,
        ),
        ClientCalls(runtime, topics, shared.offsets, shared.store, clients, name, address, runtime.lock()),
        (
            OffsetProcessor(topics, shared.groups, shared.offsets, shared.store, traits),
            ProgressProcessor(
                topics,
                shared.offsets,
                shared.store,
                shared.clients,
                clients.lock,
                shared.statistics,
                name,
                shared.groups,
                address,
                runtime.unix_ms,
                traits,
            ),
            TopicProcessor(
                topics, shared.groups, shared.offsets, shared.queues, shared.store, topic_deleted, when_saved, traits
            ),
            AssignmentProcessor(topics, clients, name, queues_elsewhere, bool(shared.config.name_servers)),
        ),
        traits.unknown_codes,
    )


@frozen(eq=False)
class UpkeepServices:
    """The services that work in the background, each on its own thread. A slave delivers no delayed messages."""

    flush: FlushService
    schedule: ScheduleService
    timer: TimerService | None
    saves: TableSaves
    is_slave: bool

    def start(self) -> None:
        """Start the threads."""
        self.flush.start()
        self.saves.start()
        if not self.is_slave:
            self.schedule.start()
            if self.timer is not None:
                self.timer.start()

    def stop_delivering(self) -> None:
        """Stop delivering delayed and timed messages."""
        self.schedule.stop()
        if self.timer is not None:
            self.timer.stop()


def upkeep_services_of(
    shared: SharedServices,
    saves: TableSaves,
    retention: Retention,
    *,
    show_waiting: Callable[[], None],
    check_transactions: Callable[[], None],
    sample_rates: Callable[[], None],
    expire_calls: Callable[[], None],
) -> UpkeepServices:
    """Create the background services; `show_waiting` makes messages visible that the schedule has delivered."""
    runtime, store, store_config = shared.runtime, shared.store, shared.store_config
    rounds = {
        "statistics": lambda: shared.statistics.sample(runtime.monotonic_ns() // 1_000_000),
        "rates": sample_rates,
        "members that do not answer": expire_calls,
        "open transactions": check_transactions,
        "what waits to be visible": show_waiting,
        "expired files": retention.run_if_due,
    }
    form = shared.traits.properties_form
    timer = TimerService(runtime, store, shared.appender, shared.timers, show_waiting, form, shared.timer_counts)
    return UpkeepServices(
        FlushService(runtime, store, saves.config_files, store_config.flush_interval_ms, each_round=rounds),
        ScheduleService(
            runtime, store, shared.appender, shared.delays, show_waiting, form, store_config.delay_levels_ms
        ),
        timer if shared.traits.serves_timers else None,
        saves,
        shared.role.is_slave,
    )
