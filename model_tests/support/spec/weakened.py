"""Finds for each property a mutant that breaks it, and for each part of a property a mutant that needs the part.

A part of a property's text is an operand of `&` or `|`, an entry of a list or a statement. The part is left out, and it
is needed if some mutant or policy breaks only one of the two texts. The table names the first such model. If there is
no such model, the part may be redundant, or the mutant that needs it is missing.

`python -m model_tests.support.spec.weakened --help` creates the table. Proofs, the rank of `time_can_pass`, and mutants
of two requests, unless a feature needs two, are not covered.
"""

from __future__ import annotations
import __future__

import argparse
import ast
import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

import attrs
import msgspec
from attrs import frozen

from longpoll_spec import properties
from longpoll_spec.bounds import Bounds
from longpoll_spec.engines import explore
from longpoll_spec.engines.manifest import text_of
from longpoll_spec.model import Action, Model, Property
from longpoll_spec.mutants.generated import Change, Mutant, kinds_of, mutants_of, with_effect
from longpoll_spec.mutants.named import named_mutants
from longpoll_spec.policy import PRESETS, policy_named, preset
from longpoll_spec.properties import ALWAYS, INDUCTIVE
from longpoll_spec.render.conditions import changes_of
from longpoll_spec.specification import specification_of
from longpoll_spec.state import IDLE, Request, State, assign
from longpoll_spec.tables import with_table
from longpoll_spec.terms import TRUE, Effect, Int, all_of, const, ite, truth

BASES: Final = ("strict", "strict-clone")
LIMIT_STATES: Final = 20_000
"""The maximum number of states to explore, because a mutant may have endlessly many. Differences appear much earlier.
"""
SIZES: Final = {
    size.name: size
    for size in (
        Bounds("plain", requests=1, messages=2, hold_ticks=2),
        Bounds("pair"),
        Bounds("queues", requests=1, queues=2),
        Bounds("tags", requests=1, messages=1, tags=3),
        *(
            Bounds(each, requests=1, messages=2, aspects=frozenset({each}))
            for each in ("buckets", "commits", "channels", "truncate", "crash")
        ),
        Bounds("role", requests=1, messages=1, aspects=frozenset({"role"})),
        Bounds("role of two queues", requests=1, messages=1, queues=2, aspects=frozenset({"role", "limit"})),
        Bounds("commits of a cut queue", requests=1, messages=1, aspects=frozenset({"commits", "truncate"})),
        Bounds("two cut queues", requests=1, messages=1, queues=2, aspects=frozenset({"commits", "truncate"})),
        Bounds("limit", aspects=frozenset({"limit"})),
        *(
            Bounds(f"{each} of two queues", requests=1, queues=2, aspects=frozenset({each}))
            for each in ("buckets", "commits", "truncate")
        ),
    )
}
"""Small scopes by name; each covers one feature or a few."""
PINNED: Final = "weakened.json"
_MODULES: Final = ("answers", "features", "deadlines", "order", "wakeups")
Edit = Callable[[ast.AST], ast.AST]


@frozen
class Weakening:
    """A function in the text of the properties, with one part left out."""

    name: str
    function: Any
    """The original function object. A change of its code affects every reference to the function."""
    code: CodeType
    """The code without the part."""

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Leave the part out of the properties' text until the end of the block."""
        before = self.function.__code__
        self.function.__code__ = self.code
        try:
            yield
        finally:
            self.function.__code__ = before


