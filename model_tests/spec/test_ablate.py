"""Each knob of our own policies is there for a reason: what its change breaks, or why it breaks nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from click.testing import CliRunner

from longpoll.cli import main
from longpoll_spec.engines import ablate as engine
from longpoll_spec.engines.ablate import Row, changes_of, row_of
from longpoll_spec.engines.exploration import Verdict
from longpoll_spec.engines.smt.proof import Proof
from longpoll_spec.engines.tokens import replay
from longpoll_spec.policy import REDUNDANT, STRICT, knob_values, preset
from longpoll_spec.testing.traces import breaks_its_property


def test_every_other_value_of_every_knob_is_a_change() -> None:
    """A policy has as many changes as its knobs have other values, each once."""
    changes = list(changes_of(STRICT))

    assert len(changes) == len(set(changes)) == sum(len(values) - 1 for values in knob_values().values())
    assert "expiry=scan" in changes
    assert "expiry=own_deadline" not in changes


@pytest.mark.long
@pytest.mark.parametrize("name", engine.POLICIES)
def test_the_whole_table_is_right(name: str) -> None:
    """Every change breaks something, shown by a run that replays, or is redundant as claimed; nothing is left open."""
    done = CliRunner().invoke(main, ["ablate", "--policy", name, "--json"])
    rows = json.loads(done.stdout)["rows"]

    assert done.exit_code == 0, done.output
    assert [row["knob"] for row in rows] == list(changes_of(preset(name)))
    assert {row["knob"]: row["redundant_because"] for row in rows if not row["violates"]} == {
        knob: why for (policy, knob), why in REDUNDANT.items() if policy == name
    }
    for row in rows:
        assert (row["problem"], row["undecided"]) == (None, [])
        traces = {broken: replay(row["tokens"][broken]) for broken in row["violates"]}
        assert all(trace.property_name == broken for broken, trace in traces.items())
        assert all(breaks_its_property(trace) for trace in traces.values())
        assert min((trace.depth for trace in traces.values()), default=None) == row["depth"]


def test_every_claim_is_about_a_change_that_exists() -> None:
    """No reason is kept for a policy or a setting that is not tried."""
    assert set(REDUNDANT) <= {(name, change) for name in engine.POLICIES for change in changes_of(preset(name))}


@pytest.mark.parametrize(
    ("setting", "claims", "words"),
    [
        (
            "recheck_after_hold=none",
            {("strict", "recheck_after_hold=none"): "It is fast enough."},
            "breaks no_lost_wakeup",
        ),
        pytest.param("recheck_after_keep=true", {}, "no reason", marks=pytest.mark.long),
    ],
)
def test_a_wrong_or_missing_reason_is_red(
    monkeypatch: pytest.MonkeyPatch, setting: str, claims: Mapping[tuple[str, str], str], words: str
) -> None:
    """A claim that a needed knob is redundant, and a redundancy without a claim, are told, with exit 1."""
    row = row_of(STRICT, setting, claims=claims, requests=2)
    monkeypatch.setattr(engine, "ablate", lambda *_names, **_options: [row])
    done = CliRunner().invoke(main, ["ablate", "--policy", "strict"])

    assert row.redundant_because is None
    assert row.problem is not None
    assert words in row.problem
    assert done.exit_code == 1
    assert words in " ".join(done.output.split())


@pytest.mark.long
def test_what_is_not_proved_is_not_redundant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no run breaks a property and the proof fails, the change is undecided, whatever is claimed: exit 3."""
    monkeypatch.setattr(Proof, "verdict", lambda _proof, name: "unknown" if name == "answered_once" else "proved")
    row = row_of(STRICT, "empty_shortcut=false", requests=2)
    monkeypatch.setattr(engine, "ablate", lambda *_names, **_options: [row])
    done = CliRunner().invoke(main, ["ablate", "--policy", "strict"])

    assert row.undecided == ("answered_once",)
    assert row.redundant_because is None
    assert done.exit_code == 3
    assert "undecided: answered_once" in done.output


def test_the_depth_of_a_row_is_its_shortest_run() -> None:
    """A row's depth is that of the shortest of its runs, and none where nothing breaks."""
    runs = tuple(Verdict(name, "always", "violated", depth, "lp1.x") for name, depth in (("a", 7), ("b", 4)))

    assert Row("strict", "x=y", runs).depth == 4
    assert Row("strict", "x=y", ()).depth is None


@pytest.mark.parametrize("name", ["rocketmq-4.9", "stricter"])
def test_only_our_own_policies_are_ablated(name: str) -> None:
    """Another broker's policy, and one that does not exist, are the user's mistake: one line and exit 2."""
    done = CliRunner().invoke(main, ["ablate", "--policy", name])

    assert done.exit_code == 2
    assert name in done.stderr
    assert len(done.stderr.splitlines()) == 1
