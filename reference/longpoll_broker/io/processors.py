"""The interface of request processors, their replies, request counts, and hooks around requests.

A processor takes (channel, command, outbox). The processor returns the buffers of its reply, or None if the reply
follows later (a held pull). Which processor serves which code: see `handler`.

A hook sees every request before its processor and every answer before it is sent. If the answer follows later, the hook
gets None at once and never sees that answer, as in RocketMQ (upstream issue #7890). Hooks do not run if a request is
refused before it reaches a processor: because its code is unknown, the pool is full, the signature is wrong, or the
broker is a 5.x slave. Unlike in RocketMQ, hooks cannot change an answer.

Sources: `RPCHook.java`, `NettyRemotingAbstract.processRequestCommand`, `AbortProcessException.java` 5.x.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial, wraps
from inspect import isgeneratorfunction
from typing import ClassVar, Final, Protocol, Self, TypeAlias, TypeVar, cast

from longpoll_broker.errors import BrokerError
from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_protocol.codes import CommandFlag, RequestCode, ResponseCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames import EMPTY, Buffer, Command, Connection, Serialisation, encode_reply_head
from longpoll_protocol.sizes import MIB
from longpoll_runtime.logs import event
from longpoll_runtime.recoverable import FAULTS

log = logging.getLogger(__name__)

_RESPONSE: Final = CommandFlag.RESPONSE.value
_ONE_WAY: Final = CommandFlag.ONE_WAY.value

REMARK_SIZE_MAX: Final = 2_000
"""Maximum characters of an exception's text in a remark, because the text may repeat the whole request."""
ANSWER_SIZE_MAX: Final = 15 * MIB
"""Maximum bytes of an answer's body, because a client accepts frames of at most 16 MiB."""
OVERLOAD: Final = "[OVERLOAD]system busy, try again later"
TOO_LATE: Final = "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while"
"""The remark in the answer to a request that waited too long in a queue, in RocketMQ's words."""

Turns: TypeAlias = Generator[None, None, Parts | None]
"""A generator that works on a long request. It yields to let the I/O loop serve other connections, and returns the
answer, or None if the answer follows later."""
Processor = Callable[[Channel, Command, Outbox], Parts | None]
Method = TypeVar("Method", bound=Callable[..., Parts | Turns | None])
_CODES: Final = "_codes"
"""The attribute of a method that contains the request codes that the method serves."""


def serves(*codes: int) -> Callable[[Method], Method]:
    """Mark a method of a `Serving` as the processor of these codes; a generator may work in steps (`in_turns`)."""

    def mark(method: Method) -> Method:
        made = cast("Method", _in_turns(method) if isgeneratorfunction(method) else method)
        setattr(made, _CODES, codes)
        return made

    return mark


def _in_turns(method: Callable[..., Turns]) -> Callable[..., Parts | None]:
    @wraps(method)
    def process(service: object, channel: Channel, command: Command, outbox: Outbox) -> Parts | None:
        return in_turns(channel, command, method(service, channel, command, outbox))

    return process


class Serving:
    """Base class of services. The methods that are marked by `serves`, also in subclasses, are the processors.

    Invariant: each code has at most one method.
    """

    __slots__ = ()
    _served: ClassVar[Mapping[int, str]] = {}
    """Method names by code."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        served = dict(cls._served)
        for name, method in vars(cls).items():
            for code in getattr(method, _CODES, ()):
                assert served.setdefault(code, name) == name, f"{cls.__name__} serves {code} twice"
        cls._served = served

    @property
    def processors(self) -> dict[int, Processor]:
        """Returns the bound methods by code."""
        return {code: getattr(self, name) for code, name in self._served.items()}


class Refusal(tuple[Buffer, ...]):  # noqa: SLOT001 - what is as long as a tuple cannot have slots
    """The buffers of a reply that reports a failure, with its code and text for the log."""

    code: int
    remark: str | None

    def __new__(cls, parts: Iterable[Buffer], code: int, remark: str | None) -> Self:
        """Create a refusal from the reply's buffers, code and text."""
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
    """Returns the reply to a command, or code 1 if the body does not fit in a frame that clients accept."""
    if len(body) > ANSWER_SIZE_MAX:
        told = f"the answer has {len(body)} bytes, over the limit of {ANSWER_SIZE_MAX}: ask for less at a time"
        code, remark, fields, body = ResponseCode.SYSTEM_ERROR, told, None, EMPTY
    head = encode_reply_head(command, code, remark=remark, ext_fields=fields, body_size=len(body))
    if code != ResponseCode.SUCCESS:
        return Refusal((head, body) if len(body) else (head,), code, remark)
    return (head, body) if len(body) else (head,)


def serve(processors: Mapping[int, Processor], channel: Channel, command: Command, outbox: Outbox) -> None:
    """Process a command and queue the reply. An error becomes code 1 and affects no other request."""
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
        log_refused(channel, command, parts)
    if parts is not None and not flag & _ONE_WAY:
        outbox.write(channel, parts)


