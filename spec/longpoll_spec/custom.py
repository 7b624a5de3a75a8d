"""Loads a specification file, and provides the class `Specification` that such a file uses.

A file creates one `Specification`, from a policy or from the core (`actions.core`), and adds variables, knobs, actions
and properties to it, most of them by decorators. The result is a policy with an extension, which all engines accept.

The file runs as ordinary Python. Every mistake in the file is reported as `SpecificationFileError`, with file and line.
docs/own-specification.md explains how to write such a file.
"""

from __future__ import annotations

import linecache
import re
import sys
import traceback
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from types import FunctionType, ModuleType, TracebackType
from typing import Any, ClassVar, Final, TypeVar, get_args

import attrs
from attrs import define, field, frozen

from longpoll_spec.actions import families_of
from longpoll_spec.actions.core import has_room
from longpoll_spec.actions.family import Participant, action, always, everywhere, never
from longpoll_spec.bounds import Bounds
from longpoll_spec.errors import LongpollError, SpecificationFileError, not_known
from longpoll_spec.model import Action, Family, Kind, LeadsTo, Model, Property, Step, Who
from longpoll_spec.policy import POP_KNOBS, STRICT, Extension, Policy, knob_values, policy_named, policy_of, with_knobs
from longpoll_spec.properties import ALWAYS
from longpoll_spec.properties.statement import Text, no_step
from longpoll_spec.state import Phases, Queue, Request, State, assign
from longpoll_spec.state.variables import THREADS, Declared
from longpoll_spec.terms import FALSE, TRUE, Bool, Int, Term, all_of, any_of, ite

__all__ = ["FALSE", "TRUE", "Specification", "Step", "all_of", "any_of", "assign", "ite", "load", "policy_from"]

_NAME: Final = re.compile(r"(?!.*_q?\d+$)[a-z][a-z0-9_]*")
_TAKEN: Final = frozenset(THREADS).union(
    *((each.name for each in attrs.fields(kind)) for kind in (Request, Queue, State))
)
"""The names that a file must not give to its variables, because a policy has such variables under some bounds."""
_F = TypeVar("_F", bound=Callable[..., Any])


@frozen
class CoreRequest:
    """A request of the core, as the functions of a file see it."""

    kind: ClassVar[str] = "request"
    index: int
    phases: Phases
    """Maps the label of a phase to the value of `phase`."""
    phase: Int
    deadline: Int
    """The ticks left until the deadline. A tick lowers a deadline by one, and 0 stays 0."""

    def is_(self, *labels: str) -> Bool:
        """Whether the request is in one of these phases."""
        return self.phase.is_one_of(self.phases[label] for label in labels)


@frozen
class CoreQueue:
    """A queue of the core, as the functions of a file see it."""

    kind: ClassVar[str] = "queue"
    index: int
    visible_end: Int
    """The number of messages in the queue."""
    due: Bool
    """Whether a message was appended that no action of the file has handled yet."""
    has_room: Bool
    """Whether the bounds allow one more message."""


@frozen
class CoreState:
    """The state of the core, as the functions of a file see it."""

    requests: tuple[CoreRequest, ...]
    queues: tuple[CoreQueue, ...]
    queue: CoreQueue
    """The first queue, which is the only queue if the file declares nothing per queue."""
    hold_ticks: Int
    """The hold time: the number of ticks from which a deadline counts down."""
    knob: Callable[[str], Any]
    """Returns the value of one of the file's knobs, by its name."""


def _view(of: object, bounds: Bounds) -> Any:
    match of:
        case State():
            requests, queues = (tuple(_view(each, bounds) for each in pool) for pool in (of.requests, of.queues))
            return CoreState(requests, queues, queues[0], of.hold_ticks, of.knob)
        case Request():
            return CoreRequest(of.index, of.phases, of.phase, of.deadline)
        case Queue():
            return CoreQueue(of.index, of.visible_end, of.due, has_room(of, bounds))
    return of


@frozen
class _Said:
    """A function of a file, with the file and line at which a mistake in a call of the function is reported."""

    function: Callable[..., Any]
    path: str
    line: int
    is_alone: bool

    @property
    def place(self) -> str:
        return f"{Path(self.path).name}:{self.line}"

    @property
    def sentence(self) -> str:
        """The first paragraph of the function's docstring, on one line."""
        return " ".join((self.function.__doc__ or "").partition("\n\n")[0].split())

    def called(self, state: State, *given: object) -> Any:
        shown = (_view(each, state.bounds) for each in (state, *given)) if self.is_alone else (state, *given)
        with _Located(self.path, self.line):
            return self.function(*shown)

    def refuse(self, why: str) -> SpecificationFileError:
        return SpecificationFileError(f"{self.path}:{self.line}: {self.function.__name__} {why}")

    def truth(self, made: object, model: Model, together: Callable[[Iterable[Bool]], Bool] = all_of) -> Bool:
        """The result of the function as one term.

        If the function yields several truth values, `together` combines them.
        """
        parts: list[Bool] = []
        for part in made if isinstance(made, Iterable) else [made]:
            if not isinstance(part, Bool):
                raise self.refuse(f"must return truth values made of terms, not {type(part).__name__}")
            parts.append(part)
        whole = together(parts)
        self.reads(whole, {each.name for each in model.variables})
        return whole

    def reads(self, term: Term, known: Iterable[str]) -> None:
        """Raise an error if the term reads a variable that is not among `known`."""
        names = list(known)
        for name in sorted(term.reads.difference(names)):
            raise self.refuse(f"reads {not_known('variable', name, names)}")


