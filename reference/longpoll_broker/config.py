"""Settings of the store and the broker, with RocketMQ's names for its own keys and RocketMQ's defaults.

Leaves out policy knobs (`longpoll_spec.policy`): a setting changes sizes and addresses, a knob changes behaviour.
"""

from __future__ import annotations

from typing import Literal

from attrs import field, frozen

from longpoll_protocol.frames.replication import TRANSFER_SIZE
from longpoll_protocol.properties import DELAY_LEVELS, delay_levels_ms
from longpoll_protocol.sizes import KIB, MIB


@frozen
class StoreConfig:
    """Sizes and times of one store directory (`MessageStoreConfig.java`)."""

    commit_log_file_size: int = field(default=1024 * MIB)
    """`mappedFileSizeCommitLog`, bytes; files are sparse until written."""
    consume_queue_file_size: int = field(default=300_000 * 20)
    """`mappedFileSizeConsumeQueue`, bytes, a multiple of 20."""
    extended_queues: bool = field(default=False)
    """`enableConsumeQueueExt`: a unit's tags code stands in an extended queue."""
    extended_file_size: int = field(default=48 * MIB)
    """`mappedFileSizeConsumeQueueExt`, bytes."""
    index: bool = field(default=True)
    """`messageIndexEnable`: messages can be queried by key."""
    index_slot_count: int = field(default=5_000_000)
    """`maxHashSlotNum`, slots of one index file, 4 bytes each."""
    index_entry_count: int = field(default=20_000_000)
    """`maxIndexNum`, entries of one index file, 20 bytes each; the first is never used."""
    message_size_max: int = field(default=4 * MIB)
    """`maxMessageSize`, bytes of body."""
    flush_disk_sync: bool = field(default=False)
    """`flushDiskType=SYNC_FLUSH`: a send is answered when its bytes are durable."""
    delete_when: str = field(default="04")
    """`deleteWhen`: hours of the day, separated by semicolons, at which expired files are removed."""
    file_reserved_hours: int = field(default=72)
    """`fileReservedTime`: a commit-log file expires so long after its last change."""
    disk_ratio_max: int = field(default=75)
    """`diskMaxUsedSpaceRatio`, percent: on a fuller disk expired files are removed at any hour."""
    clean_forcibly: bool = field(default=True)
    """`cleanFileForciblyEnable`: on a disk fuller than 85 % files are removed before they expire."""
    clean_period_ms: int = field(default=10_000)
    """`cleanResourceInterval`: how often it is looked for expired files."""
    sync_flush_timeout_ms: int = field(default=5000)
    """`syncFlushTimeout`: a send whose bytes are not durable by then is answered 10 FLUSH_DISK_TIMEOUT."""
    visible_when_durable: bool = field(default=False)
    """Nobody sees a message before it is durable; a broker's policy asks for it, with `flush_disk_sync`."""
    minimum_follows_log: bool = field(default=False)
    """A queue whose records are all gone begins at its end; a broker's version says so (5.x), and 4.9's stays."""
    flush_interval_ms: int = field(default=500)
    """`flushIntervalCommitLog`."""
    transfer_bytes_max_in_memory: int = field(default=256 * KIB)
    """`maxTransferBytesOnMessageInMemory`."""
    transfer_count_max_in_memory: int = field(default=32)
    """`maxTransferCountOnMessageInMemory`."""
    transfer_bytes_max_on_disk: int = field(default=64 * KIB)
    """`maxTransferBytesOnMessageInDisk`."""
    transfer_count_max_on_disk: int = field(default=8)
    """`maxTransferCountOnMessageInDisk`."""
    memory_ratio_max: int = field(default=40)
    """`accessMessageInMemoryMaxRatio`, percent: what is further behind the log's end than this counts as on disk."""
    memory_size: int = field(default=0)
    """Bytes of physical memory that the ratio is taken of; 0 asks the machine."""
    multi_dispatch: bool = field(default=False)
    """`enableMultiDispatch`: a message may name further queues that list it (`INNER_MULTI_DISPATCH`)."""
    light_queues: bool = field(default=False)
    """`enableLmq`: topics and groups whose names begin with `%LMQ%` exist without being made."""
    light_queue_count_max: int = field(default=20_000)
    """`maxLmqConsumeQueueNum`."""
    delay_levels: str = field(default=DELAY_LEVELS)
    """`messageDelayLevel`: how long a message of level 1, 2, ... waits, each a number and s, m, h or d."""

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """The same in numbers; raises ValueError for what they cannot be."""
        return delay_levels_ms(self.delay_levels)


