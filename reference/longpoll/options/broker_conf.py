"""Reads RocketMQ's `broker.conf`, a Java properties file, into our settings.

Keys without a setting of ours are returned, so that the caller can warn about them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs
import msgspec
from attrs import frozen

from longpoll.options.values import address_of
from longpoll_broker.config import BrokerConfig, StoreConfig
from longpoll_protocol.properties import delay_levels_ms
from longpoll_spec.errors import ConfigError


def _boolean(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError("write true or false")
    return text.lower() == "true"


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError("write a number from 0 up")
    return value


def _seconds(text: str) -> int:
    return 1000 * _count(text)


def _sync_flush(text: str) -> bool:
    if text not in {"SYNC_FLUSH", "ASYNC_FLUSH"}:
        raise ValueError("write SYNC_FLUSH or ASYNC_FLUSH")
    return text == "SYNC_FLUSH"


def _hours(text: str) -> str:
    if not all(hour.isdecimal() and int(hour) < HOURS_OF_DAY for hour in text.split(";")):
        raise ValueError("write hours from 0 to 23, separated by semicolons")
    return text


def _path(text: str) -> Path:
    if not text:
        raise ValueError("write a path, or remove the key")
    return Path(text)


def _log_path(text: str) -> Path:
    if "," in text:
        raise ValueError("a log in several directories is not supported")
    return _path(text)


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value < PORT_END:
        raise ValueError(f"write a port from 0 to {PORT_END - 1}")
    return value


def _host(text: str) -> str:
    address_of(f"{text}:0")
    return text


def _role(text: str) -> str:
    if text not in {"ASYNC_MASTER", "SLAVE"}:
        raise ValueError("write ASYNC_MASTER or SLAVE, because this broker copies no message to another")
    return text


def _addresses(text: str) -> str:
    for address in filter(None, text.split(";")):
        address_of(address)
    return text


def _delay_levels(text: str) -> str:
    delay_levels_ms(text)
    return text


HOURS_OF_DAY: Final = 24
PORT_END: Final = 65_536
Key = tuple[str, Callable[[str], Any]]
BROKER_KEYS: Final[dict[str, Key]] = {
    "brokerName": ("broker_name", str),
    "brokerClusterName": ("cluster_name", str),
    "brokerId": ("broker_id", _count),
    "brokerRole": ("role", _role),
    "brokerIP1": ("advertised_host", _host),
    "slaveReadEnable": ("slave_read", _boolean),
    "namesrvAddr": ("name_servers", _addresses),
    "offsetCheckInSlave": ("offset_check_in_slave", _boolean),
    "enableSlaveActingMaster": ("slave_acting_master", _boolean),
    "defaultTopicQueueNums": ("default_topic_queue_count", _count),
    "autoCreateTopicEnable": ("auto_create_topic", _boolean),
    "autoCreateSubscriptionGroup": ("auto_create_subscription_group", _boolean),
    "brokerPermission": ("permission", _count),
    "longPollingEnable": ("long_polling", _boolean),
    "transactionTimeOut": ("transaction_timeout_ms", _count),
    "transactionCheckInterval": ("transaction_check_interval_ms", _count),
    "transactionCheckMax": ("transaction_check_count_max", _count),
    "aclEnable": ("acl_enable", _boolean),
    "recallMessageEnable": ("recall_message", _boolean),
    "enablePropertyFilter": ("property_filter", _boolean),
    "pullMessageThreadPoolNums": ("pull_thread_count", _count),
    "pullThreadPoolQueueCapacity": ("pull_queue_capacity", _count),
    "waitTimeMillsInPullQueue": ("pull_wait_ms_max", _count),
    "brokerFastFailureEnable": ("fast_failure", _boolean),
    "serverChannelMaxIdleTimeSeconds": ("channel_idle_ms_max", _seconds),
    # Our own keys, unknown to a Java broker.
    "connectionCountMax": ("connection_count_max", _count),
    "addressConnectionCountMax": ("address_connection_count_max", _count),
    "outputBytesMax": ("output_bytes_max", _count),
    "unsentBytesMax": ("unsent_bytes_max", _count),
    "unfinishedBytesMax": ("unfinished_bytes_max", _count),
    "frameTimeMax": ("frame_ms_max", _count),
}
STORE_KEYS: Final[dict[str, Key]] = {
    "mappedFileSizeCommitLog": ("commit_log_file_size", _count),
    "mappedFileSizeConsumeQueue": ("consume_queue_file_size", _count),
    "enableConsumeQueueExt": ("extended_queues", _boolean),
    "mappedFileSizeConsumeQueueExt": ("extended_file_size", _count),
    "messageIndexEnable": ("index", _boolean),
    "maxHashSlotNum": ("index_slot_count", _count),
    "maxIndexNum": ("index_entry_count", _count),
    "maxMessageSize": ("message_size_max", _count),
    "enableMultiDispatch": ("multi_dispatch", _boolean),
    "enableLmq": ("light_queues", _boolean),
    "maxLmqConsumeQueueNum": ("light_queue_count_max", _count),
    "flushDiskType": ("flush_disk_sync", _sync_flush),
    "deleteWhen": ("delete_when", _hours),
    "fileReservedTime": ("file_reserved_hours", _count),
    "diskMaxUsedSpaceRatio": ("disk_ratio_max", _count),
    "cleanFileForciblyEnable": ("clean_forcibly", _boolean),
    "cleanResourceInterval": ("clean_period_ms", _count),
    "syncFlushTimeout": ("sync_flush_timeout_ms", _count),
    "flushIntervalCommitLog": ("flush_interval_ms", _count),
    "maxTransferBytesOnMessageInMemory": ("transfer_bytes_max_in_memory", _count),
    "maxTransferCountOnMessageInMemory": ("transfer_count_max_in_memory", _count),
    "maxTransferBytesOnMessageInDisk": ("transfer_bytes_max_on_disk", _count),
    "maxTransferCountOnMessageInDisk": ("transfer_count_max_on_disk", _count),
    "accessMessageInMemoryMaxRatio": ("memory_ratio_max", _count),
    "messageDelayLevel": ("delay_levels", _delay_levels),
}


PLACE_KEYS: Final[dict[str, Key]] = {
    "listenPort": ("listen_port", _port),
    "storePathRootDir": ("directory", _path),
    "storePathCommitLog": ("commitlog", _log_path),
    "storePathConsumeQueue": ("consumequeue", _path),
    "storePathIndex": ("index", _path),
}
ACCOUNT: Final = "innerClientAuthenticationCredentials"
"""The key of the account, in JSON, with which a broker signs its own requests, as in RocketMQ 5.x."""


KEYS: Final = BROKER_KEYS | STORE_KEYS | PLACE_KEYS


@frozen
class BrokerPlace:
    """The port and the store paths in a `broker.conf`; a missing key gives None."""

    listen_port: int | None = None
    directory: Path | None = None
    commitlog: Path | None = None
    consumequeue: Path | None = None
    index: Path | None = None

    @property
    def root(self) -> Path | None:
        """The store's directory; RocketMQ's example files name only the commit log inside it."""
        if self.directory is None and self.commitlog is not None and self.commitlog.name == "commitlog":
            return self.commitlog.parent
        return self.directory

    @property
    def listen(self) -> str | None:
        """The address to listen on, HOST:PORT."""
        return None if self.listen_port is None else f"127.0.0.1:{self.listen_port}"

    def link(self, root: Path) -> None:
        """Link the parts of the store that have their own path into its directory; raises ConfigError."""
        for name, wanted in (("commitlog", self.commitlog), ("consumequeue", self.consumequeue), ("index", self.index)):
            there = root / name
            if wanted is None or wanted.absolute() == there.absolute():
                continue
            try:
                wanted.mkdir(parents=True, exist_ok=True)
                root.mkdir(parents=True, exist_ok=True)
                if not there.is_symlink() and not there.exists():
                    there.symlink_to(wanted.absolute(), target_is_directory=True)
                if there.resolve() == wanted.resolve():
                    continue
            except OSError as error:
                raise ConfigError(f"{wanted} cannot be the store's {name}: {error}") from None
            raise ConfigError(f"{there} exists and is not {wanted}; move it to {wanted}, or remove its key")


def _account(path: Path, number: int, value: str) -> dict[str, str]:
    """The settings of an account; raises ConfigError, which does not show the secret value."""
    try:
        account = msgspec.json.decode(value, type=dict[str, str])
        return {"access_key": account["accessKey"], "secret_key": account["secretKey"]}
    except (msgspec.MsgspecError, KeyError):
        raise ConfigError(
            f'{path}, line {number}: write {ACCOUNT} as {{"accessKey":"...","secretKey":"..."}} on one line'
        ) from None


def read_broker_conf(path: Path) -> tuple[BrokerConfig, StoreConfig, BrokerPlace, list[str]]:
    """Return a file's settings, the broker's port and paths, and the unknown keys; raises ConfigError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    found: dict[str, Any] = {}
    unknown: list[str] = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            # The line is not shown, because it may be a secret.
            raise ConfigError(f"{path}, line {number} is not KEY=VALUE; fix it, or put # in front of it")
        if name == ACCOUNT:
            found[name] = _account(path, number, value)
            continue
        if name not in KEYS:
            unknown.append(name)
            continue
        try:
            found[name] = KEYS[name][1](value)
        except ValueError as error:
            raise ConfigError(f"{path}, line {number}: {name} cannot be {value!r}; {error}") from None
    broker, store, place = (
        {keys[name][0]: value for name, value in found.items() if name in keys}
        for keys in (BROKER_KEYS, STORE_KEYS, PLACE_KEYS)
    )
    broker |= found.get(ACCOUNT, {})
    settings = attrs.evolve(BrokerConfig(), **broker), attrs.evolve(StoreConfig(), **store)
    return *settings, BrokerPlace(**place), unknown
