"""Exports to SPIN and TLA+, traces as JSON, and the parsers of the output of SPIN and TLC."""

from __future__ import annotations

import json
import os
import re
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from model_tests.support.spec import spin, tlc
from model_tests.support.spec.cases import model_named
from model_tests.support.spec.strategies import BOOL_NAMES, INT_NAMES, bools, ints
from model_tests.support.spec.strategies import values as valuations
from model_tests.support.spec.tlc import TlcRun, TlcViolation

from longpoll.cli import main
from longpoll_spec.bounds import Bounds, named
from longpoll_spec.engines import explore
from longpoll_spec.engines.evaluate import evaluate
from longpoll_spec.engines.tokens import replay
from longpoll_spec.errors import BoundsError
from longpoll_spec.model import Trace
from longpoll_spec.policy import PRESETS, preset
from longpoll_spec.render.export.promela import SAVED, promela_of, promela_type, sequence
from longpoll_spec.render.export.quantified import NotUniformError, generalised
from longpoll_spec.render.export.tla import all_alike, formulas_of, tla_configuration_of, tla_of
from longpoll_spec.render.notation import Notation, Writer, identifier
from longpoll_spec.specification import properties_of, specification_of
from longpoll_spec.state import Variable
from longpoll_spec.terms import Effect, Term, int_variable, ite

PYTHON = Notation("and", "or", "not ", "==", "!=", "True", "False", "({then} if {condition} else {otherwise})")
"""A notation for Python, because a test can execute only this one."""


def _parameters() -> dict[str, int]:
    return {f"k{value}": value for value in range(32)}


@given(st.one_of(ints(), bools()), valuations)
def test_infix_text_means_the_term(term: Term, values: dict[str, int]) -> None:
    """An infix term has the value of its term, with as few parentheses as necessary."""
    text = Writer(PYTHON, {}).text(term)

    assert eval(text, {}, {**values, **_parameters()}) == evaluate(term, values), text  # noqa: S307 - made above


def test_a_value_of_a_variable_with_labels_is_written_as_a_label() -> None:
    """A constant that is compared with or assigned to a variable with labels is written as a label."""
    phase = int_variable("phase_0")
    writer = Writer(PYTHON, {"phase_0": ("PHASE_IDLE", "PHASE_HELD")})

    assert writer.text(~phase.is_(1)) == "phase_0 != PHASE_HELD"
    assert writer.value(ite(phase.is_(0), 1, phase), "phase_0") == "(PHASE_HELD if phase_0 == PHASE_IDLE else phase_0)"
    assert writer.text(int_variable("offset_0").is_(1)) == "offset_0 == 1"


_effects = st.fixed_dictionaries({}, optional={name: ints(2) for name in INT_NAMES}) | st.permutations(INT_NAMES).map(
    lambda names: {name: int_variable(other) for name, other in zip(INT_NAMES, names, strict=True)}
)
_bool_effects = st.fixed_dictionaries({}, optional={name: bools(2) for name in BOOL_NAMES})


@given(_effects, _bool_effects, valuations)
def test_assignments_in_sequence_are_simultaneous(numbers: Effect, truths: Effect, values: dict[str, int]) -> None:
    """Executed in sequence, the assignments equal the simultaneous effect and clear all saved values."""
    effect: Effect = {**numbers, **truths}
    now = dict(values)
    for each in sequence(effect):
        now[each.target] = int(evaluate(each.term, now))

    assert {name: now[name] for name in values} == {
        name: int(evaluate(effect[name], values)) if name in effect else value for name, value in values.items()
    }
    assert all(value == 0 for name, value in now.items() if name.startswith(SAVED))


def test_only_a_cycle_of_assignments_saves_an_old_value() -> None:
    first, second = INT_NAMES[:2]
    chain = sequence({second: int_variable(first), first: int_variable(first) + 1})
    swap = sequence({first: int_variable(second), second: int_variable(first)})

    assert [each.target for each in chain] == [second, first]
    assert [each.target for each in swap].count(SAVED + first) == 2  # The value is saved and later cleared.


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [(0, 1, "bit"), (0, 2, "byte"), (0, 255, "byte"), (0, 256, "short"), (-1, 1, "short"), (0, 40_000, "int")],
)
def test_a_type_has_its_variables_range(lower: int, upper: int, expected: str) -> None:
    assert promela_type(Variable("x", lower, upper, lower, "A number.")) == expected