@frozen
class _Action:
    """The function of a file's action, with checks of its result (`Family.text`)."""

    said: _Said

    def __call__(self, state: State, *participants: Participant) -> Step:
        made = self.said.called(state, *participants)
        if not isinstance(made, Step):
            raise self.said.refuse(f"must return Step(guard, effect), not {type(made).__name__}")
        if not isinstance(made.guard, Bool):
            raise self.said.refuse(f"needs a truth value as its guard, not {type(made.guard).__name__}")
        if not isinstance(made.effect, Mapping):
            raise self.said.refuse("needs an effect made by assign()")
        known = {each.name: each for each in state.variables}
        for name, term in made.effect.items():
            if name not in known:
                raise self.said.refuse(f"writes {not_known('variable', name, known)}")
            if isinstance(term, Bool) is not known[name].truth:
                raise self.said.refuse(f"gives {name} a {'truth value' if isinstance(term, Bool) else 'number'}")
            self.said.reads(term, known)
        self.said.reads(made.guard, known)
        return made


@frozen
class _State:
    """A property of states in a file: it is always true, or it must be true in at least one state."""

    said: _Said
    kind: Kind

    def __call__(self, model: Model) -> Property:
        term = self.said.truth(self.said.called(model.state), model)
        name = self.said.function.__name__
        return Property(name, self.kind, self.said.sentence, term, term, place=self.said.place)


@frozen
class _NoStep:
    """A property of steps in a file: while a condition is true, none of the named actions happens."""

    said: _Said
    actions: tuple[str, ...]
    who: tuple[Who, ...]

    def __call__(self, model: Model) -> Property:
        # A knob may remove an action, so the check uses the actions of this policy.
        known = [each.name for each in families_of(model.policy)]
        for name in self.actions:
            if name not in known:
                raise self.said.refuse(f"is about an {not_known('action', name, known)}")
        made = no_step(self.said.function, [(each, self._wrong(model, each)) for each in model.named(*self.actions)])
        return attrs.evolve(made, place=self.said.place)

    def _wrong(self, model: Model, action: Action) -> Bool:
        """The condition under which one instance of an action breaks the property."""
        state = model.state
        chosen: dict[Who, list[Any]] = {
            "request": [each for each in state.requests if each.index in action.actors],
            "queue": [each for each in state.queues if each.name in action.actors or len(state.queues) == 1],
        }
        if not all(chosen[each] for each in self.who):
            raise self.said.refuse(f"is about {' and '.join(self.who)}, which {action.name} does not have")
        return self.said.truth(self.said.called(state, *(chosen[each][0] for each in self.who)), model, any_of)


@frozen
class _LeadsTo:
    """A property of fair runs in a file, with one statement for each choice of its participants."""

    said: _Said
    who: tuple[Who, ...]

    def __call__(self, model: Model) -> Iterator[LeadsTo]:
        pools: dict[Who, Sequence[object]] = {"request": model.state.requests, "queue": model.state.queues}
        for chosen in product(*(pools[each] for each in self.who)):
            made = self.said.called(model.state, *chosen)
            if not isinstance(made, tuple) or len(made) != 2:
                raise self.said.refuse("must return a premise and a conclusion")
            premise, conclusion = (self.said.truth(each, model) for each in made)
            yield LeadsTo(self.said.function.__name__, self.said.sentence, premise, conclusion, self.said.place)


