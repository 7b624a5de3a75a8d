"""Specification files: the examples of the docs, and mistakes injected into them, in every engine."""

from __future__ import annotations

import json
import re
from itertools import count
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
from click.testing import CliRunner, Result
from model_tests.docs import test_lessons
from model_tests.docs.test_lessons import ROOT, Command, missing_line

import longpoll
from longpoll.cli import main
from longpoll_spec.bounds import EXPLORATIONS, Bounds, named
from longpoll_spec.custom import load
from longpoll_spec.engines import explore
from longpoll_spec.engines.smt.any_number import prove_any
from longpoll_spec.engines.smt.proof import PLAIN
from longpoll_spec.engines.survey import progress_of
from longpoll_spec.engines.tokens import replay
from longpoll_spec.errors import SpecificationFileError, TokenError, UnknownKnobError
from longpoll_spec.policy import ROCKETMQ_5, knob_values, with_knob
from longpoll_spec.render.story import story_of
from longpoll_spec.specification import properties_of, specification_of

EXAMPLES: Final = ROOT / "docs" / "examples"
PAGE: Final = ROOT / "docs" / "own-specification.md"
TEXT: Final = PAGE.read_text("utf-8")
FIX: Final = next(each.edit for each in test_lessons.commands(TEXT) if each.edit)


def _file(folder: Path, name: str, *edits: tuple[str, str], fixed: bool = False) -> str:
    text = (EXAMPLES / name).read_text("utf-8")
    text = test_lessons.edited(text, FIX) if fixed else text
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new, 1)
    (folder / name).write_text(text, "utf-8")
    return str(folder / name)


def _run(*words: str) -> Result:
    return CliRunner().invoke(main, words, env={"COLUMNS": "140"})


# -- the page ----------------------------------------------------------------------------------------------------------


