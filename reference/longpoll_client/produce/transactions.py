"""Sends messages that are delivered only if the sender's local transaction succeeds.

A prepared message waits at its broker. The sender runs its local transaction and sends the transaction's state to the
broker in a one-way request (END_TRANSACTION, 37). If that request is lost, the broker asks any producer of the group
for the state (CHECK_TRANSACTION_STATE, 39), even in another process, and `check_transaction` answers.

The thread `transactions-GROUP` runs `check_transaction` and sends a heartbeat every 30 s. Batches and delays are not
possible, as in RocketMQ.

Source: `DefaultMQProducerImpl.sendMessageInTransaction`, `checkTransactionState`, `endTransaction`,
`ClientRemotingProcessor.checkTransactionState` 4.9.7.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Unpack

from attrs import frozen

from longpoll_client.checks import Addresses, check_plain
from longpoll_client.errors import ClientError
from longpoll_client.instance import ClientInstance, InstanceCore
from longpoll_client.lifecycle import Lifecycle
from longpoll_client.link.steps import Call, Connect, Steps
from longpoll_client.messages import ReceivedMessage, decode_messages
from longpoll_client.produce.attempts import SendResult
from longpoll_client.produce.hooks import SendMetrics
from longpoll_client.produce.producer import (
    PreparedProducer,
    ProducerOptions,
    RequestOptions,
    Sender,
    read_options,
)
from longpoll_client.produce.requests import HEARTBEAT_S, ProducerHeartbeat
from longpoll_client.remoting import RemotingClient
from longpoll_client.timer import Timer
from longpoll_protocol.codes import MessageSysFlag, RequestCode, ResponseCode
from longpoll_protocol.frames import Command
from longpoll_protocol.headers import CheckTransactionStateRequestHeader, EndTransactionRequestHeader
from longpoll_protocol.properties import PRODUCER_GROUP
from longpoll_runtime import Runtime
from longpoll_runtime.recoverable import ANYTHING
from longpoll_runtime.services import Closeable
from longpoll_spec.errors import ConfigError, LongpollError

log: logging.Logger = logging.getLogger(__name__)


class TransactionState(enum.IntEnum):
    """The state of a transaction, as in the request END_TRANSACTION (37)."""

    COMMIT = MessageSysFlag.TRANSACTION_COMMIT
    ROLLBACK = MessageSysFlag.TRANSACTION_ROLLBACK
    UNKNOWN = 0
    """The outcome is not known yet, so the broker asks later."""

    def __str__(self) -> str:
        return self.name


def state_of(answer: object) -> TransactionState:
    """Convert a user's result to a state; raises ConfigError for other values."""
    if isinstance(answer, int) and not isinstance(answer, bool):
        with suppress(ValueError):
            return TransactionState(answer)
    raise ConfigError(f"{repr(answer)[:40]} is not the state of a transaction; return a TransactionState")


Check = Callable[[ReceivedMessage], TransactionState]
"""Finds out whether the local transaction of a message succeeded, and returns its state."""
LocalTransaction = Callable[[], TransactionState]
"""Runs the sender's local transaction, and returns its outcome."""


@frozen
class TransactionResult:
    """The result of the prepared message, and the state of its transaction."""

    sent: SendResult
    """The result of the prepared message. The delivered message gets its own offset."""
    state: TransactionState


@frozen
class Question:
    """A broker's question about the state of a transaction (CHECK_TRANSACTION_STATE, 39)."""

    header: CheckTransactionStateRequestHeader
    message: ReceivedMessage

    def answered(self, group: str, state: TransactionState) -> EndTransactionRequestHeader:
        """Return the header of END_TRANSACTION (37) that answers the question."""
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
    """Return a broker's question; None if the group differs, or if the question is unreadable, which is logged."""
    try:
        header = CheckTransactionStateRequestHeader.decode(command.ext_fields)
        (message,) = decode_messages(command.body)
    except (LongpollError, ValueError) as error:
        log.warning("a question of %s about a transaction cannot be read: %s", address, error)
        return None
    return Question(header, message) if message.properties.get(PRODUCER_GROUP) == group else None


def end_of(group: str, sent: SendResult, state: TransactionState) -> EndTransactionRequestHeader | None:
    """Return the header of the request that ends a transaction (END_TRANSACTION, 37).

    If the sent message has no offset, this function logs a warning and returns None.
    """
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


