"""Serves the broker's connections and requests.

Each request first passes access control and the role check. An accepted request is handed to the processor of its code,
which runs on the thread that read the request or in the pull pool, if the policy has a pull pool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from attrs import define, field
from msgspec import structs

from longpoll_broker.assembly import AdminServices, PullServices, SendServices, SharedServices
from longpoll_broker.errors import BrokerError
from longpoll_broker.hold.pull_processor import PULLS
from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import (
    OVERLOAD,
    TOO_LATE,
    Processor,
    RequestCounts,
    RpcHook,
    answer_busy,
    failure,
    log_refused,
    refuse,
    serve,
    with_hooks,
)
from longpoll_broker.rocketmq.accounts.access_control import AccessControl
from longpoll_broker.rocketmq.accounts.access_processor import AccessProcessor
from longpoll_broker.rocketmq.name_server.registrar import Registrar
from longpoll_broker.send.send_bursts import SendBursts
from longpoll_broker.shared.quota import Quota
from longpoll_protocol.fast import SendCommand, TypedConnection
from longpoll_protocol.frames import Command, Serialisation
from longpoll_runtime.recoverable import FAULTS


class CodeServedTwiceError(BrokerError):
    """Two services serve the same request code; the message names the code."""


@define(slots=True, eq=False)
class BrokerHandler:
    """Serves the connections of one broker; callable from the thread of any I/O loop."""

    shared: SharedServices
    pulling: PullServices
    sending: SendServices
    administering: AdminServices
    access: AccessControl | None
    hooks: Sequence[RpcHook]
    registrar: Registrar | None
    """Registers a changed topic at the name servers before the request that changed it is answered."""
    request_counts: RequestCounts = field(init=False)
    reads_fields: bool = field(init=False)
    """Whether the headers of sends and pulls are parsed while the frame is read, which is faster.

            False with signatures or hooks, because they need the raw fields, and for 5.x, because it checks some fields
            before it parses the header."""
    _serve: Callable[[Channel, Command, Outbox], None] = field(init=False)
    _is_slave: bool = field(init=False)
    send_bursts: SendBursts | None = field(init=False)
    """Serves adjacent sends together; None if a send needs more work than storing the message and answering."""

    def __attrs_post_init__(self) -> None:
        shared = self.shared
        self.request_counts = shared.request_counts
        self._is_slave = shared.role.is_slave
        self.reads_fields = self.access is None and not self.hooks and shared.traits.reports_blank_topic
        tables = [self.sending.processors, self.pulling.processors, self.administering.processors]
        if self.access is not None:
            tables.append(AccessProcessor(self.access, shared.config, "{}:{}".format(*shared.address)).processors)
        processors = shared.recording.of_offsets(combine_processors(tables))
        if self.registrar is not None:
            processors = self.registrar.around(processors)
        self._serve = partial(serve, with_hooks(processors, self.hooks))
        # Adjacent sends are stored together only if each send needs no other work than storing and an answer.
        send = self.sending.send
        stores_at_once = not send.durability.syncs and not send.traits.returns_transaction_id
        serves_bursts = stores_at_once and shared.recording.recorder is None and not self._is_slave
        self.send_bursts = None
        if self.reads_fields and serves_bursts:
            self.send_bursts = SendBursts(send, self._serve, shared.runtime.monotonic_ns)

    @property
    def quotas(self) -> tuple[Quota, ...]:
        """Returns the quotas of all tables whose entries clients can create."""
        clients, administering, inner = self.shared.clients, self.administering, self.sending.send.builder.inner_queues
        return (
            self.shared.topics.quota,
            self.shared.groups.quota,
            self.shared.offsets.quota,
            self.shared.queues.quota,
            *(() if inner is None else (inner.quota,)),
            administering.locks.locks.quota,
            administering.clients.producers.quota,
            clients.members_quota,
            clients.subscriptions_quota,
            clients.filters.quota,
            administering.calls.quota,
            self.shared.statistics.quota,
            self.pulling.hold_service.texts,
        )

    def opened(self, channel: Channel) -> None:
        """Set up a new connection."""
        if self.reads_fields:
            channel.connection = TypedConnection(self.shared.config.frame_size_max)
        else:
            channel.connection.wait_for(self.shared.traits.first_size)
        self.shared.recording.connection("connection_opened", channel)

    def received(self, channel: Channel, command: Command, outbox: Outbox) -> None:
        """Serve a request on this thread or in the pull pool; forward a response to the call that waits for it."""
        if command.is_response:
            self.administering.calls.answered(channel, command, outbox)
            return
        self.request_counts.add(command.code)
        is_served = False
        try:
            is_served = self._receive(channel, command, outbox)
        except FAULTS as error:
            refuse(channel, command, failure(channel, command, error), outbox)
        bursts = self.send_bursts
        if is_served and bursts is not None and type(command) is SendCommand and channel.connection.unread_size:
            self.request_counts.add(command.code, bursts.serve_following(channel, outbox))

    def end_pass(self, outbox: Outbox) -> None:
        """End a pass of an I/O loop: wake pulls for the appended messages before the answers to the sends leave."""
        self.appended(outbox)
        self.pulling.hold_service.turn(outbox)
        inline = self.pulling.inline
        if inline is not None and (inline.later.waiting or inline.later.spent):
            inline.turn(outbox)
        if self.administering.clients.needs_turn:
            self.administering.clients.turn(outbox)

    @property
    def has_more(self) -> bool:
        """Whether the I/O loop must start another pass at once."""
        pulling = self.pulling
        has_pulls = pulling.inline is not None and bool(pulling.inline.later.waiting)
        return has_pulls or pulling.hold_service.has_more or self.administering.clients.needs_turn

    def appended(self, outbox: Outbox) -> None:
        """Make appended or durable messages visible, and wake the pulls that wait for them."""
        self.pulling.dispatch_service.appended(outbox)

    def closed(self, channel: Channel) -> None:
        """Remove the pulls and group memberships of a closed connection."""
        self.shared.recording.connection("connection_closed", channel)
        if self.shared.policy.on_close == "drop":
            # RocketMQ leaves the pulls of a closed connection in its hold table until the next scan runs them.
            self.pulling.hold_service.drop_channel(channel)
        outbox = Outbox()
        self.administering.clients.closed(channel, outbox)
        self.administering.calls.closed(channel, outbox)
        outbox.flush()

    def _receive(self, channel: Channel, command: Command, outbox: Outbox) -> bool:
        """Serve one request; returns false if the request was refused."""
        if self.shared.traits.answers_in_json and command.serialisation is not Serialisation.JSON:
            command = structs.replace(command, serialisation=Serialisation.JSON)
        refusal = self._refusal(channel, command)
        if refusal is not None:
            if not command.is_one_way:
                outbox.write(channel, refusal)
            return False
        pool = self.pulling.pool
        if pool is None or command.code not in PULLS:
            self._serve(channel, command, outbox)
            return True
        if not pool.offer(
            partial(self._serve, channel, command),
            lambda worker_outbox: answer_busy(channel, command, TOO_LATE, worker_outbox),
        ):
            answer_busy(channel, command, OVERLOAD, outbox)
        return True

    def _refusal(self, channel: Channel, command: Command) -> Parts | None:
        refusal = None if self.access is None else self.access.refusal(channel, command)
        if refusal is None and self._is_slave:
            refusal = self.pulling.roles.refusal(command)
            log_refused(channel, command, refusal)
        return refusal


def combine_processors(tables: Sequence[Mapping[int, Processor]]) -> Mapping[int, Processor]:
    """Merge the processors of all services, by code; raises CodeServedTwiceError."""
    found: dict[int, Processor] = {}
    for table in tables:
        twice = found.keys() & table.keys()
        if twice:
            raise CodeServedTwiceError(f"two services serve the codes {sorted(map(int, twice))}")
        found.update(table)
    return found
