"""One broker with its name server: creates, starts and stops all parts.

    with Broker.start(RealRuntime(), directory) as broker:
        broker.address, broker.name_server_address

Threads:

- `io` (one or more) serve connections. Under `strict` they also run every pull and send up to the answer.
- `flusher`, `table-saver`, `committer` and `commit-watcher`.
- Under `notify=dispatcher_poll`: `dispatcher`, the pull pool and `pull-watcher`; under `expiry=scan` also `scanner`.
- `registrar` if name servers are configured; `history-writer` while recording.

`docs/broker.md` has a diagram. How the services are connected: see `assembly`. Source: `BrokerController.java`,
`NamesrvController.java`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

import attrs

from longpoll_broker.assembly import (
    SharedServices,
    admin_services_of,
    pull_services_of,
    registrar_of,
    send_services_of,
    upkeep_services_of,
)
from longpoll_broker.config import BrokerConfig, StoreConfig
from longpoll_broker.errors import BrokerUserError, StoreUserError
from longpoll_broker.handler import BrokerHandler
from longpoll_broker.history import BrokerHistory
from longpoll_broker.io.channel import Limits, Outbox
from longpoll_broker.io.processors import RpcHook
from longpoll_broker.io.transport import IoLoop, Totals
from longpoll_broker.rocketmq.accounts.access_control import AccessControl
from longpoll_broker.rocketmq.name_server.name_server import NameServer, OwnBroker
from longpoll_broker.rocketmq.transactions import OP_TOPIC
from longpoll_broker.shared.broker_role import MASTER_ID
from longpoll_broker.shared.offsets import SEPARATOR, Offsets
from longpoll_broker.shared.timer_offsets import DelayOffsets, TimerOffsets
from longpoll_broker.shared.topics import TopicConfig, Topics
from longpoll_broker.shared.version_traits import traits_of
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.upkeep.config_files import ConfigFiles, TableSaves
from longpoll_broker.upkeep.flush_service import Retention
from longpoll_protocol.log_record import SCHEDULE_TOPIC
from longpoll_protocol.names import TIMER_TOPIC, queue_name_problem
from longpoll_runtime import Address, Listener, NotRegularError, Runtime
from longpoll_runtime.logs import event
from longpoll_runtime.services import Stoppable
from longpoll_spec.errors import ConfigError
from longpoll_spec.policy import STRICT, Policy

log = logging.getLogger(__name__)

CORRECTED_TOLD_MAX: Final = 100
"""Maximum corrected offsets that are logged individually, because a truncated log may affect all groups' offsets."""
VIP_DISTANCE: Final = 2
"""RocketMQ's second port (`fastRemotingServer`) is this much below the broker's port."""
ANY_PORT: Final[Address] = ("127.0.0.1", 0)


class ListenError(BrokerUserError):
    """The broker cannot listen on an address."""


def bind(runtime: Runtime, address: Address, undo: ExitStack) -> Listener:
    """Reserve an address until `undo` is unwound; raises ListenError with a message for the user."""
    try:
        listener = runtime.bind(*address)
    except (OSError, OverflowError) as error:
        raise _cannot_listen(address, error) from None
    undo.callback(listener.close)
    return listener


def listen_at(listener: Listener) -> None:
    """Start to accept connections; raises ListenError if another program began to listen at the address first."""
    try:
        listener.listen()
    except OSError as error:
        raise _cannot_listen(listener.address, error) from None


def _cannot_listen(address: Address, error: Exception) -> ListenError:
    host, port = address
    return ListenError(f"cannot listen on {host}:{port}: {error}; choose another address")


def limits_of(config: BrokerConfig) -> Limits:
    """Returns the limits per connection and for all connections together."""
    return Limits(
        config.frame_size_max,
        config.output_bytes_max,
        config.connection_count_max,
        config.channel_idle_ms_max,
        config.frame_ms_max,
        config.unfinished_bytes_max,
        config.unsent_bytes_max,
        config.address_connection_count_max,
    )


