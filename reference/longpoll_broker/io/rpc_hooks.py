"""Lets somebody else's code see every request before its processor does, and every answer before it leaves.

A processor that answers None has no answer yet: the pull is held, or the send waits for its disk. The hooks hear of
that at once, and the later answer passes none of them, as in RocketMQ (upstream issue #7890). A refusal from before
the processor (an unknown code, a full pool, a wrong signature, a slave of 5.x) is not a processor's and has no hooks.

Without hooks nothing here is called. Leaves out changing an answer, which Java's hooks may do.

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
    """A hook ends a request: its answer is `code` and the text."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code


class RpcHook(Protocol):
    """What is told of requests, on the thread that serves them; several of those may call it at once.

    Both methods may raise `RequestAbortedError` to answer otherwise. Any other error that a request can be answered for
    becomes code 1.
    """

    def before_request(self, peer: str, request: Command) -> None:
        """A request of `peer` (`HOST:PORT`) is about to be served."""
        ...

    def after_response(self, peer: str, request: Command, response: Command | None) -> None:
        """It was served; None when it has no answer yet, and then raising changes nothing."""
        ...


def with_hooks(processors: Mapping[int, Processor], hooks: Sequence[RpcHook]) -> dict[int, Processor]:
    """The processors with the hooks around each, in the order given; the same processors when there are none."""
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
    """Say that there is no answer yet; a hook that fails must not cause a second one."""
    for hook in hooks:
        try:
            hook.after_response(channel.peer, command, None)
        except FAULTS:
            log.exception("a hook failed after request %d of %s, which is answered later", command.code, channel)


def _as_command(parts: Parts) -> Command:
    """An answer as its client reads it."""
    connection = Connection()
    connection.receive_data(b"".join(parts))
    response = connection.next_event()
    assert isinstance(response, Command)
    return response
