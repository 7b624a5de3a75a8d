from __future__ import annotations

import json
import re
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from longpoll.cli import main
from longpoll_spec.bounds import EXPLORATIONS, Bounds, named
from longpoll_spec.engines.evaluate import evaluate
from longpoll_spec.errors import BoundsError
from longpoll_spec.law import law_of, properties_of
from longpoll_spec.policy import PRESETS, preset
from longpoll_spec.render.export import tla
from longpoll_spec.render.export.promela import promela_of, promela_type
from longpoll_spec.render.export.promela_effects import SAVED, sequence
from longpoll_spec.render.export.tla import tla_configuration_of, tla_of
from longpoll_spec.render.notation import Notation, Writer, identifier, name_of
from longpoll_spec.state import Variable
from longpoll_spec.terms import Effect, Term, bool_variable, int_variable, ite
from longpoll_spec.testing.models import model_named
from longpoll_spec.testing.strategies import BOOL_NAMES, INT_NAMES, bools, ints
from longpoll_spec.testing.strategies import values as valuations

PYTHON = Notation("and", "or", "not ", "==", "!=", "True", "False", "({then} if {condition} else {otherwise})")
"""The one notation that a test can run."""


def _parameters() -> dict[str, int]:
    return {f"k{value}": value for value in range(32)}


@given(st.one_of(ints(), bools()), valuations)
def test_infix_text_means_the_term(term: Term, values: dict[str, int]) -> None:
    """A term written with infix operators has the term's value, with as few parentheses as there are."""
    text = Writer(PYTHON, {}).text(term)

    assert eval(text, {}, {**values, **_parameters()}) == evaluate(term, values), text  # noqa: S307 - made above


def test_a_value_is_written_in_its_variables_words() -> None:
    """Constants that are compared with, or assigned to, a variable with words are written as words."""
    phase = int_variable("phase_0")
    writer = Writer(PYTHON, {"phase_0": ("PHASE_IDLE", "PHASE_HELD")})

    assert writer.text(~phase.is_(1)) == "phase_0 != PHASE_HELD"
    assert writer.value(ite(phase.is_(0), 1, phase), "phase_0") == "(PHASE_HELD if phase_0 == PHASE_IDLE else phase_0)"
    assert writer.text(int_variable("offset_0").is_(1)) == "offset_0 == 1"


def test_a_named_part_is_written_by_its_name() -> None:
    """A part that has a name stands under it, negated as well."""
    guard = bool_variable("running") & (int_variable("copies_0") < 2)
    writer = Writer(PYTHON, {}).naming([(guard, "can_hold_0")])

    assert writer.text(~guard) == "not can_hold_0"


_effects = st.fixed_dictionaries({}, optional={name: ints(2) for name in INT_NAMES}) | st.permutations(INT_NAMES).map(
    lambda names: {name: int_variable(other) for name, other in zip(INT_NAMES, names, strict=True)}
)
_bool_effects = st.fixed_dictionaries({}, optional={name: bools(2) for name in BOOL_NAMES})


@given(_effects, _bool_effects, valuations)
def test_assignments_in_sequence_are_simultaneous(numbers: Effect, truths: Effect, values: dict[str, int]) -> None:
    """Run one after another the assignments do what the effect does at once, and leave no saved value behind."""
    effect: Effect = {**numbers, **truths}
    now = dict(values)
    for each in sequence(effect):
        now[each.target] = int(evaluate(each.term, now))

    assert {name: now[name] for name in values} == {
        name: int(evaluate(effect[name], values)) if name in effect else value for name, value in values.items()
    }
    assert all(value == 0 for name, value in now.items() if name.startswith(SAVED))


def test_only_a_ring_saves_an_old_value() -> None:
    """A chain of reads needs an order, a swap needs one saved value."""
    first, second = INT_NAMES[:2]
    chain = sequence({second: int_variable(first), first: int_variable(first) + 1})
    swap = sequence({first: int_variable(second), second: int_variable(first)})

    assert [each.target for each in chain] == [second, first]
    assert [each.target for each in swap].count(SAVED + first) == 2  # saved, and cleared


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [(0, 1, "bit"), (0, 2, "byte"), (0, 255, "byte"), (0, 256, "short"), (-1, 1, "short"), (0, 40_000, "int")],
)
def test_a_type_has_its_variables_range(lower: int, upper: int, expected: str) -> None:
    """The narrowest type of Promela that has both ends of the range."""
    assert promela_type(Variable("x", lower, upper, lower, "A number.")) == expected


def test_an_unbounded_log_has_no_promela_and_has_tla() -> None:
    """SPIN needs bounds and says so; TLA+ has the natural numbers."""
    policy = preset("strict")
    model = law_of(policy, Bounds("open", requests=1, messages=None))

    with pytest.raises(BoundsError, match="add --messages"):
        promela_of(model, properties_of(model))
    assert "log_end \\in Nat" in tla_of(model, properties_of(model))


@pytest.mark.parametrize("policy", [*PRESETS, "strict-clone+on_throw=keep_rest", "strict+tick=free"])
def test_an_export_tells_every_sentence(policy: str) -> None:
    """Each variable, action and property stands in both exports, with its sentence."""
    model = model_named(policy)
    properties = properties_of(model)
    promela, module = promela_of(model, properties), tla_of(model, properties)

    for text in (promela, module):
        sentences = {each.sentence for each in model.variables} | {each.sentence for each in model.actions}
        sentences |= {item.sentence for item in properties}
        assert [sentence for sentence in sentences if sentence not in text] == []
    for action in model.actions:
        assert promela.count(f"d_step {{ can_{identifier(action.label)} ->") == 1, action.label
        assert module.count(f"\n  \\/ {identifier(action.label)}\n") == 1, action.label


