"""Other ways to write a hold table, and further slips: what is right passes, and each slip is found by its property."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from longpoll_dojo.explore import Bounds, Search, replayed
from longpoll_dojo.model import Allowances, steps_of, token_of
from longpoll_dojo.program import Program
from longpoll_dojo.starters import starters

RIGHT = next(starters("python")).source
SCAN = "        self.held = [pull for pull in self.held if not self.look(pull)]\n        yield from ()\n"
KEEP = """        taken, self.held = self.held, []
        kept = [pull for pull in taken if not self.look(pull)]
        yield "between_take_and_keep"
        self.held += [pull for pull in kept if pull["connection"] not in self.closed]
"""
RECHECK = """        yield "between_keep_and_recheck"
        for pull in kept:
            self.wake(pull["queue"])
"""
FIRST = "        while self.held and self.look(self.held[0]):\n            self.held.pop(0)\n        yield from ()\n"
LISTED = '[pull["offset"] :]'
DUE = 'self.now_ms < pull["deadline_ms"]'
RENEWED = 'self.wake(message["queue"])'
SLIPS = {
    "a notifier that keeps what it took, and does not look again": (SCAN, KEEP, "no_lost_wakeup"),
    "a queue of deadlines of which only the first is looked at": (SCAN, FIRST, "answered_by_deadline"),
    "a deadline that must have passed": (DUE, 'self.now_ms <= pull["deadline_ms"]', "answered_by_deadline"),
    "an offset that is passed over": (LISTED, "", "answer_is_right"),
    "a deadline that is renewed by every wake": (
        RENEWED,
        RENEWED + '\n        for pull in self.held:\n            pull["deadline_ms"] = self.now_ms + pull["wait_ms"]',
        "answered_by_deadline",
    ),
    "an offset that is counted from the queue's end": (
        '"offset_next": pull["offset"] + len(messages)',
        '"offset_next": len(self.logs.get(pull["queue"], [])) + (not messages)',
        "offset_goes_on",
    ),
}

APPEND = '        self.logs.setdefault(message["queue"], []).append(message["message"])\n'
SAYS = '"messages": messages,'
EXTREMES = {
    "a wait of 1 ms that never ends": (DUE, f'({DUE} or pull["wait_ms"] == 1)', "answered_by_deadline", 1),
    "a wait of an hour that is none": (DUE, f'{DUE} and pull["wait_ms"] < 1_000_000', "not_answered_early", 1),
    "room for 128 messages": (APPEND, f'        if message["offset"] < 128:\n    {APPEND}', "no_lost_wakeup", 132),
    "an answer of at most 10,000 letters": (
        SAYS,
        '"messages": messages[: 10_000 // max(map(len, messages), default=1)],',
        "offset_goes_on",
        26,
    ),
}
"""The old line, the new one, the property, and how many moves show it at most, without those of `go`."""
SHORT = Bounds(moves=2, interleaved=1)


def searched(source: str, directory: Path, bounds: Bounds) -> Search:
    """The dojo's result for a program."""
    (directory / "program.py").write_text(source)
    search = Search(bounds, Allowances())
    search.run(lambda: Program([sys.executable, "-S", str(directory / "program.py")]), seed=None, seconds=0)
    return search


@pytest.mark.parametrize("name", SLIPS)
def test_a_slip_is_found(name: str, tmp_path: Path) -> None:
    """Of each the same program without it is right."""
    old, new, prop = SLIPS[name]
    assert RIGHT.count(old) == 1
    search = searched(RIGHT.replace(old, new), tmp_path, Bounds())

    assert search.finding is not None
    assert search.finding.violation.property == prop


@pytest.mark.parametrize("name", EXTREMES)
def test_an_extreme_is_found_by_the_fewest_moves(name: str, tmp_path: Path) -> None:
    """By default, also where no short order shows it."""
    old, new, prop, moves_max = EXTREMES[name]
    assert RIGHT.count(old) == 1
    search = searched(RIGHT.replace(old, new), tmp_path, SHORT)

    assert search.finding is not None
    assert search.finding.violation.property == prop
    assert sum(move.kind != "go" for move in search.finding.played.moves) <= moves_max
    assert len(str(search.finding.violation)) < 1_000
    again = Search(SHORT, Allowances())
    program = [sys.executable, "-S", str(tmp_path / "program.py")]
    moves = steps_of(token_of(search.finding.played.moves))
    found = replayed(moves, lambda: Program(program), Allowances(), again)
    assert found is not None
    assert found.violation.property == prop


def test_a_notifier_that_looks_again_after_it_kept_is_right(tmp_path: Path) -> None:
    """The pulls that it had taken were in no table meanwhile, and none was late."""
    search = searched(RIGHT.replace(SCAN, KEEP + RECHECK), tmp_path, Bounds(moves=3, interleaved=2))

    assert search.finding is None
    assert search.step_points["between_keep_and_recheck"] > 100
