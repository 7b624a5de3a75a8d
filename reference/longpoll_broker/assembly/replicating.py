"""The room of copies: those who copy this broker's log, and its own copying of a master's."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from longpoll_broker.assembly.shared import Shared
from longpoll_broker.service.following.follower import Follower
from longpoll_broker.service.following.master import Master
from longpoll_broker.service.replication.replicator import ReplicationSettings, Replicator
from longpoll_protocol.frames.replication import TRANSFER_SIZE_MAX
from longpoll_runtime import Address, Listener
from longpoll_spec.errors import ConfigError


@frozen(eq=False)
class Replicating:
    """The services that there are, each with a thread."""

    replicator: Replicator | None
    follower: Follower | None

    def start(self) -> None:
        """Start the threads."""
        if self.replicator is not None:
            self.replicator.start()
        if self.follower is not None:
            self.follower.start()

    def appended(self) -> None:
        """Send to slaves what was appended and may be shown."""
        if self.replicator is not None:
            self.replicator.appended()

    def stop_following(self) -> None:
        """Append nothing any more."""
        if self.follower is not None:
            self.follower.stop()

    def stop_replicating(self) -> None:
        """Send nothing any more."""
        if self.replicator is not None:
            self.replicator.stop()


def replicator_of(shared: Shared, listener: Listener | None) -> Replicator | None:
    """Who sends the log to slaves; None where there is no listener for them. Raises ConfigError."""
    config, traits = shared.config, shared.traits
    if listener is None:
        return None
    if not 0 < config.transfer_size <= TRANSFER_SIZE_MAX:
        raise ConfigError(
            f"haTransferBatchSize is {config.transfer_size}: give from 1 to {TRANSFER_SIZE_MAX}, what a slave takes"
        )
    settings = ReplicationSettings(
        transfer_size=config.transfer_size,
        heartbeat_ms=config.ha_heartbeat_ms,
        idle_ms_max=config.ha_idle_ms_max,
        slave_count_max=config.slave_count_max,
        behind_bytes_max=config.slave_behind_bytes_max,
        timeout_ms=config.slave_timeout_ms,
        needed_count=max(config.in_sync_replicas - 1, 0) if traits.counts_replicas else None,
        begins_with_last_file=traits.begins_with_last_file,
    )
    return Replicator(shared.runtime, shared.store, listener, settings)


def follower_of(shared: Shared, show: Callable[[], None]) -> Follower | None:
    """Who copies a master's log; None for a master, and for a slave that is told of none. Raises ConfigError."""
    config = shared.config
    master = Master(_address(config.master, "masterAddress"), _address(config.ha_master, "haMasterAddress"))
    if master.ha_address is None and master.address is not None:
        host, port = master.address
        master.ha_address = host, port + 1
    if not shared.standing.is_slave:
        if master.ha_address is not None:
            raise ConfigError("only a slave follows a master: set brokerRole=SLAVE and a brokerId above 0")
        return None
    if master.ha_address is None:
        return None
    return Follower(
        shared.runtime,
        shared.store,
        master,
        show,
        shared.store_config.flush_disk_sync,
        config.ha_heartbeat_ms,
        config.ha_idle_ms_max,
    )


def _address(text: str, key: str) -> Address | None:
    """HOST:PORT as a pair, None for nothing; raises ConfigError."""
    if not text:
        return None
    host, _colon, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 2**16 - 1:
        raise ConfigError(f"{key} is {text!r}: write HOST:PORT, such as 127.0.0.1:10911")
    return host.strip("[]"), int(port)
