"""An injected fault. The faults themselves: `plant`, `plant_more`."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from longpoll_judge.contract.result import Verdict
from longpoll_judge.faults.recording import Recording


@frozen
class Fault:
    """A fault, and the judge's expected finding."""

    sentence: str
    apply: Callable[[Recording], None]
    verdict: Verdict
    properties: frozenset[str]
    """One of them must be named by a finding, and no other."""
    clause: str = ""
    """The clause of the contract that it breaks, and no other; empty where it may break several."""
