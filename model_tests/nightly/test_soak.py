"""The soak finds no broken promise of our broker, finds data lost in a kill, and leaves nothing behind."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from model_tests.nightly import soak
from model_tests.nightly.soak import HOLD_MS_MAX, BrokenPromiseError, Soak, real_plan_of
from model_tests.support.simulation.plan import LONGEST_MS, InjectedFault, Plan, Pull, Send, Wait, plan_of

from longpoll.verification.broker_process import ServedBroker
from longpoll_spec.policy import STRICT

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


def test_the_plan_of_a_seed_is_possible_on_a_real_machine() -> None:
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


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Soak]:
    monkeypatch.setattr(soak, "real_plan_of", lambda _seed: KILLED)
    with Soak(tmp_path, STRICT, ["--policy=strict"], tmp_path / "store") as found:
        yield found


def test_a_killed_broker_keeps_every_promise(running: Soak, tmp_path: Path) -> None:
    """The broker process after the kill stops cleanly and has a valid history, and the soak deletes the histories."""
    running.round(0)
    running.end_life(is_killed=False)
    counts = running.counts
    assert (counts.rounds, counts.mishaps, counts.stored) == (1, {"kill": 1}, 3)
    assert counts.answers >= 3
    assert counts.judged["valid"] >= 1
    assert counts.judged.total() == 2
    assert list(tmp_path.iterdir()) == [tmp_path / "store"]


# -- injected faults -------------------------------------------------------------------------------------------------


def lose_the_log(store: Path) -> None:
    """Remove records of the log and units of the queues, all of which must survive a kill."""
    for file in [*(store / "commitlog").iterdir(), *(store / "consumequeue").rglob("0*")]:
        if file.is_file():
            content = file.read_bytes()[:65_536]
            with file.open("r+b") as opened:
                opened.write(bytes(len(content)))


def flip_a_bit(store: Path) -> None:
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
def test_data_lost_in_a_kill_is_found(
    damage: Callable[[Path], None], said: str, running: Soak, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = ServedBroker.kill

    def kill(self: ServedBroker) -> None:
        honest(self)
        damage(self.store)

    monkeypatch.setattr(ServedBroker, "kill", kill)
    with pytest.raises(BrokenPromiseError, match=said):
        running.round(0)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_our_broker_passes_the_soak(tmp_path: Path) -> None:
    first = 1_000 * int(os.environ.get("LONGPOLL_SEED", "0"))
    with Soak(tmp_path, STRICT, ["--policy=strict"], tmp_path / "store") as running:
        for seed in range(first, first + 100):
            running.round(seed)
        running.end_life(is_killed=False)

    assert min(running.counts.mishaps[kind] for kind in ("kill", "stop", "cut")) >= 3
    assert running.counts.judged["invalid"] == 0
    assert running.counts.judged["valid"] >= 3
    assert not running.counts.unknown_stopped
