"""Hooks: user code that sees every request before its processor and every answer before it is sent.

A processor returns None if the answer follows later: a held pull, or a send that waits for the disk. Hooks see that
None at once and do not see the later answer, as in RocketMQ (upstream issue #7890). A refusal before the processor has
no hooks: an unknown code, a full pool, a wrong signature, a slave of 5.x. Unlike Java's, hooks cannot change an answer.

Sources: `RPCHook.java`, `NettyRemotingAbstract.processRequestCommand`, `AbortProcessException.java` 5.x.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from longpoll_broker.errors import BrokerError
from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import Processor, answer
from longpoll_protocol.frames.command import Command
from longpoll_protocol.frames.connection import Connection
from longpoll_runtime.recoverable import FAULTS

log = logging.getLogger(__name__)


class RequestAbortedError(BrokerError):
    """Raised by a hook to answer a request with `code` and the text."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code


class RpcHook(Protocol):
    """A hook. Called on the threads that serve requests, several at once.

    Both methods may raise `RequestAbortedError` to replace the answer. Any other error becomes code 1.
    """

    def before_request(self, peer: str, request: Command) -> None:
        """A request of `peer` (`HOST:PORT`) is about to be served."""
        ...

    def after_response(self, peer: str, request: Command, response: Command | None) -> None:
        """The request was served. `response` is None if the answer follows later; then errors have no effect."""
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
    """Report to the hooks that the answer follows later; log their errors, to avoid a second answer."""
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
