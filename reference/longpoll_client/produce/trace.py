r"""A hook that writes sends and deliveries to RocketMQ's trace topic, which its dashboard reads.

Each message gets one line. `\x01` separates the fields, `\x02` ends the line:

| kind | fields |
|------|--------|
| `Pub` | time, region, group, topic, id, tags, keys, broker, body size, cost in ms, type, broker's id, success |
| `SubBefore` | time, region, group, number of the delivery, id, tries before, keys |
| `SubAfter` | number of the delivery, id, cost in ms, success, keys, how it ended, time, group |

A separate thread sends the lines in batches. Lines beyond the limit are dropped and counted. One-way sends and the ends
of transactions are not traced.

Source: `TraceDataEncoder.java`, `AsyncTraceDispatcher.java`, `SendMessageTraceHookImpl.java`,
`ConsumeMessageTraceHookImpl.java` 4.9.7.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Sequence
from typing import Final

from attrs import define, field

from longpoll_client.checks import Addresses, runtime_of
from longpoll_client.errors import ClientError
from longpoll_client.messages import ReceivedMessage
from longpoll_client.produce.hooks import Outcome, Sending
from longpoll_client.produce.producer import Producer
from longpoll_client.timer import Timer
from longpoll_protocol.codes import MessageSysFlag, ResponseCode
from longpoll_protocol.properties import DELAY, KEYS, TAGS
from longpoll_protocol.signature import Credentials
from longpoll_runtime import Lock, Runtime
from longpoll_runtime.services import Closeable
from longpoll_spec.errors import ConfigError

log: logging.Logger = logging.getLogger(__name__)

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
TRACE_GROUP: Final = "_INNER_TRACE_PRODUCER"
REGION: Final = "DefaultRegion"
LINES_MAX: Final = 2048
"""Maximum number of waiting lines (`AsyncTraceDispatcher.queueSize`)."""
BATCH_MAX: Final = 100
"""Maximum number of lines in one trace message."""
FLUSH_S: Final = 0.5
"""Maximum time that a line waits for more lines, seconds."""
NORMAL, HALF, _COMMIT, DELAYED = range(4)
"""The ordinals of Java's `MessageType`."""
EXCEPTION: Final = 2
FAILED: Final = 4
"""The ordinal of a failure in Java's `ConsumeReturnType`; success is 0."""


@define(eq=False)
class Tracing(Closeable):
    """A hook for producers (`hooks=`) and for `ConsumerConfig.hooks`. Close the hook after its clients.

    Invariant: `_lines`, `_is_due` and `dropped_count` change under `_lock`.
    """

    name_server: Addresses
    topic: str = TRACE_TOPIC
    tls: ssl.SSLContext | None = field(default=None, kw_only=True)
    credentials: Credentials | None = field(default=None, kw_only=True)
    _runtime: Runtime | None = field(default=None, kw_only=True, alias="runtime")
    runtime: Runtime = field(init=False)
    dropped_count: int = field(default=0, init=False)
    """The number of lines that were not sent, because too many waited or the send to the trace topic failed."""
    _producer: Producer = field(init=False)
    _timer: Timer = field(init=False)
    _lock: Lock = field(init=False)
    _lines: list[tuple[str, str]] = field(factory=list, init=False)
    """Pairs of the keys of the traced message and its line."""
    _is_due: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.runtime = runtime_of(self._runtime, self.tls)
        self._producer = Producer(
            self.name_server, group=TRACE_GROUP, credentials=self.credentials, runtime=self.runtime
        )
        self._timer = Timer(self.runtime, "trace")
        self.forked()
        self.runtime.when_forked(self)

    def forked(self) -> None:
        """Drop the waiting lines, which belong to the parent process."""
        self._lock = self.runtime.lock()
        self._lines, self._is_due = [], False

    def close(self) -> None:
        """Send the waiting lines, and close."""
        self._timer.close()
        self._flush()
        self._producer.close()

    def before_send(self, sending: Sending) -> None:
        """Do nothing, because a line needs the result of the send."""

    def after_send(self, sending: Sending, outcome: Outcome, latency_s: float, address: str) -> None:
        """Add a `Pub` line for each message of an answered send, as Java does."""
        if not isinstance(outcome, tuple):
            return
        kind = NORMAL
        if sending.sys_flag & MessageSysFlag.TRANSACTION_ROLLBACK == MessageSysFlag.TRANSACTION_PREPARED:
            kind = HALF
        elif DELAY in sending.properties:
            kind = DELAYED
        keys = sending.properties.get(KEYS, "")
        for result in outcome:
            line = (
                "Pub",
                round(sending.begun_s * 1000),
                REGION,
                sending.group,
                sending.topic,
                result.msg_id,
                sending.properties.get(TAGS, ""),
                keys,
                address,
                sending.body_size,
                int(latency_s * 1000),
                kind,
                result.broker_msg_id,
                _flag(result.code == ResponseCode.SUCCESS),
            )
            self._add(f"{result.msg_id} {keys}", line)

    def before_consume(self, group: str, delivery: str, messages: Sequence[ReceivedMessage]) -> None:
        """Add a `SubBefore` line for each message."""
        for message in messages:
            keys = message.properties.get(KEYS, "")
            line = (
                "SubBefore",
                self.runtime.unix_ms(),
                REGION,
                group,
                delivery,
                message.msg_id,
                message.reconsume_times,
                keys,
            )
            self._add(f"{message.msg_id} {keys}", line)

    def after_consume(
        self,
        group: str,
        delivery: str,
        messages: Sequence[ReceivedMessage],
        error: Exception | None,
        *,
        is_consumed: bool,
        latency_s: float,
    ) -> None:
        """Add a `SubAfter` line for each message."""
        code = 0 if is_consumed else FAILED if error is None else EXCEPTION
        for message in messages:
            keys = message.properties.get(KEYS, "")
            cost_ms = int(latency_s * 1000) // len(messages)
            line = (
                "SubAfter",
                delivery,
                message.msg_id,
                cost_ms,
                _flag(is_consumed),
                keys,
                code,
                self.runtime.unix_ms(),
                group,
            )
            self._add(f"{message.msg_id} {keys}", line)

    def _add(self, keys: str, fields: tuple[object, ...]) -> None:
        line = "\x01".join(str(each) for each in fields) + "\x02"
        with self._lock:
            if len(self._lines) >= LINES_MAX:
                self.dropped_count += 1
                return
            self._lines.append((keys, line))
            is_first, self._is_due = not self._is_due, True
        if is_first:
            self._timer.after(FLUSH_S, self._flush)

    def _flush(self) -> None:
        """Send the waiting lines. Lines that cannot be sent are logged and dropped."""
        with self._lock:
            lines, self._lines, self._is_due = self._lines, [], False
        for first in range(0, len(lines), BATCH_MAX):
            part = lines[first : first + BATCH_MAX]
            keys = " ".join(dict.fromkeys(" ".join(each for each, _line in part).split()))
            try:
                self._producer.send(self.topic, "".join(line for _keys, line in part).encode(), keys=keys)
            except (ClientError, ConfigError) as error:
                with self._lock:
                    self.dropped_count += len(part)
                log.warning("%d lines of the trace are not written: %s", len(part), error)


def _flag(value: bool) -> str:
    return "true" if value else "false"