def in_turns(channel: Channel, command: Command, turns: Turns) -> Parts | None:
    """Run a long request's generator to its next yield; returns the answer, or None if work is left."""
    try:
        next(turns)
    except StopIteration as ended:
        parts: Parts | None = ended.value
        return parts
    channel.rest, channel.rest_size = partial(_go_on, channel, command, turns), len(command.body)
    channel.gives_way = True
    return None


def _go_on(channel: Channel, command: Command, turns: Turns, outbox: Outbox) -> None:
    try:
        parts = in_turns(channel, command, turns)
    except FAULTS as error:
        parts = failure(channel, command, error)
    if parts is not None:
        refuse(channel, command, parts, outbox)


def answer_busy(channel: Channel, command: Command, remark: str, outbox: Outbox) -> None:
    """Answer SYSTEM_BUSY to a request that waited too long or found the queue full."""
    refuse(channel, command, answer(command, ResponseCode.SYSTEM_BUSY, remark), outbox)


def refuse(channel: Channel, command: Command, refusal: Parts, outbox: Outbox) -> None:
    """Queue and log the answer to a request that did not reach a processor."""
    log_refused(channel, command, refusal)
    if not command.is_one_way:
        outbox.write(channel, refusal)


def log_refused(channel: Channel, command: Command, refusal: Parts | None) -> None:
    """Log the code and text of a reply that reports a failure; does nothing for any other reply."""
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
    """Call a processor; an error becomes a reply with code 1, in JSON and without fields, as in RocketMQ."""
    try:
        return processor(channel, command, outbox)
    except FAULTS as error:
        return failure(channel, command, error)


def failure(channel: Channel, command: Command, error: Exception) -> Refusal:
    """Returns the reply for an error, and logs the error unless the peer caused it."""
    if isinstance(error, HeaderError):
        remark = str(error)
    else:
        log.error("request %d of %s failed", command.code, channel, exc_info=error)
        remark = f"{type(error).__name__}: {error}"[:REMARK_SIZE_MAX]
    code = ResponseCode.SYSTEM_ERROR
    head = encode_reply_head(command, code, remark=remark, serialisation=Serialisation.JSON)
    return Refusal((head,), code, remark)


NAMES: Final = {code.value: code.name for code in RequestCode}
"""Names of the known codes."""


class RequestCounts(dict[int, int]):
    """Number of requests by code; unknown codes are counted together under -1."""

    def add(self, code: int, count: int = 1) -> None:
        """Count requests. This method is called on loop threads only; losing a count in a race is acceptable."""
        try:
            self[code] += count
        except KeyError:
            key = code if code in NAMES else -1
            self[key] = self.get(key, 0) + count


class RequestAbortedError(BrokerError):
    """Raised by a hook to answer a request with `code` and the error's text."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code


class RpcHook(Protocol):
    """A hook around requests. Several threads that serve requests may call it at the same time.

    A hook may raise `RequestAbortedError` to replace the answer. Any other error becomes code 1.
    """

    def before_request(self, peer: str, request: Command) -> None:
        """Called before a request of `peer` (`HOST:PORT`) is served."""
        ...

    def after_response(self, peer: str, request: Command, response: Command | None) -> None:
        """Called after the request was served.

        If the answer follows later, `response` is None and an error that the hook raises is only logged.
        """
        ...


def with_hooks(processors: Mapping[int, Processor], hooks: Sequence[RpcHook]) -> dict[int, Processor]:
    """Wrap each processor with the hooks, in order; without hooks, returns the processors unchanged."""
    if not hooks:
        return dict(processors)
    return {code: _around(processor, tuple(hooks)) for code, processor in processors.items()}


def _around(processor: Processor, hooks: tuple[RpcHook, ...]) -> Processor:
    def process(channel: Channel, command: Command, outbox: Outbox) -> Parts | None:
        try:
            for hook in hooks:
                hook.before_request(channel.peer, command)
            parts = processor(channel, command, outbox)
            if parts is not None:
                response = _as_command(parts)
                for hook in hooks:
                    hook.after_response(channel.peer, command, response)
                return parts
        except RequestAbortedError as error:
            return answer(command, error.code, str(error))
        _tell_held(hooks, channel, command)
        return None

    return process


def _tell_held(hooks: tuple[RpcHook, ...], channel: Channel, command: Command) -> None:
    """Call the hooks with a response of None, because the answer follows later.

    Errors of the hooks are logged instead of raised, because raising would answer the request twice.
    """
    for hook in hooks:
        try:
            hook.after_response(channel.peer, command, None)
        except FAULTS:
            log.exception("a hook failed after request %d of %s, which is answered later", command.code, channel)


def _as_command(parts: Parts) -> Command:
    connection = Connection()
    connection.receive_data(b"".join(parts))
    response = connection.next_event()
    assert isinstance(response, Command)
    return response
