"""Stops real threads at a chosen step point until the test continues them.

So a race runs in one chosen order, without luck or sleep.
"""

from __future__ import annotations

import threading

from model_tests.support.broker.raw_client import PATIENCE_S

from longpoll_runtime.real import RealRuntime


class Gate:
    """Stops the first thread that reaches a step point."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._open = threading.Event()

    def wait_reached(self) -> None:
        """Wait until a thread is stopped at the gate."""
        assert self._reached.wait(PATIENCE_S), "no thread came to the gate"

    def open(self) -> None:
        """Continue the thread."""
        self._open.set()

    def hold(self) -> None:
        """Stop at the gate until it is opened."""
        self._reached.set()
        assert self._open.wait(PATIENCE_S), "nobody opened the gate"


class GatedRuntime(RealRuntime):
    """The real runtime with gates at step points."""

    def __init__(self) -> None:
        super().__init__()
        self._gates: dict[str, Gate] = {}
        self._lock = threading.Lock()

    def gate(self, action: str) -> Gate:
        """Create a gate that stops the next thread at this step point."""
        gate = Gate()
        with self._lock:
            self._gates[action] = gate
        return gate

    def step(self, action: str) -> None:
        """Stop here if there is a gate."""
        with self._lock:
            gate = self._gates.pop(action, None)
        if gate is not None:
            gate.hold()
