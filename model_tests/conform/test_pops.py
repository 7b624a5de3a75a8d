"""The clauses of pops: each fault of a small broker fails its clause, and a correct broker fails none."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner
from model_tests.conform.pop_broker import FLAWS, Flaw, PopBroker
from model_tests.conform.relay import Latency
from model_tests.support.ports import closed_port

from longpoll.cli import main
from longpoll_conform import pops
from longpoll_conform.clauses import BY_ID, POPS
from longpoll_conform.connection import TOO_SLOW, Echo
from longpoll_conform.holds import Crowd
from longpoll_conform.play import Place
from longpoll_conform.pops import Times
from longpoll_conform.suite import Result

PAGE: Final = Path(__file__).parents[2] / "docs" / "pop.md"
CORRECT: Final = {"correct": ("", Flaw())}
LONGER: Final = {"holds at most ten seconds": ("POP-3", Flaw(hold=lambda hold_s: min(hold_s, 10.0)))}
SHORT: Final = Times(hidden_ms=2_000, longer_ms=3_500, again_ms=1_000)
SMALL: Final = Crowd(rounds=1, wakes=8, deadlines=40, spread_ms=1_500, at_limit=60)
QUICK: Final = tuple(name for name in POPS if not name.endswith("-15000"))


@pytest.fixture(scope="module")
def seen() -> Mapping[str, list[Result]]:
    flaws = {**FLAWS, **CORRECT}

    def see(name: str) -> list[Result]:
        clause, flaw = flaws[name]
        vectors = BY_ID[clause].vectors if clause else POPS
        wanted = [each for each in vectors if each in QUICK] or vectors
        with PopBroker(flaw, room=40) as broker, closing(Echo(broker.address)) as echo:
            # A measured latency would extend the limits and hide a fault on a busy machine, so the latency is set to 0.
            latency = Latency(0.0) if clause else echo
            return pops.see(Place(broker.address, broker.address), "x", wanted, latency, times=SHORT, crowd=SMALL)

    with ThreadPoolExecutor(len(flaws)) as pool:
        return dict(zip(flaws, pool.map(see, flaws), strict=True))


@pytest.mark.xdist_group("pops")
@pytest.mark.parametrize("name", FLAWS)
def test_a_fault_fails_its_clause(name: str, seen: Mapping[str, list[Result]]) -> None:
    assert "FAIL" in {result.outcome for result in seen[name]}, [result.why for result in seen[name]]


@pytest.mark.xdist_group("pops")
def test_a_correct_broker_fails_no_clause(seen: Mapping[str, list[Result]]) -> None:
    assert [result.vector.id for result in seen["correct"]] == list(QUICK)
    for result in seen["correct"]:
        assert result.outcome == "PASS" or result.why.startswith(TOO_SLOW), result.why


def test_acknowledgements_need_the_name_of_the_broker() -> None:
    """Only the name server knows the broker's name, which is part of every receipt handle."""
    with PopBroker(Flaw()) as broker, closed_port() as nothing:
        (result,) = pops.see(Place(broker.address, nothing), "x", ["invisible-acknowledged"], Latency(0.0))

    assert (result.outcome, result.why) == ("UNTESTED", "the broker lacks: name-server")


def test_the_page_has_each_fault_with_its_clause() -> None:
    rows = re.findall(r"^\| ([^|]+) \| `(POP-\d)` \|$", PAGE.read_text("utf-8"), re.MULTILINE)

    assert rows == [(name, clause) for name, (clause, _flaw) in FLAWS.items()]


@pytest.mark.long
@pytest.mark.parametrize("name", [*FLAWS, *LONGER, *CORRECT])
def test_a_default_run_finds_each_fault(name: str) -> None:
    clause, flaw = {**FLAWS, **LONGER, **CORRECT}[name]
    with PopBroker(flaw) as broker:
        places = (f"--{each}={broker.address[0]}:{broker.address[1]}" for each in ("broker", "name-server"))
        told = json.loads(CliRunner().invoke(main, ["conform", *places, "--only=POP-*", "--json"]).stdout)

    failed = [each for each, outcome in told["clauses"].items() if outcome == "FAIL"]
    assert clause in failed if clause else failed == [], told["results"]
