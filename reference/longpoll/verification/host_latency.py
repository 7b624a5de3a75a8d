"""Measures how long the broker on this host needs for a request that it can answer at once.

During a load, another connection repeats a small request. The limits of other answers include its slowest time and the
delay of this process, because a thread that waits for a processor is not at fault. `.declared` uses the result.
"""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

from longpoll_client.errors import ClientError
from longpoll_client.remoting import RemotingClient
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.headers import GetMaxOffsetRequestHeader
from longpoll_runtime import Runtime

PERIOD_S: Final = 0.02
TIMEOUT_S: Final = 10.0
"""A broker that is silent for longer is not busy; the judge decides on its missing answers."""


class HostLatency:
    """Sends requests until the end of its block. Invariant: all but `_ended` belongs to its thread until then."""

    def __init__(self, runtime: Runtime, address: tuple[str, int], topic: str) -> None:
        """Start to ask for the end of a queue of `topic`, whether or not it exists: any answer counts."""
        self.worst_ms = 0.0
        """The longest round trip plus the longest delay of this process."""
        self.rounds = 0
        self._runtime = runtime
        self._client = _connected(runtime, address)
        self._header = GetMaxOffsetRequestHeader(topic=topic, queue_id=0)
        self._ended = runtime.event()
        self._thread = runtime.spawn("echo", self._ask)

    def _ask(self) -> None:
        if self._client is None:
            return
        try:
            late_ns = 0
            while not self._ended.is_set():
                begun_ns = self._runtime.monotonic_ns()
                self._client.call(RequestCode.GET_MAX_OFFSET, self._header, timeout_s=TIMEOUT_S)
                answered_ns = self._runtime.monotonic_ns()
                self.worst_ms = max(self.worst_ms, (answered_ns - begun_ns + late_ns) / 1e6)
                self.rounds += 1
                self._ended.wait(PERIOD_S)
                late_ns = max(0, self._runtime.monotonic_ns() - answered_ns - round(PERIOD_S * 1e9))
        except ClientError:
            return  # what was measured counts; a stage that needs the answer reports that there is none

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._client is not None:
            self._client.close()
        self._thread.join()


def _connected(runtime: Runtime, address: tuple[str, int]) -> RemotingClient | None:
    """A connection; None if the broker accepts none."""
    try:
        return RemotingClient(runtime, *address)
    except ClientError:
        return None
