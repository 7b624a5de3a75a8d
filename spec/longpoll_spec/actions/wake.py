"""Effects that several actions share: a request goes to the executor, gets a read, is answered, or is dropped.

Source: `executeRequestWhenWakeup` (4.9.8)."""

from __future__ import annotations

from longpoll_spec.state import Request, State
from longpoll_spec.terms import TRUE, Bool, Term, ite

Pairs = tuple[tuple[Term, Term | int | bool], ...]


def to_executor(
    request: Request, wakes: Bool = TRUE, *, otherwise: int | None = None, recheck_due: Bool | None = None
) -> Pairs:
    """The effect that the request leaves the table and the lists and enters the executor, where `wakes` holds.

    Where `wakes` does not hold, the request's phase becomes the value of `otherwise`, and its recheck becomes pending
    or not as `recheck_due` says. If one of these arguments is None, the request keeps the old value.

    A woken request keeps its deadline. The recheck of a woken request is cancelled, because it would not find the
    request."""
    stays = request.phase if otherwise is None else otherwise
    left = request.recheck_due if recheck_due is None else recheck_due
    return (
        (request.phase, ite(wakes, request.phases["queued"], stays)),
        (request.copies, ite(wakes, request.copies + 1, request.copies)),
        (request.recheck_due, left & ~wakes),
        (request.orphan, request.orphan & ~wakes),
        (request.armed, request.armed & ~wakes),
    )


def after_read(state: State, request: Request) -> Pairs:
    """The effect of a read that answers its pull: the request moves to the next offset and has nothing left to read."""
    found = state.is_answered_by_read(request)
    # A read that only reports the queue's new beginning leaves the messages after this beginning unread.
    read = found & ~(state.offset_after_read(request) < state.visible_end_of(request))
    return (
        (request.offset, ite(found, state.offset_after_read(request), request.offset)),
        (request.passes, request.passes & ~read),
        (request.wanted, request.wanted & ~read),
    )


def answered(request: Request, here: Bool = TRUE) -> Pairs:
    """The effect that the request's pull is answered and its slot is idle again, where `here` holds."""
    return (*_gone(request, here), (request.open, request.open & ~here))


def dropped(request: Request, here: Bool = TRUE) -> Pairs:
    """The effect that the request leaves table and lists without an answer to its pull, where `here` holds."""
    return _gone(request, here)


def _gone(request: Request, here: Bool) -> Pairs:
    return (
        (request.phase, ite(here, request.phases["idle"], request.phase)),
        (request.deadline, ite(here, 0, request.deadline)),
        (request.recheck_due, request.recheck_due & ~here),
        (request.armed, request.armed & ~here),
        *left(request, here),
    )


def left(request: Request, here: Bool) -> Pairs:
    """The effect that resets the bookkeeping of a request that has left table and lists, where `here` holds."""
    return (
        (request.orphan, request.orphan & ~here),
        (request.closed, request.closed & ~here),
        (request.role_news, ite(here, 0, request.role_news)),
        (request.late, ite(here, 0, request.late)),
        (request.waited, ite(here, 0, request.waited)),
    )
