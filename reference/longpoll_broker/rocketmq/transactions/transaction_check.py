"""Asks producers how transactions ended that they have begun and never ended (39).

Once a minute the half topic is gone through from where it was left, as far as the op topic does not say that a message
is ended. One that is older than the time for an answer is put at the end of the half topic again, with the number of
times that it was asked about, and a producer of its group is asked; its answer is a 37 about that copy. After fifteen
times, or when the log is about to lose it, it goes to `TRANS_CHECK_MAX_TIME_TOPIC` instead. How far this has come are
two offsets of the group `CID_RMQ_SYS_TRANS`, as in Java, which can go on with the store.

As in Java a 37 that comes after its message was asked about may commit it a second time.
`CHECK_IMMUNITY_TIME_IN_SECONDS` has no effect: docs/broker.md.

Source: `TransactionalMessageServiceImpl.check`, `AbstractTransactionalMessageCheckListener.sendCheckMessage`,
`MessageDecoder.encode` 4.9.7.
"""

from __future__ import annotations

import itertools
import logging
import struct
from typing import Final, Protocol

from attrs import define, field

from longpoll_broker.config import BrokerConfig
from longpoll_broker.io.channel import Channel, Outbox
from longpoll_broker.rocketmq.transactions.end_transaction_processor import OP_TOPIC, EndTransactionProcessor
from longpoll_broker.send.append import HALF_TOPIC
from longpoll_broker.shared.offsets import Offsets
from longpoll_broker.store.messages import MessageToStore, PutResult
from longpoll_protocol.codes import CommandFlag, RequestCode
from longpoll_protocol.frames.command import Command, encode
from longpoll_protocol.headers import CheckTransactionStateRequestHeader
from longpoll_protocol.log_record import HEAD, MAGIC_V1, Record
from longpoll_protocol.properties import (
    CHECK_TIMES,
    PRODUCER_GROUP,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    UNIQUE_KEY,
    PropertiesForm,
    read_properties,
    write_properties,
)
from longpoll_runtime.logs import event
from longpoll_spec.errors import LongpollError

log = logging.getLogger(__name__)

GROUP: Final = "CID_RMQ_SYS_TRANS"
GIVEN_UP_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
LOOKS_MAX: Final = 10_000
"""Half messages looked at in one round; the next one comes at once when there are more."""
HOUR_MS: Final = 3_600_000


class ProducerOf(Protocol):
    """Finds a connection of a producer group that may be asked about a prepared message."""

    def __call__(self, group: str, half: Record, *, sender_first: bool) -> Channel | None:
        """Another one each time, or the sender's; None when there is none."""
        ...


@define(slots=True, eq=False)
class TransactionChecks:
    """The rounds over the half topic; one thread calls `run_if_due`."""

    ends: EndTransactionProcessor
    """Where the answers go; its store and clock are ours."""
    config: BrokerConfig
    reserved_hours: int
    """A message older than this is given up: the log may lose it (`fileReservedTime`)."""
    offsets: Offsets
    producer_of: ProducerOf
    _due_ns: int = field(init=False)
    _opaques: itertools.count[int] = field(factory=lambda: itertools.count(1), init=False)

    def __attrs_post_init__(self) -> None:
        # After a restart producers need a moment to come back.
        self._due_ns = self._next_ns()

    def _next_ns(self) -> int:
        return self.ends.runtime.monotonic_ns() + self.config.transaction_check_interval_ms * 1_000_000

    def run_if_due(self) -> None:
        """Do a round if it is time for one; what it appends is not visible yet when this returns. Never on a slave."""
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
        """One round; whether there is more to do at once. Raises what an append raises; what was done stays done."""
        first, end = self._standing(HALF_TOPIC)
        if first == end:
            return False
        op_first, op_end = self._standing(OP_TOPIC)
        # All of them: the end of the very first message may be the last one.
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
        """The next offset to look at, and the end."""
        start, end = self.ends.store.ends(topic, 0)
        known = self.offsets.query(topic, GROUP, 0) or 0
        if known > end:
            # Anybody may commit for this group: what comes next would not be asked about.
            log.warning("the offset %d of %s is beyond its end: the checks go on at %d", known, topic, end)
            self._commit(topic, end)
        return min(max(known, start), end), end

    def _commit(self, topic: str, offset: int) -> None:
        if offset != (self.offsets.query(topic, GROUP, 0) or 0):
            self.offsets.commit(topic, GROUP, 0, offset)

    def _ended(self, first: int, end: int) -> dict[int, int]:
        """By each offset of the op topic the half message that it says is ended; -1 when it says none."""
        found = {}
        for offset in range(first, end):
            unit = self.ends.store.unit(OP_TOPIC, 0, offset)
            record = self.ends.store.read_record(unit[0]) if unit is not None else None
            text = bytes(record.body) if record is not None else b""
            found[offset] = int(text) if text.isdigit() and len(text) < 20 else -1
        return found

    def _look(self, offset: int, outbox: Outbox) -> bool:
        """Ask about one half message, or give it up; false when it is too young, and so are all after it.

        One that cannot be asked about, for its properties are too long or no Unicode, must not keep the others back.
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
        """Append a half message again, with these properties."""
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
        """39, one-way, to a producer of the group; the body is the message as it would be in its own topic."""
        group = properties.get(PRODUCER_GROUP, "")
        # Every other question goes to the connection that has sent the message, however many others join its group.
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


# After the head (48 bytes, with the born host's place) | born host 8 or 20 | int64 store time | store host 8 or 20 |
# int32 reconsume times | int64 prepared offset | int32 body size | body | int8 topic size | topic |
# int16 properties size | properties.
_LONG: Final = struct.Struct(">q")
_BEFORE_BODY: Final = struct.Struct(">iqi")
_SHORT: Final = struct.Struct(">h")


def as_requested(half: Record, properties: dict[str, str], copy: PutResult, form: PropertiesForm) -> bytes:
    """A half message's copy as a record of its own topic and queue."""
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
