"""Serves codes 21, 25, 26, 28, 43, 45, 60, 61, 201, 305, 315 and 907: a broker's tables, settings and statistics.

UPDATE_BROKER_CONFIG (25) accepts only settings that can change at run time. Other settings are refused by name, while
RocketMQ accepts every setting and reports success. Of the requests that clean up (306, 316 and 329), only
CLEAN_EXPIRED_COMMITLOG (329) does any work, because a topic's queues are deleted with the topic, and queue files are
deleted with their part of the log.

Source: `AdminBrokerProcessor.java` 4.9.7: `getAllTopicConfig`, `updateBrokerConfig`, `getBrokerConfig`,
`prepareRuntimeInfo`, `getAllConsumerOffset`, `getAllDelayOffset`, `viewBrokerStatsData`,
`getSystemTopicListFromBroker`, `cleanExpiredConsumeQueue`; `StoreStatsService.getRuntimeInfo`;
`DefaultMessageStore.executeDeleteFilesManually`.
"""

from __future__ import annotations

import datetime as dt
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from attrs import define, field

from longpoll_broker.config import BrokerConfig, StoreConfig
from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import ANSWER_SIZE_MAX, RequestCounts, Serving, Turns, answer, serves
from longpoll_broker.rocketmq.accounts.access import TRACE_TOPIC
from longpoll_broker.send.message_builder import PRECISION_MS
from longpoll_broker.shared.offsets import Offsets
from longpoll_broker.shared.statistics import BROKER_GET_NUMS, BROKER_PUT_NUMS, Rates, Statistics
from longpoll_broker.shared.timer_offsets import DelayOffsets, TimerCounts, TimerOffsets
from longpoll_broker.shared.topics import Groups, Topics, chunks_of
from longpoll_broker.shared.version_traits import STRICT_TRAITS, Traits
from longpoll_broker.store.message_store import MessageStore
from longpoll_protocol.admin_headers import (
    GetBrokerConfigResponseHeader,
    ViewBrokerStatsDataRequestHeader,
)
from longpoll_protocol.bodies import (
    Body,
    DataVersion,
    DelayTable,
    FollowingStatus,
    GroupTable,
    HAStatus,
    KVTable,
    OffsetTable,
    StateVersion,
    TimerCheckpoint,
    TimerCountTable,
    TopicTable,
    read_settings,
)
from longpoll_protocol.codes import VERSION, RequestCode, ResponseCode
from longpoll_protocol.frames import Command
from longpoll_protocol.log_record import SCHEDULE_TOPIC
from longpoll_protocol.sizes import KIB
from longpoll_runtime import Runtime