def test_promela_of_an_unbounded_log_is_refused() -> None:
    policy = preset("strict")
    model = specification_of(policy, Bounds("open", requests=1, messages=None))

    with pytest.raises(BoundsError, match="add --messages"):
        promela_of(model, properties_of(model))


@pytest.mark.parametrize("policy", [*PRESETS, "strict-clone+on_throw=keep_rest", "strict+tick=free"])
def test_an_export_contains_every_sentence_of_the_specification(policy: str) -> None:
    model = model_named(policy)
    properties = properties_of(model)
    text = promela_of(model, properties)

    sentences = {each.sentence for each in model.variables} | {each.sentence for each in model.actions}
    sentences |= {item.sentence for item in properties}
    assert [sentence for sentence in sentences if sentence not in text] == []
    for action in model.actions:
        assert text.count(f"d_step {{ can_{identifier(action.label)} ->") == 1, action.label


def _words(formula: str) -> list[str]:
    """The words of a formula, sorted, because the order of a junction's operands depends on earlier terms."""
    return sorted(re.findall(r"[^\s()]+", formula))


@pytest.mark.parametrize("policy", ["strict", "rocketmq-4.9"])
def test_a_module_is_short_and_the_same_for_all_sizes(policy: str) -> None:
    """The sizes are only in TLC's configuration file, so the module is the same for all sizes."""
    tiny, large = (specification_of(preset(policy), named("tiny", preset(policy), requests=each)) for each in (2, 3))
    lines = tla_of(tiny).splitlines()
    configuration = tla_configuration_of(large)

    assert tla_of(large).splitlines() == lines
    assert len(lines) <= 500
    assert max(map(len, lines)) <= 120
    assert {"Lost(r) ==", "Fairness ==", "Answered == \\A r \\in Requests : open[r] ~> ~open[r]"} <= set(lines)
    assert {"  /\\ ScanComesTo(q) = TRUE", "  /\\ Cardinality(Queues) > 1", "  /\\ WF_vars(tick)"} <= set(lines)
    formulas = (Path(__file__).parents[2] / "docs" / "spec.md").read_text("utf-8").partition("\n## Formulas\n")[2]
    known = [_words(each) for each in re.split(r"\n\n|```text\n|\n```", formulas)]
    assert [name for name, text in formulas_of(tiny).items() if _words(" ".join(text)) not in known] == []
    assert "CONSTANT Requests = {r0, r1, r2}" in configuration
    named_there = re.findall(r"^(?:INVARIANT|PROPERTY) (\w+)$", configuration, re.MULTILINE)
    assert [name for name in named_there if not any(line.startswith(f"{name} ==") for line in lines)] == []


def test_a_statement_about_one_request_alone_cannot_be_written_as_tla() -> None:
    """A statement about one request alone cannot be written with quantifiers, so the export raises an error."""
    idle = [("eq", ("var", "phase", False, ("slot", "request", each)), ("word", "idle")) for each in range(3)]

    assert generalised(("and", *idle), {})[:3] == ("every", "r", "request")
    assert generalised(("or", *idle[1:]), {("request", 0): "r"})[1:4] == ("s", "request", ("letters", "r"))
    with pytest.raises(NotUniformError, match="differently from request 2"):
        generalised(("and", *idle[:2]), {})
    with pytest.raises(NotUniformError, match="request 1 alone"):
        generalised(idle[1], {("request", 0): "r"})
    with pytest.raises(NotUniformError, match="is not the same for every"):
        all_alike("Lost", idle[:2])


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--to", "tla", "--aspect", "lateness"], "cannot count lateness"),
        (["--to", "jani"], "jani is no longer written"),
        (["--to", "promela", "--policy", "rocket"], "known: strict"),
        (["--to", "promela", "--knob", "colour=none"], "unknown knob"),
        (["--to", "promela", "--scan-ticks", "1"], "from 2 to"),
    ],
)
def test_a_usage_error_is_one_line_with_exit_code_2(tmp_path: Path, words: list[str], answer: str) -> None:
    code, said = _export(*words, str(tmp_path / "new"))

    assert code == 2
    assert answer in " ".join(said.split())
    assert "Traceback" not in said
    assert not (tmp_path / "new").exists()