@with_table
class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A property or one part of it, and the first model that breaks the property or that needs the part."""

    property: str
    part: str
    """The part that is left out; "" if the row is about the whole property."""
    policy: str = ""
    bounds: str = ""
    mutant: str = ""
    """A mutant of the policy, or "" for the policy itself. Policy, bounds and mutant are empty if no model was found.
    """


@cache
def weakenings() -> tuple[Weakening, ...]:
    """Returns every way to leave one part out of the text of the properties."""
    return tuple(_weakenings())


def _weakenings() -> Iterator[Weakening]:
    for stem in _MODULES:
        module = import_module(f"{properties.__name__}.{stem}")
        tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
        for text in (each for each in tree.body if isinstance(each, ast.FunctionDef)):
            types = set(ast.walk(text.returns)) if text.returns else set()
            for number, node in enumerate(ast.walk(text)):
                for position, (what, edit) in enumerate(_edits(node) if node not in types else ()):
                    name = f"{text.name}: {what} ({number}.{position})"
                    code = _compiled(text, number, edit)
                    yield Weakening(name, vars(module)[text.name], code)


def _edits(node: ast.AST) -> Iterator[tuple[str, Edit]]:
    """Iterate over the parts of a node that can be left out, with the change that does so."""
    match node:
        case ast.BinOp(left=ast.SetComp()):
            return  # An intersection of two sets of names is not part of a property.
        case ast.BinOp(left=left, right=right, op=ast.BitAnd() | ast.BitOr()):
            yield f"without `{ast.unparse(right)}`", lambda each: each.left  # type: ignore[attr-defined]
            yield f"without `{ast.unparse(left)}`", lambda each: each.right  # type: ignore[attr-defined]
        case ast.AugAssign(op=ast.BitAnd() | ast.BitOr()) | ast.Expr(value=ast.Call(func=ast.Attribute(attr="append"))):
            yield f"without `{ast.unparse(node)}`", lambda _: ast.Pass()
        case ast.Call(func=ast.Attribute(attr="implies"), args=[right]):
            yield f"without `{ast.unparse(right)}`", lambda each: ast.UnaryOp(ast.Invert(), each.func.value)  # type: ignore[attr-defined]
        case ast.Call():
            yield from _edits_of_call(node)


def _edits_of_call(node: ast.Call) -> Iterator[tuple[str, Edit]]:
    match node:
        case ast.Call(func=ast.Attribute(attr="named") | ast.Name(id="_losing" | "_dropping"), args=[*args]):
            named = [place for place, each in enumerate(args) if isinstance(each, ast.Constant)]
            for place in named if len(named) > 1 else ():
                yield f"without `{ast.unparse(args[place])}`", partial(_without, "args", place)
        case ast.Call(func=ast.Name(id="all_of" | "any_of"), args=[ast.List() | ast.Tuple() as entries]):
            for place, each in enumerate(entries.elts):
                yield f"without `{ast.unparse(each)}`", partial(_without_entry, place)
        case ast.Call(keywords=[*_, ast.keyword(arg="also", value=also)]):
            yield f"without `{ast.unparse(also)}`", partial(_without, "keywords", -1)


def _without(field: str, place: int, node: ast.AST) -> ast.AST:
    del getattr(node, field)[place]
    return node


def _without_entry(place: int, node: ast.AST) -> ast.AST:
    del node.args[0].elts[place]  # type: ignore[attr-defined]
    return node


def _compiled(text: ast.FunctionDef, number: int, edit: Edit) -> CodeType:
    text = copy.deepcopy(text)
    target = list(ast.walk(text))[number]

    class Edited(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return edit(node) if node is target else self.generic_visit(node)

    Edited().visit(text)
    whole = ast.fix_missing_locations(ast.Module([text], []))
    code = compile(whole, "<weakened>", "exec", flags=__future__.annotations.compiler_flag)
    return next(each for each in code.co_consts if isinstance(each, CodeType) and each.co_name == text.name)


def stated(model: Model) -> dict[str, Property]:
    """Returns the properties of a model by name, as their current text states them."""
    return {item.name: item for text in (*ALWAYS, *INDUCTIVE) if (item := text(model)) is not None}


def _same(one: Property | None, other: Property) -> bool:
    """Whether two properties have identical terms, which are unique objects in memory."""
    if one is None:
        return False
    terms = [[(label, id(condition)) for label, condition in each.closing] for each in (one, other)]
    return one.here is other.here and terms[0] == terms[1]


# -- mutants -------------------------------------------------------------------------------------------------------


def _actor(state: State, action: Action) -> Request:
    return state.requests[next(actor for actor in action.actors if isinstance(actor, int))]


def wakes_all(state: State, action: Action) -> Effect:
    """A traversal that wakes every pull, whether its filter matches or not."""
    each = _actor(state, action)
    return assign((each.phase, each.phases["queued"]), (each.copies, each.copies + 1))


def queues_twice(state: State, action: Action) -> Effect:
    """A traversal that hands each pull to the executor twice."""
    each = _actor(state, action)
    return {**wakes_all(state, action), **assign((each.copies, each.copies + 2))}


def forgets_where_it_stands(state: State, action: Action) -> Effect:
    """A traversal that hands a pull to the executor but records the pull's phase as idle."""
    each = _actor(state, action)
    return {**wakes_all(state, action), **assign((each.phase, each.phases["idle"]))}