OFFSET_COUNT_MAX: Final = 200_000
"""Maximum pairs of topic and group in one answer, to limit the encoding time."""
_BROKER_KEYS: Final = {
    "brokerName": "broker_name",
    "brokerClusterName": "cluster_name",
    "brokerId": "broker_id",
    "brokerRole": "role",
    "brokerPermission": "permission",
    "slaveReadEnable": "slave_read",
    "offsetCheckInSlave": "offset_check_in_slave",
    "defaultTopicQueueNums": "default_topic_queue_count",
    "longPollingEnable": "long_polling",
    "enablePropertyFilter": "property_filter",
    "pullMessageThreadPoolNums": "pull_thread_count",
    "pullThreadPoolQueueCapacity": "pull_queue_capacity",
    "waitTimeMillsInPullQueue": "pull_wait_ms_max",
    "brokerFastFailureEnable": "fast_failure",
    "transactionTimeOut": "transaction_timeout_ms",
    "transactionCheckInterval": "transaction_check_interval_ms",
    "transactionCheckMax": "transaction_check_count_max",
    "aclEnable": "acl_enable",
    "recallMessageEnable": "recall_message",
}
_STORE_KEYS: Final = {
    "mappedFileSizeCommitLog": "commit_log_file_size",
    "mappedFileSizeConsumeQueue": "consume_queue_file_size",
    "enableConsumeQueueExt": "extended_queues",
    "messageIndexEnable": "index",
    "maxHashSlotNum": "index_slot_count",
    "maxIndexNum": "index_entry_count",
    "maxMessageSize": "message_size_max",
    "messageDelayLevel": "delay_levels",
    "deleteWhen": "delete_when",
    "fileReservedTime": "file_reserved_hours",
    "diskMaxUsedSpaceRatio": "disk_ratio_max",
    "cleanFileForciblyEnable": "clean_forcibly",
    "syncFlushTimeout": "sync_flush_timeout_ms",
    "flushIntervalCommitLog": "flush_interval_ms",
    "maxTransferBytesOnMessageInMemory": "transfer_bytes_max_in_memory",
    "maxTransferCountOnMessageInMemory": "transfer_count_max_in_memory",
    "maxTransferBytesOnMessageInDisk": "transfer_bytes_max_on_disk",
    "maxTransferCountOnMessageInDisk": "transfer_count_max_on_disk",
    "accessMessageInMemoryMaxRatio": "memory_ratio_max",
    "enableMultiDispatch": "multi_dispatch",
    "enableLmq": "light_queues",
}
_FIXED: Final = {
    "filterServerNums": "0",
    "msgTraceTopicName": TRACE_TOPIC,
    "traceOn": "true",
    "traceTopicEnable": "false",
    "useTLS": "false",
}
"""Settings whose value is constant in this broker; `mqadmin exportConfigs` fails if one of them is missing."""
_AUTO_TOPIC: Final = "autoCreateTopicEnable"
_AUTO_GROUP: Final = "autoCreateSubscriptionGroup"
PULLS: Final = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
PUT_SPANS: Final = (
    "<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms", "500ms~1s", "1~2s", "2~3s", "3~4s", "4~5s",
    "5~10s", "10s~",
)  # fmt: skip
"""The ranges of RocketMQ's histogram of store latencies. This broker measures no store latencies, so every count is 0.
"""
UNMEASURED: Final = (
    "EndTransactionQueueSize", "EndTransactionThreadPoolQueueCapacity", "dispatchMaxBuffer", "getMessageEntireTimeMax",
    "putLatency99", "putLatency999", "putMessageEntireTimeMax", "putMessageFailedTimes",
    "queryThreadPoolQueueCapacity", "queryThreadPoolQueueHeadWaitTimeMills", "queryThreadPoolQueueSize",
    "remainTransientStoreBufferNumbs", "sendThreadPoolQueueCapacity", "startAcceptSendRequestTimeStamp",
)  # fmt: skip
"""Fields of the answer to GET_BROKER_RUNTIME_INFO (28) that this broker does not measure and reports as 0."""
_SENDS: Final = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)


