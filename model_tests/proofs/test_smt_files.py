"""Proof obligations as SMT-LIB files are complete, and a second solver proves them if it is installed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import pytest
import z3
from click.testing import CliRunner

from longpoll.cli import main
from longpoll_spec.engines.smt.any_number import prove_any
from longpoll_spec.engines.smt.proof import PLAIN, prove, prove_model
from longpoll_spec.mutants.generated import forgetting, mutated
from longpoll_spec.policy import STRICT, preset


def _z3_says(query: str) -> str:
    solver = z3.Solver()
    solver.from_string(query)
    return str(solver.check())


@pytest.fixture
def cvc5_says() -> Callable[[str], str]:
    try:
        import cvc5  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: PLC0415
    except ImportError:
        pytest.skip("NO SECOND PROVER: install cvc5 (`pip install --group solvers`) to have the proofs checked by it")

    def ask(query: str) -> str:
        solver = cvc5.Solver()
        solver.setOption("tlimit-per", "60000")
        parser = cvc5.InputParser(solver)
        parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, query, "query")
        symbols = parser.getSymbolManager()
        answers = []
        while not (command := parser.nextCommand()).isNull():
            answers += str(command.invoke(solver, symbols)).split()
        return " ".join(answers)

    return ask


def _broken() -> Sequence[str]:
    queries: list[str] = []
    model = mutated(STRICT, attrs.evolve(PLAIN, requests=1), "hold", forgetting("recheck_due"))
    prove_model(model, names=["no_lost_wakeup"], depth_max=0, record=queries.append)
    return [each for each in queries if "(set-info :status sat)" in each]


def test_the_command_writes_a_file_for_each_query(tmp_path: Path) -> None:
    folder = tmp_path / "queries"
    words = ["prove", "--policy", "strict", "--requests", "1", "--property", "answered_once", "--smt", str(folder)]
    done = CliRunner().invoke(main, words)
    files = sorted(folder.iterdir())
    again = CliRunner().invoke(main, words)

    assert done.exit_code == 0, done.output
    assert [each.name for each in files] == [f"{number:05}.smt2" for number in range(1, len(files) + 1)]
    assert len(files) > 100
    texts = [each.read_text(encoding="utf-8") for each in files]
    assert all(each.rstrip().endswith("(check-sat)") and "\n(set-logic QF_LIA)\n" in each for each in texts)
    assert {tuple(re.findall(r"set-info :status (\w+)", each)) for each in texts} == {("unsat",)}
    assert {_z3_says(each) for each in texts[::40]} == {"unsat"}
    assert again.exit_code == 2
    assert "is not empty" in again.output


def test_a_wrong_obligation_is_written_as_a_satisfiable_query() -> None:
    (first, *_) = _broken()

    assert _z3_says(first) == "sat"


@pytest.mark.long
def test_a_second_prover_does_not_discharge_a_wrong_obligation(cvc5_says: Callable[[str], str]) -> None:
    queries = _broken()

    assert queries
    assert {cvc5_says(each) for each in queries} == {"sat"}


@pytest.mark.long
@pytest.mark.parametrize("policy", ["strict", "strict-clone"])
@pytest.mark.parametrize("requests", ["8", "any"])
def test_a_second_prover_discharges_every_obligation(
    policy: str, requests: str, cvc5_says: Callable[[str], str]
) -> None:
    """cvc5 proves the obligations of two policies without features, for eight requests and for any number."""
    queries: list[str] = []
    if requests == "any":
        assert prove_any(preset(policy), world=PLAIN, record=queries.append).proof.whole == "proved"
    else:
        assert prove(preset(policy), requests=int(requests), record=queries.append).whole == "proved"

    assert len(queries) > 300
    assert [each for each in queries if cvc5_says(each) != "unsat"] == []