def adopt_topics(topics: Topics, store: MessageStore) -> None:
    """Restore topics that have queues but, after a crash, no entry in `topics.json`."""
    counts: dict[str, int] = {}
    for topic, queue_id in store.queues():
        counts[topic] = max(counts.get(topic, 0), queue_id + 1)
    for topic, count in counts.items():
        if topics.get(topic) is None and queue_name_problem(topic) is None and topic != OP_TOPIC:
            log.warning("topic %s has queues but no configuration; it gets %d queues", topic, count)
            topics.put(TopicConfig(topic, count, count))


def correct_positions(offsets: Offsets, delays: DelayOffsets, timers: TimerOffsets, store: MessageStore) -> bool:
    """Move each offset that is beyond its queue's end to the queue's end; returns whether any offset was moved.

    Offsets can lie beyond the end after the log was truncated or a file was restored. A consumer with such an offset
    would skip the next messages, so the caller saves the corrected offsets before it serves.
    """
    wrong: list[str] = []
    light_ends: dict[str, int] = {}
    for topic, queue_id in store.queues() if offsets.light else ():
        light_ends[topic] = max(light_ends.get(topic, 0), store.visible_end(topic, queue_id))
    for pair, queues in offsets.by_pair.items():
        topic, _at, group = pair.partition(SEPARATOR)
        for queue_id, offset in queues.items():
            # A light group's single offset may belong to any queue, so it is compared with the topic's highest end.
            end = light_ends.get(topic, 0) if offsets.is_light(pair) else store.visible_end(topic, queue_id)
            if offset > end:
                queues[queue_id] = end
                offsets.changed = True
                wrong.append(f"group {group} was at {offset} of {topic} queue {queue_id}, which ends at {end}")
    for level, offset in delays.by_level.items():
        end = store.visible_end(SCHEDULE_TOPIC, level - 1)
        if offset > end:
            delays.put(level, end)
            wrong.append(f"delay level {level} was at {offset} of its queue, which ends at {end}")
    end = store.visible_end(TIMER_TOPIC, 0)
    if max(timers.first, timers.read) > end:
        wrong.append(f"the timer was at {max(timers.first, timers.read)} of its queue, which ends at {end}")
        timers.put(min(timers.first, end), min(timers.read, end), timers.delivered_ms, 0)
    for line in wrong[:CORRECTED_TOLD_MAX]:
        log.warning("%s: it goes on there", line, extra=event("position_corrected"))
    if len(wrong) > CORRECTED_TOLD_MAX:
        log.warning("%d more positions were corrected", len(wrong) - CORRECTED_TOLD_MAX)
    return bool(wrong)


def open_access_control(runtime: Runtime, config: BrokerConfig, store: MessageStore) -> AccessControl | None:
    """Returns the access control, or None if no account file is configured; raises ConfigError."""
    if config.acl_file is None:
        if config.acl_enable:
            raise ConfigError("aclEnable is true, but there is no file of accounts; use longpoll serve --acl FILE")
        return None
    return AccessControl(runtime, config.acl_file, store.read_record)