LONG: Final = "hold_again"


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(each, id=str(number), marks=[pytest.mark.long] * (LONG in each.line))
        for number, each in enumerate(test_lessons.commands(TEXT))
    ],
)
def test_each_command_of_the_page_prints_the_output_on_the_page(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    line = command.line.replace(" exported", f" {tmp_path}/exported")
    said = test_lessons.run(attrs.evolve(command, line=line), tmp_path)
    said = said.replace(f"{tmp_path}/exported", "exported").replace(f"{tmp_path}/table.py", "docs/examples/table.py")

    assert missing_line(command.shown, said) is None, said


def test_the_page_shows_the_files_as_they_are() -> None:
    shown = dict(re.findall(r"^```python title=(\S+)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL))

    assert shown == {name: (EXAMPLES / name).read_text("utf-8") for name in ("table.py", "hold_again.py")}
    assert sum(bool(line) for line in shown["table.py"].splitlines()) <= 40


def test_explain_shows_four_steps() -> None:
    done = _run("check", str(EXAMPLES / "table.py"), "--explain")

    assert re.findall(r"^ +(\d)\. ", done.output, re.MULTILINE) == ["1", "2", "3", "4"]


MISTAKES: Final = (
    ('request.is_("idle"), effect', 'request.is_("idle") and True, effect', 15, "TypeError: a term has no truth value"),
    ('["waiting"])))', '["wating"])))', 21, "unknown phase 'wating'; did you mean 'waiting'?"),
    (
        '(request.phase, request.phases["waiting"])',
        '(request.phase, request.is_("idle"))',
        19,
        "wait gives phase_0 a tru",
    ),
    ("(got[request], end)", "(got[request], got[request] + 1)", 10, "poll(0) takes a variable out of its range, after"),
    ('    """The poll that missed is put into the list."""\n', "", 19, "wait needs a docstring"),
    ('return Step(request.is_("missed")', 'return (request.is_("missed")', 19, "wait must return Step(guard, effect)"),
    ("spec = Spec", "spec = = Spec", 5, "invalid syntax"),
    ("def wait", "def poll", 18, "there is another function poll"),
    ("(got[each], ite", "(got[state.queue], ite", 28, "TypeError: got needs one request in brackets"),
    ("got = spec", "import nonsense\n\ngot = spec", 6, "ModuleNotFoundError"),
    ('spec.number("got"', 'spec.number("deadline"', 6, "'deadline' is the name of a variable"),
    ('spec.number("got"', 'spec.number("got_1"', 6, "'got_1' cannot name a variable"),
    ('has.", "request")', 'has.", "tag")', 6, "got can belong to a request, a queue or both"),
    ('("idle", "missed", "waiting")', '"idle"', 5, "needs at least two phases"),
    (
        "(request.deadline, state.hold_ticks)",
        "(request.offset, 1)",
        14,
        "AttributeError: 'CoreRequest' object has no at",
    ),
    ('.leads_to("request")', '.leads_to("request", "queue")', 47, "TypeError"),
    ('return request.is_("waiting"), request', "return request", 47, "must return a premise and a conclusion"),
    ("spec.always", 'spec.no_step("tack")', 40, "is about an unknown action 'tack'; did you mean 'tick'?"),
    ("yield (each.is_", "yield 1 if each else (each.is_", 40, "no_lost_wakeup must return truth values"),
    ('thread="sender"', '"sender"', 24, "unknown participant 'sender'; known: request, queue"),
    (
        "spec = Specification(phases",
        "spec = Specification('strict', without=('stopp',), phases",
        5,
        "unknown action 'stopp'",
    ),
)
"""(text in the example table.py, its replacement, line in the error message, error message)."""


@pytest.mark.parametrize("mistake", MISTAKES, ids=count())
def test_a_mistake_is_reported_with_its_line(mistake: tuple[str, str, int, str], tmp_path: Path) -> None:
    old, new, line, said = mistake
    path = _file(tmp_path, "table.py", (old, new))
    done = _run("check", path, "--bounds", "tiny")

    assert done.exit_code == 2, done.output
    assert done.stderr.startswith(f"longpoll: {path}:{line}: {said}") or (
        done.stderr.startswith(f"longpoll: {path}:{line}: ") and said in done.stderr
    ), done.stderr


def test_the_error_messages_on_the_page_are_printed() -> None:
    for text in re.findall(r"^\| `table\.py:\d+: (.*?)` \|", TEXT, re.MULTILINE):
        said = text.replace("\\|", "|")
        assert any(said.startswith(each[3]) or each[3].startswith(said) for each in MISTAKES), said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("check", "TABLE", "--policy", "strict"), "--policy does not go with"),
        (("check", "strict"), "strict is no specification file, whose name ends with .py"),
        (("check", "nothing.py"), "cannot read nothing.py"),
        (("check", "TABLE", "--queues", "2"), "has one queue"),
        (("prove", "TABLE", "--feature", "crash"), "has no features and no tags"),
        (("check", "TABLE", "--knob", "second_look=true"), "unknown knob 'second_look'"),
        (("explain", "TOKEN"), "the token is a run of table.py; name that file after it"),
        (("explain", "TOKEN", "AGAIN"), "the token is a run of table.py, not of hold_again.py"),
        (("explain", "TOKEN", "TABLE", "--on", "code"), "--on replays runs of a preset"),
        (("export", "--to", "tla", "PURGATORY", "DIR"), "a step changes watched of several requests; use --to promela"),
        (("export", "--to", "tla", "--parametric", "--requests", "3", "DIR"), "always writes the parametric module"),
        (("prove", "--requests", "zero"), "'zero' is neither a number of requests from 1 to 64 nor any"),
        (("check", "--knob", "tak=clone"), "did you mean 'take'? `longpoll policies` lists all"),
    ],
    ids=count(),
)
def test_a_usage_error_is_reported(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    found = explore(specification_of(load(str(EXAMPLES / "table.py")), Bounds("own")), engine="python")
    token = found.verdict("no_lost_wakeup").token
    assert token is not None
    named_words = {"TOKEN": token, "DIR": str(tmp_path)}
    named_words |= {each.stem.upper().removeprefix("HOLD_"): str(each) for each in EXAMPLES.glob("*.py")}
    done = _run(*(named_words.get(word, word) for word in words))

    assert done.exit_code == 2
    assert said in " ".join(done.output.split())
    assert "Traceback" not in done.output


# -- verdicts ----------------------------------------------------------------------------------------------------------


AGAIN: Final = 'request.phases["trying"]), (request.deadline, 0), (completed[request], False), (answers[request], 0)'
FAULTS: Final = (
    ("table.py", (), ("no_lost_wakeup",)),
    ("table.py", (("(state.queue.due, False), ", ""),), ("time_can_pass",)),
    ("table.py", (("(request.deadline <= 0)", "(request.deadline < 0)"),), ("every_poll_is_answered", "expire_fires")),
    ("table.py", (("spec.always", "spec.sometimes"), ("yield (each", "yield ~(each")), ("no_lost_wakeup",)),
    ("purgatory.py", (), ()),
    ("purgatory.py", (('knob("second_try", True, False)', 'knob("second_try", False, True)'),), ("no_lost_wakeup",)),
    ("purgatory.py", (('"not_completed", "always")', '"always", "not_completed")'),), ("answered_once",)),
    ("purgatory.py", (("& ~watched[queue, request]\n", "& ~watched[queue, request] & queue.due\n"),), ("every_fetch",)),
    ("purgatory.py", (("& (request.deadline <= 0)\n", "\n"), ("answered_by", "answered_By")), ()),
    ("purgatory.py", (("*completes(state, request, guard)", "(request.deadline, 0)"),), ("time_can_pass",)),
    ("purgatory.py", (('request.phases["idle"]), (request.deadline, 0)', AGAIN),), ("time_can_pass",)),
)
"""(example file, edits that inject mistakes, properties that the check must report as violated)."""


@pytest.mark.parametrize("fault", FAULTS, ids=count())
def test_each_kind_of_property_fails_on_a_mistake(
    fault: tuple[str, tuple[tuple[str, str], ...], tuple[str, ...]], tmp_path: Path
) -> None:
    name, edits, wrong = fault
    done = _run("check", _file(tmp_path, name, *edits, fixed=name == "table.py" and bool(edits)), "--all", "--json")
    rows = {row["name"]: row for row in json.loads(done.stdout)["properties"]}
    bad = {each for each, row in rows.items() if row["verdict"] in {"violated", "unreached"}}

    assert all(any(each.startswith(one) for each in bad) for one in wrong), bad
    assert bool(bad) is bool(wrong), bad
    assert done.exit_code == (1 if any(rows[each]["verdict"] == "violated" for each in bad) else 3 if bad else 0)


def test_a_forbidden_step_breaks_its_property_if_one_of_several_conditions_is_true(tmp_path: Path) -> None:
    """Only one of two fetches never expires, so a tick breaks the property although the other fetch is on time."""
    never = ("(request.deadline <= 0)\n", "(request.deadline <= (0 if request.index else -1))\n")
    model = specification_of(load(_file(tmp_path, "purgatory.py", never)), Bounds("own"))

    assert explore(model).verdict("answered_by_deadline").verdict == "violated"


def test_a_situation_that_does_not_occur_leaves_the_check_unknown(tmp_path: Path) -> None:
    path = _file(tmp_path, "table.py", ('request.is_("missed"), assign', 'request.is_("missed") & FALSE, assign'))
    path = _file(
        tmp_path, "table.py", ('request.is_("idle"), effect', 'request.is_("idle") & request.is_("missed"), effect')
    )
    done = _run("check", path)

    assert (done.exit_code, done.output.partition("\n")[0][:16]) == (3, "verdict: unknown")


QUEUES: Final = attrs.evolve(EXPLORATIONS["queues"], requests=2)
ALL: Final = sorted(each.name for each in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", ALL)
def test_the_engines_agree_on_a_file(name: str) -> None:
    policy = load(str(EXAMPLES / name))
    bounds = QUEUES if name == "purgatory.py" else Bounds("own")
    model = specification_of(policy, bounds)
    # Symmetry needs properties that treat all requests alike.
    found = [explore(model, properties_of(model), engine="python"), explore(model), explore(model, symmetry=True)]

    assert len({(each.distinct_states, each.transitions, each.depth) for each in found}) == 1
    assert len({tuple((one.name, one.verdict, one.depth) for one in each.verdicts) for each in found}) == 1


def test_a_knob_of_a_file_is_in_its_tokens() -> None:
    """The token of a run under `--knob` replays with this knob, whatever the file's default is."""
    policy = load(str(EXAMPLES / "purgatory.py"))
    model = specification_of(with_knob(policy, "second_try=false"), Bounds("own"))
    token = explore(model).verdict("no_lost_wakeup").token
    assert token is not None
    for given in (policy, model.policy):
        trace = replay(token, given)

        assert trace.model.state.knob("second_try") is False
        assert trace.model.policy.name == "purgatory+second_try=false"


def test_the_token_of_a_changed_file_is_refused(tmp_path: Path) -> None:
    token = explore(specification_of(load(str(EXAMPLES / "table.py")), Bounds("own"))).verdict("no_lost_wakeup").token
    assert token is not None
    renamed = load(_file(tmp_path, "table.py", ("def wait", "def stay")))
    cannot = load(_file(tmp_path, "table.py", ('request.is_("missed"), assign', 'request.is_("idle"), assign')))

    for policy, said in ((renamed, "another version"), (cannot, "wait.0. is not enabled")):
        with pytest.raises(TokenError, match=said):
            replay(token, policy)


def test_a_proof_lists_the_properties_that_are_only_explored(tmp_path: Path) -> None:
    """If polls wait for ever although all states are correct, the file is not proved, and the exit code is not 0."""
    path = _file(tmp_path, "table.py", ("(request.deadline <= 0)", "(request.deadline < 0)"), fixed=True)
    done = _run("prove", path, "--json")
    made: dict[str, Any] = json.loads(done.stdout)

    assert made["verdicts"]["no_lost_wakeup"] == "proved"
    assert [row["verdict"] for row in made["explored_only"]] == ["holds", "violated"]
    assert done.exit_code == 1
    assert "longpoll explain" in _run("prove", path).output


def test_a_proof_that_lacks_a_statement_shows_the_step_that_breaks_it(tmp_path: Path) -> None:
    """The counterexample shows what the missing statement must exclude, also for any number of requests."""
    policy = load(_file(tmp_path, "purgatory.py", (".implies(watched[queue, each])", ".implies(each.is_('waiting'))")))
    rows = prove_any(policy, world=PLAIN, names=["no_lost_wakeup"], depth_max=0).proof.obligations
    shown = {each.step: each.counterexample for each in rows if each.counterexample is not None}

    assert list(shown)[-1] == "inductive"
    assert shown["inductive"].action is not None
    assert len(shown["inductive"].state) == len(shown["inductive"].model.variables)


def test_a_property_that_the_first_state_violates_has_a_run_without_steps(tmp_path: Path) -> None:
    policy = load(_file(tmp_path, "table.py", ('each.is_("waiting") &', 'each.is_("idle") | ')))
    token = explore(specification_of(policy, Bounds("own"))).verdict("no_lost_wakeup").token

    assert story_of(replay(str(token), policy)).title.endswith("is violated, in the first state")


def test_too_many_states_leave_a_property_of_runs_unknown() -> None:
    policy = load(str(EXAMPLES / "purgatory.py"))
    rows = progress_of(policy, named("small", policy, queues=2))

    assert {row.verdict.verdict for row in rows} == {"unknown"}


def test_a_derived_file_keeps_everything_of_its_policy(tmp_path: Path) -> None:
    """A file that only names a policy keeps the policy's states and properties, and time can still pass."""
    (tmp_path / "same.py").write_text(
        "from longpoll_spec.custom import Specification\n\nspec = Specification('strict')\n"
    )
    same = load(str(tmp_path / "same.py"))
    strict, mine = (explore(specification_of(each, Bounds("own"))) for each in (longpoll.Policy(), same))

    assert (mine.distinct_states, mine.transitions) == (strict.distinct_states, strict.transitions)
    assert {each.name for each in strict.verdicts} - {each.name for each in mine.verdicts} == {"time_can_pass"}
    assert [row.verdict.verdict for row in progress_of(same, Bounds("own"))] == ["holds"]


@pytest.mark.parametrize(
    ("more", "states", "sooner"),
    [
        ("fast_failure", 5043, {}),
        ("read_fails", 5057, {"nothing_dropped": (7, 2)}),
        ("last_check", 5059, {"dropped_by_reject": (8, 7)}),
    ],
)
def test_rocketmq_features_without_a_preset_break_exactly_the_listed_properties(
    more: str, states: int, sooner: dict[str, object]
) -> None:
    """The behaviours that no preset has break exactly the properties that the findings page lists."""
    file = with_knob(load(str(EXAMPLES / "rocketmq_more.py")), f"more={more}")
    preset, with_more = (explore(specification_of(each, named("tiny", each))) for each in (ROCKETMQ_5, file))
    broken = {each.name: each.depth for each in preset.verdicts if each.verdict == "violated"}
    now = {each.name: each.depth for each in with_more.verdicts if each.verdict == "violated"}

    assert (preset.distinct_states, with_more.distinct_states) == (5043, states)
    assert broken.keys() == now.keys()
    assert {name: (broken[name], now[name]) for name in now if broken[name] != now[name]} == sooner


def test_a_derived_file_may_leave_actions_out(tmp_path: Path) -> None:
    text = (
        "from longpoll_spec.custom import Specification\n\nspec = Specification('strict', without=['stop', 'expire'])\n"
    )
    (tmp_path / "less.py").write_text(text)
    policies = longpoll.Policy(), load(str(tmp_path / "less.py"))
    strict, less = ({each.name for each in specification_of(policy, Bounds("own")).actions} for policy in policies)

    assert strict - less == {"stop", "expire"}


def test_a_policy_is_validated_when_it_is_made() -> None:
    assert longpoll.Policy().name == "strict"
    assert longpoll.Policy(take="clone_and_clear").name == "strict+take=clone_and_clear"
    with pytest.raises(UnknownKnobError, match="recheck_after_hold cannot be 'nope'; known values: none, before_lock"):
        longpoll.Policy(recheck_after_hold="nope")  # type: ignore[arg-type]


@pytest.mark.parametrize("command", ["check", "prove", "export", "explain", "policies"])
def test_no_help_text_prints_all_knobs(command: str) -> None:
    said = _run(command, "--help").output

    assert sum(knob in said for knob in knob_values()) < 10


def test_the_python_interface_takes_a_file() -> None:
    path = str(EXAMPLES / "table.py")
    found = longpoll.check(path, properties=["no_lost_wakeup"])
    (verdict,) = found.verdicts
    assert verdict.token is not None

    assert "table.py:19" in longpoll.explain(verdict.token, path)
    assert longpoll.prove(path, requests=2).whole == "refuted"
    with pytest.raises(SpecificationFileError):
        longpoll.check("nothing.py")