def to_the_deadline(state: State, _action: Action) -> Effect:
    """A tick after which all deadlines have passed."""
    return assign(*((each.deadline, 0) for each in state.requests))


def past_and_back(state: State, _action: Action) -> Effect:
    """A tick that moves a passed deadline into the future again."""
    return assign(*((each.deadline, ite(each.deadline <= 0, 1, each.deadline - 1)) for each in state.requests))


def end_goes_back(state: State, _action: Action) -> Effect:
    """A dispatcher that hides the last visible message instead of showing the next message."""
    return assign(*((each.visible_end, _to_and_fro(each.visible_end)) for each in state.queues))


def start_goes_back(state: State, _action: Action) -> Effect:
    """A trim that restores the last deleted message of a queue."""
    return assign(*((each.visible_start, _to_and_fro(each.visible_start)) for each in state.queues))


def _to_and_fro(end: Int) -> Int:
    return ite(end > 0, end - 1, end + 1)


def has_room_always(state: State, action: Action) -> Effect:
    """An insert that does not check the limit on held pulls."""
    each = _actor(state, action)
    return assign((each.phase, each.phases["held"]), (each.open, TRUE), (each.deadline, each.deadline))


def waits_for_dispatcher(state: State, action: Action) -> Action:
    """An expiry that waits until the dispatcher is idle."""
    return attrs.evolve(action, guard=action.guard & state.dispatcher.at(IDLE))


BY_HAND: Final[Mapping[str, tuple[str, Change]]] = {
    "notify_each wakes all": ("notify_each", with_effect(wakes_all)),
    "scan_each wakes all": ("scan_each", with_effect(wakes_all)),
    "notify_each queues twice": ("notify_each", with_effect(queues_twice)),
    "notify_each forgets where it stands": ("notify_each", with_effect(forgets_where_it_stands)),
    "tick to the deadline": ("tick", with_effect(to_the_deadline)),
    "tick past and back": ("tick", with_effect(past_and_back)),
    "make_visible goes back": ("make_visible", with_effect(end_goes_back)),
    "trim goes back": ("trim", with_effect(start_goes_back)),
    "hold has room always": ("hold", with_effect(has_room_always)),
    "expire waits for dispatcher": ("expire", waits_for_dispatcher),
}
"""Maps the name of each mutant that no rule generates to (changed action, change)."""


@frozen
class Jump:
    """A model with one initial state and at most one step, for parts that no run of a mutant needs.

    `before` and `after` have entries `VARIABLE=VALUE`. A value is a number or a label of the variable.
    """

    policy: str
    bounds: str
    before: str
    action: str = ""
    """The label of the step; if it is empty, the model has no step."""
    after: str = ""
    """The variables that the step writes, with their values."""

    def model(self) -> Model:
        """Returns the specification that begins in the state `before` and can take only this step."""
        right = specification_of(policy_named(self.policy), SIZES[self.bounds])
        before, after = (_values(right, text) for text in (self.before, self.after))
        variables = tuple(attrs.evolve(each, initial=before.get(each.name, each.initial)) for each in right.variables)
        assert set(before) | set(after) <= {each.name for each in variables}, self
        here = all_of(
            each.term.is_(truth(bool(each.initial)) if each.truth else each.initial)  # type: ignore[arg-type]
            for each in variables
            if each.name in before
        )
        effect: Effect = {
            each.name: truth(bool(after[each.name])) if each.truth else const(after[each.name])
            for each in variables
            if each.name in after
        }
        steps = [attrs.evolve(each, guard=here, effect=effect) for each in right.actions if each.label == self.action]
        assert bool(steps) == bool(self.action), self
        return attrs.evolve(right, state=attrs.evolve(right.state, variables=variables), actions=tuple(steps))


def _values(model: Model, text: str) -> dict[str, int]:
    labels = {each.name: each.labels for each in model.variables}
    pairs = (entry.split("=") for entry in text.split())
    return {name: labels[name].index(value) if value in labels[name] else int(value) for name, value in pairs}


