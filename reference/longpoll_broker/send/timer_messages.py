"""Stores the timed messages of 5.x until the delivery time that their producer chose.

They wait in the topic `rmq_sys_wheel_timer`, with their own topic and queue as properties. A delay level takes
precedence, then a delay in seconds, then one in milliseconds, then a time. A time in the past is ignored.

Delivery and recall: see `rocketmq.timers`.

Source: `HookUtils.handleScheduleMessage` 5.5; answers as seen on 5.5.0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from longpoll_broker.send.append import moved
from longpoll_broker.send.inner_queues import SendRefusedError
from longpoll_broker.store.messages import MessageToStore
from longpoll_protocol.codes import ResponseCode
from longpoll_protocol.message import PROPERTIES_SIZE_MAX
from longpoll_protocol.names import TIMER_TOPIC
from longpoll_protocol.properties import (
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_OUT_MS,
    TIMER_RECALLED_KEY,
    PropertiesForm,
)

DELAY_MS_MAX: Final = 3 * 24 * 3_600_000
"""`timerMaxDelaySec`."""
PRECISION_MS: Final = 1000
"""`timerPrecisionMs`: messages are delivered in whole seconds."""
ILLEGAL: Final = (
    f"timer message illegal, the delay time should not be bigger than the max delay {DELAY_MS_MAX}ms; "
    "or if set del msg, the delay time should be bigger than the current time"
)
WISHES: Final = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)
"""The properties that set a delivery time, in order of precedence."""
_WISHES: Final = frozenset(WISHES)
"""Checked for every send."""
TIME_SIZE_MAX: Final = 15
"""Maximum digits of a delivery time."""
WAITING_SIZE_MAX: Final = PROPERTIES_SIZE_MAX - sum(
    len(name) + TIME_SIZE_MAX + 2 for name in (TIMER_ENQUEUE_MS, TIMER_DEQUEUE_MS)
)
"""Maximum bytes of a waiting message's properties, so that the two properties added on delivery fit."""
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


def has_timer(properties: Mapping[str, str]) -> bool:
    """Whether a message asks for a delivery time."""
    return not _WISHES.isdisjoint(properties) and TIMER_OUT_MS not in properties


def drop_timer(properties: dict[str, str]) -> None:
    """Remove the properties that ask for a delivery time."""
    for name in WISHES:
        properties.pop(name, None)


def timer_message(
    message: MessageToStore, properties: dict[str, str], form: PropertiesForm, now_ms: int, *, is_full: bool = False
) -> MessageToStore:
    """Returns the message as it waits for its time, or itself if it need not. Updates `properties`.

    Raises SendRefusedError for a time that is not a number or too far away, for properties that could not be delivered,
    and if too many messages wait (`is_full`).
    """
    if not has_timer(properties) or message.topic == TIMER_TOPIC:
        return message
    deliver_ms = _wished(properties, now_ms)
    if deliver_ms <= now_ms:
        if TIMER_RECALLED_KEY in properties:
            raise _illegal()
        return message
    if deliver_ms - now_ms > DELAY_MS_MAX:
        raise _illegal()
    if is_full:
        raise SendRefusedError(ResponseCode.SYSTEM_ERROR, "timer message is under flow control: too many are waiting")
    # The last whole second before the delivery time.
    properties[TIMER_OUT_MS] = str((deliver_ms - 1) // PRECISION_MS * PRECISION_MS)
    waiting = moved(message, properties, TIMER_TOPIC, 0, form)
    size = len(waiting.properties)
    if size > WAITING_SIZE_MAX:
        told = f"the message is illegal: the properties have {size} bytes, and of a message that waits at most"
        raise SendRefusedError(ResponseCode.MESSAGE_ILLEGAL, f"{told} {WAITING_SIZE_MAX} are allowed")
    return waiting


def _wished(properties: Mapping[str, str], now_ms: int) -> int:
    """Returns the delivery time, ms; raises SendRefusedError."""
    name = next(name for name in WISHES if name in properties)
    text = properties[name]
    if not _NUMBER.fullmatch(text):
        raise _illegal()
    value = int(text)
    if name == TIMER_DELIVER_MS:
        return value
    return now_ms + value * (1000 if name == TIMER_DELAY_SEC else 1)


def _illegal() -> SendRefusedError:
    return SendRefusedError(ResponseCode.MESSAGE_ILLEGAL, ILLEGAL)
