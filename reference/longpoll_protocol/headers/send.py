"""Headers of requests that store messages: send, batch, send back, end of a transaction.

Source: `SendMessageRequestHeader.java`, `SendMessageRequestHeaderV2.java`, `SendMessageResponseHeader.java`,
`ConsumerSendMsgBackRequestHeader.java`, `EndTransactionRequestHeader.java`.
"""

from __future__ import annotations

from msgspec import field

from longpoll_protocol.headers.base import Header, Int32, Int64

DEFAULT_TOPIC = "TBW102"
"""The topic whose settings a new topic copies when it is created by a send."""


class SendMessageRequestHeader(Header):
    """10 SEND_MESSAGE: one message; the body is its body."""

    producer_group: str | None = None
    topic: str = ""
    """Absent and empty are the same: the broker answers "topic is blank"."""
    default_topic: str | None = None
    """Usually `TBW102`."""
    default_topic_queue_nums: Int32 | None = None
    """Queues of the topic if this send creates it."""
    queue_id: Int32
    """Negative: the broker chooses."""
    sys_flag: Int32
    """`MessageSysFlag` bits."""
    born_timestamp: Int64
    """Milliseconds since 1970 by the producer's clock."""
    flag: Int32
    """The user's number, stored with the message."""
    properties: str | None = None
    """Text of the properties (see `message`)."""
    reconsume_times: Int32 | None = None
    """How often a consumer has sent the message back."""
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    batch: bool = False
    """Whether the body is a batch of messages, whatever the code."""
    bname: str | None = None
    """The broker's name, sent by 5.x clients."""


class SendMessageRequestHeaderV2(SendMessageRequestHeader):
    """310 SEND_MESSAGE_V2 and 320 SEND_BATCH_MESSAGE: the same fields under one-letter names."""

    producer_group: str | None = field(default=None, name="a")
    topic: str = field(default="", name="b")
    default_topic: str | None = field(default=None, name="c")
    default_topic_queue_nums: Int32 | None = field(default=None, name="d")
    queue_id: Int32 = field(name="e")
    sys_flag: Int32 = field(name="f")
    born_timestamp: Int64 = field(name="g")
    flag: Int32 = field(name="h")
    properties: str | None = field(default=None, name="i")
    reconsume_times: Int32 | None = field(default=None, name="j")
    unit_mode: bool = field(default=False, name="k")
    max_reconsume_times: Int32 | None = field(default=None, name="l")
    batch: bool = field(default=False, name="m")
    bname: str | None = field(default=None, name="n")


class ReplyMessageRequestHeader(SendMessageRequestHeader):
    """326 PUSH_REPLY_MESSAGE_TO_CLIENT: a reply for a requester; the body is the reply's."""

    born_host: str | None = None
    """Host:port of the replying client."""
    store_host: str | None = None
    """Host:port of the broker."""
    store_timestamp: Int64
    """When the broker received it, milliseconds since 1970."""


class SendMessageResponseHeader(Header):
    """The reply to 10, 310 and 320; Java clients require its fields, so never omit it."""

    msg_id: str
    """For a batch: one id per message, joined by commas."""
    queue_id: Int32
    queue_offset: Int64
    """For a batch: the first message's."""
    transaction_id: str | None = None
    msg_region: str | None = field(default=None, name="MSG_REGION")
    trace_on: str | None = field(default=None, name="TRACE_ON")


class ConsumerSendMsgBackRequestHeader(Header):
    """36 CONSUMER_SEND_MSG_BACK: deliver the message at this log position to the group again, later."""

    offset: Int64
    """Physical offset of the message in the commit log, bytes."""
    group: str
    delay_level: Int32
    """0: three more than the number of earlier send-backs; negative: to the dead letters."""
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None


class CheckTransactionStateRequestHeader(Header):
    """39 CHECK_TRANSACTION_STATE: ask how a transaction ended; the body is the prepared message as a record."""

    tran_state_table_offset: Int64
    """Queue offset in the half topic, for the answering 37."""
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


class EndTransactionRequestHeader(Header):
    """37 END_TRANSACTION: commit or roll back a prepared message."""

    producer_group: str
    tran_state_table_offset: Int64
    """Queue offset in the half topic."""
    commit_log_offset: Int64
    commit_or_rollback: Int32
    """`MessageSysFlag` TRANSACTION_COMMIT or TRANSACTION_ROLLBACK; 0 means unknown."""
    from_transaction_check: bool = False
    msg_id: str = ""
    transaction_id: str | None = None


class RecallMessageRequestHeader(Header):
    """370 RECALL_MESSAGE of 5.x: recall a timed message before its delivery."""

    topic: str = ""
    recall_handle: str = ""
    """From the answer to the send."""
    producer_group: str | None = None
