"""Transactions: a producer ends a transaction (37), or the broker asks about a transaction that has not ended (39).

A prepared message (also called half message) waits in the half topic. The end of its transaction is recorded as an
entry in the op topic, whose body is the half message's queue offset, so that a RocketMQ broker that opens the store
knows which transactions ended.

Once per minute, the checks continue through the half topic and skip messages whose end an op entry records. If a
message is older than the time limit, it is appended to the half topic again with its number of checks, and a producer
of its group is asked about it. The producer's answer (code 37) refers to the appended copy. After fifteen checks, or
when the log is about to delete the message, it goes to `TRANS_CHECK_MAX_TIME_TOPIC`. Progress is stored as two offsets
of the group `CID_RMQ_SYS_TRANS`, so RocketMQ can continue with the same store.

As in RocketMQ, an END_TRANSACTION (37) that arrives after a check may commit its message a second time. The property
`CHECK_IMMUNITY_TIME_IN_SECONDS` has no effect: see docs/broker.md.

Source: `EndTransactionProcessor.java`, `TransactionalMessageBridge.java`, `TransactionalMessageServiceImpl.check`,
`AbstractTransactionalMessageCheckListener.sendCheckMessage`, `MessageDecoder.encode` 4.9.7.
"""

from __future__ import annotations

import itertools
import logging
import struct
from typing import Final, Protocol

from attrs import define, field
from msgspec.structs import replace

from longpoll_broker.config import BrokerConfig
from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import Serving, answer, serves
from longpoll_broker.send.append import HALF_TOPIC, Appender, brought_back
from longpoll_broker.send.message_builder import SendRefusedError, timer_message
from longpoll_broker.shared.offsets import Offsets
from longpoll_broker.shared.version_traits import STRICT_TRAITS, Traits
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.messages import MessageToStore, PutResult
from longpoll_protocol.codes import CommandFlag, MessageSysFlag, RequestCode, ResponseCode
from longpoll_protocol.errors import HeaderError, MessageRefusedError
from longpoll_protocol.frames import Command, encode
from longpoll_protocol.headers import CheckTransactionStateRequestHeader, EndTransactionRequestHeader
from longpoll_protocol.log_record import HEAD, MAGIC_V1, Record
from longpoll_protocol.properties import (
    CHECK_TIMES,
    PRODUCER_GROUP,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TAGS,
    UNIQUE_KEY,
    WAIT,
    PropertiesForm,
    java_hash,
    read_properties,
    write_properties,
)
from longpoll_runtime import Runtime
from longpoll_runtime.logs import event
from longpoll_spec.errors import LongpollError

OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
REMOVE_TAG: Final = "d"
UNDECIDED: Final = 0
COMMIT: Final = MessageSysFlag.TRANSACTION_COMMIT.value
ROLLBACK: Final = MessageSysFlag.TRANSACTION_ROLLBACK.value
COMMITTED_COUNT_MAX: Final = 10_000
"""Maximum remembered commits. Another commit of a remembered or an older message counts as a copy (`may_copy`)."""


