"""Settings of the store and the broker, with RocketMQ's names and defaults.

These settings are sizes, times, addresses and roles. Other settings that change behaviour are knobs: see
`longpoll_spec.policy`.
"""

from __future__ import annotations

from typing import Literal

from attrs import field, frozen

from longpoll_protocol.properties import DELAY_LEVELS, delay_levels_ms
from longpoll_protocol.sizes import KIB, MIB


@frozen
class StoreConfig:
    """Sizes and times of one store directory (`MessageStoreConfig.java`)."""

    commit_log_file_size: int = field(default=1024 * MIB)
    """`mappedFileSizeCommitLog`: size of a file of the commit log, bytes; files are sparse until written."""
    consume_queue_file_size: int = field(default=300_000 * 20)
    """`mappedFileSizeConsumeQueue`: size of a file of a consume queue, bytes, a multiple of 20."""
    extended_queues: bool = field(default=False)
    """`enableConsumeQueueExt`: store the tags code of each consume-queue entry in a separate extended queue."""
    extended_file_size: int = field(default=48 * MIB)
    """`mappedFileSizeConsumeQueueExt`: size of a file of an extended queue, bytes."""
    index: bool = field(default=True)
    """`messageIndexEnable`: whether messages can be queried by key."""
    index_slot_count: int = field(default=5_000_000)
    """`maxHashSlotNum`: number of slots of an index file, 4 bytes each."""
    index_entry_count: int = field(default=20_000_000)
    """`maxIndexNum`: number of entries of an index file, 20 bytes each; the first entry is never used."""
    message_size_max: int = field(default=4 * MIB)
    """`maxMessageSize`: maximum size of a message's body, bytes."""
    flush_disk_sync: bool = field(default=False)
    """`flushDiskType=SYNC_FLUSH`: a send is answered when its bytes are durable."""
    delete_when: str = field(default="04")
    """`deleteWhen`: hours of the day, separated by semicolons, at which expired files are removed."""
    file_reserved_hours: int = field(default=72)
    """`fileReservedTime`: hours between the last change of a commit-log file and its expiry."""
    disk_ratio_max: int = field(default=75)
    """`diskMaxUsedSpaceRatio`: above this percentage of used disk, expired files are removed at any hour."""
    clean_forcibly: bool = field(default=True)
    """`cleanFileForciblyEnable`: if the disk is fuller than 85 %, files are removed before they expire."""
    clean_period_ms: int = field(default=10_000)
    """`cleanResourceInterval`: interval between checks for expired files, ms."""
    sync_flush_timeout_ms: int = field(default=5000)
    """`syncFlushTimeout`: a send that is not durable after this many ms is answered with 10 FLUSH_DISK_TIMEOUT."""
    visible_when_durable: bool = field(default=False)
    """Whether a message becomes visible only when it is durable; the policy sets it if `flush_disk_sync` is on."""
    minimum_follows_log: bool = field(default=False)
    """Whether the minimum offset of an empty queue moves to the queue's end, as in 5.x; in 4.9 the minimum stays."""
    flush_interval_ms: int = field(default=500)
    """`flushIntervalCommitLog`: interval between syncs of the log in the background, ms."""
    transfer_bytes_max_in_memory: int = field(default=256 * KIB)
    """`maxTransferBytesOnMessageInMemory`: maximum bytes of messages in an answer if the messages are in memory."""
    transfer_count_max_in_memory: int = field(default=32)
    """`maxTransferCountOnMessageInMemory`: maximum messages in an answer if the messages are in memory."""
    transfer_bytes_max_on_disk: int = field(default=64 * KIB)
    """`maxTransferBytesOnMessageInDisk`: maximum bytes of messages in an answer if the messages are read from disk."""
    transfer_count_max_on_disk: int = field(default=8)
    """`maxTransferCountOnMessageInDisk`: maximum messages in an answer if the messages are read from disk."""
    memory_ratio_max: int = field(default=40)
    """`accessMessageInMemoryMaxRatio`: the newest messages, up to this percentage of memory, count as in memory."""
    memory_size: int = field(default=0)
    """Size of the physical memory, bytes, to which `memory_ratio_max` refers; 0 asks the operating system."""
    multi_dispatch: bool = field(default=False)
    """`enableMultiDispatch`: a message may name additional queues (`INNER_MULTI_DISPATCH`) in which it also appears."""
    light_queues: bool = field(default=False)
    """`enableLmq`: topics and groups whose names begin with `%LMQ%` exist without being created."""
    light_queue_count_max: int = field(default=20_000)
    """`maxLmqConsumeQueueNum`: maximum number of light queues."""
    delay_levels: str = field(default=DELAY_LEVELS)
    """`messageDelayLevel`: the delays of levels 1, 2, ..., each written as a number and one of s, m, h, d."""

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """The delays in milliseconds; raises ValueError for an invalid text."""
        return delay_levels_ms(self.delay_levels)


