"""An event loop on a thread, for the client of a service that has asyncio alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Made = TypeVar("Made")


class EventLoop:
    """A running loop; `close` ends its calls, itself and its thread."""

    def __init__(self, name: str, call_s: float) -> None:
        self._call_s = call_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name)
        self._thread.start()

    def do(self, work: Coroutine[Any, Any, Made]) -> Made:
        """The result of a call; raises TimeoutError after `call_s`."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(self._call_s)

    def wait(self, answer: asyncio.Future[Made]) -> Made:
        """The result of a future of this loop, which may take any time."""

        async def awaited() -> Made:
            return await answer

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop).result()

    def close(self) -> None:
        """End each call that still waits, because a closed loop can no longer end it; then the loop."""
        self.do(self._give_up())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _give_up(self) -> None:
        waiting = asyncio.all_tasks() - {asyncio.current_task()}
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
