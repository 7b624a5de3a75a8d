"""What is told of every send, and counted of all of them.

Hooks run on the thread that sends, before the first try and after the last one; one that raises is logged, and harms
nobody. Leaves out one-way sends, of which nobody knows how they ended.

Source: `SendMessageHook.java`, `SendMessageContext.java`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol, TypeAlias

from attrs import define, field, frozen

from longpoll_client.checks import check_hooks
from longpoll_client.produce.outgoing import Parcel
from longpoll_client.produce.tries import SendResult, Tries
from longpoll_protocol.properties import read_properties
from longpoll_runtime import Lock, Runtime
from longpoll_runtime.recoverable import KeepGoing
from longpoll_spec.errors import LongpollError

log = logging.getLogger(__name__)

Outcome: TypeAlias = tuple[SendResult, ...] | LongpollError
"""Where each message went, or what was raised."""


@frozen
class Sending:
    """One send of a message or a batch, over all of its tries."""

    group: str
    topic: str
    msg_ids: tuple[str, ...]
    """One for each message."""
    properties: dict[str, str]
    """Of a single message, its tags and keys (`TAGS`, `KEYS`) among them; of a batch what all share."""
    body_size: int
    """As it is sent, bytes."""
    sys_flag: int
    """`MessageSysFlag`."""
    begun_ms: int
    """Unix milliseconds."""


class SendHook(Protocol):
    """Told of every send of a producer."""

    def before_send(self, sending: Sending) -> object:
        """It begins."""
        ...

    def after_send(self, sending: Sending, outcome: Outcome, latency_ns: int, address: str) -> object:
        """It ended, after so long; `address` is that of the broker that was asked last, "" when none was."""
        ...


@frozen
class SendMetrics:
    """What a producer has sent since it was made; a batch counts once."""

    sends: int = field(default=0)
    """That ended, well or not."""
    failures: int = field(default=0)
    """That raised."""
    retries: int = field(default=0)
    """Tries after the first one of each."""
    one_way: int = field(default=0)
    """One-way sends, which are in no other number."""
    latency_s: float = field(default=0.0)
    """Seconds that the sends took in all, with their tries."""


@define(slots=True, eq=False)
class Watch:
    """The hooks and the counts of one producer. Invariant: the counts change under `_lock`."""

    runtime: Runtime
    hooks: Sequence[SendHook]
    _lock: Lock = field(init=False)
    _sends: int = field(default=0, init=False)
    _failures: int = field(default=0, init=False)
    _retries: int = field(default=0, init=False)
    _one_way: int = field(default=0, init=False)
    _latency_ns: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        """Refuse what cannot be told; raises ConfigError."""
        check_hooks(self.hooks, "before_send", "after_send")
        self.forked()
        self.runtime.when_forked(self)

    def forked(self) -> None:
        """It counts on from what it had."""
        self._lock = self.runtime.lock()

    def metrics(self) -> SendMetrics:
        """The counts now."""
        with self._lock:
            return SendMetrics(self._sends, self._failures, self._retries, self._one_way, self._latency_ns / 1e9)

    def sent_one_way(self) -> None:
        """One more."""
        with self._lock:
            self._one_way += 1

    def begin(self, parcel: Parcel) -> Sending | None:
        """Tell the hooks, if there are any."""
        if not self.hooks:
            return None
        sending = Sending(
            parcel.group,
            parcel.topic,
            parcel.msg_ids,
            read_properties(parcel.properties),
            len(parcel.body),
            parcel.sys_flag,
            self.runtime.unix_ms(),
        )
        for hook in self.hooks:
            with KeepGoing(log, "a hook before a send failed"):
                hook.before_send(sending)
        return sending

    def ended(self, sending: Sending | None, tries: Tries, outcome: Outcome, latency_ns: int) -> None:
        """Count, and tell the hooks."""
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
                hook.after_send(sending, outcome, latency_ns, tries.address)
