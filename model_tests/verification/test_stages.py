"""Each stage of `longpoll verify` turns red on a planted fault, and is green without one."""

from __future__ import annotations

import re
import sys
import tarfile
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path

import attrs
import pytest

from longpoll.verification import broker, history, law, store
from longpoll.verification.declared import limits_of
from longpoll.verification.served import ServedBroker, ServeError
from longpoll_broker.testing import load
from longpoll_broker.testing.load import LoadPlan
from longpoll_client.messages import decode_messages
from longpoll_judge.testing import plant as planting
from longpoll_judge.testing.generate import Load, simulate, simulated_meta, write
from longpoll_runtime.real import RealRuntime
from longpoll_spec.engines.exploration import Exploration
from longpoll_spec.engines.packed import search as packed_engine
from longpoll_spec.model import Model, Property
from longpoll_spec.policy import PRESETS, STRICT, with_knob

LIMITS = limits_of(0, wake_ms=None, late_ms=None)


def test_races_are_found() -> None:
    """The three hazards of RocketMQ 4.9 each give a row with a token."""
    rows = law.races_are_found()

    assert [row.outcome for row in rows] == ["ok"] * len(law.HAZARDS)
    assert all(row.token for row in rows)


def test_a_law_without_the_races_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were 4.9 modelled as our own design, its known races would be missed, and the rows say so."""
    monkeypatch.setitem(PRESETS, "rocketmq-4.9", attrs.evolve(STRICT, name="rocketmq-4.9"))

    assert {row.outcome for row in law.races_are_found()} == {"violated"}


@pytest.mark.long
def test_a_broken_own_policy_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own policy without its recheck is refuted by exploration and by proof, each with a counterexample."""
    broken = with_knob(STRICT, "recheck_after_hold=none")
    monkeypatch.setattr(law, "preset", lambda _name: broken)
    monkeypatch.setattr(law, "PROOF_REQUESTS", 2)
    rows = [*law.ours_holds(), *law.ours_is_proved()]

    assert {row.outcome for row in rows} == {"violated"}
    assert all(row.token for row in rows)
    assert len(law.charts(rows)) == len(rows)


@pytest.mark.long
def test_engines_that_differ_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A packed engine that loses a state is seen."""
    honest = packed_engine.explore

    def lossy(model: Model, properties: Sequence[Property]) -> Exploration:
        found = honest(model, properties)
        return attrs.evolve(found, distinct_states=found.distinct_states - 1)

    assert law.engines_agree()[0].outcome == "ok"
    monkeypatch.setattr(packed_engine, "explore", lossy)
    assert law.engines_agree()[0].outcome == "violated"


def test_java_store_is_read_and_damage_is_seen(tmp_path: Path) -> None:
    """The Java broker's store is sound; with one byte of a body flipped it is not, and the place is named."""
    assert store.java_store_is_read()[0].outcome == "ok"

    with as_file(files("longpoll.verification") / store.JAVA_STORE) as archive, tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    log = min((tmp_path / "store" / "commitlog").iterdir())
    content = bytearray(log.read_bytes())
    content[100] ^= 0xFF
    log.write_bytes(content)
    row = store.store_row("damaged", tmp_path / "store")

    assert row.outcome == "violated"
    assert log.name in row.detail


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A valid history that is long enough for every fault."""
    directory = tmp_path_factory.mktemp("recorded") / "history"
    write(directory, simulate(Load(events=5_000)), simulated_meta())
    return directory


def test_planted_faults_are_found(recorded: Path, tmp_path: Path) -> None:
    """Every planted fault is named."""
    assert history.faults_are_found(recorded, LIMITS, tmp_path)[0].outcome == "ok"


def test_wide_limits_do_not_hide_planted_faults(recorded: Path, tmp_path: Path) -> None:
    """On a machine so busy that half a second is no lateness the faults are still found, by narrower limits."""
    wide = limits_of(1_000, wake_ms=None, late_ms=None)

    assert history.faults_are_found(recorded, wide, tmp_path)[0].outcome == "ok"


def test_a_fault_that_is_not_found_is_a_failure(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were a fault planted that leaves the history as it was, the row would say that it was missed."""
    harmless = attrs.evolve(planting.FAULTS["next_wrong"], apply=lambda _recording: None)
    monkeypatch.setitem(planting.FAULTS, "next_wrong", harmless)
    row = history.faults_are_found(recorded, LIMITS, tmp_path)[0]

    assert row.outcome == "violated"
    assert "next_wrong" in row.detail


def test_load_notices_a_lost_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that forgets one message shows in the load's row."""
    honest = decode_messages
    monkeypatch.setattr(broker, "LoadPlan", lambda topic: LoadPlan(topic, message_count=60, queue_count=2))
    with ServedBroker(tmp_path / "store", None) as served:
        assert broker.load(RealRuntime(), served.address, "T_whole", lambda _done, _all: None)[0].outcome == "ok"
        monkeypatch.setattr(load, "STALL_S", 2.0)
        monkeypatch.setattr(load, "decode_messages", lambda body: honest(body)[:-1])
        row = broker.load(RealRuntime(), served.address, "T_lossy", lambda _done, _all: None)[0]

    assert row.outcome == "violated"
    assert re.search(r"\d+ of \d+ delivered|nothing was delivered", row.detail)


def test_a_broker_that_does_not_start_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ends without its ready line is an error for the user, and no process is left."""
    monkeypatch.setattr(sys, "executable", "/bin/true")

    with pytest.raises(ServeError, match="was not ready"):
        ServedBroker(tmp_path / "store", None)