@frozen
class BrokerConfig:
    """Identity, addresses and limits of one broker (`BrokerConfig.java`, `NettyServerConfig.java`)."""

    broker_name: str = field(default="broker-a")
    cluster_name: str = field(default="DefaultCluster")
    broker_id: int = field(default=0)
    advertised_host: str = field(default="")
    """`brokerIP1`: the host in routes and registrations. If empty, the host is the listening host or loopback."""
    role: Literal["ASYNC_MASTER", "SLAVE"] = field(default="ASYNC_MASTER")
    """`brokerRole`: a slave serves a copied store and takes no messages."""
    name_servers: str = field(default="")
    """`namesrvAddr`: HOST:PORT of the name servers at which the broker registers, separated by semicolons."""
    slave_read: bool = field(default=False)
    """`slaveReadEnable`: redirect consumers that are far behind to a slave, and let clients read from a slave."""
    offset_check_in_slave: bool = field(default=False)
    """`offsetCheckInSlave`: a slave corrects offsets that are outside its own copy of a queue."""
    slave_acting_master: bool = field(default=False)
    """`enableSlaveActingMaster` of 5.x: a slave is notified which brokers of its name are alive."""
    default_topic_queue_count: int = field(default=8)
    """`defaultTopicQueueNums`: maximum number of queues of a topic that is created by a send."""
    auto_create_topic: bool = field(default=True)
    auto_create_subscription_group: bool = field(default=True)
    permission: int = field(default=6)
    """`brokerPermission`: a sum of 4 (clients may pull) and 2 (clients may send)."""
    long_polling: bool = field(default=True)
    """`longPollingEnable`: whether a pull is held until the timeout in its request."""
    property_filter: bool = field(default=False)
    """`enablePropertyFilter`: consumers may filter messages by an SQL92 expression over message properties."""
    scan_period_ms: int = field(default=5000)
    """Interval between scans of the hold table under `expiry=scan`, ms; this is a constant in RocketMQ."""
    dispatcher_sleep_ms: int = field(default=1)
    """How long the dispatcher sleeps between polls under `notify=dispatcher_poll`, ms; a constant in RocketMQ."""
    io_thread_count: int = field(default=1)
    """Number of threads that serve connections. With Python's interpreter lock, more than one thread gains little."""
    pull_thread_count: int = field(default=4)
    """`pullMessageThreadPoolNums`: RocketMQ uses 16 + 2 x cores threads, but Python can use only one core."""
    pull_queue_capacity: int = field(default=100_000)
    """`pullThreadPoolQueueCapacity`: maximum pulls that wait for a thread of the pool."""
    pull_wait_ms_max: int = field(default=5000)
    """`waitTimeMillsInPullQueue`: a pull that waits longer than this for the pool is answered with SYSTEM_BUSY, ms."""
    fast_failure: bool = field(default=True)
    """`brokerFastFailureEnable`: refuse pulls that wait too long for the pool, instead of serving them late."""
    hold_timeout_ms_max: int = field(default=60_000)
    """Maximum time that a pull is held under the `strict` policy, ms."""
    held_count_max: int = field(default=1_000_000)
    """Maximum number of held pulls; a pull beyond this limit is answered with SYSTEM_BUSY."""
    queue_held_count_max: int = field(default=200_000)
    """Maximum held pulls per queue; a pull beyond this limit is answered with SYSTEM_BUSY."""
    connection_count_max: int = field(default=20_000)
    frame_size_max: int = field(default=16 * MIB)
    """Maximum frame size after the length field, bytes (`NettyDecoder.FRAME_MAX_LENGTH`)."""
    channel_idle_ms_max: int = field(default=120_000)
    """`serverChannelMaxIdleTimeSeconds`, here in ms: a connection is closed if it sends no request for this time."""
    output_bytes_max: int = field(default=64 * MIB)
    """Maximum bytes queued for a connection whose peer does not read; above this limit, the connection is closed."""
    frame_ms_max: int = field(default=60_000)
    """Maximum time from the first byte of a frame to its last, ms; a slower connection is closed."""
    unfinished_bytes_max: int = field(default=256 * MIB)
    """Maximum bytes of all connections' incomplete frames. Above this limit, the connection with the most bytes is
    closed."""
    unsent_bytes_max: int = field(default=256 * MIB)
    """Maximum bytes of all connections' unsent answers. Above this limit, the connection with the most bytes is closed.
    """
    address_connection_count_max: int = field(default=10_000)
    """Maximum connections from one address, so that one address cannot use up `connection_count_max`."""
    transaction_timeout_ms: int = field(default=6_000)
    """`transactionTimeOut`: the broker asks the producer about a prepared message when the message is this old, ms."""
    transaction_check_interval_ms: int = field(default=60_000)
    """`transactionCheckInterval`: interval between checks of prepared messages, ms."""
    transaction_check_count_max: int = field(default=15)
    """`transactionCheckMax`: after this number of checks, the broker gives up a prepared message."""
    recall_message: bool = field(default=False)
    """`recallMessageEnable`: allow code 370, which recalls a timed message before its delivery (5.x)."""
    acl_enable: bool = field(default=False)
    """`aclEnable`: every request needs a key or an allow-listed address; requires `acl_file`."""
    access_key: str = field(default="")
    """The account that signs the broker's registrations at name servers. If empty, the registrations are not signed."""
    secret_key: str = field(default="", repr=False)
    acl_file: str | None = field(default=None)
    """Absolute path of the account file, in the format of RocketMQ's `plain_acl.yml`."""