@define(slots=True, eq=False)
class TableProcessor(Serving):
    """The processors for tables, settings and statistics."""

    runtime: Runtime
    config: BrokerConfig
    store_config: StoreConfig
    pull_queue: Callable[[], tuple[int, int]]
    """Returns the number of pulls that wait for a thread, and the waiting time of the oldest of these pulls, ms."""
    clean_soon: Callable[[], None]
    """Makes the next round remove expired log files at any hour (`upkeep.flush_service`)."""
    topics: Topics
    groups: Groups
    offsets: Offsets
    delays: DelayOffsets
    timers: TimerOffsets
    counts: TimerCounts
    store: MessageStore
    statistics: Statistics
    request_counts: RequestCounts
    traits: Traits = STRICT_TRAITS
    policy_name: str = "strict"
    """The policy that the broker reports, from which a test kit chooses its checks."""
    is_slave: bool = False
    _put_rates: Rates = field(factory=Rates, init=False)
    _get_rates: Rates = field(factory=Rates, init=False)
    _found_rates: Rates = field(factory=Rates, init=False)
    """The rates of pulls that got messages."""
    _miss_rates: Rates = field(factory=Rates, init=False)
    """The rates of pulls that got no message at once."""
    _pull_rates: Rates = field(factory=Rates, init=False)
    _started_end: int = field(init=False)
    """The end of the log when the broker started."""
    _started_ms: int = field(init=False)
    _day: dt.date = field(init=False)
    _mornings: deque[tuple[int, int]] = field(init=False)
    """The numbers of messages received and delivered before yesterday began, and before today began."""

    def __attrs_post_init__(self) -> None:
        self._started_ms = self.runtime.unix_ms()
        self._started_end = self.store.log_end
        self._day = self._today()
        self._mornings = deque([(0, 0), (0, 0)], maxlen=2)

    def sample(self) -> None:
        """Record the current counts; one thread calls this method about once a second."""
        now_ms = self.runtime.monotonic_ns() // 1_000_000
        self._put_rates.sample(now_ms, self._sent())
        self._get_rates.sample(now_ms, self.statistics.given())
        pulls, found = sum(self.request_counts.get(code, 0) for code in PULLS), self.statistics.times_given()
        self._pull_rates.sample(now_ms, pulls)
        self._found_rates.sample(now_ms, found)
        self._miss_rates.sample(now_ms, max(pulls - found, 0))
        if self._day != self._today():
            self._day = self._today()
            self._mornings.append((self._sent(), self.statistics.given()))

    @serves(RequestCode.GET_ALL_TOPIC_CONFIG)
    def all_topics(self, _channel: Channel, command: Command, _outbox: Outbox) -> Turns:
        """Code 21: return every topic with its settings; answers with code 1 if they do not fit in one answer."""
        empty = TopicTable(data_version=self._version(self.topics))
        return (yield from _table_answer(command, empty, self.topics.by_name.copy()))

    @serves(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    def all_groups(self, _channel: Channel, command: Command, _outbox: Outbox) -> Turns:
        """Code 201: return every group with its settings; answers with code 1 if they do not fit in one answer."""
        empty = GroupTable(data_version=self._version(self.groups))
        return (yield from _table_answer(command, empty, self.groups.by_name.copy()))

    def _version(self, table: Topics | Groups) -> DataVersion:
        """Returns a table's version; callers read it before the table, so that a later change is noticed."""
        return DataVersion(counter=table.version, timestamp=self._started_ms)

    @serves(RequestCode.GET_ALL_CONSUMER_OFFSET)
    def all_offsets(self, _channel: Channel, command: Command, _outbox: Outbox) -> Turns:
        """Code 43: return every group's offsets; answers with code 1 if they do not fit in one answer."""
        count = len(self.offsets.by_pair)
        if count > OFFSET_COUNT_MAX:
            told = f"{count} pairs of a topic and a group, over the limit of {OFFSET_COUNT_MAX} for one answer"
            return answer(command, ResponseCode.SYSTEM_ERROR, told)
        return (yield from _table_answer(command, OffsetTable(offset_table={}), self.offsets.by_pair.copy()))

    @serves(RequestCode.GET_ALL_DELAY_OFFSET)
    def all_delays(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 45: return the consumed offset of each delay level."""
        return answer(command, ResponseCode.SUCCESS, body=DelayTable(offset_table=self.delays.by_level.copy()).encode())

    @serves(RequestCode.GET_TIMER_CHECK_POINT)
    def timer_progress(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 60: return the progress of the timer."""
        _first, read, delivered_ms = self.timers.progress
        body = TimerCheckpoint(max(delivered_ms + PRECISION_MS, 0), read).encode()
        return answer(command, ResponseCode.SUCCESS, body=body)

    @serves(RequestCode.GET_TIMER_METRICS)
    def timer_counts(self, _channel: Channel, command: Command, _outbox: Outbox) -> Turns:
        """Code 61: return the number of waiting timed messages per topic."""
        empty = TimerCountTable(
            data_version=StateVersion(counter=self.counts.version, timestamp=self._started_ms), timing_count={}
        )
        return (yield from _table_answer(command, empty, self.counts.by_topic.copy()))

    @serves(RequestCode.GET_BROKER_HA_STATUS)
    def replication(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 907: return this broker's role and the end of its log; the answer lists no slaves and no master."""
        end = self.store.log_end
        status = HAStatus(master_commit_log_max_offset=end)
        if self.is_slave:
            status = HAStatus(master=False, ha_client_runtime_info=FollowingStatus(max_offset=end))
        return answer(command, ResponseCode.SUCCESS, body=status.encode())

    @serves(RequestCode.GET_BROKER_CONFIG)
    def settings(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 26: return the settings under RocketMQ's names, one `key=value` per line."""
        text = "".join(f"{key}={value}\n" for key, value in sorted(self._settings().items()))
        version = GetBrokerConfigResponseHeader(version=DataVersion().encode().decode())
        return answer(command, ResponseCode.SUCCESS, None, version.encode(), text.encode())

    @serves(RequestCode.UPDATE_BROKER_CONFIG)
    def change_settings(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 25: change all given settings, or none; answers with code 1 and a key whose value cannot change."""
        wanted = read_settings(bytes(command.body), "UpdateBrokerConfig")
        known = self._settings()
        for key, value in wanted.items():
            problem = _problem(key, value, known)
            if problem is not None:
                return answer(command, ResponseCode.SYSTEM_ERROR, problem)
        if _AUTO_TOPIC in wanted:
            self.topics.auto_create = wanted[_AUTO_TOPIC] == "true"
        if _AUTO_GROUP in wanted:
            self.groups.auto_create = wanted[_AUTO_GROUP] == "true"
        return answer(command, ResponseCode.SUCCESS)

    @serves(RequestCode.GET_BROKER_RUNTIME_INFO)
    def runtime_info(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 28: return the broker's state, in the fields of RocketMQ that this broker supports."""
        store, now_ms = self.store, self.runtime.unix_ms()
        seconds = (now_ms - self._started_ms) // 1000
        ratio = self.runtime.files.used_ratio(self.store.directory)
        told: dict[str, object] = {
            "brokerVersion": VERSION,
            "brokerVersionDesc": self.traits.version_name,
            "longpollPolicy": self.policy_name,
            "bootTimestamp": self._started_ms,
            "runtime": f"[ {seconds // 86400} days, {seconds // 3600 % 24} hours, "
            f"{seconds // 60 % 60} minutes, {seconds % 60} seconds ]",
            "putMessageTimesTotal": self._sent(),
            "putTps": self._put_rates.as_text(),
            self.traits.given_rate_key: self._get_rates.as_text(),
            "commitLogMinOffset": store.log_start,
            "commitLogMaxOffset": store.log_end,
            "dispatchBehindBytes": store.log_end - store.dispatched_end,
            "remainHowManyDataToFlush": f"{store.log_end - store.flushed_end} B",
            "commitLogDiskRatio": ratio,
            "consumeQueueDiskRatio": ratio,
            "earliestMessageTimeStamp": self._first_stored_ms(),
            # The threads that read requests also serve them, so no request waits in a queue.
            "sendThreadPoolQueueSize": 0,
            "sendThreadPoolQueueHeadWaitTimeMills": 0,
            # Writers of this broker do not wait for a lock of the page cache.
            "pageCacheLockTimeMills": 0,
        }
        count, waited_ms = self.pull_queue()
        told |= {"pullThreadPoolQueueSize": count, "pullThreadPoolQueueHeadWaitTimeMills": waited_ms}
        told |= self._by_day() | self._of_java(ratio)
        if self.traits.tells_if_active:
            told |= {"brokerActive": "true", "ackThreadPoolQueueSize": 0, "ackThreadPoolQueueHeadWaitTimeMills": 0}
        for level, offset in self.delays.by_level.copy().items():
            told[f"scheduleMessageOffset_{level}"] = f"{offset},{store.visible_end(SCHEDULE_TOPIC, level - 1)}"
        return answer(command, ResponseCode.SUCCESS, body=KVTable(table={k: str(v) for k, v in told.items()}).encode())

    @serves(RequestCode.VIEW_BROKER_STATS_DATA)
    def statistic(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 315: return a statistic of the last minute, hour and day; answers with code 1 for an unknown key.

        The totals of the broker are stored under one key, the cluster's name.
        """
        header = ViewBrokerStatsDataRequestHeader.decode(command.ext_fields)
        is_whole = header.stats_name in {BROKER_GET_NUMS, BROKER_PUT_NUMS}
        is_of_other = is_whole and header.stats_key != self.config.cluster_name
        found = None if is_of_other else self.statistics.snapshots(header.stats_name, header.stats_key)
        if found is None:
            told = f"The stats <{header.stats_name[:64]}> <{header.stats_key[:300]}> not exist"
            return answer(command, ResponseCode.SYSTEM_ERROR, told)
        body = {name: {"sum": each.sum, "tps": each.tps, "avgpt": each.average} for name, each in found.items()}
        return answer(command, ResponseCode.SUCCESS, body=msgspec.json.encode(body))

    @serves(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    def system_topics(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 305: return the topics that clients may not create, change or delete."""
        body = msgspec.json.encode({"topicList": self.topics.system_names()})
        return answer(command, ResponseCode.SUCCESS, body=body)

    @serves(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.CLEAN_UNUSED_TOPIC, RequestCode.CLEAN_EXPIRED_COMMITLOG)
    def clean(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Codes 306, 316 and 329: answer with success at once; code 329 also removes expired log files soon."""
        if command.code == RequestCode.CLEAN_EXPIRED_COMMITLOG:
            self.clean_soon()
        return answer(command, ResponseCode.SUCCESS)

    def _of_java(self, ratio: float) -> dict[str, object]:
        """Returns the fields that rocketmq-exporter needs; fields that this broker does not measure are 0."""
        directory, sent = self.store.directory, self._sent()
        size = self.store.log_end - self._started_end
        total, free = (_bytes(count) for count in self.runtime.files.space(directory))
        return {
            **dict.fromkeys(UNMEASURED, 0),
            "putMessageDistributeTime": " ".join(f"[{span}]:0" for span in PUT_SPANS),
            "putMessageSizeTotal": size,
            "putMessageAverageSize": size / sent if sent else 0.0,
            "pullThreadPoolQueueCapacity": self.config.pull_queue_capacity,
            "getFoundTps": self._found_rates.as_text(),
            "getMissTps": self._miss_rates.as_text(),
            "getTotalTps": self._pull_rates.as_text(),
            "commitLogDirCapacity": f"Total : {total}, Free : {free}.",
            f"commitLogDiskRatio_{directory}/commitlog": ratio,
        }

    def _by_day(self) -> dict[str, int]:
        """Returns the numbers of messages received and delivered before yesterday, before today, and until now."""
        yesterday, today = self._mornings
        moments = {"YesterdayMorning": yesterday, "TodayMorning": today}
        moments["TodayNow"] = (self._sent(), self.statistics.given())
        names = ("msgPutTotal", "msgGetTotal")
        return {
            f"{name}{when}": count
            for when, counts in moments.items()
            for name, count in zip(names, counts, strict=True)
        }

    def _today(self) -> dt.date:
        return dt.datetime.fromtimestamp(self.runtime.unix_ms() / 1000).astimezone().date()

    def _sent(self) -> int:
        return sum(self.request_counts.get(code, 0) for code in _SENDS)

    def _first_stored_ms(self) -> int:
        record = self.store.read_record(self.store.log_start) if self.store.log_end > self.store.log_start else None
        return -1 if record is None else record.store_ms

    def _settings(self) -> dict[str, str]:
        found = {key: _text(getattr(self.config, name)) for key, name in _BROKER_KEYS.items()}
        found |= {key: _text(getattr(self.store_config, name)) for key, name in _STORE_KEYS.items()}
        found |= _FIXED
        found["flushDiskType"] = "SYNC_FLUSH" if self.store_config.flush_disk_sync else "ASYNC_FLUSH"
        found[_AUTO_TOPIC] = _text(self.topics.auto_create)
        found[_AUTO_GROUP] = _text(self.groups.auto_create)
        return found


def _problem(key: str, value: str, known: Mapping[str, str]) -> str | None:
    """Returns why a setting cannot be changed to a value, or None."""
    if key not in known:
        return f"{key[:80]!r} is no setting of this broker: 26 tells those that there are"
    if known[key] == value:
        return None
    if key not in {_AUTO_TOPIC, _AUTO_GROUP}:
        return f"{key} cannot be changed while the broker runs: set it in its configuration and start it again"
    if value not in {"true", "false"}:
        return f"{key} is true or false, not {value[:40]!r}"
    return None


def _table_answer(command: Command, empty: Body, rows: Mapping[str, Any]) -> Turns:
    head, brackets, tail = empty.encode().partition(b"{}")
    body = bytearray(head + brackets[:1])
    for number, part in enumerate(chunks_of(rows)):
        if number:
            yield
            body += b","
        body += msgspec.json.encode(part)[1:-1]
        if len(body) > ANSWER_SIZE_MAX:
            break
    body += brackets[1:] + tail
    return answer(command, ResponseCode.SUCCESS, body=body)


def _bytes(count: int) -> str:
    if count < KIB:
        return f"{count} B"
    power = (count.bit_length() - 1) // 10
    return f"{count / KIB**power:.1f} {'KMGTPE'[power - 1]}iB"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
