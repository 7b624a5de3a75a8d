"""One broker with its name server: everything wired together, started in order and stopped in the reverse one.

    with Broker.start(RealRuntime(), directory) as broker:
        broker.address, broker.name_server_address

Threads: `io` (one or more; serve connections, and under `strict` do everything up to the answer), `flusher`; under
`notify=dispatcher_poll` also `dispatcher`, the pull pool and `pull-watcher`, under `expiry=scan` also `scanner`; under
`SYNC_FLUSH` also `committer` and `commit-watcher`; while recording `history-writer`. `docs/broker.md` draws them.

Leaves out what any of the parts does. Source: `BrokerController.java`, `NamesrvController.java`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Final, Self

import attrs
from msgspec import structs

from longpoll_broker.config import BrokerConfig, StoreConfig
from longpoll_broker.core.filter.data import FilterTable
from longpoll_broker.core.pull import Desk
from longpoll_broker.core.standing import MASTER_ID, Standing
from longpoll_broker.core.tables.offsets import Offsets
from longpoll_broker.core.tables.queue_locks import QueueLocks
from longpoll_broker.core.tables.statistics import Statistics
from longpoll_broker.core.tables.subscription import Clients
from longpoll_broker.core.tables.topics import Groups, Topics
from longpoll_broker.core.traits import traits_of
from longpoll_broker.name_server import NameServer
from longpoll_broker.opening import ANY_PORT, adopt_topics, open_access_control, open_listener
from longpoll_broker.service.access.access_admin import AccessAdmin
from longpoll_broker.service.admin.admin import AdminService
from longpoll_broker.service.admin.clients import ClientService
from longpoll_broker.service.admin.lock_service import LockService
from longpoll_broker.service.admin.offset_records import recorded
from longpoll_broker.service.admin.query_service import QueryService
from longpoll_broker.service.admin.role_service import RoleService
from longpoll_broker.service.admin.statistics_service import StatisticsService
from longpoll_broker.service.io import exchange
from longpoll_broker.service.io.channel import Channel, Limits, Outbox
from longpoll_broker.service.io.exchange import OVERLOAD, TOO_LATE, Processor
from longpoll_broker.service.io.executors import InlineExecutor, PoolExecutor
from longpoll_broker.service.io.request_counts import RequestCounts
from longpoll_broker.service.io.rpc_hooks import RpcHook, with_hooks
from longpoll_broker.service.io.transport import IoLoop
from longpoll_broker.service.pull.dispatch_service import DispatchService
from longpoll_broker.service.pull.hold_service import HoldService
from longpoll_broker.service.pull.offset_moved import OffsetMovedTeller
from longpoll_broker.service.pull.pull_service import PullService
from longpoll_broker.service.pull.scan_service import ScanService
from longpoll_broker.service.send.append import Appender
from longpoll_broker.service.send.group_commit import GroupCommit
from longpoll_broker.service.send.inner_queues import InnerQueueService
from longpoll_broker.service.send.send import SendService
from longpoll_broker.service.send.send_back import SendBackService
from longpoll_broker.service.send.send_rows import SendRows
from longpoll_broker.service.send.transaction_check import TransactionChecks
from longpoll_broker.service.send.transactions import TransactionService
from longpoll_broker.service.upkeep.config_files import ConfigFiles
from longpoll_broker.service.upkeep.flush_service import FlushService
from longpoll_broker.service.upkeep.retention_service import RetentionService
from longpoll_broker.service.upkeep.schedule_service import DelayOffsets, ScheduleService
from longpoll_broker.store.message_store import MessageStore
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames.command import Command
from longpoll_protocol.frames.connection import Connection
from longpoll_protocol.frames.frame import Serialisation
from longpoll_protocol.frames.send_request import SendCommand
from longpoll_protocol.log_record import host_bytes
from longpoll_protocol.names import PERM_READ
from longpoll_recorder.recorder import HistoryRecorder
from longpoll_runtime import Address, Listener, Runtime
from longpoll_runtime.faults import FAULTS, KeepGoing
from longpoll_spec.errors import ConfigError
from longpoll_spec.policy import STRICT, Policy

log = logging.getLogger(__name__)

PULLS: Final = frozenset({RequestCode.PULL_MESSAGE.value, RequestCode.LITE_PULL_MESSAGE.value})


class Broker:
    """A running broker. `start` makes one, `stop` ends it; a stopped one is not started again."""

    def __init__(
        self,
        runtime: Runtime,
        store: MessageStore,
        directory: str,
        *,
        policy: Policy,
        config: BrokerConfig,
        store_config: StoreConfig,
        listeners: tuple[Listener, Listener],
        recorder: HistoryRecorder | None,
        hooks: Sequence[RpcHook],
    ) -> None:
        """Use `start`."""
        self.runtime = runtime
        self.policy = policy
        self.traits = traits_of(policy)
        self._is_slave = config.role == "SLAVE"
        self.config = config
        self.store = store
        self._store_config = store_config
        self._recorder = recorder
        self.record_trouble = ""
        """After `stop`: what the recorded history lacks, as a sentence for the user; empty when it is whole."""
        self.address: Address = listeners[0].address
        self.name_server_address: Address = listeners[1].address
        light = store_config.light_queues
        self.topics = Topics(config.auto_create_topic, config.default_topic_queue_count, light)
        self.groups = Groups(config.auto_create_subscription_group, light)
        self.offsets = Offsets(guard=runtime.lock(), light=light)
        self.delays = DelayOffsets()
        self.statistics = Statistics(runtime.lock())
        self.clients = Clients(FilterTable(self.traits.filters_outlive_groups))
        self._config_files = ConfigFiles(
            runtime, f"{directory}/config", self.topics, self.groups, self.offsets, self.delays
        )
        self._config_files.load()
        self._access = open_access_control(runtime, config)
        self.request_counts = RequestCounts()
        self.topics.add_system_topics(config.broker_name, config.cluster_name)
        adopt_topics(self.topics, self.store)
        self._wire(hooks)
        limits = Limits(
            config.frame_size_max, config.output_bytes_max, config.connection_count_max, config.channel_idle_ms_max
        )
        self._loops = [
            IoLoop(
                runtime,
                f"io-{number}",
                limits,
                pass_ended=self._pass_ended,
                clock=self.hold_service if number == 0 else None,
            )
            for number in range(config.io_thread_count)
        ]
        first = self._loops[0]
        first.share_with(self._loops)
        self.hold_service.run_clock_on(first.outbox, first.wake)
        first.add_listener(listeners[0], self)
        advertised = "127.0.0.1" if self.address[0] in {"0.0.0.0", "::"} else self.address[0]  # noqa: S104 - compared
        broker_address = f"{advertised}:{self.address[1]}"
        first.add_listener(
            listeners[1],
            NameServer(config, self.topics, broker_address, self.traits, now_ms=runtime.unix_ms),
        )
        self._stopped = False

    @classmethod
    def start(
        cls,
        runtime: Runtime,
        directory: str,
        *,
        policy: Policy = STRICT,
        config: BrokerConfig | None = None,
        store_config: StoreConfig | None = None,
        listen: Address = ANY_PORT,
        name_server: Address = ANY_PORT,
        record_directory: str | None = None,
        hooks: Sequence[RpcHook] = (),
    ) -> Broker:
        """Open the store in `directory` (absolute), listen, and serve; `hooks` are called around every request.

        Raises ListenError, StoreUserError, ConfigError or RecordError with a text for the user; OSError when the
        store's directory cannot be used. Nothing is left running then.
        """
        config = config or BrokerConfig()
        store_config = store_config or StoreConfig()
        if config.role == "SLAVE":
            if config.broker_id == MASTER_ID:
                raise ConfigError("brokerRole is SLAVE, so brokerId must be above 0, the master's; give another one")
            # As `BrokerStartup`: a slave takes less of its log to be in memory.
            store_config = attrs.evolve(store_config, memory_ratio_max=max(store_config.memory_ratio_max - 10, 0))
        if policy.visible_after != "append":
            store_config = attrs.evolve(store_config, visible_when_durable=store_config.flush_disk_sync)
        with ExitStack() as undo:
            listeners = (open_listener(runtime, listen, undo), open_listener(runtime, name_server, undo))
            store = MessageStore.open(runtime, directory, store_config)
            undo.callback(store.close)
            recorder = None
            if record_directory is not None:
                recorder = HistoryRecorder(
                    runtime,
                    record_directory,
                    broker=config.broker_name,
                    policy=policy.name,
                    hold_limit=-1 if policy.hold_limit == "none" else config.held_count_max,
                )
                undo.callback(recorder.stop)
            broker = cls(
                runtime,
                store,
                directory,
                policy=policy,
                config=config,
                store_config=store_config,
                listeners=listeners,
                recorder=recorder,
                hooks=hooks,
            )
            undo.pop_all()
        broker._start_threads()
        return broker

    def stop(self) -> None:
        """Stop serving, answer what is held as the policy says, and close the store. A second stop does nothing."""
        if self._stopped:
            return
        self._stopped = True
        # First those that could still put held pulls back or hold new ones, then the table, then the sockets.
        if self._scan is not None:
            self._scan.stop()
        self._schedule.stop()
        self.dispatch_service.stop()
        if self._pool is not None:
            self._pool.stop()
        if self._commits is not None:
            self._commits.stop()
        outbox = Outbox()
        self.hold_service.stop(outbox)
        outbox.flush()
        for loop in self._loops:
            loop.stop()
        self._flush.stop()
        if self.policy.on_stop == "answer":
            self.hold_service.assert_tidy()
        if self._recorder is not None:
            self.record_trouble = self._recorder.stop()
        self.pull_service.forget_last()
        self.store.close()

    @property
    def connection_count(self) -> int:
        """Open connections, to broker and name server."""
        return sum(loop.channel_count for loop in self._loops)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- the handler of the broker's listener --------------------------------------------------------------------------

    def opened(self, channel: Channel) -> None:
        """Note a new connection."""
        if self._reads_sends:
            channel.connection = Connection(self.config.frame_size_max, reads_sends=True)
        if self._recorder is not None:
            self._recorder.put("connection_opened", self._recorder.now_ns(), connection=str(channel.number))

    def received(self, channel: Channel, command: Command, outbox: Outbox) -> None:
        """Serve a request, or have the pull pool serve it; what that raises is answered, too."""
        self.request_counts.add(command.code)
        rows = None
        try:
            rows = self._receive(channel, command, outbox)
        except FAULTS as error:
            exchange.refuse(channel, command, exchange.failure(channel, command, error), outbox)
        if rows is not None:
            self.request_counts.add(command.code, rows.serve_following(channel, outbox))

    def _receive(self, channel: Channel, command: Command, outbox: Outbox) -> SendRows | None:
        """Serve one request, or refuse it; who serves the sends that came right behind it, if anybody may."""
        if self.traits.answers_in_json and command.serialisation is not Serialisation.JSON:
            command = structs.replace(command, serialisation=Serialisation.JSON)
        refusal = None if self._access is None else self._access.refusal(channel, command)
        if refusal is None and self._is_slave:
            refusal = self._roles.refusal(command)
            exchange.tell_refused(channel, command, refusal)
        if refusal is not None:
            if not command.is_one_way:
                outbox.write(channel, refusal)
            return None
        pool = self._pool
        if pool is None or command.code not in PULLS:
            self._serve(channel, command, outbox)
            return self._send_rows if type(command) is SendCommand else None
        if not pool.offer(
            partial(self._serve, channel, command),
            lambda worker_outbox: exchange.answer_busy(channel, command, TOO_LATE, worker_outbox),
        ):
            exchange.answer_busy(channel, command, OVERLOAD, outbox)
        return None

    def closed(self, channel: Channel) -> None:
        """Forget what is held for a closed connection, and its memberships."""
        if self._recorder is not None:
            self._recorder.put("connection_closed", self._recorder.now_ns(), connection=str(channel.number))
        if self.policy.on_close == "drop":
            # RocketMQ leaves them in its table: the next scan runs them for nobody.
            self.hold_service.drop_channel(channel)
        outbox = Outbox()
        self._client_service.closed(channel, outbox)
        outbox.flush()

    # -- the parts ---------------------------------------------------------------------------------------------------

    def _wire(self, hooks: Sequence[RpcHook]) -> None:
        config, runtime, recorder = self.config, self.runtime, self._recorder
        # Signatures and hooks are about a request's fields as they came, and 5.x looks for some before it reads any.
        self._reads_sends = self._access is None and not hooks and self.traits.blank_topic_is_told
        tables_lock = runtime.lock()
        standing = Standing(config.role, config.broker_id, config.slave_read, config.offset_check_in_slave)
        self.pull_service = PullService(
            runtime,
            self.policy,
            config,
            Desk(
                self.topics,
                self.groups,
                self.clients,
                is_readable=bool(config.permission & PERM_READ),
                property_filter=config.property_filter,
                traits=self.traits,
                standing=standing,
            ),
            self.offsets,
            self.store,
            recorder,
            self.statistics,
        )
        self._pool = None
        if self.policy.notify == "dispatcher_poll":
            self._pool = PoolExecutor(
                runtime,
                self.pull_service.run,
                self.pull_service.refuse,
                config.pull_thread_count,
                config.pull_queue_capacity,
                config.pull_wait_ms_max if config.fast_failure else None,
            )
        self.hold_service = HoldService(
            runtime,
            self.policy,
            self.store,
            self._pool or InlineExecutor(self.pull_service.run, self.pull_service.run_alike),
            refuse=self.pull_service.refuse,
            held_count_max=config.held_count_max,
            queue_held_count_max=config.queue_held_count_max,
            recorder=recorder,
        )
        self.pull_service.hold_service = self.hold_service
        self._roles = RoleService(
            standing,
            self.traits,
            self.hold_service,
            config.broker_name,
            config.slave_acting_master,
            self.policy.on_master_return == "answer",
        )
        notifies = config.long_polling and (not standing.is_slave or self.traits.slave_notifies)
        self.dispatch_service = DispatchService(
            runtime,
            self.store,
            self.hold_service,
            recorder,
            notifies=notifies,
            in_batches=self.policy.notify_grain == "batch",
            before_visible=self.policy.notify == "before_visible",
            passes_idle=self.policy.empty_shortcut,
        )
        self._scan = None
        if self.policy.expiry == "scan":
            period_ms = config.scan_period_ms if config.long_polling else 1000
            self._scan = ScanService(runtime, self.hold_service, period_ms)
        self._client_service = ClientService(
            self.topics,
            self.groups,
            self.clients,
            tables_lock,
            property_filter=config.property_filter,
            traits=self.traits,
        )
        admin = AdminService(self.topics, self.groups, self.offsets, self.store, self._topic_deleted, self.traits)
        store_host = host_bytes(*self.address)
        appender = Appender(runtime, self.store, recorder)
        self._schedule = ScheduleService(
            runtime, self.store, appender, self.delays, self._dispatch_waiting, self.traits.properties_form
        )
        self._commits = None
        if self._store_config.flush_disk_sync:
            self._commits = GroupCommit(runtime, self.store, self._store_config.sync_flush_timeout_ms, self._pass_ended)
        send = SendService(
            runtime,
            config,
            self.topics,
            self.groups,
            appender,
            store_host,
            recorder,
            self._commits,
            self.traits,
            InnerQueueService.of(self.store, self._store_config),
        )
        back = SendBackService(config, self.topics, self.groups, self.store, appender, store_host, self.traits)
        if self.traits.stores_moved_offsets and not standing.is_slave:
            teller = OffsetMovedTeller(runtime, appender, config.broker_name, store_host)
            self.pull_service.offset_moved = teller.tell
        transactions = TransactionService(runtime, appender, self.store, store_host, self.traits)
        self._transaction_checks = TransactionChecks(
            transactions, config, self._store_config.file_reserved_hours, self.offsets, self._client_service.producer_of
        )
        locks = LockService(runtime, QueueLocks(), runtime.lock())
        processors: dict[int, Processor] = {
            RequestCode.SEND_MESSAGE: send.receive,
            RequestCode.SEND_MESSAGE_V2: send.receive,
            RequestCode.SEND_BATCH_MESSAGE: send.receive,
            RequestCode.PULL_MESSAGE: self.pull_service.receive,
            RequestCode.QUERY_CONSUMER_OFFSET: admin.query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: admin.update_offset,
            RequestCode.UPDATE_AND_CREATE_TOPIC: admin.put_topic,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: admin.search_offset,
            RequestCode.GET_MAX_OFFSET: admin.max_offset,
            RequestCode.GET_MIN_OFFSET: admin.min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: admin.earliest_time,
            RequestCode.VIEW_MESSAGE_BY_ID: admin.view_message,
            RequestCode.QUERY_MESSAGE: QueryService(self.store).receive,
            RequestCode.HEART_BEAT: self._client_service.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self._client_service.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._client_service.members,
            RequestCode.CONSUMER_SEND_MSG_BACK: back.receive,
            RequestCode.END_TRANSACTION: transactions.end,
            RequestCode.LOCK_BATCH_MQ: locks.lock,
            RequestCode.UNLOCK_BATCH_MQ: locks.unlock,
            RequestCode.CHECK_CLIENT_CONFIG: self._client_service.check_config,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: admin.put_group,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: admin.all_groups,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: admin.delete_group,
            RequestCode.DELETE_TOPIC_IN_BROKER: admin.delete_topic,
            RequestCode.VIEW_BROKER_STATS_DATA: StatisticsService(self.statistics, config.cluster_name).receive,
        }
        if self.traits.hears_of_members:
            processors[RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE] = self._roles.member_changed
        if self.traits.serves_lite_pull:
            processors[RequestCode.LITE_PULL_MESSAGE] = self.pull_service.receive
        if self._access is not None:
            processors |= AccessAdmin(self._access, config, "{}:{}".format(*self.address)).processors
        if recorder is not None:
            processors = recorded(processors, recorder)
        self._serve = partial(exchange.serve, with_hooks(processors, hooks))
        self._send_rows = SendRows(send, self._serve) if SendRows.suits(send) and not self._is_slave else None

    def _start_threads(self) -> None:
        self.dispatch_service.record_visible()
        retention = RetentionService(self.runtime, self.store, self._store_config.clean_period_ms)
        rounds = {
            "statistics": lambda: self.statistics.sample(self.runtime.monotonic_ns() // 1_000_000),
            "open transactions": self._transaction_checks.run_if_due,
            "what waits to be visible": self._dispatch_waiting,
            "expired files": retention.run_if_due,
        }
        self._flush = FlushService(
            self.runtime, self.store, self._config_files, self._store_config.flush_interval_ms, each_round=rounds
        )
        self._flush.start()
        if self._commits is not None:
            self._commits.start()
        if self.policy.notify == "dispatcher_poll":
            self.dispatch_service.start(self.config.dispatcher_sleep_ms)
        if self._pool is not None:
            self._pool.start()
        if self._scan is not None:
            self._scan.start()
        if self.config.role != "SLAVE":
            self._schedule.start()
        for loop in self._loops:
            loop.start()

    def _pass_ended(self, outbox: Outbox) -> None:
        """Everything that one pass appended, or one sync made durable, becomes visible before its answers leave."""
        if self.policy.notify != "dispatcher_poll" and self.store.dispatched_end < self.store.dispatchable_end:
            self.dispatch_service.run(outbox)

    def _dispatch_waiting(self) -> None:
        """Make visible, and durable if need be, what the schedule appended, or what could not be for want of disk."""
        if self.policy.notify != "dispatcher_poll" and self.store.dispatched_end < self.store.log_end:
            if self._store_config.visible_when_durable:
                with KeepGoing(log, "messages could not be made durable, and stay unseen"):
                    self.store.flush()
            outbox = Outbox()
            self.dispatch_service.run(outbox)
            outbox.flush()

    def _topic_deleted(self, topic: str, outbox: Outbox) -> None:
        """Tell those who wait for a topic that is gone; RocketMQ's hear it at the scan after their deadline."""
        self.pull_service.forget_last()
        if self.policy.on_truncate == "wake":
            self.hold_service.topic_deleted(topic, outbox)