@frozen
class BrokerConfig:
    """Identity, addresses and limits of one broker (`BrokerConfig.java`, `NettyServerConfig.java`)."""

    broker_name: str = field(default="broker-a")
    cluster_name: str = field(default="DefaultCluster")
    broker_id: int = field(default=0)
    advertised_host: str = field(default="")
    """`brokerIP1`: the host that routes and registrations name; empty: the one that it listens on, or loopback."""
    role: Literal["ASYNC_MASTER", "SYNC_MASTER", "SLAVE"] = field(default="ASYNC_MASTER")
    """`brokerRole`: a slave copies its master's log and takes no messages; sends to a SYNC_MASTER wait for a slave."""
    master: str = field(default="")
    """HOST:PORT where a slave's master serves requests; empty: as a name server says, or none is followed."""
    ha_master: str = field(default="")
    """`haMasterAddress`, HOST:PORT where it sends its log; empty: at the port after that of `master`."""
    name_servers: str = field(default="")
    """`namesrvAddr`: HOST:PORT of name servers to register at, separated by semicolons; empty: at none."""
    ha_port: int | None = field(default=None)
    """`haListenPort`: slaves may connect there, on loopback; 0 picks one, None: nowhere, but for a SYNC_MASTER."""
    slave_count_max: int = field(default=8)
    """Most slaves that may follow at one time."""
    slave_addresses: str = field(default="")
    """`slaveAddresses`: from which addresses or networks (10.0.0.0/8) they may, separated by `;`; empty: from all."""
    transfer_size: int = field(default=TRANSFER_SIZE)
    """`haTransferBatchSize`, bytes of the log that a slave is sent as one piece."""
    ha_heartbeat_ms: int = field(default=5000)
    """`haSendHeartbeatInterval`."""
    ha_idle_ms_max: int = field(default=20_000)
    """`haHousekeepingInterval`: who says nothing for so long is gone, and a slave that gets no further."""
    slave_timeout_ms: int = field(default=3000)
    """`slaveTimeout`: a send that no slave has by then is answered 12 FLUSH_SLAVE_TIMEOUT."""
    slave_behind_bytes_max: int = field(default=256 * MIB)
    """`haSlaveFallbehindMax`: where every slave lacks as much of the log, sends are answered 11 at once."""
    in_sync_replicas: int = field(default=1)
    """`inSyncReplicas` of 5.x: how many brokers must have a message, this one counted."""
    slave_read: bool = field(default=False)
    """`slaveReadEnable`: readers far behind are sent to a slave, and a slave may be read from."""
    offset_check_in_slave: bool = field(default=False)
    """`offsetCheckInSlave`: a slave corrects offsets by its own store."""
    slave_acting_master: bool = field(default=False)
    """`enableSlaveActingMaster` of 5.x: a slave hears which brokers of its name are alive."""
    default_topic_queue_count: int = field(default=8)
    """`defaultTopicQueueNums`."""
    auto_create_topic: bool = field(default=True)
    auto_create_subscription_group: bool = field(default=True)
    permission: int = field(default=6)
    """`brokerPermission`: 4 lets clients pull, 2 lets them send."""
    long_polling: bool = field(default=True)
    """`longPollingEnable`."""
    property_filter: bool = field(default=False)
    """`enablePropertyFilter`: consumers may filter by SQL92 on properties."""
    scan_period_ms: int = field(default=5000)
    """How often the hold table is scanned under a policy with `expiry=scan` (hard-coded in Java)."""
    dispatcher_sleep_ms: int = field(default=1)
    """How long the dispatcher sleeps between polls under `notify=dispatcher_poll` (hard-coded in Java)."""
    io_thread_count: int = field(default=1)
    """Threads that serve connections; one interpreter gains little from more."""
    pull_thread_count: int = field(default=4)
    """`pullMessageThreadPoolNums`; Java takes 16 + 2 x cores, of which one interpreter could use one."""
    pull_queue_capacity: int = field(default=100_000)
    """`pullThreadPoolQueueCapacity`."""
    pull_wait_ms_max: int = field(default=5000)
    """`waitTimeMillsInPullQueue`: a pull that waits longer for the pool is answered SYSTEM_BUSY."""
    fast_failure: bool = field(default=True)
    """`brokerFastFailureEnable`: what waits too long for the pool is refused; otherwise it is served however late."""
    hold_timeout_ms_max: int = field(default=60_000)
    """Longest hold that `strict` grants, whatever the request asks."""
    held_count_max: int = field(default=1_000_000)
    """Most pulls held in all; the next one is answered SYSTEM_BUSY."""
    queue_held_count_max: int = field(default=200_000)
    """Most pulls held of one queue; the next one is answered likewise."""
    connection_count_max: int = field(default=20_000)
    frame_size_max: int = field(default=16 * MIB)
    """Largest frame after the length field, bytes (`NettyDecoder.FRAME_MAX_LENGTH`)."""
    channel_idle_ms_max: int = field(default=120_000)
    """`serverChannelMaxIdleTimeSeconds`."""
    output_bytes_max: int = field(default=64 * MIB)
    """Most bytes queued to one connection that does not read; over this it is closed."""
    frame_ms_max: int = field(default=60_000)
    """How long a frame may take from its first byte to its last; then the connection is closed."""
    unfinished_bytes_max: int = field(default=256 * MIB)
    """Most bytes of frames that have not ended, of all connections; over this the one with most is closed."""
    unsent_bytes_max: int = field(default=256 * MIB)
    """Most bytes of answers that peers have not read, of all connections; over this the one with most is closed."""
    address_connection_count_max: int = field(default=10_000)
    """Most connections of one address, so that the others have a part of `connection_count_max`."""
    transaction_timeout_ms: int = field(default=6_000)
    """`transactionTimeOut`: a prepared message this old is asked about."""
    transaction_check_interval_ms: int = field(default=60_000)
    """`transactionCheckInterval`: how often they are looked at."""
    transaction_check_count_max: int = field(default=15)
    """`transactionCheckMax`: one asked about so often is given up."""
    recall_message: bool = field(default=False)
    """`recallMessageEnable`: 370 takes messages back that wait for their time, where there are such (5.x)."""
    acl_enable: bool = field(default=False)
    """`aclEnable`: every request needs a key or a white address; then `acl_file` must be there."""
    access_key: str = field(default="")
    """The account by which it signs what it asks of its master and of name servers; empty: it signs nothing."""
    secret_key: str = field(default="", repr=False)
    acl_file: str | None = field(default=None)
    """Absolute path of the accounts, in the form of RocketMQ's `plain_acl.yml`."""
