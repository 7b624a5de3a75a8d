"""What SPIN and TLC print is read rightly, without either: samples of their own output, whole and cut off."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from longpoll_spec.testing import spin, tlc
from longpoll_spec.testing.tlc import TlcRun, TlcViolation

SPIN_SAID = """\
pan:1: some_held is reached (at depth 3)
pan:2: lost_by_hold is violated by this step (at depth 5)
pan:3: no_lost_wakeup is violated (at depth 6)

State-vector 20 byte, depth reached 21, errors: 3
{states} states, stored
    11672 states, matched
{transitions} transitions (= stored+matched)
    8.586\ttotal actual memory usage
pan: elapsed time 0.01 seconds
"""
TLC_PASSED = """\
Model checking completed. No error has been found.
9178 states generated, 2650 distinct states found, 0 states left on queue.
The depth of the complete state graph search is 21.
"""
TLC_STOPPED = """\
Error: Invariant answered_on_stop is violated.
State 1: <Initial predicate>
/\\ running = TRUE

State 2: <stop line 1, col 1 to line 2, col 2 of module law>
/\\ running = FALSE

90 states generated, 59 distinct states found, 33 states left on queue.
The depth of the complete state graph search is 5.
"""


def _spin(states: str = "     4787", transitions: str = "    16459") -> str:
    return SPIN_SAID.format(states=states, transitions=transitions)


def test_looks_are_no_transitions_and_steps_are_steps() -> None:
    """What SPIN counted for its start and for looks at states is taken off; a deciding step makes a run longer."""
    run = spin._read(_spin(), seconds=1.0, processor_seconds=1.0)

    assert (run.distinct_states, run.transitions, run.depth) == (4787, 16459 - 2 - spin.SPIN_START_TRANSITIONS, 21)
    assert run.violated == {"lost_by_hold": 6, "no_lost_wakeup": 6}
    assert run.reached == {"some_held": 3}


def test_large_counts_are_read_as_spin_rounds_them() -> None:
    """SPIN prints eight digits; a count is compared after the same rounding."""
    run = spin._read(_spin("3.5483607e+07", "2.5310264e+08"), seconds=1.0, processor_seconds=1.0)

    assert run.distinct_states == spin.as_told(35_483_607) == 35_483_607
    assert spin.as_told(253_102_641) == spin.as_told(253_102_639) == 253_102_640
    assert spin.as_told(253_102_646) != spin.as_told(253_102_639)


def test_a_finding_that_was_not_told_is_an_error() -> None:
    """SPIN counts its errors: one that the reader does not understand is not passed over."""
    with pytest.raises(AssertionError, match="more than it told"):
        spin._read(_spin().replace("some_held is reached", "some other thing"), seconds=1.0, processor_seconds=1.0)


@pytest.mark.parametrize("missing", ["stored\n", "transitions (", "depth reached"])
def test_a_run_of_spin_that_was_cut_off_is_no_result(missing: str) -> None:
    """Without its totals a run says nothing."""
    with pytest.raises(RuntimeError, match="did not finish"):
        spin._read(_spin().replace(missing, "?\n"), seconds=1.0, processor_seconds=1.0)


@pytest.mark.parametrize(
    "line",
    ["error: max search depth too small", "pan:1: invalid end state (at depth 3)", "pan: reached -DMEMLIM bound"],
)
def test_other_trouble_of_spin_is_seen(line: str) -> None:
    """A deadlock, a full stack or a full memory is found among the findings."""
    assert spin._TROUBLE.search(_spin()) is None
    assert spin._TROUBLE.search(f"{line}\n{_spin()}") is not None


def test_a_complete_run_of_tlc_is_read() -> None:
    """TLC's initial state is no transition, and its depth counts states."""
    assert tlc._read(TLC_PASSED) == TlcRun(2650, 9177, 20)


def test_a_violation_found_by_tlc_is_read() -> None:
    """The invariant, and the number of steps that lead to its violation."""
    assert tlc._read(TLC_STOPPED) == TlcViolation("answered_on_stop", 1)
    assert tlc._read("Error: Invariant Never_some_idle is violated by the initial state:\n") == TlcViolation(
        "Never_some_idle", 0
    )


@pytest.mark.parametrize(
    "said", ["", "Error: Parsing failed", TLC_PASSED.replace("0 states left", "3 states left"), TLC_PASSED[:60]]
)
def test_a_run_of_tlc_that_was_cut_off_is_no_result(said: str) -> None:
    """Without the word that it completed, or with states left, a run says nothing."""
    with pytest.raises(RuntimeError, match="did not finish"):
        tlc._read(said)


def test_a_configuration_can_be_cut_to_some_invariants() -> None:
    """Everything but the invariants stays, also those that are commented out go."""
    text = "SPECIFICATION Spec\nINVARIANT TypeOK\nCHECK_DEADLOCK FALSE\n\\* INVARIANT Never_x\n"

    assert tlc.only_invariants(text, ["a", "b"]) == (
        "SPECIFICATION Spec\nCHECK_DEADLOCK FALSE\nINVARIANT a\nINVARIANT b\n"
    )


def test_why_a_checker_is_not_tried_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where SPIN, Java or the class path is missing, the reason says what to do."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(tlc.CLASS_PATH, raising=False)

    assert "spin and gcc not found; install" in str(spin.why_no_spin())
    assert f"set {tlc.CLASS_PATH}" in str(tlc.why_no_tlc())
    monkeypatch.setenv(tlc.CLASS_PATH, "tla2tools.jar")
    assert tlc.why_no_tlc() == "java not found"


def test_a_relative_class_path_still_names_its_files() -> None:
    """TLC runs in another directory, so each part of the class path is made absolute."""
    path = tlc._class_path({tlc.CLASS_PATH: os.pathsep.join(["a.jar", "", str(Path("/b.jar"))])})

    assert path.split(os.pathsep) == [str(Path("a.jar").absolute()), "/b.jar"]
