"""What shows, after a run, that it broke its property: on the wire where it can be seen there, else by the threads.

Each property is shown by moves that follow the run's own. A move that finds otherwise than it says ends the replay: the
broker did not do what the law says. Leaves out properties that nothing outside of the law can show: such a run is
followed, and that is all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from longpoll_java.schedule import FOUND, SCANNER, WITNESS, Move, value_of, witnesses_of
from longpoll_spec.engines.evaluate import holds
from longpoll_spec.model import Trace
from longpoll_spec.specification import properties_of

ROUND: Final = ("round",)


def shown_by(trace: Trace) -> tuple[Move, ...]:
    """The moves that show what a run broke; none where its property is not to be seen from outside."""
    show = _SHOWN.get(trace.property_name)
    return tuple(show(trace)) if show is not None and breaks(trace) else ()


def breaks(trace: Trace) -> bool:
    """Whether the run comes to a state in which its property is broken, under the policy that it is a run of now."""
    promised = [each for each in properties_of(trace.model) if each.name == trace.property_name]
    return any(not holds(trace.model, each, step.state) for each in promised for step in trace.steps)


def sentence_of(property_name: str) -> str:
    """What the moves of a property show; an empty text for a property that nothing shows."""
    return _SENTENCES.get(property_name, "")


def _last(trace: Trace, name: str, otherwise: int = 0) -> int:
    return value_of(trace.model, trace.steps[-1].state, name, otherwise)


def _waiting(trace: Trace) -> list[int]:
    """The consumers whose pull is unanswered at the end."""
    return [each.index for each in trace.model.state.requests if _last(trace, f"open_{each.index}")]


def _lost(trace: Trace) -> Iterator[Move]:
    """All threads but the scan go on, and the pull is unanswered until the scan: its wakeup is lost."""
    waiting = _waiting(trace)
    yield Move("free", gates=ROUND)
    yield Move("until", SCANNER, ROUND)
    yield from (Move("silent", slot=each) for each in waiting)
    yield Move("go", SCANNER, ROUND)
    yield Move("free")
    yield from (Move("answer", slot=each) for each in waiting)


def _late(trace: Trace) -> Iterator[Move]:
    """The deadline is over, and nobody has looked before the scan."""
    waiting = _waiting(trace)
    yield Move("until", SCANNER, ROUND)
    yield from (Move("deadline", slot=each) for each in waiting)
    yield from (Move("silent", slot=each) for each in waiting)
    yield Move("go", SCANNER, ROUND)
    yield Move("free")
    yield from (Move("answer", slot=each) for each in waiting)


def _dropped(trace: Trace) -> Iterator[Move]:
    """Past the deadline a whole round goes by that does not come to the request."""
    waiting = _waiting(trace)
    yield Move("free", gates=ROUND)
    yield from (Move("deadline", slot=each) for each in waiting)
    yield Move("until", SCANNER, ROUND)
    yield Move("go", SCANNER, ROUND)
    yield Move("until", SCANNER, ("rounded",))
    yield from (Move("untouched", slot=each) for each in waiting)
    yield from (Move("silent", slot=each) for each in waiting)
    yield Move("free")


def _orphaned(trace: Trace) -> Iterator[Move]:
    """The same, and a message does not find it either."""
    yield Move("free", gates=ROUND)
    yield Move("send", queue=0)
    yield from _dropped(trace)


def _still_walked(trace: Trace) -> Iterator[Move]:
    """The next round looks at the request of a channel that is closed."""
    yield Move("free")
    yield from (Move("look", slot=each.index) for each in trace.model.state.requests if _is_closed(trace, each.index))


def _is_closed(trace: Trace, request: int) -> bool:
    return bool(_last(trace, f"closed_{request}"))


def _regressed(trace: Trace) -> Iterator[Move]:
    """The broker says the older offset."""
    yield Move("free")
    for each in trace.model.state.requests:
        name = f"committed_{each.index}"
        last = _last(trace, name)
        if any(value_of(trace.model, step.state, name, 0) > last for step in trace.steps):
            yield Move("offset", slot=each.index, number=last)


def _unswept(_trace: Trace) -> Iterator[Move]:
    """A later round comes to the queue, in which nobody waits."""
    yield Move("free", gates=ROUND)
    yield Move("until", SCANNER, ROUND)
    yield Move("go", SCANNER, ROUND)
    yield Move("visit", queue=0)
    yield Move("free")


def _round_cut(trace: Trace) -> Iterator[Move]:
    """The next round begins, and this one has not come to the other queues."""
    thrown = trace.steps[-1].action
    names = [queue.name for queue in trace.model.state.queues]
    yield Move("until", SCANNER, ROUND)
    for number, name in enumerate(names):
        if thrown is None or name not in thrown.actors:
            yield Move("unvisited", queue=number)
    yield Move("free")


def _broken_off(trace: Trace) -> Iterator[Move]:
    """Who told of the master is answered that it failed, and who waits at another queue has not been come to.

    Then a message each is sent, which is what they are answered by.
    """
    witnesses = witnesses_of(trace)
    yield Move("broke_off")
    yield from (Move("untouched", slot=each) for each in witnesses)
    yield from (Move("silent", slot=each) for each in witnesses)
    yield Move("free")
    for each in witnesses:
        yield Move("send", queue=each - WITNESS)
        yield Move("answer", slot=each, word=FOUND)


def _unanswered_at_stop(trace: Trace) -> Iterator[Move]:
    """The connection ends without an answer."""
    yield from (Move("gone", slot=each) for each in _waiting(trace))


_SHOWN: Final[Mapping[str, Callable[[Trace], Iterator[Move]]]] = {
    "lost_by_hold": _lost,
    "lost_by_keep": _lost,
    "no_lost_wakeup": _lost,
    "queued_by_deadline": _late,
    "answered_by_deadline": _late,
    "dropped_by_reject": _dropped,
    "dropped_by_throw": _dropped,
    "nothing_dropped": _dropped,
    "no_orphan": _orphaned,
    "closed_is_let_go": _still_walked,
    "commit_never_regresses": _regressed,
    "buckets_are_swept": _unswept,
    "round_is_whole": _round_cut,
    "return_is_whole": _broken_off,
    "answered_on_stop": _unanswered_at_stop,
}
_LOST: Final = "the message is there, and the pull is answered by the next scan alone"
_SENTENCES: Final[Mapping[str, str]] = {
    "lost_by_hold": _LOST,
    "lost_by_keep": _LOST,
    "no_lost_wakeup": _LOST,
    "queued_by_deadline": "the deadline is over, and the pull is answered by the next scan alone",
    "answered_by_deadline": "the deadline is over, and the pull is answered by the next scan alone",
    "dropped_by_reject": "past its deadline a whole scan does not come to the pull: nobody has it any more",
    "dropped_by_throw": "past its deadline a whole scan does not come to the pull: nobody has it any more",
    "nothing_dropped": "past its deadline a whole scan does not come to the pull: nobody has it any more",
    "no_orphan": "neither a message nor a whole scan past its deadline comes to the pull",
    "closed_is_let_go": "a scan looks at the pull of a closed channel",
    "commit_never_regresses": "the broker says the older offset",
    "buckets_are_swept": "a later scan comes to the queue, for which nobody waits",
    "round_is_whole": "the next scan begins, and this one has not come to the other queues",
    "return_is_whole": "the walk ends with an exception, and who waits at another queue is not sent to the master",
    "answered_on_stop": "the connection ends without an answer",
}
