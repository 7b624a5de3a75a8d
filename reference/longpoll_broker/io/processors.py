"""How a processor is called and how it answers, and how many requests came.

A processor takes (channel, command, outbox) and returns the buffers of its reply, or None when it has none yet (a held
pull). Leaves out which processor serves which code (`broker`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Mapping
from functools import partial
from typing import ClassVar, Final, Self, TypeAlias, TypeVar

from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_protocol.codes import CommandFlag, RequestCode, ResponseCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames.command import Command, encode_reply_head
from longpoll_protocol.frames.frame import EMPTY, Buffer, Serialisation
from longpoll_runtime.logs import event
from longpoll_runtime.recoverable import FAULTS

log = logging.getLogger(__name__)

_RESPONSE: Final = CommandFlag.RESPONSE.value
_ONE_WAY: Final = CommandFlag.ONE_WAY.value

REMARK_SIZE_MAX: Final = 2_000
"""Characters told of an exception: its text may repeat what was sent."""
OVERLOAD: Final = "[OVERLOAD]system busy, try again later"
TOO_LATE: Final = "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while"
"""Why a request is not served, in RocketMQ's words."""

Turns: TypeAlias = Generator[None, None, Parts]
"""Work at a request that yields where others may have their turn, and then gives the answer."""
Processor = Callable[[Channel, Command, Outbox], Parts | None]
Method = TypeVar("Method", bound=Callable[..., Parts | None])
_CODES: Final = "_codes"
"""The attribute of a method that has the codes it serves."""


def serves(*codes: int) -> Callable[[Method], Method]:
    """Mark a method of a `Serving` as the processor of these codes."""

    def mark(method: Method) -> Method:
        setattr(method, _CODES, codes)
        return method

    return mark


class Serving:
    """A service that has processors: its methods that `serves` marks, under their names also in classes below.

    Invariant: no code is served by two of them.
    """

    __slots__ = ()
    _served: ClassVar[Mapping[int, str]] = {}
    """By code the name of the method."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        served = dict(cls._served)
        for name, method in vars(cls).items():
            for code in getattr(method, _CODES, ()):
                assert served.setdefault(code, name) == name, f"{cls.__name__} serves {code} twice"
        cls._served = served

    @property
    def processors(self) -> dict[int, Processor]:
        """By the codes that they serve."""
        return {code: getattr(self, name) for code, name in self._served.items()}


class Refusal(tuple[Buffer, ...]):  # noqa: SLOT001 - what is as long as a tuple cannot have slots
    """The buffers of a reply that is no success, and what it says, for the log."""

    code: int
    remark: str | None

    def __new__(cls, parts: Iterable[Buffer], code: int, remark: str | None) -> Self:
        """The reply's buffers with its code and text."""
        made = super().__new__(cls, parts)
        made.code, made.remark = code, remark
        return made


def answer(
    command: Command,
    code: int,
    remark: str | None = None,
    fields: dict[str, str] | None = None,
    body: Buffer = EMPTY,
) -> Parts:
    """The reply to a command."""
    head = encode_reply_head(command, code, remark=remark, ext_fields=fields, body_size=len(body))
    if code != ResponseCode.SUCCESS:
        return Refusal((head, body) if len(body) else (head,), code, remark)
    return (head, body) if len(body) else (head,)


def serve(processors: Mapping[int, Processor], channel: Channel, command: Command, outbox: Outbox) -> None:
    """Have a command processed and its reply queued; a failure becomes code 1 and costs nobody else anything."""
    flag = command.flag
    if flag & _RESPONSE:
        return
    processor = processors.get(command.code)
    parts: Parts | None
    if processor is None:
        parts = answer(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported")
    else:
        parts = call(processor, channel, command, outbox)
    if type(parts) is Refusal:
        tell_refused(channel, command, parts)
    if parts is not None and not flag & _ONE_WAY:
        outbox.write(channel, parts)


def in_turns(channel: Channel, command: Command, turns: Turns) -> Parts | None:
    """Work for one turn at a request that may take long; its answer, or None when the rest is left to further turns."""
    try:
        next(turns)
    except StopIteration as ended:
        parts: Parts = ended.value
        return parts
    channel.rest = partial(_go_on, channel, command, turns)
    channel.gives_way = True
    return None


def _go_on(channel: Channel, command: Command, turns: Turns, outbox: Outbox) -> None:
    """Work for one more turn, and answer in the last one."""
    try:
        parts = in_turns(channel, command, turns)
    except FAULTS as error:
        parts = failure(channel, command, error)
    if parts is not None:
        refuse(channel, command, parts, outbox)


def answer_busy(channel: Channel, command: Command, remark: str, outbox: Outbox) -> None:
    """Answer a request that is not served: too many wait, or it has waited too long."""
    refuse(channel, command, answer(command, ResponseCode.SYSTEM_BUSY, remark), outbox)


def refuse(channel: Channel, command: Command, refusal: Parts, outbox: Outbox) -> None:
    """Queue the answer of a request that no processor served, and note it in the log."""
    tell_refused(channel, command, refusal)
    if not command.is_one_way:
        outbox.write(channel, refusal)


def tell_refused(channel: Channel, command: Command, refusal: Parts | None) -> None:
    """Note in the log that a request was answered with no success, and why."""
    if type(refusal) is Refusal:
        log.info(
            "%s request %d is answered %d: %s",
            channel,
            command.code,
            refusal.code,
            refusal.remark,
            extra=event(
                "request_refused", peer=channel.peer, code=command.code, answer=refusal.code, reason=refusal.remark
            ),
        )


def call(processor: Processor, channel: Channel, command: Command, outbox: Outbox) -> Parts | None:
    """Call a processor; what it raises becomes a reply with code 1, in JSON and without fields as Java's are."""
    try:
        return processor(channel, command, outbox)
    except FAULTS as error:
        return failure(channel, command, error)


def failure(channel: Channel, command: Command, error: Exception) -> Refusal:
    """The reply to a request whose processing raised this; what is no mistake of the peer's goes to the log."""
    if isinstance(error, HeaderError):
        remark = str(error)
    else:
        log.error("request %d of %s failed", command.code, channel, exc_info=error)
        remark = f"{type(error).__name__}: {error}"[:REMARK_SIZE_MAX]
    code = ResponseCode.SYSTEM_ERROR
    head = encode_reply_head(command, code, remark=remark, serialisation=Serialisation.JSON)
    return Refusal((head,), code, remark)


NAMES: Final = {code.value: code.name for code in RequestCode}
"""The names of the known codes."""


class RequestCounts(dict[int, int]):
    """Requests by their code; unknown codes, which a client may choose freely, are counted together under -1."""

    def add(self, code: int, count: int = 1) -> None:
        """Count requests; only on the loops' threads, where a count lost in a race does no harm."""
        try:
            self[code] += count
        except KeyError:
            key = code if code in NAMES else -1
            self[key] = self.get(key, 0) + count