@pytest.mark.parametrize("policy", PRESETS)
def test_a_configuration_names_what_its_module_defines(policy: str) -> None:
    """Every invariant and constant of the configuration is defined in the module, and every property is there."""
    model = model_named(policy)
    properties = properties_of(model)
    module, configuration = tla_of(model, properties), tla_configuration_of(model, properties)
    invariants = re.findall(r"INVARIANT (\w+)", configuration)

    assert [name for name in invariants if not re.search(rf"^{name} ==", module, re.MULTILINE)] == []
    assert {name.removeprefix(tla.NEVER) for name in invariants} == {"TypeOK", *(item.name for item in properties)}
    assert set(re.findall(r"^CONSTANT (\w+) = \d+$", configuration, re.MULTILINE)) == {"hold_ticks", "scan_ticks"}


def test_a_trace_of_tlc_shows_words() -> None:
    """The alias of a state says every variable once, with the words of its values in the law's order."""
    model = model_named("rocketmq-4.9")
    module = tla_of(model, ())
    shown = module.partition("\nShown == [\n")[2].partition("]\n\n")[0]
    phases = ", ".join(f'"{label}"' for label in model.state.phases.labels)

    assert [line.split()[0] for line in shown.splitlines() if line] == [each.name for each in model.variables]
    assert "phase_0 |-> PHASE_LABELS[phase_0 + 1]" in shown
    assert f"\nPHASE_LABELS == <<{phases}>>\n" in module
    assert "ALIAS Shown\n" in tla_configuration_of(model, ())


def test_no_definition_stands_twice() -> None:
    """Names of guards, actions, words and properties never collide in one module."""
    for policy in PRESETS:
        model = model_named(policy)
        defined = re.findall(r"^(\w+) ==", tla_of(model, properties_of(model)), re.MULTILINE)

        assert len(defined) == len(set(defined)), policy


def _export(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["export", *words])
    return done.exit_code, done.output


def test_the_command_writes_the_files_and_lists_them(tmp_path: Path) -> None:
    """`longpoll export` writes what `render` makes, under the module's name, and JSON lists the files."""
    code, said = _export("--to", "tla", "--policy", "rocketmq-4.9", "--requests", "3", "--json", str(tmp_path / "new"))
    model = law_of(preset("rocketmq-4.9"), named("tiny", preset("rocketmq-4.9"), requests=3))

    assert code == 0, said
    module, configuration = map(Path, json.loads(said)["files"])
    assert module.name == f"{name_of(model)}.tla"
    assert module.read_text() == tla_of(model, properties_of(model))
    assert configuration.read_text() == tla_configuration_of(model, properties_of(model))


def test_the_command_takes_queues_tags_and_aspects_by_name(tmp_path: Path) -> None:
    """Several queues and tags are in the law that is exported, and so is a whole exploration by its name."""
    code, said = _export("--to", "promela", "--queues", "2", "--tags", "2", "--json", str(tmp_path / "own"))
    assert code == 0, said
    text = Path(json.loads(said)["files"][0]).read_text()
    assert "queues 2, tags 2" in text
    assert "visible_end_q1" in text
    assert "passes_0" in text

    for name in EXPLORATIONS:
        code, said = _export("--to", "tla", "--bounds", name, str(tmp_path / name))
        assert code == 0, said


def test_the_command_loses_no_edited_file(tmp_path: Path) -> None:
    """A file that says something else is kept, unless it is forced; the same text may be written again."""
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


@pytest.mark.parametrize(
    ("words", "named_there"),
    [
        (["--policy", "rocket"], "known: strict"),
        (["--knob", "colour=none"], "unknown knob"),
        (["--bounds", "huge"], "known: tiny"),
        (["--requests", "0"], "from 1 to"),
        (["--scan-ticks", "1"], "from 2 to"),
        (["--queues", "99"], "from 1 to"),
        (["--aspect", "weather"], "unknown aspect"),
    ],
)
def test_a_mistake_is_one_clear_line(tmp_path: Path, words: list[str], named_there: str) -> None:
    """A policy, knob or bounds that does not exist exits 2 with what to do, and writes nothing."""
    code, said = _export("--to", "promela", *words, str(tmp_path / "new"))

    assert code == 2
    assert named_there in said
    assert "Traceback" not in said
    assert not (tmp_path / "new").exists()


def test_a_directory_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    """What the system refuses is told with its name."""
    (tmp_path / "file").write_text("")

    code, said = _export("--to", "promela", str(tmp_path / "file" / "below"))

    assert code == 2
    assert "cannot write" in said


def test_an_action_that_changes_nothing_is_still_a_step() -> None:
    """An empty effect is a step back to the same state, which both checkers count."""
    model = model_named("strict")
    waits = attrs.evolve(model, actions=(attrs.evolve(model.actions[0], effect={}),))

    assert "d_step { can_append -> check_append\n       skip;\n     }" in promela_of(waits, ())
    assert f"  /\\ can_append\n  /\\ UNCHANGED <<{', '.join(each.name for each in model.variables)}>>" in tla_of(
        waits, ()
    )


@pytest.mark.long
def test_the_commands_of_the_page_are_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each `longpoll` line of docs/export.md runs as it stands; the page's check of a faulty policy exits 1."""
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
    monkeypatch.chdir(tmp_path)
    lines = [line.split() for line in page.splitlines() if line.startswith("longpoll ")]

    codes = {words[1]: CliRunner().invoke(main, words[1:]).exit_code for words in lines}

    assert codes == {"export": 0, "check": 1}
    assert {path.suffix for path in Path("out").iterdir()} == {".pml", ".tla", ".cfg"}
