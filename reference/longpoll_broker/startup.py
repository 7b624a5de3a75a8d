"""Steps before a broker serves: open listeners and access control, correct offsets, restore topics from queues.

Opening the store: see `store.message_store`.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Final

from msgspec.structs import replace

from longpoll_broker.config import BrokerConfig
from longpoll_broker.errors import BrokerUserError
from longpoll_broker.io.channel import Limits
from longpoll_broker.rocketmq.accounts.access_control import AccessControl
from longpoll_broker.rocketmq.transactions import OP_TOPIC
from longpoll_broker.shared.offsets import SEPARATOR, Offsets
from longpoll_broker.shared.timer_offsets import DelayOffsets, TimerOffsets
from longpoll_broker.shared.topics import TopicConfig, Topics
from longpoll_broker.store.message_store import MessageStore
from longpoll_protocol.log_record import SCHEDULE_TOPIC
from longpoll_protocol.names import TIMER_TOPIC, queue_name_problem
from longpoll_runtime import Address, Listener, Runtime
from longpoll_runtime.logs import event
from longpoll_spec.errors import ConfigError

log = logging.getLogger(__name__)

VIP_DISTANCE: Final = 2
"""How far below its port a Java broker has a second one (`MixAll.brokerVIPChannel`)."""
CORRECTED_TOLD_MAX: Final = 100
"""Maximum log lines about corrected offsets; a truncated log may affect those of every group."""
ANY_PORT: Final[Address] = ("127.0.0.1", 0)


class ListenError(BrokerUserError):
    """The broker cannot listen on an address."""


def open_listener(runtime: Runtime, address: Address, undo: ExitStack) -> Listener:
    """Listen until `undo` is unwound; raises ListenError with a text for the user."""
    try:
        listener = runtime.listen(*address)
    except (OSError, OverflowError) as error:
        host, port = address
        raise ListenError(f"cannot listen on {host}:{port}: {error}; choose another address") from None
    undo.callback(listener.close)
    return listener


def open_vip_listener(runtime: Runtime, address: Address, undo: ExitStack) -> Listener | None:
    """Listen two ports below the broker's, where a Java slave requests the topic table (`brokerVIPChannel`).

    Returns None and logs a warning if that port is taken: then Java slaves know no topics.
    """
    host, port = address
    try:
        return open_listener(runtime, (host, port - VIP_DISTANCE), undo)
    except ListenError as error:
        log.warning("Java slaves cannot copy the table of topics: %s", error)
        return None


def ha_address(config: BrokerConfig, address: Address) -> Address | None:
    """The address for slaves from the settings, on loopback; None: nowhere."""
    if config.ha_port is not None:
        return "127.0.0.1", config.ha_port
    return ("127.0.0.1", address[1] + 1) if config.role == "SYNC_MASTER" else None


def ha_text(address: Address, advertised: str) -> str:
    """The address that slaves get; `advertised` is this broker's public host."""
    return f"{advertised if address[0] in {'0.0.0.0', '::'} else address[0]}:{address[1]}"  # noqa: S104 - compared


def limits_of(config: BrokerConfig) -> Limits:
    """Returns the limits of one connection, and of all."""
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
    """Restore topics that have queues but no entry in `topics.json`, because of a crash."""
    counts: dict[str, int] = {}
    for topic, queue_id in store.queues():
        counts[topic] = max(counts.get(topic, 0), queue_id + 1)
    for topic, count in counts.items():
        if topics.get(topic) is None and queue_name_problem(topic) is None and topic != OP_TOPIC:
            log.warning("topic %s has queues but no configuration; it gets %d queues", topic, count)
            topics.put(TopicConfig(topic, count, count))


def correct_positions(offsets: Offsets, delays: DelayOffsets, timers: TimerOffsets, store: MessageStore) -> bool:
    """Move each offset beyond its queue's end to that end; returns whether there was one.

    A truncated log or a restored file leaves such offsets. The next messages would be skipped, so save the result
    first.
    """
    wrong: list[str] = []
    light_ends: dict[str, int] = {}
    for topic, queue_id in store.queues() if offsets.light else ():
        light_ends[topic] = max(light_ends.get(topic, 0), store.visible_end(topic, queue_id))
    for pair, queues in offsets.by_pair.items():
        topic, _at, group = pair.partition(SEPARATOR)
        for queue_id, offset in queues.items():
            # The single offset of a light group may belong to any queue.
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


def know_copied_topics(topics: Topics, store: MessageStore) -> None:
    """Add the topics of messages that a slave has copied, with their local queues.

    A later copy of the master's table, which has more details, replaces them.
    """
    for topic, queue_id in store.all_queues():
        known = topics.get(topic)
        if known is not None and known.read_queue_nums > queue_id:
            continue
        if queue_name_problem(topic) is None and topic != OP_TOPIC:
            count = queue_id + 1
            topics.put(TopicConfig(topic, count, count) if known is None else replace(known, read_queue_nums=count))


def open_access_control(runtime: Runtime, config: BrokerConfig, store: MessageStore) -> AccessControl | None:
    """Returns the access control, or None without an account file; raises ConfigError."""
    if config.acl_file is None:
        if config.acl_enable:
            raise ConfigError("aclEnable is true, but there is no file of accounts; use longpoll serve --acl FILE")
        return None
    return AccessControl(runtime, config.acl_file, store.read_record)
