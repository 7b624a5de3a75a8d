"""A resting reader thread delays no call under any interleaving, and faults that would are detected."""

from __future__ import annotations

from itertools import chain, product
from typing import Any, Final

import pytest
from model_tests.simulate.rest_stress import OneRest, Stage
from model_tests.simulate.seeds import first_fault

from longpoll_client import remoting
from longpoll_client.link.exchange import Callback, Write
from longpoll_client.remoting import RemotingClient
from longpoll_simulation.world import NEVER

SEEDS: Final = 30
"""Runs of a quick test, a second; each injected fault is found in one of the first."""
SEEDS_LONG: Final = 4_000


def test_a_resting_reader_keeps_no_call_waiting() -> None:
    """Each call is answered at once or ends at its timeout, and some began during a rest."""
    stages: list[Stage] = []

    def make(seed: int) -> Stage:
        stages.append(Stage(seed))
        return stages[-1]

    assert first_fault(range(SEEDS), make) is None
    assert sum(stage.gathered_count for stage in stages) > SEEDS


@pytest.mark.long
def test_a_resting_reader_keeps_no_call_waiting_in_many_runs() -> None:
    assert first_fault(range(SEEDS, SEEDS_LONG), Stage) is None


def looks_and_sleeps_apart(self: RemotingClient) -> float | None:
    """Injected fault: check for bytes and the deadline, and count as asleep a little later."""
    with self._lock:
        if self._output.parts and not self._is_full:
            self._send_output()
        left_s = None if self._due_ns is None else max(0.0, (self._due_ns - self._now_ns()) / 1e9)
    with self._lock:
        self._is_awake = False
        return left_s


def calls_without_the_lock(
    self: RemotingClient, code: int, write: Write, callback: Callback, timeout_s: float, *, is_waited_for: bool = False
) -> None:
    """Injected fault: leave the bytes to a reader that looks awake, while it may fall asleep in between."""
    self._begin_now(code, write, callback, timeout_s, is_waited_for)


def sleeps_on(self: RemotingClient) -> float | None:
    """Injected fault: rest after the check instead of before it, so that callers see it awake."""
    left_s = fall_asleep(self)
    self._is_awake = True
    self._runtime.sleep(remoting.GATHER_S)
    with self._lock:
        self._is_awake = False
    return left_s


fall_asleep: Final = RemotingClient._fall_asleep
PLANTED: Final[dict[str, tuple[str, Any]]] = {
    "it looks and falls asleep apart": ("_fall_asleep", looks_and_sleeps_apart),
    "callers take no lock": ("begin", calls_without_the_lock),
}
PLANTED_DEEP: Final[dict[str, tuple[str, Any]]] = {"it rests after the look": ("_fall_asleep", sleeps_on)}


def switched(is_mute: bool, *, twice: bool) -> tuple[int, int] | None:
    """Returns the first switches that delay the call of the smallest run; None if there are none.

    Once: from the reader to the caller before each point between its rest and its sleep, and back before each point of
    a call that begins as the rest ends. Twice: all combinations.
    """
    plain = OneRest(is_mute)
    plain.play()
    away, back = range(1, plain.reader_points + 1), range(1, plain.call_points + 1)
    pairs = (
        product(away, back) if twice else chain(((first, NEVER) for first in away), ((0, second) for second in back))
    )
    for first, second in pairs:
        try:
            OneRest(is_mute, first, second).play()
        except AssertionError:
            return first, second
    return None


@pytest.mark.parametrize("is_mute", [pytest.param(False, marks=pytest.mark.long), True])
def test_no_one_switch_loses_a_wakeup(is_mute: bool) -> None:
    """Every schedule with one switch; the call waits for an answer or its deadline."""
    assert switched(is_mute, twice=False) is None


@pytest.mark.long
@pytest.mark.parametrize("is_mute", [False, True])
def test_no_two_switches_lose_a_wakeup(is_mute: bool) -> None:
    assert switched(is_mute, twice=True) is None


@pytest.mark.parametrize("name", [*PLANTED, *PLANTED_DEEP])
def test_planted_rests_that_lose_a_wakeup_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each by a schedule with one switch, or from a seed if the rest is at another place."""
    monkeypatch.setattr(RemotingClient, *(PLANTED | PLANTED_DEEP)[name])
    if name in PLANTED:
        assert any(switched(is_mute, twice=False) is not None for is_mute in (False, True))
        return
    found = first_fault(range(SEEDS), Stage)
    assert found is not None
    assert isinstance(found[1], AssertionError)
