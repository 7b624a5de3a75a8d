"""Converts a counterexample about held pops to a schedule for an unmodified 5.5.0 broker that shows the violation.

A counterexample of the policy `strict-pop` with a changed knob is first converted to a run of `rocketmq-5-pop`. The
actions in `UNSHIPPED` are left out, because the 5.5.0 broker does not check for messages again after it has held a pop.
`schedule` defines the moves, and `replay` plays them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from longpoll_java.errors import NotOnJavaError
from longpoll_java.schedule import DISPATCHER, HOLD_MS, SCANNER, Move, Schedule, Step, value_of
from longpoll_java.violations import breaks
from longpoll_spec.model import Trace
from longpoll_spec.policy import Policy

SHIPPED: Final = "rocketmq-5-pop"
UNSHIPPED: Final = frozenset({"recheck"})
"""The actions of `strict-pop` that 5.5.0 does not have and that change nothing before the message arrives."""
IMPOSSIBLE: Final[Mapping[str, str]] = {
    "tick": "replay lets a pop's time pass only after the run's last step",
    "retry_append": "replay does not wait for the revive of a message that was not acknowledged",
    "evict": "the map of all sets drops a set only after 600 s without access, or above 100,000 keys",
    "limit_total": "replay changes no setting of a broker, and the limit has to be one",
    "limit_key": "replay changes no setting of a broker, and the limit has to be one",
    "recount": "the counter of waiting pops cannot be seen from outside",
}
"""Maps each action that no replay of pops can contain to the reason."""

SENTENCES: Final[Mapping[str, str]] = {
    "no_lost_wakeup": "the message is there, but the pop gets it only because its deadline comes",
    "nothing_dropped": "after its deadline two rounds of the scan do not reach the pop: it is lost",
}
"""Maps each property to the sentence about the violation that its moves show."""


def is_of_pops(policy: Policy) -> bool:
    """Whether a policy describes the table of pops."""
    return policy.name.partition("+")[0] in {SHIPPED, "strict-pop"}


def pops_of(trace: Trace) -> Schedule:
    """Return a schedule that makes a 5.5.0 broker follow a run of the policy `rocketmq-5-pop`.

    Raises NotOnJavaError if a broker cannot be made to follow the run.
    """
    queues = [queue.name for queue in trace.model.state.queues]
    requests = range(len(trace.model.state.requests))
    woken = [_actor(step.action.actors) for step in trace.steps[1:] if step.action and step.action.name == "wake"]
    steps = []
    for number, (before, step) in enumerate(zip(trace.steps, trace.steps[1:], strict=False), 1):
        action = step.action
        assert action is not None
        make = _MAKERS.get(action.name)
        if make is None:
            why = IMPOSSIBLE.get(action.name, "replay has no moves for it")
            raise NotOnJavaError(f"step {number} of the run is {action.label}, and {why}")
        request = _actor(action.actors)
        if action.name == "wake" and value_of(trace.model, before.state, "called_all", 0):
            raise NotOnJavaError(f"step {number} of the run is {action.label}, and replay wakes only by a message")
        queue = next((queues.index(each) for each in action.actors if each in queues), 0)
        moves = list(make(request, queue))
        if moves[0].kind == "pop":
            rank = woken.index(request) if request in woken else len(woken)
            asked = queue if action.name == "pop_queue" else -1
            moves[0] = Move("pop", slot=request, queue=asked, number=rank)
        still = tuple(bool(value_of(trace.model, step.state, f"unanswered_{each}", 0)) for each in requests)
        steps.append(Step(action.label, tuple(moves), still))
    return Schedule(
        trace.property_name,
        len(queues),
        len(requests),
        tick_ms=HOLD_MS,
        hold_ms=HOLD_MS,
        lmq=False,
        slave=False,
        before=(Move("create", number=len(queues)),),
        steps=tuple(steps),
        after=_shown(trace),
        pops=True,
    )


def _actor(actors: tuple[object, ...]) -> int:
    return next((each for each in actors if isinstance(each, int)), -1)


def _shown(trace: Trace) -> tuple[Move, ...]:
    """Return the moves after a run that make the broker show its violation.

    The result is empty if the run violates nothing, or nothing that a replay can show.
    """
    if not breaks(trace):
        return ()
    if trace.property_name == "no_lost_wakeup":
        # The scanner waits until the message is announced. Otherwise the scanner could take the pop out of the table,
        # and the announcement would not wake it.
        announced = Move("free", gates=("look", "done")), Move("until", DISPATCHER, ("done",)), Move("free")
        # The scan checks these pops before their deadlines, but their threads read only after the deadlines.
        waiting = _clients(trace, "held")
        return *announced, *(Move(kind, slot=each) for each in waiting for kind in ("expired", "look"))
    if trace.property_name == "nothing_dropped":
        dropped = _clients(trace, "idle")
        deadlines = [Move("deadline", slot=each) for each in dropped]
        rounds = [Move(kind, SCANNER, ("look",)) for _ in range(2) for kind in ("until", "go")]
        checks = [Move(kind, slot=each) for each in dropped for kind in ("untouched", "silent")]
        return Move("free", gates=("look",)), *deadlines, *rounds, *checks, Move("free")
    return ()


def _clients(trace: Trace, phase: str) -> list[int]:
    """Return the clients that wait for an answer at the end, and whose request is in the given phase."""

    def last(name: str) -> int:
        return value_of(trace.model, trace.steps[-1].state, name, 0)

    requests = trace.model.state.requests
    phased = [each for each in requests if each.phases.labels[last(f"phase_{each.index}")] == phase]
    return [each.index for each in phased if last(f"unanswered_{each.index}") and not last(f"gone_{each.index}")]


def _thread(request: int) -> str:
    return f"pull {request}"


def _pop(request: int, _queue: int) -> Iterator[Move]:
    yield Move("pop")
    yield Move("until", _thread(request), ("read",))


def _read_misses(request: int, _queue: int) -> Iterator[Move]:
    yield Move("go", _thread(request), ("read",))
    yield Move("until", _thread(request), ("put",))


def _insert(request: int, _queue: int) -> Iterator[Move]:
    yield Move("go", _thread(request), ("put",))
    yield Move("until", _thread(request), ("held",))


def _append(_request: int, queue: int) -> Iterator[Move]:
    yield Move("go", DISPATCHER, ("done",))
    yield Move("send", queue=queue)
    yield Move("until", DISPATCHER, ("dispatch",), queue=queue)
    yield Move("go", DISPATCHER, ("dispatch",))
    yield Move("until", DISPATCHER, ("notify",))


def _nobody_reads_all(_request: int, _queue: int) -> Iterator[Move]:
    yield Move("go", DISPATCHER, ("notify",))
    yield Move("until", DISPATCHER, ("notify",))


def _nobody_asks(_request: int, _queue: int) -> Iterator[Move]:
    yield Move("go", DISPATCHER, ("notify",))
    yield Move("until", DISPATCHER, ("done",))


def _wake(request: int, _queue: int) -> Iterator[Move]:
    yield Move("go", DISPATCHER, ("notify",))
    yield Move("until", DISPATCHER, ("wake",), slot=request)


def _submit(request: int, _queue: int) -> Iterator[Move]:
    yield Move("go", DISPATCHER, ("wake",))
    yield Move("until", DISPATCHER, ("submit",), slot=request)
    yield Move("go", DISPATCHER, ("submit",))
    yield Move("until", _thread(request), ("read",))


def _submit_fails(_request: int, _queue: int) -> Iterator[Move]:
    yield Move("go", DISPATCHER, ("wake",))
    yield Move("until", DISPATCHER, ("notify", "done"))


def _executor_rejects(request: int, _queue: int) -> Iterator[Move]:
    yield Move("go", DISPATCHER, ("wake",))
    yield Move("until", DISPATCHER, ("submit",), slot=request)
    yield Move("throw", DISPATCHER, ("submit",))
    # The dispatcher dispatches the same message again, and therefore announces it again.
    yield Move("until", DISPATCHER, ("dispatch",))
    yield Move("go", DISPATCHER, ("dispatch",))
    yield Move("until", DISPATCHER, ("notify",))


def _scan_takes(request: int, _queue: int) -> Iterator[Move]:
    yield Move("turn", SCANNER, ("scan",), slot=request)


def _scan_puts_back(_request: int, _queue: int) -> Iterator[Move]:
    yield Move("go", SCANNER, ("scan",))
    yield Move("until", SCANNER, ("look",))


def _channel_closes(request: int, _queue: int) -> Iterator[Move]:
    yield Move("close", slot=request)


def _read_finds(request: int, _queue: int) -> Iterator[Move]:
    yield Move("go", _thread(request), ("read",))
    yield Move("answer", slot=request, word="found")


_MAKERS: Final[Mapping[str, Callable[[int, int], Iterator[Move]]]] = {
    "append": _append,
    "pop_all": _pop,
    "pop_queue": _pop,
    "read_finds": _read_finds,
    "read_misses": _read_misses,
    "insert": _insert,
    "nobody_reads_all": _nobody_reads_all,
    "nobody_asks": _nobody_asks,
    "wake": _wake,
    "submit": _submit,
    "submit_fails": _submit_fails,
    "executor_rejects": _executor_rejects,
    "scan_takes": _scan_takes,
    "scan_puts_back": _scan_puts_back,
    "channel_closes": _channel_closes,
}
