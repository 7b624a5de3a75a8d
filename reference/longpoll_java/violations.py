"""Makes the moves that show, after a run, that it violated its property: by responses if possible, else by the threads.

If a move does not have the expected result, the replay ends, because the broker did not follow the specification. If a
property cannot be observed from outside, its runs are only followed.
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
    """Return the moves that show the violation of a run; empty if its property cannot be observed."""
    show = _SHOWN.get(trace.property_name)
    return tuple(show(trace)) if show is not None and breaks(trace) else ()


def breaks(trace: Trace) -> bool:
    """Whether the run reaches a state that violates its property, under the current policy of the trace."""
    promised = [each for each in properties_of(trace.model) if each.name == trace.property_name]
    return any(not holds(trace.model, each, step.state) for each in promised for step in trace.steps)


def sentence_of(property_name: str) -> str:
    """Return the sentence about the violation that the moves of a property show; empty for a property without moves."""
    return _SENTENCES.get(property_name, "")


def _last(trace: Trace, name: str, otherwise: int = 0) -> int:
    return value_of(trace.model, trace.steps[-1].state, name, otherwise)


def _waiting(trace: Trace) -> list[int]:
    return [each.index for each in trace.model.state.requests if _last(trace, f"open_{each.index}")]


def _lost(trace: Trace) -> Iterator[Move]:
    """Show a lost wakeup: all threads except the scan continue, and the pull stays unanswered until the scan."""
    waiting = _waiting(trace)
    yield Move("free", gates=ROUND)
    yield Move("until", SCANNER, ROUND)
    yield from (Move("silent", slot=each) for each in waiting)
    yield Move("go", SCANNER, ROUND)
    yield Move("free")
    yield from (Move("answer", slot=each) for each in waiting)


def _late(trace: Trace) -> Iterator[Move]:
    """Show that the deadline is over, and that no thread checked the pull before the scan."""
    waiting = _waiting(trace)
    yield Move("until", SCANNER, ROUND)
    yield from (Move("deadline", slot=each) for each in waiting)
    yield from (Move("silent", slot=each) for each in waiting)
    yield Move("go", SCANNER, ROUND)
    yield Move("free")
    yield from (Move("answer", slot=each) for each in waiting)


def _dropped(trace: Trace) -> Iterator[Move]:
    """Show that after the deadline a whole round passes without reaching the request."""
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
    """Show that after the deadline a whole round misses the request, and the wakeup by a message misses it too."""
    yield Move("free", gates=ROUND)
    yield Move("send", queue=0)
    yield from _dropped(trace)


def _still_walked(trace: Trace) -> Iterator[Move]:
    """Show that the next round checks the request of a closed channel."""
    yield Move("free")
    yield from (Move("look", slot=each.index) for each in trace.model.state.requests if _is_closed(trace, each.index))


def _is_closed(trace: Trace, request: int) -> bool:
    return bool(_last(trace, f"closed_{request}"))


def _regressed(trace: Trace) -> Iterator[Move]:
    """Show that the broker reports the older offset."""
    yield Move("free")
    for each in trace.model.state.requests:
        name = f"committed_{each.index}"
        last = _last(trace, name)
        if any(value_of(trace.model, step.state, name, 0) > last for step in trace.steps):
            yield Move("offset", slot=each.index, number=last)


def _unswept(_trace: Trace) -> Iterator[Move]:
    """Show that a later round visits the queue, in which no pull waits."""
    yield Move("free", gates=ROUND)
    yield Move("until", SCANNER, ROUND)
    yield Move("go", SCANNER, ROUND)
    yield Move("visit", queue=0)
    yield Move("free")


def _round_cut(trace: Trace) -> Iterator[Move]:
    """Show that the next round begins before this round has visited the other queues."""
    thrown = trace.steps[-1].action
    names = [queue.name for queue in trace.model.state.queues]
    yield Move("until", SCANNER, ROUND)
    for number, name in enumerate(names):
        if thrown is None or name not in thrown.actors:
            yield Move("unvisited", queue=number)
    yield Move("free")


def _broken_off(trace: Trace) -> Iterator[Move]:
    """Show that the request about the master gets an error, and that pulls at another queue were not visited.

    At the end, each pull that was not visited gets a message, which answers the pull.
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
    """Show that the connection ends without an answer."""
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
_LOST: Final = "the message is there, but only the next scan answers the pull"
_SENTENCES: Final[Mapping[str, str]] = {
    "lost_by_hold": _LOST,
    "lost_by_keep": _LOST,
    "no_lost_wakeup": _LOST,
    "queued_by_deadline": "the deadline is over, but only the next scan answers the pull",
    "answered_by_deadline": "the deadline is over, but only the next scan answers the pull",
    "dropped_by_reject": "after its deadline a whole scan does not reach the pull: it is lost",
    "dropped_by_throw": "after its deadline a whole scan does not reach the pull: it is lost",
    "nothing_dropped": "after its deadline a whole scan does not reach the pull: it is lost",
    "no_orphan": "neither a message nor a whole scan after its deadline reaches the pull",
    "closed_is_let_go": "a scan checks the pull of a closed channel",
    "commit_never_regresses": "the broker reports the older offset",
    "buckets_are_swept": "a later scan visits the queue, in which no pull waits",
    "round_is_whole": "the next scan begins, but this one has not visited the other queues",
    "return_is_whole": "the traversal ends with an exception, and pulls at another queue are not sent to the master",
    "answered_on_stop": "the connection ends without an answer",
}