_UNREAD: Final = "open_0=1 log_end=1 visible_end=1"
_UNREAD_0: Final = "open_0=1 log_end_q0=1 visible_end_q0=1 queue_0=0"
_UNSAFE: Final = "strict-clone+bucket_removal=if_empty_unsafe"
_HOLDS: Final = ("hold(0)", "phase_0=held")
_KEEPS: Final = ("scan_end", "phase_0=held scanner=idle")
_KEEPS_0: Final = ("scan_end(q0)", "phase_0=held scanner=idle scanner_queue=2")
_KEPT: Final = "phase_0=kept_by_scanner scanner=walking"
_COMMITTED: Final = "queue_0=1 committed_0=1 log_end_q1=1 visible_end_q1=1"
_BACK: Final = "phase_0=held open_0=1 queue_0=0 changed=1 role_news_0=master_back"
JUMPS: Final[Mapping[str, Jump]] = {
    "held, and a traversal goes through another bucket": Jump(
        "strict-clone", "queues", f"{_UNREAD_0} phase_0=held dispatcher=walking dispatcher_queue=1"
    ),
    "held, and another tag is announced": Jump(
        "strict", "tags", f"{_UNREAD} phase_0=held wants_0=t0 passes_0=1 dispatcher=due announced=t1"
    ),
    "held in a removed bucket, and a traversal is due": Jump(
        "rocketmq-lmq", "buckets", f"{_UNREAD} phase_0=held orphan_0=1 present=1 dispatcher=due"
    ),
    "held in a removed bucket, and a traversal runs": Jump(
        _UNSAFE, "buckets", f"{_UNREAD} phase_0=held orphan_0=1 dispatcher=walking"
    ),
    "inserted while a traversal goes through another bucket": Jump(
        "strict-clone", "queues", f"{_UNREAD_0} phase_0=missed dispatcher=walking dispatcher_queue=1", *_HOLDS
    ),
    "inserted while another bucket is due": Jump(
        "strict", "queues", f"{_UNREAD_0} phase_0=missed dispatcher=due dispatcher_queue=1", *_HOLDS
    ),
    "inserted while another tag is announced": Jump(
        *("strict", "tags", f"{_UNREAD} phase_0=missed wants_0=t0 passes_0=1 dispatcher=due announced=t1", *_HOLDS)
    ),
    "inserted into a removed bucket while a traversal is due": Jump(
        "rocketmq-lmq", "buckets", f"{_UNREAD} phase_0=has_bucket orphan_0=1 dispatcher=due", *_HOLDS
    ),
    "inserted into a removed bucket while a traversal runs": Jump(
        _UNSAFE, "buckets", f"{_UNREAD} phase_0=has_bucket orphan_0=1 dispatcher=walking", *_HOLDS
    ),
    "inserted with nothing to read": Jump("strict", "plain", "open_0=1 phase_0=missed", *_HOLDS),
    "inserted while a traversal is due": Jump("strict", "plain", f"{_UNREAD} phase_0=missed dispatcher=due", *_HOLDS),
    "inserted while a traversal runs": Jump(
        "strict-clone", "plain", f"{_UNREAD} phase_0=missed dispatcher=walking", *_HOLDS
    ),
    "inserted while a notifier rechecks": Jump(
        "strict-clone", "plain", f"{_UNREAD} phase_0=missed dispatcher=rechecking", *_HOLDS
    ),
    "put back while a traversal goes through another bucket": Jump(
        *("strict-clone", "queues"),
        f"{_UNREAD_0} {_KEPT} scanner_queue=0 dispatcher=walking dispatcher_queue=1",
        *_KEEPS_0,
    ),
    "put back while another tag is announced": Jump(
        *("strict-clone", "tags", f"{_UNREAD} {_KEPT} wants_0=t0 passes_0=1 dispatcher=due announced=t1", *_KEEPS)
    ),
    "put back into a removed bucket while a traversal is due": Jump(
        "rocketmq-lmq", "buckets", f"{_UNREAD} {_KEPT} orphan_0=1 dispatcher=due", *_KEEPS
    ),
    "put back into a removed bucket while a traversal runs": Jump(
        _UNSAFE, "buckets", f"{_UNREAD} {_KEPT} orphan_0=1 dispatcher=walking", *_KEEPS
    ),
    "put back with its own recheck to come": Jump(
        "strict-clone", "plain", f"{_UNREAD} {_KEPT} recheck_due_0=1", *_KEEPS
    ),
    "put back by the pull's thread": Jump(
        *("rocketmq-pr7359", "plain", f"{_UNREAD} phase_0=kept_by_rechecker rechecker=walking"),
        *("walk_end", "phase_0=held rechecker=idle"),
    ),
    "a tick below zero": Jump("strict", "plain", "phase_0=held open_0=1 deadline_0=0", "tick", "deadline_0=-1"),
    "queued twice": Jump("strict", "plain", "phase_0=queued open_0=1 copies_0=2"),
    "a turn to the second message": Jump(
        "strict", "queues", "queue_0=0", "next_pull(0,q1)", "phase_0=pulling queue_0=1 offset_0=1"
    ),
    "rejected with another copy": Jump(
        "strict", "plain", "phase_0=queued open_0=1 copies_0=2", "executor_rejects(0)", "phase_0=idle copies_0=1"
    ),
    "rejected back into the table": Jump(
        "strict", "plain", "phase_0=queued open_0=1 copies_0=1", "executor_rejects(0)", "phase_0=held copies_0=0"
    ),
    "dropped by a throw with a copy": Jump(
        *("strict", "plain", "phase_0=taken open_0=1 copies_0=1 dispatcher=walking"),
        *("notifier_throws(dispatcher,0)", "phase_0=idle"),
    ),
    "closed and queued": Jump("strict", "channels", "copies_0=1 open_0=1 closed_0=1"),
    "idle in a removed bucket": Jump("rocketmq-lmq", "buckets", "orphan_0=1"),
    "idle with a heap entry": Jump("strict+heap_entry=one_shot", "plain", "armed_0=1"),
    "a throw ends a round that has begun": Jump(
        "strict", "queues", "unscanned_q1=1 next_scan=1", "scan_throws(q0)", "unscanned_q1=0"
    ),
    "a recheck leaves a bucket": Jump(
        "strict-clone", "buckets", "scanner=rechecking present=1", "recheck(scanner)", "scanner=idle"
    ),
    "a removal leaves a bucket": Jump(
        "rocketmq-lmq", "buckets", "scanner=removing present=1", "remove_bucket", "scanner=idle"
    ),
    "a throw leaves a bucket": Jump(
        "strict", "buckets", "scanner=walking present=1", "notifier_throws(scanner,0)", "scanner=idle"
    ),
    "a scan skips a bucket": Jump(
        "strict", "buckets of two queues", "present_q0=1", "scan_start(q0)", "unscanned_q1=1"
    ),
    "a sweep leaves another bucket": Jump(
        *("strict", "buckets of two queues", "scanner=sweeping scanner_queue=0 present_q1=1"),
        *("sweep(q0)", "scanner=idle scanner_queue=2"),
    ),
    "a sweep leaves a bucket while another is used": Jump(
        *(
            "strict",
            "buckets of two queues",
            "phase_0=held open_0=1 queue_0=1 scanner=sweeping scanner_queue=0 present_q0=1",
        ),
        *("sweep(q0)", "scanner=idle scanner_queue=2"),
    ),
    "a sweep leaves a bucket for an insert": Jump(
        *("rocketmq-lmq", "buckets", "phase_0=has_bucket open_0=1 scanner=sweeping present=1", "sweep", "scanner=idle")
    ),
    "a commit at the end of its queue": Jump(
        "strict", "commits of two queues", "queue_0=0 committed_0=1 log_end_q0=1 visible_end_q0=1"
    ),
    "a truncation lowers a commit of another queue": Jump(
        *("strict", "two cut queues", _COMMITTED, "truncate(q0)", "committed_0=0")
    ),
    "a deletion lowers a commit of another queue": Jump(
        *("strict", "two cut queues", _COMMITTED, "queue_deleted(q0)", "committed_0=0")
    ),
    "held at the end of its queue": Jump(
        *("strict", "truncate of two queues", f"{_UNREAD_0} phase_0=held offset_0=1", "tick", "next_scan=0")
    ),
    "a master that is not back redirects nothing": Jump(
        "rocketmq-5", "role", "phase_0=pulling open_0=1", "pull_read(0)", "phase_0=missed"
    ),
    "a new master redirects nothing": Jump(
        *("rocketmq-5", "role", "phase_0=pulling open_0=1 changed=1 is_master=1"),
        *("pull_read(0)", "phase_0=missed"),
    ),
    "a slave that redirects": Jump(
        *("rocketmq-5", "role", "phase_0=pulling open_0=1 changed=1"),
        *("pull_read(0)", "phase_0=idle open_0=0"),
    ),
    "held, and its bucket is to be visited": Jump("rocketmq-5", "role of two queues", f"{_BACK} return_due_q0=1"),
    "held, and its bucket is visited": Jump("rocketmq-5", "role of two queues", f"{_BACK} return_queue=0"),
    "a return goes on": Jump(
        *("rocketmq-5", "role of two queues", "return_queue=0 return_due_q1=1", "return_take(q0)", "return_queue=2")
    ),
    "a return is at its end": Jump(
        "rocketmq-5", "role of two queues", "return_queue=0", "return_take(q0)", "return_queue=2"
    ),
}
"""Maps each name to a model of one state and at most one step, on which a property and its weakened text differ."""