class Broker(Stoppable):
    """A running broker. Create it with `start`, end it with `stop`; it cannot be started again."""

    def __init__(
        self,
        shared: SharedServices,
        directory: str,
        *,
        listeners: tuple[Listener, Listener],
        hooks: Sequence[RpcHook],
    ) -> None:
        """Use `start` instead, which also opens the store and the listeners."""
        self.shared = shared
        self.runtime, self.policy, self.config, self.store = shared.runtime, shared.policy, shared.config, shared.store
        self.topics, self.groups, self.offsets = shared.topics, shared.groups, shared.offsets
        self.record_trouble = ""
        """After `stop`: what the recorded history lacks, as a sentence for the user; empty if it is complete."""
        self.address: Address = shared.address
        self.name_server_address: Address = listeners[1].address
        config_files = ConfigFiles(
            shared.runtime,
            f"{directory}/config",
            shared.topics,
            shared.groups,
            shared.offsets,
            shared.delays,
            shared.timers,
            shared.store.flush,
        )
        config_files.load()
        if not shared.role.is_slave and correct_positions(shared.offsets, shared.delays, shared.timers, shared.store):
            config_files.save()
        access = open_access_control(shared.runtime, shared.config, shared.store)
        shared.topics.add_system_topics(shared.config.broker_name, shared.config.cluster_name)
        adopt_topics(shared.topics, shared.store)
        # A crash loses no topic that was restored here, because the next start restores it from its queues again.
        shared.topics.unsaved.clear()
        self.pulling = pull_services_of(shared, access)
        self.hold_service = self.pulling.hold_service
        dispatch = self.pulling.dispatch_service
        listens_on = "127.0.0.1" if self.address[0] in {"0.0.0.0", "::"} else self.address[0]  # noqa: S104 - compared
        advertised = shared.config.advertised_host or listens_on
        self._own = OwnBroker(shared.config, shared.topics, f"{advertised}:{self.address[1]}")
        self.name_server = NameServer(self._own, shared.traits, now_ms=shared.runtime.unix_ms, access=access)
        self.registrar = registrar = registrar_of(shared, self._own.address)
        saves = TableSaves(shared.runtime, config_files)
        if registrar is not None:
            saves.give = registrar.answer_when_registered
        retention = Retention(shared.runtime, shared.store, shared.store_config.clean_period_ms)
        self.administering = administering = admin_services_of(
            shared,
            topic_deleted=self.pulling.topic_deleted,
            resubscribed=self.pulling.resubscribed,
            when_saved=saves.answer_when_saved,
            clean_soon=retention.clean_soon,
            pull_queue=self.pulling.queue,
            queues_elsewhere=self.name_server.queues_elsewhere,
            access=access,
        )
        self.sending = send_services_of(
            shared,
            flushed=self._flushed,
            save_topics=config_files.save_topics,
            producer_of=administering.clients.producer_of,
            when_registered=None if registrar is None else registrar.when_registered,
        )
        self.keeping = upkeep_services_of(
            shared,
            saves,
            retention,
            show_waiting=dispatch.show_waiting,
            check_transactions=self.sending.checks.run_if_due,
            sample_rates=administering.tables.sample,
            expire_calls=administering.calls.expire,
        )
        self.handler = BrokerHandler(shared, self.pulling, self.sending, administering, access, hooks, registrar)
        self.loops = self._loops(listeners)
        self._stopped = False

    def _loops(self, listeners: tuple[Listener, Listener]) -> list[IoLoop]:
        shared, config = self.shared, self.config
        limits = limits_of(config)
        self.totals = totals = Totals.of(shared.runtime, limits)
        loops = [
            IoLoop(
                shared.runtime,
                f"io-{number}",
                limits,
                pass_end=self.handler,
                clock=self.hold_service if number == 0 else None,
                totals=totals,
            )
            for number in range(config.io_thread_count)
        ]
        first = loops[0]
        first.share_with(loops)
        self.hold_service.run_clock_on(first.outbox, first.wake)
        if self.pulling.inline is not None:
            self.pulling.inline.later.wake = first.wake
        first.add_listener(listeners[0], self.handler)
        first.add_listener(listeners[1], self.name_server)
        return loops

    def _flushed(self, outbox: Outbox) -> None:
        """Make the messages visible that a sync under `SYNC_FLUSH` made durable."""
        self.handler.appended(outbox)

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
        opens_vip_port: bool = False,
    ) -> Broker:
        """Open the store in `directory` (absolute), listen, and serve; `hooks` run around every request.

        With `opens_vip_port` the broker also listens two ports below `listen`, for clients with RocketMQ's
        `isVIPChannel`.

        Raises ListenError, StoreUserError, ConfigError or RecordError with a text for the user, and OSError if the
        store's directory cannot be used. After an error, no thread or socket of the broker remains.
        """
        config = config or BrokerConfig()
        store_config = _store_config(store_config or StoreConfig(), config, policy)
        with ExitStack() as undo:
            # The broker's and name server's addresses are bound here, so that a port in use is reported before the
            # store recovers. The operating system accepts connections only after `listen`.
            listeners = (bind(runtime, listen, undo), bind(runtime, name_server, undo))
            with _wrong_kind():
                store = MessageStore.open(runtime, directory, store_config)
                undo.callback(store.close)
                recording = BrokerHistory()
                if record_directory is not None:
                    recording = BrokerHistory.start(runtime, record_directory, policy, config)
                    undo.callback(recording.stop)
                shared = SharedServices(runtime, policy, config, store_config, store, listeners[0].address, recording)
                broker = cls(shared, directory, listeners=listeners, hooks=hooks)
            for listener in listeners:
                listen_at(listener)
            if opens_vip_port and listen[1] > VIP_DISTANCE:
                broker._open_vip_port((listen[0], listen[1] - VIP_DISTANCE))
            undo.pop_all()
        broker._start_threads()
        return broker

    def _open_vip_port(self, address: Address) -> None:
        """Also listen at a second address, unless another program uses it."""
        with ExitStack() as undo:
            try:
                listener = bind(self.runtime, address, undo)
                listen_at(listener)
            except ListenError as error:
                log.warning("clients with isVIPChannel find no broker: %s", error)
            else:
                self.loops[0].add_listener(listener, self.handler)
                undo.pop_all()

    def _start_threads(self) -> None:
        self.pulling.dispatch_service.record_visible()
        self.sending.start()
        self.pulling.start(self.config.dispatcher_sleep_ms)
        self.keeping.start()
        if self.registrar is not None:
            self.registrar.start()
        for loop in self.loops:
            loop.start()

    def stop(self) -> None:
        """Stop serving, answer held pulls as the policy says, and close the store. A second call does nothing."""
        if self._stopped:
            return
        self._stopped = True
        # First stop the services that could put pulls back or hold new pulls, then the hold table, then the sockets.
        self.keeping.stop_delivering()
        if self.registrar is not None:
            self.registrar.stop()
        self.pulling.stop_notifying()
        self.sending.stop()
        self.keeping.saves.stop()
        outbox = Outbox()
        self.pulling.finish(outbox)
        outbox.flush()
        for loop in self.loops:
            loop.stop()
        self.keeping.flush.stop()
        if self.policy.on_stop == "answer":
            self.hold_service.assert_tidy()
        self.record_trouble = self.shared.recording.stop()
        self.pulling.runner.forget_last()
        self.store.close()

    @property
    def connection_count(self) -> int:
        """Number of open connections to the broker and the name server."""
        return sum(loop.channel_count for loop in self.loops)


@contextmanager
def _wrong_kind() -> Iterator[None]:
    """Raise StoreUserError if a path is a directory instead of a file, or a file instead of a directory."""
    try:
        yield
    except (IsADirectoryError, NotADirectoryError, FileExistsError, NotRegularError) as error:
        path, why = error.filename, error.strerror
        raise StoreUserError(
            f"{path} cannot be used ({why}); move it away, restore it, or choose another --store"
        ) from error


def _store_config(store_config: StoreConfig, config: BrokerConfig, policy: Policy) -> StoreConfig:
    """Adapt the store's settings to the broker's role and policy; raises ConfigError."""
    if config.role == "SLAVE":
        if config.broker_id == MASTER_ID:
            raise ConfigError("brokerRole is SLAVE, so brokerId must be above 0; only a master has 0")
        # As in `BrokerStartup`, a slave assumes that a smaller part of its log is in memory than a master does.
        store_config = attrs.evolve(store_config, memory_ratio_max=max(store_config.memory_ratio_max - 10, 0))
    if policy.visible_after != "append":
        store_config = attrs.evolve(store_config, visible_when_durable=store_config.flush_disk_sync)
    return attrs.evolve(store_config, minimum_follows_log=traits_of(policy).minimum_follows_log)
