"""Serves code 37: a producer ends a transaction, and its prepared message is delivered or dropped.

A prepared message waits in the half topic. Its end is written to the op topic, with the half message's queue offset in
the body, so that a Java broker that opens the store knows the ended ones. Check-backs: see
`rocketmq.transactions.transaction_check`.

Source: `EndTransactionProcessor.java`, `TransactionalMessageBridge.java` 4.9.
"""

from __future__ import annotations

from typing import Final

from attrs import define
from msgspec.structs import replace

from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import Serving, answer, serves
from longpoll_broker.send.append import HALF_TOPIC, Appender, brought_back
from longpoll_broker.send.message_builder import SendRefusedError, timer_message
from longpoll_broker.shared.version_traits import STRICT_TRAITS, Traits
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.messages import MessageToStore
from longpoll_protocol.codes import MessageSysFlag, RequestCode, ResponseCode
from longpoll_protocol.errors import HeaderError, MessageRefusedError
from longpoll_protocol.frames import Command
from longpoll_protocol.headers import EndTransactionRequestHeader
from longpoll_protocol.log_record import Record
from longpoll_protocol.properties import PRODUCER_GROUP, TAGS, WAIT, java_hash, read_properties, write_properties
from longpoll_runtime import Runtime

OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
REMOVE_TAG: Final = "d"
UNDECIDED: Final = 0
COMMIT: Final = MessageSysFlag.TRANSACTION_COMMIT.value
ROLLBACK: Final = MessageSysFlag.TRANSACTION_ROLLBACK.value


@define(slots=True, eq=False)
class EndTransactionProcessor(Serving):
    """The processor of code 37."""

    runtime: Runtime
    appender: Appender
    store: MessageStore
    store_host: bytes
    traits: Traits = STRICT_TRAITS

    @serves(RequestCode.END_TRANSACTION)
    def end(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts | None:
        """37: deliver or drop a prepared message; clients send it one-way, so they rarely get errors."""
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
        try:
            if header.commit_or_rollback == COMMIT:
                message, tag = found
                committed = replace(message, sys_flag=message.sys_flag | COMMIT, prepared_offset=half.physical_offset)
                self.appender.append(self._timed(committed), tag)
            self.appender.append(self._op_message(half), REMOVE_TAG)
        except (MessageRefusedError, SendRefusedError, OSError) as error:
            return answer(command, ResponseCode.SYSTEM_ERROR, f"the transaction could not be ended: {error}")
        return answer(command, ResponseCode.SUCCESS)

    def _timed(self, message: MessageToStore) -> MessageToStore:
        """Returns the message as it waits for its time, if it has one; raises SendRefusedError."""
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
    """Returns why a record is not the prepared message of a producer (`checkPrepareMessage`), or None."""
    if half.topic != HALF_TOPIC:
        return "Find prepared transaction message failed"
    properties = read_properties(half.properties.decode("utf-8", "surrogatepass"))
    if properties.get(PRODUCER_GROUP) != header.producer_group:
        return "The producer group wrong"
    if half.queue_offset != header.tran_state_table_offset:
        return "The transaction state table offset wrong"
    return None
