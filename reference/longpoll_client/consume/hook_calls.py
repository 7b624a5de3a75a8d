"""Calls a consumer's hooks. A hook that raises is logged."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence

from longpoll_client.messages import ReceivedMessage
from longpoll_client.settings import MemberConfig
from longpoll_runtime import Runtime
from longpoll_runtime.recoverable import KeepGoing

log: logging.Logger = logging.getLogger(__name__)


class HookCalls:
    """Calls the hooks of a consumer, on threads or on an event loop."""

    def __init__(self, runtime: Runtime, config: MemberConfig) -> None:
        self._runtime = runtime
        self._config = config
        self._first = f"{runtime.unix_ms():X}{runtime.monotonic_ns():X}-"
        self._number = itertools.count(1)

    def begin(self, messages: Sequence[ReceivedMessage]) -> str:
        """Before a listener call; the id of the call."""
        delivery = f"{self._first}{next(self._number)}"
        for hook in self._config.hooks:
            with KeepGoing(log, "a hook before a listener failed"):
                hook.before_consume(self._config.group, delivery, messages)
        return delivery

    def ended(
        self,
        delivery: str,
        messages: Sequence[ReceivedMessage],
        error: Exception | None,
        *,
        is_consumed: bool,
        latency_ns: int,
    ) -> None:
        """After a listener call."""
        for hook in self._config.hooks:
            with KeepGoing(log, "a hook after a listener failed"):
                hook.after_consume(
                    self._config.group, delivery, messages, error, is_consumed=is_consumed, latency_s=latency_ns / 1e9
                )

    def received(self, messages: Sequence[ReceivedMessage], latency_ns: int) -> None:
        """After a poll that returns messages."""
        if not self._config.hooks:
            return
        begun_s = self._runtime.unix_ms() / 1000 - latency_ns / 1e9
        for hook in self._config.hooks:
            if hasattr(hook, "after_receive"):
                with KeepGoing(log, "a hook after a poll failed"):
                    hook.after_receive(self._config.group, messages, begun_s, latency_ns / 1e9)