@define(slots=True, eq=False)
class EndTransactionProcessor(Serving):
    """The processor of END_TRANSACTION (code 37), with which a producer commits or rolls back a prepared message."""

    runtime: Runtime
    appender: Appender
    store: MessageStore
    store_host: bytes
    traits: Traits = STRICT_TRAITS
    _committed: set[int] = field(factory=set, init=False)
    """Physical offsets of prepared messages that were committed, from `_remembered` on."""
    _remembered: int = field(default=0, init=False)

    @serves(RequestCode.END_TRANSACTION)
    def end(self, channel: Channel, command: Command, _outbox: Outbox) -> Parts | None:
        """Code 37: deliver or drop a prepared message. Clients send this code one-way, so they rarely see errors."""
        header = EndTransactionRequestHeader.decode(command.ext_fields)
        if header.commit_or_rollback == UNDECIDED:
            return answer(command, ResponseCode.SUCCESS) if self.traits.answers_undecided else None
        if header.commit_or_rollback not in {COMMIT, ROLLBACK}:
            raise HeaderError("EndTransactionRequestHeader", "commitOrRollback", "must be 0, 8 or 12")
        half = self.store.read_record(header.commit_log_offset)
        problem = "Find prepared transaction message failed" if half is None else _problem(half, header)
        found = None
        if half is not None and problem is None:
            found = brought_back(half, self.traits.properties_form, forgets_place=self.traits.commit_forgets_place)
        if half is None or found is None:
            return answer(command, ResponseCode.SYSTEM_ERROR, problem or "the prepared message names no topic")
        is_commit = header.commit_or_rollback == COMMIT
        is_again = half.physical_offset < self._remembered or half.physical_offset in self._committed
        if is_commit and is_again and not self.appender.may_copy(channel, half.size):
            return answer(command, ResponseCode.SYSTEM_BUSY, "too much was committed again; try again later")
        try:
            if is_commit:
                message, tag = found
                committed = replace(message, sys_flag=message.sys_flag | COMMIT, prepared_offset=half.physical_offset)
                self.appender.append(self._timed(committed), tag)
                if not is_again:
                    self._note_commit(half.physical_offset)
            self.appender.append(self._op_message(half), REMOVE_TAG)
        except (MessageRefusedError, SendRefusedError, OSError) as error:
            return answer(command, ResponseCode.SYSTEM_ERROR, f"the transaction could not be ended: {error}")
        return answer(command, ResponseCode.SUCCESS)

    def _note_commit(self, physical_offset: int) -> None:
        """Remember a commit. If there are too many remembered commits, forget the older half."""
        self._committed.add(physical_offset)
        if len(self._committed) > COMMITTED_COUNT_MAX:
            newer = sorted(self._committed)[COMMITTED_COUNT_MAX // 2 :]
            self._committed, self._remembered = set(newer), newer[0]

    def _timed(self, message: MessageToStore) -> MessageToStore:
        """Returns a message with a delivery time in the form in which it waits, and any other message unchanged.

        Raises SendRefusedError if the delivery time is invalid.
        """
        if not self.traits.serves_timers:
            return message
        properties = read_properties(message.properties.decode("utf-8", "surrogatepass"))
        return timer_message(message, properties, self.traits.properties_form, self.runtime.unix_ms())

    def _op_message(self, half: Record) -> MessageToStore:
        return MessageToStore(
            topic=OP_TOPIC,
            queue_id=half.queue_id,
            body=str(half.queue_offset).encode(),
            properties=write_properties({TAGS: REMOVE_TAG, WAIT: "true"}, self.traits.properties_form),
            tags_code=java_hash(REMOVE_TAG),
            born_ms=self.runtime.unix_ms(),
            born_host=self.store_host,
            store_host=self.store_host,
        )


def _problem(half: Record, header: EndTransactionRequestHeader) -> str | None:
    """Returns why a record is not the prepared message of this producer (`checkPrepareMessage`), or None."""
    if half.topic != HALF_TOPIC:
        return "Find prepared transaction message failed"
    properties = read_properties(half.properties.decode("utf-8", "surrogatepass"))
    if properties.get(PRODUCER_GROUP) != header.producer_group:
        return "The producer group wrong"
    if half.queue_offset != header.tran_state_table_offset:
        return "The transaction state table offset wrong"
    return None


log = logging.getLogger(__name__)

GROUP: Final = "CID_RMQ_SYS_TRANS"
GIVEN_UP_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
LOOKS_MAX: Final = 10_000
"""Maximum half messages visited in one round. If further messages wait, the next round follows at once."""
HOUR_MS: Final = 3_600_000


class ProducerOf(Protocol):
    """Finds a connection of a producer group that can be asked about a prepared message."""

    def __call__(self, group: str, half: Record, *, sender_first: bool) -> Channel | None:
        """Returns the group's next connection, or with `sender_first` the sender's; None if there is no connection."""
        ...


@define(slots=True, eq=False)
class TransactionChecks:
    """Checks the half topic in rounds; one thread calls `run_if_due`."""

    ends: EndTransactionProcessor
    """Serves the producers' answers. The checks use the same store and clock."""
    config: BrokerConfig
    reserved_hours: int
    """Age in hours at which a message is given up, because the log may delete it (`fileReservedTime`)."""
    offsets: Offsets
    producer_of: ProducerOf
    _due_ns: int = field(init=False)
    _opaques: itertools.count[int] = field(factory=lambda: itertools.count(1), init=False)

    def __attrs_post_init__(self) -> None:
        # The first round waits, because producers need some time to reconnect after a restart.
        self._due_ns = self._next_ns()

    def _next_ns(self) -> int:
        return self.ends.runtime.monotonic_ns() + self.config.transaction_check_interval_ms * 1_000_000

    def run_if_due(self) -> None:
        """Do a round if it is due and the broker is not a slave.

        The messages that a round appends are not yet visible on return.
        """
        now_ns = self.ends.runtime.monotonic_ns()
        if now_ns < self._due_ns or self.config.role == "SLAVE":
            return
        self._due_ns = self._next_ns()
        outbox = Outbox()
        try:
            if self.run(outbox):
                self._due_ns = now_ns
        except OSError:
            log.exception("transactions that were never ended could not be asked about; trying again")
        outbox.flush()

    def run(self, outbox: Outbox) -> bool:
        """Do one round; returns whether more work waits. If an append raises, the work before it stays done."""
        first, end = self._standing(HALF_TOPIC)
        if first == end:
            return False
        op_first, op_end = self._standing(OP_TOPIC)
        # All entries of the op topic are read, because the last entry may record the end of the first message.
        ended = self._ended(op_first, op_end)
        halves = frozenset(ended.values())
        at = first
        try:
            while at < min(end, first + LOOKS_MAX) and (at in halves or self._look(at, outbox)):
                at += 1
        finally:
            self._commit(HALF_TOPIC, at)
            while ended.get(op_first, at) < at:
                op_first += 1
            self._commit(OP_TOPIC, op_first)
        return at == first + LOOKS_MAX

    def _standing(self, topic: str) -> tuple[int, int]:
        start, end = self.ends.store.ends(topic, 0)
        known = self.offsets.query(topic, GROUP, 0) or 0
        if known > end:
            # Any client may commit for this group. If the checks started beyond the end, they would skip the next
            # messages.
            log.warning("the offset %d of %s is beyond its end: the checks go on at %d", known, topic, end)
            self._commit(topic, end)
        return min(max(known, start), end), end

    def _commit(self, topic: str, offset: int) -> None:
        if offset != (self.offsets.query(topic, GROUP, 0) or 0):
            self.offsets.commit(topic, GROUP, 0, offset)

    def _ended(self, first: int, end: int) -> dict[int, int]:
        """Returns, for each offset of the op topic, the offset of the half message that the entry ends, or -1."""
        found = {}
        for offset in range(first, end):
            unit = self.ends.store.unit(OP_TOPIC, 0, offset)
            record = self.ends.store.read_record(unit[0]) if unit is not None else None
            text = bytes(record.body) if record is not None else b""
            found[offset] = int(text) if text.isdigit() and len(text) < 20 else -1
        return found

    def _look(self, offset: int, outbox: Outbox) -> bool:
        """Check or give up one half message; returns false if this message and all later messages are too young.

        A message that cannot be checked because of its properties must not block the other messages.
        """
        try:
            return self._ask(offset, outbox)
        except (LongpollError, ValueError) as error:
            log.warning(
                "the transaction at %d of the half topic cannot be asked about: %s",
                offset,
                error,
                extra=event("transaction_not_asked", reason=str(error)),
            )
            return True

    def _ask(self, offset: int, outbox: Outbox) -> bool:
        unit = self.ends.store.unit(HALF_TOPIC, 0, offset)
        half = self.ends.store.read_record(unit[0]) if unit is not None else None
        if half is None:
            return True
        age_ms = self.ends.runtime.unix_ms() - half.born_ms
        if 0 <= age_ms < self.config.transaction_timeout_ms:
            return False
        properties = read_properties(half.properties.decode("utf-8", "surrogatepass"))
        times_text = properties.get(CHECK_TIMES, "0")
        times = int(times_text) if times_text.isdecimal() and len(times_text) < 10 else 0
        if times >= self.config.transaction_check_count_max or age_ms > self.reserved_hours * HOUR_MS:
            self._append(half, GIVEN_UP_TOPIC, properties)
            log.warning(
                "a transaction of group %s is given up after %d questions",
                properties.get(PRODUCER_GROUP, "")[:255],
                times,
                extra=event("transaction_given_up", group=properties.get(PRODUCER_GROUP), asked=times),
            )
            return True
        properties[CHECK_TIMES] = str(times + 1)
        self._tell(half, properties, self._append(half, HALF_TOPIC, properties), outbox)
        return True

    def _append(self, half: Record, topic: str, properties: dict[str, str]) -> PutResult:
        copy = MessageToStore(
            topic=topic,
            queue_id=0,
            body=bytes(half.body),
            properties=write_properties(properties, self.ends.traits.properties_form),
            tags_code=half.tags_code,
            born_ms=half.born_ms,
            born_host=half.born_host,
            store_host=self.ends.store_host,
            flag=half.flag,
            sys_flag=half.sys_flag,
            reconsume_times=half.reconsume_times,
        )
        return self.ends.appender.append(copy, "")

    def _tell(self, half: Record, properties: dict[str, str], copy: PutResult, outbox: Outbox) -> None:
        """Send CHECK_TRANSACTION_STATE (39), one-way, to a producer of the group.

        The body is the message with its original topic.
        """
        group = properties.get(PRODUCER_GROUP, "")
        # Every other check goes to the message's sender, however many other producers have joined the sender's group.
        channel = self.producer_of(group, half, sender_first=int(properties[CHECK_TIMES]) % 2 == 1)
        if channel is None:
            log.info(
                "nobody of group %s is there to be asked about a transaction",
                group[:255],
                extra=event("transaction_not_asked", group=group),
            )
            return
        unique_key = properties.get(UNIQUE_KEY)
        header = CheckTransactionStateRequestHeader(
            tran_state_table_offset=copy.queue_offset,
            commit_log_offset=copy.physical_offset,
            msg_id=unique_key,
            transaction_id=unique_key,
            offset_msg_id=copy.msg_id,
        )
        question = Command(
            code=RequestCode.CHECK_TRANSACTION_STATE,
            opaque=next(self._opaques) & 0x7FFFFFFF,
            flag=CommandFlag.ONE_WAY.value,
            ext_fields=header.encode(),
            body=as_requested(half, properties, copy, self.ends.traits.properties_form),
        )
        outbox.write(channel, encode(question))


# The format after the first 48 bytes (which include the place of the born host): born host 8 or 20 bytes | int64 store
# time | store host 8 or 20 bytes | int32 reconsume times | int64 prepared offset | int32 body size | body | int8 topic
# size | topic | int16 properties size | properties.
_LONG: Final = struct.Struct(">q")
_BEFORE_BODY: Final = struct.Struct(">iqi")
_SHORT: Final = struct.Struct(">h")


def as_requested(half: Record, properties: dict[str, str], copy: PutResult, form: PropertiesForm) -> bytes:
    """Encode a half message's copy as a record of the original topic and queue."""
    queue_text = properties.get(REAL_QUEUE_ID, "0")
    queue_id = int(queue_text) if queue_text.isdecimal() and len(queue_text) < 10 else 0
    topic = properties.get(REAL_TOPIC, "").encode()[:127]
    text = write_properties(properties, form)
    after_head = b"".join(
        (
            half.born_host,
            _LONG.pack(copy.store_ms),
            half.store_host,
            _BEFORE_BODY.pack(half.reconsume_times, half.prepared_offset, len(half.body)),
            half.body,
            bytes((len(topic),)),
            topic,
            _SHORT.pack(len(text)),
            text,
        )
    )
    head = HEAD.pack(
        HEAD.size + len(after_head), MAGIC_V1, half.body_crc, queue_id, half.flag,
        copy.queue_offset, copy.physical_offset, half.sys_flag, half.born_ms,
    )  # fmt: skip
    return head + after_head