@define(eq=False)
class Specification:
    """A specification that a file declares.

    Args:
        base: The policy that the file changes: a name, as on the command line, or a `Policy`. Without `base` the file
            begins with the core: queues with messages, requests with a phase and a deadline, `append` and `tick`.
        phases: The phases of a request, beginning with the first one. With `base`, the phases that the file adds.
        without: The names of actions of the policy that the file leaves out.
    """

    base: str | Policy | None = None
    phases: Sequence[str] = field(default=(), kw_only=True)
    without: Iterable[str] = field(default=(), kw_only=True)
    _variables: list[Declared] = field(factory=list, init=False)
    _knobs: dict[str, tuple[Any, ...]] = field(factory=dict, init=False)
    _families: list[Family] = field(factory=list, init=False)
    _properties: list[Text] = field(factory=list, init=False)
    _predicates: list[Callable[..., Bool]] = field(factory=list, init=False)
    _leads_to: list[Callable[[Model], Iterable[LeadsTo]]] = field(factory=list, init=False)
    _names: set[tuple[str, str]] = field(factory=set, init=False)

    def __attrs_post_init__(self) -> None:
        """Check the arguments; raises `SpecificationFileError`."""
        if self.base is None and (len(self.phases) < 2 or isinstance(self.phases, str)):
            raise SpecificationFileError("a specification without a policy needs at least two phases of a request")
        known = [each.name for each in families_of(self._policy)]
        for name in self.without:
            if name not in known:
                raise SpecificationFileError(not_known("action", name, known))

    @property
    def _policy(self) -> Policy:
        return STRICT if self.base is None else policy_of(self.base)

    def flag(self, name: str, sentence: str, *of: Who, initial: bool = False) -> Any:
        """Declare a truth-valued variable; with `of`, one per request, per queue, or per request and queue.

        Returns the variable as a term, or with `of` a mapping, in which `each[request]` is the term.
        """
        return self._declare(Declared(name, sentence, of, truth=True, initial=int(initial)))

    def number(self, name: str, sentence: str, *of: Who, greatest: int | None = None, words: Sequence[str] = ()) -> Any:
        """Declare an integer variable that begins with 0. The arguments and the result are as for `flag`.

        The greatest value is `greatest`, or by default the number of messages. `words` names each value for readers.
        """
        most = len(words) - 1 if words else greatest
        return self._declare(Declared(name, sentence, of, greatest=most, labels=tuple(words)))

    def _declare(self, made: Declared) -> Any:
        if not _NAME.fullmatch(made.name):
            raise SpecificationFileError(
                f"{made.name!r} cannot name a variable: use lower case, and no number at the end"
            )
        if made.name in _TAKEN:
            raise SpecificationFileError(f"{made.name!r} is the name of a variable of the specification: use another")
        self._new("variable", made.name)
        if not set(made.who) <= {"request", "queue"} or len(set(made.who)) != len(made.who):
            raise SpecificationFileError(f"{made.name} can belong to a request, a queue or both, not {made.who}")
        self._variables.append(made)
        return made if made.who else made.term(made.name)

    def _new(self, kind: str, name: str) -> None:
        if (kind, name) in self._names:
            raise SpecificationFileError(f"there is another {kind} {name}")
        self._names.add((kind, name))

    def knob(self, name: str, *values: Any) -> None:
        """Declare a new knob, or add values to a knob of the policy. The first value is the default of the file."""
        self._new("knob", name)
        known = knob_values().get(name, ())
        if len({str(each).lower() for each in (*known, *values)}) < max(2, len(known) + len(values)):
            raise SpecificationFileError(f"knob {name} needs values that differ, and more than one")
        self._knobs[name] = values

    def action(
        self, *who: Who, urgent: bool = True, thread: str = "", exists: Callable[[Any], bool] = everywhere
    ) -> Callable[[_F], _F]:
        """Decorate a function from state and participants to `Step`, which becomes an action of the function's name.

        The function replaces an action of the policy with the same name. The action has an instance for each choice of
        the participants `who`: `request`, `queue`, and with a policy also `notifier`, `tag` and `wish`. No time passes
        while an urgent action is enabled. `thread` names the thread that takes the step, for readers. `exists` decides
        from the state, which has the knobs, whether the action exists.
        """
        self._check_participants(who)
        return self._adding(
            lambda said: self._families.append(
                attrs.evolve(
                    action(*who, exists=exists, urgent=always if urgent else never)(said.function),
                    sentence=said.sentence,
                    text=_Action(said),
                    thread=thread,
                    place=said.place,
                )
            )
        )

    def predicate(self, function: _F) -> _F:
        """Name a condition of a request, so that an export to TLA+ defines an operator for it."""
        self._predicates.append(function)
        return function

    def always(self, function: _F) -> _F:
        """Decorate a function of the state: each term that it returns or yields must hold in every reachable state."""
        return self._adding(lambda said: self._properties.append(_State(said, "always")))(function)

    def sometimes(self, function: _F) -> _F:
        """Decorate a function of the state: the term that it returns must be true in at least one reachable state."""
        return self._adding(lambda said: self._properties.append(_State(said, "sometimes")))(function)

    def no_step(self, *actions: str, who: Sequence[Who] = ()) -> Callable[[_F], _F]:
        """Decorate a function of the state: these actions must not happen while the term that it returns is true.

        If the function yields several terms, the actions must not happen while any of the terms is true. With `who`,
        such as `("request",)`, the function also gets these participants of the step.
        """
        self._check_participants(who)
        return self._adding(lambda said: self._properties.append(_NoStep(said, actions, tuple(who))))

    def leads_to(self, *who: Who) -> Callable[[_F], _F]:
        """Decorate a function of the state that returns the premise and the conclusion of a property of fair runs.

        Whenever the premise is true, the conclusion must be true at that time or later. A run is fair if every urgent
        action that stays enabled happens, and time passes.
        """
        self._check_participants(who)
        return self._adding(lambda said: self._leads_to.append(_LeadsTo(said, who)))

    def _check_participants(self, who: Sequence[Who]) -> None:
        known = get_args(Who) if self.base is not None else ("request", "queue")
        for each in who:
            if each not in known:
                raise SpecificationFileError(not_known("participant", each, known))

    def _adding(self, add: Callable[[_Said], None]) -> Callable[[_F], _F]:
        def decorate(function: _F) -> _F:
            assert isinstance(function, FunctionType)
            code = function.__code__
            line = _line_of_def(code.co_filename, code.co_firstlineno)
            said = _Said(function, code.co_filename, line, self.base is None)
            if not said.sentence:
                raise said.refuse("needs a docstring: its sentence")
            if any(function.__name__ == each.__name__ for each in ALWAYS) and self.base is not None:
                raise said.refuse("has the name of a property of every policy")
            self._new("function", function.__name__)
            add(said)
            return function

        return decorate

    def as_policy(self, path: str, text: str) -> Policy:
        """The policy of this specification, which the file at `path` with this text declares."""
        own = {name: values for name, values in self._knobs.items() if name not in knob_values()}
        extension = Extension(
            path=path,
            digest=zlib.crc32(text.encode()),
            is_alone=self.base is None,
            knobs=self._knobs,
            settings=tuple((name, values[0]) for name, values in own.items()),
            phases=tuple(self.phases),
            variables=tuple(self._variables),
            families=tuple(self._families),
            left_out=frozenset(self.without),
            properties=tuple(self._properties),
            leads_to=tuple(self._leads_to),
            predicates=tuple(self._predicates),
        )
        changed = {name: values[0] for name, values in self._knobs.items() if name not in own}
        return attrs.evolve(self._policy, name=Path(path).stem, extension=extension, **changed)