def chosen_mutants(base: str, bounds: Bounds) -> dict[str, Mutant]:
    policy = preset(base)
    slips = [*named_mutants(policy, bounds), *mutants_of(policy, bounds)]
    actions = {action.name: kinds_of(action) for action in specification_of(policy, bounds).actions}
    by_hand = {
        name: Mutant(action, actions[action], name, change)
        for name, (action, change) in BY_HAND.items()
        if action in actions
    }
    return by_hand | {f"{slip.action}{list(slip.kinds)} {slip.what}": slip for slip in slips}


def laws() -> Iterator[tuple[Row, Model]]:
    """Iterate over all models to try, each with its row: policies, then mutants, then jumps."""
    for size, bounds in SIZES.items():
        for policy in dict.fromkeys((*PRESETS.values(), *changes_of(preset("strict")))):
            yield _row(policy.name, size), specification_of(policy, bounds)
    plain = {base: set(chosen_mutants(base, SIZES["plain"])) for base in BASES}
    for size, bounds in SIZES.items():
        for base in BASES:
            for name, slip in chosen_mutants(base, bounds).items():
                if size in {"plain", "pair"} or name not in plain[base] or name in BY_HAND:
                    yield _row(base, size, name), slip.planted(preset(base), bounds)
    for name, jump in JUMPS.items():
        yield _row(jump.policy, jump.bounds, name), jump.model()