class TransactionCore:
    """The parts of transaction producers on threads and on an event loop.

    `_prepared` sends a prepared message; `_tell` and the methods that end with `steps` are exchanges.
    """

    def __init__(self, sender: Sender, instance: InstanceCore, check: Callable[..., object]) -> None:
        self.group: str = sender.group
        self._check = check
        self._core = instance
        self._heartbeat = ProducerHeartbeat(instance, sender.group)
        self._lifecycle = Lifecycle(sender.runtime, f"the producer of group {sender.group}")
        self._watch = sender.watch

    def metrics(self) -> SendMetrics:
        """Return the counts of all prepared messages so far. The outcomes of transactions are not counted."""
        return self._watch.metrics()

    def _send_steps(
        self, prepare: Callable[[], object], local_transaction: Callable[[], object]
    ) -> Steps[TransactionResult]:
        sent: SendResult = yield Call(prepare)
        address = self._core.broker_address(sent.queue.broker_name)
        yield from self._heartbeat.heartbeat(address)
        state = TransactionState.ROLLBACK
        try:
            if sent.code == ResponseCode.SUCCESS:
                state = TransactionState.UNKNOWN
                state = state_of((yield Call(local_transaction)))
        finally:
            header = end_of(self.group, sent, state)
            if header is not None:
                yield from self._tell(address, header)
        return TransactionResult(sent, state)

    def _tell(self, address: str, header: EndTransactionRequestHeader) -> Steps[None]:
        try:
            connection = yield Connect(address)
            yield Call(partial(connection.one_way, RequestCode.END_TRANSACTION, header))
        except ClientError as error:
            log.warning("the end of transaction %s is not told: %s; the broker asks for it", header.msg_id, error)

    def _answer_steps(self, command: Command, address: str) -> Steps[None]:
        """Check a transaction, and send its state. The broker repeats a question that is unreadable."""
        question = read_question(self.group, command, address)
        if question is None:
            return
        state = TransactionState.UNKNOWN
        try:
            state = state_of((yield Call(partial(self._check, question.message))))
        except (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
            raise
        except ANYTHING as error:
            msg_id = question.message.msg_id
            log.warning("the check of transaction %s failed: %r; the broker asks again", msg_id, error)
        yield from self._tell(address, question.answered(self.group, state))


class TransactionProducer(TransactionCore, Closeable):
    """A producer of one group, whose members can all answer for each other's transactions; many threads may use it.

    Invariant: `_heartbeat_process` is the process whose timer sends heartbeats. A forked process starts its own timer
    with its first message.
    """

    def __init__(
        self, name_server: Addresses, *, group: str, check_transaction: Check, **options: Unpack[ProducerOptions]
    ) -> None:
        """Create a producer; it connects with its first send. Raises ConfigError.

        Args:
            name_server: HOST:PORT; several addresses as a list, or separated by semicolons.
            group: The producer group. A broker may ask any of its members about a transaction.
            check_transaction: Gets a message, maybe of another process, and returns the state of its transaction.
            options: The options of `ProducerOptions`.
        """
        check_plain("check_transaction", check_transaction)
        sender = Sender(group, options, RemotingClient.sent_header)
        self._instance = ClientInstance(
            sender.runtime, name_server, on_request=self._requested, credentials=sender.credentials
        )
        super().__init__(sender, self._instance, check_transaction)
        self.runtime: Runtime = sender.runtime
        self._producer = PreparedProducer(self._instance, sender)
        self._heartbeat_process: int | None = None
        self._timer = Timer(self.runtime, f"transactions-{self.group}")
        self._heartbeat_later()

    def close(self) -> None:
        """Wait for a running check, leave the group, and close. Other members answer for open transactions.

        A second call does nothing. If a check calls this method, the close does not wait for that check.
        """
        if not self._lifecycle.end():
            return
        with self._lifecycle.ending():
            self._timer.close()
            self._instance.run(self._heartbeat.leave())
            self._producer.close()

    def send(
        self, topic: str, body: bytes, local_transaction: LocalTransaction, **options: Unpack[RequestOptions]
    ) -> TransactionResult:
        """Prepare a message, call `local_transaction`, and commit or roll back the message according to the result.

        If the broker cannot store the message safely, `local_transaction` is not called. If `local_transaction` raises
        an error, this method raises the error, and the broker asks for the outcome later. The broker does not confirm
        the commit or rollback; if it does not arrive, the broker asks for the outcome. Otherwise see `Producer.send`.
        """
        check_plain("local_transaction", local_transaction)
        self._heartbeat_later()
        given = read_options(topic, body, options, RequestOptions)
        prepare = partial(self._producer.send_prepared, topic, *given)
        return self._instance.run(self._send_steps(prepare, local_transaction))

    # ------------------------------------------------------------ what brokers ask

    def _requested(self, command: Command, address: str) -> bool:
        if command.code != RequestCode.CHECK_TRANSACTION_STATE:
            return False
        self._timer.after(0.0, lambda: self._instance.run(self._answer_steps(command, address)))
        return True

    # ------------------------------------------------------------ saying who we are

    def _heartbeat_later(self) -> None:
        if self._heartbeat_process != self.runtime.process_id():
            self._heartbeat_process = self.runtime.process_id()
            self._timer.every(HEARTBEAT_S, lambda: self._instance.run(self._heartbeat.heartbeat_all()))
