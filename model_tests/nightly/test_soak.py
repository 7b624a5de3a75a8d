"""The soak keeps every promise of our broker, finds what a kill takes, and leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner
from model_tests.nightly import soak
from model_tests.nightly.soak import HOLD_MS_MAX, Soak, real_plan_of
from model_tests.support.broker.brokers import wait_until
from model_tests.support.simulation.plan import LONGEST_MS, InjectedFault, Plan, Pull, Send, Wait, plan_of

from longpoll.output import Exit
from longpoll.verification.broker_process import ServedBroker
from longpoll_spec.policy import STRICT

ROOT: Final = Path(__file__).parents[2]
KILLED = Plan(
    seed=0,
    peers=((Send(9, 3), Wait()), (Pull(9, 300), Wait())),
    mishaps=(InjectedFault(1_500.0, "kill"),),
    io_thread_count=1,
    syncs=False,
    is_fast=True,
    delay_ms_max=0.0,
    is_pieced=False,
)
"""Three messages are acknowledged, and the broker is killed."""


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "real_plan_of", lambda _seed: KILLED)


def test_a_seeds_plan_is_one_that_a_real_machine_can_have() -> None:
    """Kills, stops and cuts at the simulated run's times, and no hold of a minute; the same seed, the same plan."""
    plans = [real_plan_of(seed) for seed in range(200)]

    assert {mishap.kind for plan in plans for mishap in plan.mishaps} == {"kill", "stop", "cut"}
    assert max(act.hold_ms for plan in plans for acts in plan.peers for act in acts if isinstance(act, Pull)) == (
        HOLD_MS_MAX
    )
    assert any(
        act.hold_ms == LONGEST_MS
        for seed in range(200)
        for acts in plan_of(seed).peers
        for act in acts
        if isinstance(act, Pull)
    )
    assert plans[7] == real_plan_of(7)


def test_a_killed_broker_keeps_every_promise_and_nothing_is_left(
    killed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One round with a kill: exit 0, two lives, of which the stopped one is valid; no directory stays."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    runs: list[Soak] = []

    def noted(*words: Any) -> Soak:
        runs.append(Soak(*words))
        return runs[0]

    monkeypatch.setattr(soak, "Soak", noted)
    done = CliRunner().invoke(soak.main, ["--minutes", "0.0001"])

    assert done.exit_code == Exit.OK, done.output
    counts = runs[0].counts
    assert (counts.rounds, counts.mishaps, counts.stored) == (1, {"kill": 1}, 3)
    assert counts.answers >= 3
    assert counts.judged["valid"] >= 1
    assert counts.judged.total() == 2
    assert list(tmp_path.iterdir()) == []


# -- planted faults --------------------------------------------------------------------------------------------------


def lose_the_log(store: Path) -> None:
    """A kill must keep all of this: every record of the log and the queues' units."""
    for file in [*(store / "commitlog").iterdir(), *(store / "consumequeue").rglob("0*")]:
        if file.is_file():
            content = file.read_bytes()[:65_536]
            with file.open("r+b") as opened:
                opened.write(bytes(len(content)))


def flip_a_bit(store: Path) -> None:
    """One byte of the first record's body is another."""
    with min((store / "commitlog").iterdir()).open("r+b") as log:
        content = log.read(4_096)
        place = content.index(b"peer-0-")
        log.seek(place)
        log.write(bytes([content[place] ^ 1]))


@pytest.mark.long
@pytest.mark.parametrize(
    ("damage", "said"),
    [(lose_the_log, "told nothing: reader's pull of queue 9 from 0"), (flip_a_bit, "the store is damaged")],
)
def test_what_a_kill_takes_is_found(
    damage: object, said: str, killed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = ServedBroker.kill

    def kill(self: ServedBroker) -> None:
        honest(self)
        damage(self.store)  # type: ignore[operator] # one of the two

    monkeypatch.setattr(ServedBroker, "kill", kill)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    done = CliRunner().invoke(soak.main, ["--minutes", "0.0001"])

    assert done.exit_code == Exit.VIOLATED, done.output
    assert done.stdout.startswith("broken (seed 0): ")
    assert said in done.stdout
    kept = Path(done.stdout.rpartition("Kept: ")[2].strip())
    assert (kept / "store" / "commitlog").is_dir()
    assert any(kept.glob("history-*"))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_our_broker_is_soaked(tmp_path: Path) -> None:
    with Soak(tmp_path, STRICT, ["--policy=strict"], tmp_path / "store") as running:
        for seed in range(40):
            running.round(seed)
        running.end_life(is_killed=False)

    assert min(running.counts.mishaps[kind] for kind in ("kill", "stop", "cut")) >= 3
    assert running.counts.judged["invalid"] == 0
    assert running.counts.judged["valid"] >= 3


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_broker_and_leaves_nothing(number: int, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "model_tests.nightly.soak", "--minutes", "10"]
    with subprocess.Popen(
        words,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        wait_until(lambda: any(tmp_path.glob("longpoll-soak-*/store/commitlog")))
        process.send_signal(number)
        _out, said = process.communicate(timeout=60)

    assert (process.returncode, "Traceback" in said) == (Exit.UNKNOWN, False), said
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
