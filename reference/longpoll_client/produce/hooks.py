"""Hooks around every send, and the counts of a producer.

Hooks run before the first attempt and after the last one. Errors of hooks are logged. A one-way send calls only the
hook method `properties`, because the outcome of a one-way send is unknown.

Source: `SendMessageHook.java`, `SendMessageContext.java`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from attrs import define, field, frozen
from msgspec.structs import replace

from longpoll_client.checks import check_hooks
from longpoll_client.produce.attempts import SendAttempts, SendResult
from longpoll_client.produce.outgoing import NO_MARKS, OutgoingMessage, Parcel
from longpoll_protocol.properties import read_properties
from longpoll_runtime import Lock, Runtime
from longpoll_runtime.recoverable import KeepGoing
from longpoll_spec.errors import LongpollError

log: logging.Logger = logging.getLogger(__name__)

Outcome: TypeAlias = tuple[SendResult, ...] | LongpollError
"""The result of each message, or the raised error."""


@frozen
class Sending:
    """One send of a message or a batch, with all its attempts."""

    group: str
    topic: str
    msg_ids: tuple[str, ...]
    """The ids of the messages, in order."""
    properties: dict[str, str]
    """The message's properties with tag and keys (`TAGS`, `KEYS`); for a batch, the common properties."""
    body_size: int
    """The size of the body after compression, bytes."""
    sys_flag: int
    """`MessageSysFlag` bits."""
    begun_s: float
    """The Unix time at which the send began, in seconds."""


class SendHook(Protocol):
    """An object whose methods are called before and after every send of a producer.

    A hook may also have a method `properties(topic)`, which returns properties for each new message.
    """

    def before_send(self, sending: Sending) -> object:
        """Called before the first attempt of a send."""
        ...

    def after_send(self, sending: Sending, outcome: Outcome, latency_s: float, address: str) -> object:
        """Called after the last attempt. `address` is the last broker's HOST:PORT, or "" if there was no attempt."""
        ...


@frozen
class SendMetrics:
    """Counts of a producer's sends since its creation; a batch counts once."""

    sends: int = field(default=0)
    """The number of sends that ended, with or without an error."""
    failures: int = field(default=0)
    """The number of sends that raised an error."""
    retries: int = field(default=0)
    """The number of attempts after the first attempt of a send."""
    one_way: int = field(default=0)
    """The number of one-way sends, which the other counts do not include."""
    latency_s: float = field(default=0.0)
    """Total duration of all sends with their attempts, seconds."""


@define(slots=True, eq=False)
class Watch:
    """The hooks and the counts of one producer. Invariant: the counts change under `_lock`."""

    runtime: Runtime
    hooks: Sequence[SendHook]
    _properties: Sequence[Callable[[str], Mapping[str, str]]] = field(default=(), init=False)
    _lock: Lock = field(init=False)
    _sends: int = field(default=0, init=False)
    _failures: int = field(default=0, init=False)
    _retries: int = field(default=0, init=False)
    _one_way: int = field(default=0, init=False)
    _latency_ns: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        """Check the hooks; raises ConfigError."""
        check_hooks(self.hooks, "before_send", "after_send")
        self._properties = tuple(hook.properties for hook in self.hooks if hasattr(hook, "properties"))
        self.forked()
        self.runtime.when_forked(self)

    def forked(self) -> None:
        """Replace the lock after a fork; the counts continue."""
        self._lock = self.runtime.lock()

    def metrics(self) -> SendMetrics:
        """Returns the current counts."""
        with self._lock:
            return SendMetrics(self._sends, self._failures, self._retries, self._one_way, self._latency_ns / 1e9)

    def sent_one_way(self) -> None:
        """Count a one-way send."""
        with self._lock:
            self._one_way += 1

    def marks(self, topic: str, marks: Mapping[str, str] = NO_MARKS) -> Mapping[str, str]:
        """Return a new message's properties from the client and from the hooks."""
        for properties in self._properties:
            with KeepGoing(log, "a hook before a send failed"):
                marks = {**marks, **properties(topic)}
        return marks

    def marked(self, topic: str, messages: Sequence[OutgoingMessage]) -> Sequence[OutgoingMessage]:
        """Returns the messages of a batch with the properties of the hooks added."""
        if not self._properties:
            return messages
        return [replace(each, properties={**each.properties, **self.marks(topic)}) for each in messages]

    def begin(self, parcel: Parcel) -> Sending | None:
        """Call the hooks before a send; returns None if there are no hooks."""
        if not self.hooks:
            return None
        sending = Sending(
            parcel.group,
            parcel.topic,
            parcel.msg_ids,
            read_properties(parcel.properties),
            len(parcel.body),
            parcel.sys_flag,
            self.runtime.unix_ms() / 1000,
        )
        for hook in self.hooks:
            with KeepGoing(log, "a hook before a send failed"):
                hook.before_send(sending)
        return sending

    def ended(self, sending: Sending | None, tries: SendAttempts, outcome: Outcome, latency_ns: int) -> None:
        """Count a send that ended, and call the hooks."""
        with self._lock:
            self._sends += 1
            self._latency_ns += latency_ns
            if tries.count > 1:
                self._retries += tries.count - 1
            if isinstance(outcome, LongpollError):
                self._failures += 1
        if sending is None:
            return
        for hook in self.hooks:
            with KeepGoing(log, "a hook after a send failed"):
                hook.after_send(sending, outcome, latency_ns / 1e9, tries.address)
