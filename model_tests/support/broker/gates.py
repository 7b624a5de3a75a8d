"""Real threads that stop at a scheduling point until the test continues them.

So a race runs in one chosen order. `longpoll_simulation` chooses orders itself.
"""

from __future__ import annotations

import threading

from longpoll_runtime.real import RealRuntime

PATIENCE_S = 10.0


class Gate:
    """Stops the first thread that reaches a step point."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._open = threading.Event()

    def wait_reached(self) -> None:
        """Wait until a thread is at the gate."""
        assert self._reached.wait(PATIENCE_S), "no thread came to the gate"

    def open(self) -> None:
        """Let it go on."""
        self._open.set()

    def hold(self) -> None:
        """Stand at the gate."""
        self._reached.set()
        assert self._open.wait(PATIENCE_S), "nobody opened the gate"


class GatedRuntime(RealRuntime):
    """The real runtime with gates at step points."""

    def __init__(self) -> None:
        super().__init__()
        self._gates: dict[str, Gate] = {}
        self._lock = threading.Lock()

    def gate(self, action: str) -> Gate:
        """Stop the next thread that reaches this step point."""
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
