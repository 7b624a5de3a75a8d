"""Sends messages that are delivered only if the sender's local transaction succeeds.

A prepared message waits at its broker. The sender runs its local transaction and sends the state (37, one-way). If that
is lost, the broker asks any producer of the group (39), also in another process, and `check_transaction` answers.

The thread `transactions-GROUP` runs `check_transaction` and sends a heartbeat every 30 s. Batches and delays are not
possible, as in RocketMQ.

Source: `DefaultMQProducerImpl.sendMessageInTransaction`, `checkTransactionState`, `endTransaction`,
`ClientRemotingProcessor.checkTransactionState` 4.9.7.
"""

from __future__ import annotations

import enum
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from attrs import frozen

from longpoll_client.checks import Addresses, check_group, check_plain, runtime_of
from longpoll_client.consume.listener import CaughtError
from longpoll_client.errors import ClientError
from longpoll_client.instance import ClientInstance
from longpoll_client.lifecycle import Lifecycle
from longpoll_client.link.exchange import CALL_TIMEOUT_S
from longpoll_client.messages import ReceivedMessage, decode_messages
from longpoll_client.produce.attempts import QueueSelector, SendResult
from longpoll_client.produce.hooks import SendHook, SendMetrics
from longpoll_client.produce.outgoing import COMPRESS_OVER_BYTES, OutgoingMessage, Packing
from longpoll_client.produce.producer import PreparedProducer
from longpoll_client.produce.requests import HEARTBEAT_S, ProducerHeartbeat, SenderOptions
from longpoll_client.timer import Timer
from longpoll_protocol.codes import MessageSysFlag, RequestCode, ResponseCode
from longpoll_protocol.compression import Compression
from longpoll_protocol.frames.command import Command
from longpoll_protocol.headers import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
)
from longpoll_protocol.properties import PRODUCER_GROUP
from longpoll_protocol.signature import Credentials
from longpoll_runtime import Runtime
from longpoll_runtime.closeable import Closeable
from longpoll_spec.errors import ConfigError, LongpollError

log: logging.Logger = logging.getLogger(__name__)


class TransactionState(enum.IntEnum):
    """The state of a transaction, as in request 37."""

    COMMIT = MessageSysFlag.TRANSACTION_COMMIT
    ROLLBACK = MessageSysFlag.TRANSACTION_ROLLBACK
    UNKNOWN = 0
    """Not known yet: the broker asks later."""


def state_of(answer: object) -> TransactionState:
    """A user's result as a state; raises ConfigError for other values."""
    if isinstance(answer, int) and not isinstance(answer, bool):
        with suppress(ValueError):
            return TransactionState(answer)
    raise ConfigError(f"{repr(answer)[:40]} is not the state of a transaction; return a TransactionState")


Check = Callable[[ReceivedMessage], TransactionState]
"""Says how the transaction of a message ended, by what the sender's work left behind."""
LocalTransaction = Callable[[], TransactionState]
"""Does the sender\'s own work, and returns how it ended."""


@frozen
class TransactionResult:
    """Where the prepared message was stored, and the state of its transaction."""

    sent: SendResult
    """Its place is that of the prepared message; the delivered one gets its own."""
    state: TransactionState


@frozen
class Question:
    """A broker's question about a transaction (39)."""

    header: CheckTransactionStateRequestHeader
    message: ReceivedMessage

    def answered(self, group: str, state: TransactionState) -> EndTransactionRequestHeader:
        """The answer to the question (37)."""
        return EndTransactionRequestHeader(
            producer_group=group,
            tran_state_table_offset=self.header.tran_state_table_offset,
            commit_log_offset=self.header.commit_log_offset,
            commit_or_rollback=int(state),
            from_transaction_check=True,
            msg_id=self.message.msg_id,
            transaction_id=self.header.transaction_id,
        )


def read_question(group: str, command: Command, address: str) -> Question | None:
    """A broker's question; None if it is unreadable, which is logged, or if it is another group's."""
    try:
        header = CheckTransactionStateRequestHeader.decode(command.ext_fields)
        (message,) = decode_messages(command.body)
    except (LongpollError, ValueError) as error:
        log.warning("a question of %s about a transaction cannot be read: %s", address, error)
        return None
    return Question(header, message) if message.properties.get(PRODUCER_GROUP) == group else None


def end_of(group: str, sent: SendResult, state: TransactionState) -> EndTransactionRequestHeader | None:
    """The message that ends a transaction (37); None if the sent message has no offset, which is logged."""
    try:
        physical_offset = sent.physical_offset
    except ValueError:
        log.warning("transaction %s: its broker's id %r names no place", sent.msg_id, sent.broker_msg_id[:64])
        return None
    return EndTransactionRequestHeader(
        producer_group=group,
        tran_state_table_offset=sent.queue_offset,
        commit_log_offset=physical_offset,
        commit_or_rollback=int(state),
        msg_id=sent.msg_id,
        transaction_id=sent.msg_id,
    )


