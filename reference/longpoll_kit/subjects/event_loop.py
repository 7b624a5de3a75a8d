"""An event loop on its own thread, for services whose client library supports only asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Made = TypeVar("Made")


class EventLoop:
    """A running event loop with its own thread."""

    def __init__(self, name: str, call_s: float) -> None:
        self._call_s = call_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name)
        self._thread.start()

    def do(self, work: Coroutine[Any, Any, Made]) -> Made:
        """Run a coroutine and return its result. Raises TimeoutError after `call_s`."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(self._call_s)

    def wait(self, answer: asyncio.Future[Made]) -> Made:
        """Wait without a time limit for the result of a future of this loop."""

        async def awaited() -> Made:
            return await answer

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop).result()

    def close(self) -> None:
        """Cancel all pending calls, which a closed loop would never complete, then end the loop and its thread."""
        self.do(self._give_up())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _give_up(self) -> None:
        waiting = asyncio.all_tasks() - {asyncio.current_task()}
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
