"""The replication services: sending the log to slaves, and copying a master's."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_network

from attrs import frozen

from longpoll_broker.assembly.shared import SharedServices
from longpoll_broker.config import BrokerConfig
from longpoll_broker.rocketmq.replication.follower import Follower
from longpoll_broker.rocketmq.replication.peer_client import MasterAddress, address_in
from longpoll_broker.rocketmq.replication.registrar import Registrar
from longpoll_broker.rocketmq.replication.replicator import Network, ReplicationSettings, Replicator
from longpoll_broker.rocketmq.replication.table_sync import TableSync
from longpoll_protocol.bodies import FollowingStatus, HAStatus
from longpoll_protocol.frames.replication import TRANSFER_SIZE_MAX
from longpoll_runtime import Address, Listener
from longpoll_spec.errors import ConfigError


@frozen(eq=False)
class ReplicationServices:
    """The services, each with a thread, or None."""

    replicator: Replicator | None
    follower: Follower | None
    tables: TableSync | None
    registrar: Registrar | None
    shared: SharedServices

    @property
    def status(self) -> HAStatus:
        """Returns the slaves of this master, or this slave's progress, as the answer to code 907."""
        if self.shared.standing.is_slave:
            followed = FollowingStatus(max_offset=self.shared.store.log_end)
            if self.follower is not None:
                followed = self.follower.status
            return HAStatus(master=False, ha_client_runtime_info=followed)
        slaves = [] if self.replicator is None else self.replicator.slaves
        return HAStatus(
            ha_connection_info=slaves,
            in_sync_slave_nums=sum(each.in_sync for each in slaves),
            master_commit_log_max_offset=self.shared.store.log_end,
        )

    def start(self) -> None:
        """Start the threads."""
        for service in (self.replicator, self.follower, self.tables, self.registrar):
            if service is not None:
                service.start()

    def appended(self) -> None:
        """Wake the replicator for appended messages."""
        if self.replicator is not None:
            self.replicator.appended()

    def stop_following(self) -> None:
        """Unregister from name servers, and stop copying."""
        for service in (self.registrar, self.tables, self.follower):
            if service is not None:
                service.stop()

    def stop_replicating(self) -> None:
        """Stop sending."""
        if self.replicator is not None:
            self.replicator.stop()


def replicator_of(shared: SharedServices, listener: Listener | None) -> Replicator | None:
    """Create the sender of the log; None without a listener for slaves. Raises ConfigError."""
    config, traits = shared.config, shared.traits
    if listener is None:
        return None
    if not 0 < config.transfer_size <= TRANSFER_SIZE_MAX:
        raise ConfigError(
            f"haTransferBatchSize is {config.transfer_size}; write 1 to {TRANSFER_SIZE_MAX}, a slave's limit"
        )
    settings = ReplicationSettings(
        transfer_size=config.transfer_size,
        heartbeat_ms=config.ha_heartbeat_ms,
        idle_ms_max=config.ha_idle_ms_max,
        slave_count_max=config.slave_count_max,
        networks=_networks(config.slave_addresses),
        behind_bytes_max=config.slave_behind_bytes_max,
        timeout_ms=config.slave_timeout_ms,
        needed_count=max(config.in_sync_replicas - 1, 0) if traits.counts_replicas else None,
        begins_with_last_file=traits.begins_with_last_file,
        # With a polling dispatcher no event reports visibility, so waiting sends would wait for the next poll.
        only_visible=traits.replicates_visible and shared.policy.notify != "dispatcher_poll",
    )
    return Replicator(shared.runtime, shared.store, listener, settings)


def follower_of(
    shared: SharedServices, show: Callable[[], None]
) -> tuple[MasterAddress | None, Follower | None, TableSync | None]:
    """Create a slave's services: its master's addresses, and the copying of log and tables; None for a master.

    Raises ConfigError.
    """
    config, runtime = shared.config, shared.runtime
    master = MasterAddress(address_in(config.master, "masterAddress"), _ha_master(config))
    if not shared.standing.is_slave:
        if config.master or config.ha_master:
            raise ConfigError("only a slave can follow a master; set brokerRole=SLAVE and a brokerId above 0")
        return None, None, None
    if not (config.master or config.ha_master or config.name_servers):
        # It serves the store as it is.
        return None, None, None
    follower = Follower(
        runtime,
        shared.store,
        master,
        show,
        shared.store_config.flush_disk_sync,
        config.ha_heartbeat_ms,
        config.ha_idle_ms_max,
    )
    timers = shared.timers if shared.traits.serves_timers else None
    tables = TableSync(
        runtime,
        master,
        shared.topics,
        shared.groups,
        shared.offsets,
        shared.delays,
        timers,
        log_end=lambda: shared.store.log_end,
        access_key=config.access_key,
        secret_key=config.secret_key,
    )
    return master, follower, tables


def registrar_of(
    shared: SharedServices, address: str, ha_address: str, master: MasterAddress | None
) -> Registrar | None:
    """Create the registration at name servers, if any are configured; raises ConfigError."""
    config = shared.config
    found = (address_in(text.strip(), "namesrvAddr") for text in config.name_servers.split(";"))
    name_servers = tuple(address for address in found if address is not None)
    if not name_servers:
        return None
    return Registrar(
        shared.runtime, config, shared.topics, name_servers, address, ha_address, master, shared.runtime.unix_ms()
    )


def _networks(text: str) -> tuple[Network, ...]:
    """Parse `slaveAddresses`; raises ConfigError."""
    try:
        return tuple(ip_network(part.strip()) for part in text.split(";") if part.strip())
    except ValueError as error:
        raise ConfigError(
            f"slaveAddresses: {error}; write addresses or networks, as in '10.0.0.7;10.1.0.0/16'"
        ) from None


def _ha_master(config: BrokerConfig) -> Address | None:
    """Returns the address of the master's log: by default the port after that of its requests."""
    ha_master, master = address_in(config.ha_master, "haMasterAddress"), address_in(config.master, "masterAddress")
    return (master[0], master[1] + 1) if ha_master is None and master is not None else ha_master