def _export(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["export", *words])
    return done.exit_code, done.output


def test_the_command_writes_the_files_and_lists_them(tmp_path: Path) -> None:
    words = ("--to", "tla", "--policy", "rocketmq-4.9", "--requests", "3", "--json")
    done = CliRunner().invoke(main, ["export", *words, str(tmp_path / "new")])
    model = specification_of(preset("rocketmq-4.9"), named("tiny", preset("rocketmq-4.9"), requests=3))

    assert done.exit_code == 0, done.output
    module, configuration = map(Path, json.loads(done.stdout)["files"])
    assert module.name == "longpoll_rocketmq_4_9.tla"
    assert module.read_text() == tla_of(model)
    assert configuration.read_text() == tla_configuration_of(model)


def test_the_command_takes_queues_tags_and_aspects_by_name(tmp_path: Path) -> None:
    code, said = _export("--to", "promela", "--queues", "2", "--tags", "2", "--json", str(tmp_path / "own"))
    assert code == 0, said
    text = Path(json.loads(said)["files"][0]).read_text()
    assert "queues 2, tags 2" in text
    assert "visible_end_q1" in text
    assert "passes_0" in text

    code, said = _export("--to", "tla", "--bounds", "crash", str(tmp_path / "crash"))
    assert code == 0, said


def test_export_overwrites_an_edited_file_only_with_force(tmp_path: Path) -> None:
    words = ("--to", "tla", str(tmp_path))
    assert _export(*words)[0] == _export(*words)[0] == 0
    edited = next(tmp_path.glob("*.cfg"))
    edited.write_text("edited")

    code, said = _export(*words)

    assert code == 2
    assert "--force" in said
    assert edited.read_text() == "edited"
    assert _export("--force", *words)[0] == 0
    assert edited.read_text() != "edited"


def test_an_action_that_changes_nothing_is_still_a_step() -> None:
    model = model_named("strict")
    waits = attrs.evolve(model, actions=(attrs.evolve(model.actions[0], effect={}),))

    assert "d_step { can_append -> check_append\n       skip;\n     }" in promela_of(waits, ())


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


def test_checks_of_states_do_not_count_as_transitions_of_spin() -> None:
    """The start of the process and the checks of states are subtracted from SPIN's count of transitions."""
    run = spin._read(_spin(), seconds=1.0, processor_seconds=1.0)

    assert (run.distinct_states, run.transitions, run.depth) == (4787, 16459 - 2 - spin.SPIN_START_TRANSITIONS, 21)
    assert run.violated == {"lost_by_hold": 6, "no_lost_wakeup": 6}
    assert run.reached == {"some_held": 3}


def test_large_counts_are_read_as_spin_rounds_them() -> None:
    run = spin._read(_spin("3.5483607e+07", "2.5310264e+08"), seconds=1.0, processor_seconds=1.0)

    assert run.distinct_states == spin.as_told(35_483_607) == 35_483_607
    assert spin.as_told(253_102_641) == spin.as_told(253_102_639) == 253_102_640
    assert spin.as_told(253_102_646) != spin.as_told(253_102_639)


def test_an_error_of_spin_that_the_reader_cannot_parse_is_noticed() -> None:
    with pytest.raises(AssertionError, match="more errors than it printed"):
        spin._read(_spin().replace("some_held is reached", "some other thing"), seconds=1.0, processor_seconds=1.0)


@pytest.mark.parametrize("missing", ["stored\n", "transitions (", "depth reached"])
def test_an_incomplete_run_of_spin_is_an_error(missing: str) -> None:
    with pytest.raises(RuntimeError, match="did not finish"):
        spin._read(_spin().replace(missing, "?\n"), seconds=1.0, processor_seconds=1.0)