def _row(policy: str, bounds: str, mutant: str = "") -> Row:
    return Row(property="", part="", policy=policy, bounds=bounds, mutant=mutant)


def law_of_row(row: Row) -> Model:
    if row.mutant in JUMPS:
        return JUMPS[row.mutant].model()
    bounds = SIZES[row.bounds]
    if not row.mutant:
        return specification_of(policy_named(row.policy), bounds)
    return chosen_mutants(row.policy, bounds)[row.mutant].planted(preset(row.policy), bounds)


# -- the table -----------------------------------------------------------------------------------------------------


def parts_of_text() -> dict[tuple[str, str], Weakening]:
    """Maps (property, name of a part) to the weakening that leaves the part out.

    A property has a part if leaving it out changes the property in some scope. A part that is constant in every correct
    model, such as a condition about a crash, belongs to the properties whose text calls its function.
    """
    found = _touched()
    seen = {name for _, name in found}
    constant = [each for each in weakenings() if each.name not in seen]
    return found | {
        (text.__name__, each.name): each for text in (*ALWAYS, *INDUCTIVE) for each in constant if _calls(text, each)
    }


def _calls(text: Callable[..., Any], weakening: Weakening) -> bool:
    """Whether the weakened function is the property's text or a function of the same module that the text calls."""
    pending, seen = [text], set[Any]()
    while pending:
        function = pending.pop()
        seen.add(function)
        for name in _names_in(function.__code__):
            other = function.__globals__.get(name)
            if isinstance(other, FunctionType) and other.__module__ == text.__module__ and other not in seen:
                pending.append(other)
    return weakening.function in seen


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names_in(inner)