class TransactionProducer(Closeable):
    """A producer whose group's members can answer for each other's transactions; for many threads.

    Invariant: `_heartbeat_process` is the process whose timer sends heartbeats. A forked one starts its own timer with
    its first message.
    """

    def __init__(
        self,
        name_server: Addresses,
        *,
        group: str,
        check_transaction: Check,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
        compression: Compression | None = Compression.ZLIB,
        compress_over_bytes: int = COMPRESS_OVER_BYTES,
        hooks: Sequence[SendHook] = (),
        runtime: Runtime | None = None,
    ) -> None:
        """Create a producer; it connects with its first send. Raises ConfigError.

        Args:
            name_server: HOST:PORT; several as a list, or separated by semicolons.
            group: The producer group. A broker may ask any of its members about a transaction.
            check_transaction: Gets a message, maybe of another process, and returns the state of its transaction.
            tls: How to connect over TLS. Default: plain connections.
            credentials: The account, for a broker with access control.
            compression: How to compress bodies of `compress_over_bytes` or more; None: not at all.
            compress_over_bytes: The least size of a body that is compressed.
            hooks: Called before and after every send.
            runtime: For tests.
        """
        check_plain("check_transaction", check_transaction)
        check_group(group)
        self.runtime: Runtime = runtime_of(runtime, tls)
        self.group = group
        self._check = check_transaction
        self._instance = ClientInstance(self.runtime, name_server, on_request=self._requested, credentials=credentials)
        options = SenderOptions(group, Packing(compression, compress_over_bytes), hooks)
        self._producer = PreparedProducer(self._instance, options)
        self._heartbeat_process: int | None = None
        self._heartbeat = ProducerHeartbeat(self._instance, group)
        self._lifecycle = Lifecycle(self.runtime, f"the producer of group {self.group}")
        self._timer = Timer(self.runtime, f"transactions-{self.group}")
        self._heartbeat_later()

    def close(self) -> None:
        """Wait for a running check, leave the group, and close. Other members answer for open transactions.

        A second call does nothing. A check may call this; then it is not waited for.
        """
        if not self._lifecycle.end():
            return
        with self._lifecycle.ending():
            self._timer.close()
            self._instance.run(self._heartbeat.leave())
            self._producer.close()

    def metrics(self) -> SendMetrics:
        """The counts of all prepared messages so far; not how their transactions ended."""
        return self._producer.metrics()

    def send(
        self,
        topic: str,
        body: bytes,
        local_transaction: LocalTransaction,
        *,
        tag: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        queue_selector: QueueSelector | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> TransactionResult:
        """Prepare a message, call `local_transaction`, and commit or roll back as it returns.

        If the broker cannot store the message safely, `local_transaction` is not called. If it raises, the error is
        raised here, and the broker asks later. The broker does not confirm the end: if it is lost, the broker asks.
        Otherwise as `Producer.send`.
        """
        check_plain("local_transaction", local_transaction)
        self._heartbeat_later()
        message = OutgoingMessage(body, tag, keys, properties or {})
        sent = self._producer.send_prepared(topic, message, queue_selector, timeout_s)
        address = self._instance.broker_address(sent.queue.broker_name)
        self._instance.run(self._heartbeat.heartbeat(address))
        state = TransactionState.UNKNOWN
        try:
            state = state_of(local_transaction()) if sent.code == ResponseCode.SUCCESS else TransactionState.ROLLBACK
        finally:
            self._end(sent, state)
        return TransactionResult(sent, state)

    def _end(self, sent: SendResult, state: TransactionState) -> None:
        header = end_of(self.group, sent, state)
        if header is not None:
            self._tell(self._instance.broker_address(sent.queue.broker_name), header)

    def _tell(self, address: str, header: EndTransactionRequestHeader) -> None:
        try:
            self._instance.client(address).one_way(RequestCode.END_TRANSACTION, header)
        except ClientError as error:
            log.warning("the end of transaction %s is not told: %s; the broker asks for it", header.msg_id, error)

    # ------------------------------------------------------------ what brokers ask

    def _requested(self, command: Command, address: str) -> bool:
        """Handle a broker's request, on a reader thread."""
        if command.code != RequestCode.CHECK_TRANSACTION_STATE:
            return False
        self._timer.after(0.0, lambda: self._answer(command, address))
        return True

    def _answer(self, command: Command, address: str) -> None:
        """Check a transaction, and send its state. The broker repeats a question that is unreadable."""
        question = read_question(self.group, command, address)
        if question is not None:
            self._tell(address, question.answered(self.group, self._checked(question.message)))

    def _checked(self, message: ReceivedMessage) -> TransactionState:
        state = TransactionState.UNKNOWN
        with CaughtError() as kept:
            state = state_of(self._check(message))
        if kept.error is not None:
            log.warning("the check of transaction %s failed: %r; the broker asks again", message.msg_id, kept.error)
        return state

    # ------------------------------------------------------------ saying who we are

    def _heartbeat_later(self) -> None:
        """Start this process's periodic heartbeats, once."""
        if self._heartbeat_process != self.runtime.process_id():
            self._heartbeat_process = self.runtime.process_id()
            self._timer.after(HEARTBEAT_S, self._heartbeat_again)

    def _heartbeat_again(self) -> None:
        self._instance.run(self._heartbeat.heartbeat_all())
        self._timer.after(HEARTBEAT_S, self._heartbeat_again)