def _line_of_def(path: str, line: int) -> int:
    """The line of `def`, at or after the line of the first decorator."""
    lines = linecache.getlines(path)
    return next((at for at in range(line, len(lines) + 1) if lines[at - 1].lstrip().startswith("def ")), line)


@frozen
class _Located:
    """A block in which every exception counts as a mistake of the file, at the last line of the file that ran."""

    path: str
    line: int
    """The line to report if the traceback has no line of the file."""

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        """Turn an exception into `SpecificationFileError`, except Ctrl-C and an error that already names its line."""
        if not isinstance(error, Exception | SystemExit) or str(error).startswith(f"{self.path}:"):
            return
        here = [each.lineno for each in traceback.extract_tb(trace) if each.filename == self.path]
        at, said = here[-1] if here else self.line, f"{type(error).__name__}: {error}"
        if isinstance(error, SyntaxError):
            at, said = error.lineno or at, error.msg
        elif isinstance(error, LongpollError):
            said = str(error)
        raise SpecificationFileError(f"{self.path}:{at}: {said}") from error


def load(path: str) -> Policy:
    """Run a specification file, and return its policy; raises `SpecificationFileError`.

    The file runs as a module of this process, with everything that Python code may do.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecificationFileError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    module = ModuleType(f"longpoll_specification_{zlib.crc32(f'{path} {text}'.encode()):08x}")
    module.__file__ = path
    linecache.checkcache(path)
    sys.modules[module.__name__] = module  # pickle finds the functions of the file by the module's name
    with _Located(path, 1):
        exec(compile(text, path, "exec"), module.__dict__)  # noqa: S102 - the user's own file
    found = [each for each in vars(module).values() if isinstance(each, Specification)]
    if len(found) != 1:
        raise SpecificationFileError(f"{path}:1: the file must define one Specification, not {len(found)}")
    return found[0].as_policy(path, text)


@cache
def _pop(name: str) -> Policy:
    """A preset of the table that holds pops: the file `pop.py` of this package, with the preset's knobs."""
    policy = with_knobs(load(str(files("longpoll_spec") / "pop.py")), POP_KNOBS[name])
    assert policy.extension is not None
    return attrs.evolve(policy, name=name, extension=attrs.evolve(policy.extension, is_preset=True))


def policy_from(text: str) -> Policy:
    """The policy of a file if the text ends with `.py`, or else the policy of this name; raises `SpecUserError`."""
    if text.endswith(".py"):
        return load(text)
    name, *settings = text.split("+")
    return with_knobs(_pop(name), settings) if name in POP_KNOBS else policy_named(text)