def _touched() -> dict[tuple[str, str], Weakening]:
    """Returns the parts whose removal changes a property of a correct model in some scope."""
    found: dict[tuple[str, str], Weakening] = {}
    models = [
        specification_of(PRESETS[name], bounds) for name in ("strict", "rocketmq-lmq") for bounds in SIZES.values()
    ]
    models += [specification_of(policy_named("strict+hold_limit=at_read"), SIZES["limit"])]
    right = [stated(model) for model in models]
    for weakening in weakenings():
        with weakening.planted():
            for model, known in zip(models, right, strict=True):
                now = stated(model)
                found |= {(name, weakening.name): weakening for name in known if not _same(now.get(name), known[name])}
    return found


def rows(report: Callable[[str], None] | None = None) -> list[Row]:
    """Returns the table, with a row for each property and a row for each part of a property."""
    parts = parts_of_text()
    order = [text.__name__ for text in (*ALWAYS, *INDUCTIVE)]
    open_ones = [(name, "") for name in order]
    open_ones += sorted(parts, key=lambda key: order.index(key[0]))
    found = {key: Row(property=key[0], part=key[1]) for key in open_ones}
    for law, model in laws():
        if report is not None:
            report(f"{law.policy} {law.bounds} {law.mutant}: {len(open_ones)} open")
        seen = set(_told_apart(model, open_ones, parts))
        for name, part in seen:
            found[name, part] = msgspec.structs.replace(law, property=name, part=part)
        open_ones = [key for key in open_ones if key not in seen]
    return list(found.values())


def _told_apart(
    model: Model, open_ones: Sequence[tuple[str, str]], parts: Mapping[tuple[str, str], Weakening]
) -> Iterator[tuple[str, str]]:
    """Iterate over the properties that the model breaks, and the parts whose removal changes a verdict."""
    whole = stated(model)
    asked: dict[tuple[str, str], Property] = {}
    for name, part in open_ones:
        if name in whole and part:
            with parts[name, part].planted():
                made = stated_one(name, model)
            if made is not None and not _same(made, whole[name]):
                asked[name, part] = attrs.evolve(made, name=f"{name}|{part}")
    wanted = {name for name, _ in open_ones if name in whole}
    judged = [*(whole[name] for name in wanted), *asked.values()]
    if not judged:
        return
    found = explore(model, judged, engine="python", limit_states=LIMIT_STATES)
    verdicts = {each.name: each.verdict for each in found.verdicts}
    for name, part in open_ones:
        other = verdicts.get(f"{name}|{part}", "holds" if not part else "")
        if {verdicts.get(name), other} == {"violated", "holds"}:
            yield name, part


def stated_one(name: str, model: Model) -> Property | None:
    """Returns the property of this name as its current text states it."""
    text = next(each for each in (*ALWAYS, *INDUCTIVE) if each.__name__ == name)
    return text(model)


def is_true(row: Row) -> bool:
    """Whether the row's model still breaks the property, or still needs the part."""
    parts = {(row.property, each.name): each for each in weakenings() if each.name == row.part}
    return [*_told_apart(law_of_row(row), [(row.property, row.part)], parts)] == [(row.property, row.part)]


def pinned() -> list[Row]:
    text = Path(__file__).with_name(PINNED).read_text(encoding="utf-8")
    return msgspec.json.decode(text, type=list[Row])


def main(words: Sequence[str] | None = None) -> int:
    """Create the table; returns 1 if it differs from the pinned one."""
    parser = argparse.ArgumentParser(prog="python -m model_tests.support.spec.weakened", description=__doc__)
    parser.add_argument("--write", action="store_true", help="pin what is found")
    chosen = parser.parse_args(words)
    known = pinned()
    made = rows(_say)
    if chosen.write:
        Path(__file__).with_name(PINNED).write_text(text_of(made), encoding="utf-8")
    for row in made:
        sys.stdout.write(f"{row.property} {row.part or 'whole'}: {_law(row)}\n")
    open_ones = sum(not row.policy for row in made)
    sys.stdout.write(f"{len(made)} properties and parts, {open_ones} that no law needs\n")
    return 0 if made == known else 1


def _law(row: Row) -> str:
    return f"{row.policy} under {row.bounds}, {row.mutant or 'as it is'}" if row.policy else "NO LAW"


def _say(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")


if __name__ == "__main__":
    sys.exit(main())