@pytest.mark.parametrize(
    "line",
    ["error: max search depth too small", "pan:1: invalid end state (at depth 3)", "pan: reached -DMEMLIM bound"],
)
def test_a_warning_of_spin_is_noticed(line: str) -> None:
    assert spin._TROUBLE.search(_spin()) is None
    assert spin._TROUBLE.search(f"{line}\n{_spin()}") is not None


def test_a_complete_run_of_tlc_is_read() -> None:
    assert tlc._read(TLC_PASSED) == TlcRun(2650, 9177, 20)


def test_a_violation_found_by_tlc_is_read() -> None:
    assert tlc._read(TLC_STOPPED) == TlcViolation("answered_on_stop", 1)
    assert tlc._read("Error: Invariant Never_some_idle is violated by the initial state:\n") == TlcViolation(
        "Never_some_idle", 0
    )


@pytest.mark.parametrize(
    "said", ["", "Error: Parsing failed", TLC_PASSED.replace("0 states left", "3 states left"), TLC_PASSED[:60]]
)
def test_an_incomplete_run_of_tlc_is_an_error(said: str) -> None:
    with pytest.raises(RuntimeError, match="did not finish"):
        tlc._read(said)


def test_a_configuration_can_be_cut_to_some_invariants() -> None:
    text = "SPECIFICATION Spec\nINVARIANT TypeOK\nCHECK_DEADLOCK FALSE\n\\* INVARIANT Never_x\n"

    assert tlc.only_invariants(text, ["a", "b"]) == (
        "SPECIFICATION Spec\nCHECK_DEADLOCK FALSE\nINVARIANT a\nINVARIANT b\n"
    )


def test_a_missing_checker_is_reported_with_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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


@cache
def _tokens() -> dict[str, str]:
    """Property -> token of its shortest counterexample under rocketmq-4.9."""
    policy = preset("rocketmq-4.9")
    explored = explore(specification_of(policy, named("tiny", policy)))
    return {verdict.name: verdict.token for verdict in explored.verdicts if verdict.token is not None}


def _steps_that_do_not_run(made: dict[str, Any], trace: Trace) -> list[int]:
    actions = {action.label: action for action in trace.model.actions}
    before, wrong = made["initial"], []
    for step in made["steps"]:
        action = actions[step["action"]]
        after = before | {name: int(evaluate(term, before)) for name, term in action.effect.items()}
        if not evaluate(action.guard, before) or after != step["state"]:
            wrong.append(step["number"])
        before = step["state"]
    return wrong


@pytest.mark.parametrize("name", ["lost_by_keep", "queued_by_deadline", "dropped_by_throw"])
def test_a_trace_has_the_shape_and_runs(name: str) -> None:
    token = _tokens()[name]
    done = CliRunner().invoke(main, ["explain", token, "--format", "json"])
    made = json.loads(done.stdout)
    trace = replay(token)
    names = [variable.name for variable in trace.model.variables]

    assert done.exit_code == 0
    assert (made["token"], made["property"]) == (token, name)
    assert [step["number"] for step in made["steps"]] == list(range(1, trace.depth + 1))
    assert all(list(state) == names for state in (made["initial"], *(step["state"] for step in made["steps"])))
    assert list(made["initial"].values()) == list(trace.model.initial)
    assert _steps_that_do_not_run(made, trace) == []


def test_explain_writes_json_to_a_file(tmp_path: Path) -> None:
    token, target = _tokens()["lost_by_hold"], tmp_path / "race.json"
    printed, written, former = (
        CliRunner().invoke(main, ["explain", token, "--format", *words])
        for words in (["json"], ["json", "--output", str(target)], ["itf"])
    )

    assert written.exit_code == 0
    assert written.stdout == ""
    assert target.read_text("utf-8") == printed.stdout
    assert printed.stdout.count("\n") == 1
    assert (former.exit_code, "--json has every variable" in former.stderr) == (2, True)
