"""What several actions do to a request alike: hand it to the executor, read for it, answer it, lose it.

Source: `executeRequestWhenWakeup` (4.9.8). Leaves out when this happens: the actions say so.
"""

from __future__ import annotations

from longpoll_spec.state import Request, State
from longpoll_spec.terms import TRUE, Bool, Term, ite

Pairs = tuple[tuple[Term, Term | int | bool], ...]


def to_executor(
    request: Request, wakes: Bool = TRUE, *, otherwise: int | None = None, recheck_due: Bool | None = None
) -> Pairs:
    """Where `wakes` holds the request leaves table and lists and stands in the executor once more.

    Else it goes to the phase `otherwise`, or stays where it is; `recheck_due` is then its recheck, if not as before.

    It keeps its deadline: being woken does not buy time. A recheck of its own would find it gone, so none is left.
    """
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
    """What a read that answers leaves: the next offset, and that nothing is unread."""
    found = state.is_answered_by_read(request)
    # Who is told that the queue begins later has read nothing of it yet, if there is anything in it.
    read = found & ~(state.offset_after_read(request) < state.visible_end_of(request))
    return (
        (request.offset, ite(found, state.offset_after_read(request), request.offset)),
        (request.passes, request.passes & ~read),
        (request.wanted, request.wanted & ~read),
    )


def answered(request: Request, here: Bool = TRUE) -> Pairs:
    """Where `here` holds the request's pull is answered and the slot is idle again."""
    return (*_gone(request, here), (request.open, request.open & ~here))


def dropped(request: Request, here: Bool = TRUE) -> Pairs:
    """Where `here` holds the request stands nowhere any more, and its pull still waits for an answer."""
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
    """Where `here` holds, what is forgotten of a request that stands nowhere any more."""
    return (
        (request.orphan, request.orphan & ~here),
        (request.closed, request.closed & ~here),
        (request.role_news, ite(here, 0, request.role_news)),
        (request.late, ite(here, 0, request.late)),
        (request.waited, ite(here, 0, request.waited)),
    )
