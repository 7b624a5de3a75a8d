"""Steps that several actions share: hand a request to the executor, read for it, answer it, lose it.

Source: `executeRequestWhenWakeup` (4.9.8).
"""

from __future__ import annotations

from longpoll_spec.state import Request, State
from longpoll_spec.terms import TRUE, Bool, Term, ite

Pairs = tuple[tuple[Term, Term | int | bool], ...]


def to_executor(
    request: Request, wakes: Bool = TRUE, *, otherwise: int | None = None, recheck_due: Bool | None = None
) -> Pairs:
    """Where `wakes` holds, the request leaves table and lists and enters the executor once more.

    Otherwise it goes to the phase `otherwise`, or stays where it is; `recheck_due` then sets its pending recheck, None
    to keep it.

    It keeps its deadline, so a wake does not extend it. Its own recheck is cancelled: it would not find the request.
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
    """The effect of a read that answers: the next offset, and nothing left unread."""
    found = state.is_answered_by_read(request)
    # A consumer that learns that the queue begins later has read nothing yet, if the queue is not empty.
    read = found & ~(state.offset_after_read(request) < state.visible_end_of(request))
    return (
        (request.offset, ite(found, state.offset_after_read(request), request.offset)),
        (request.passes, request.passes & ~read),
        (request.wanted, request.wanted & ~read),
    )


def answered(request: Request, here: Bool = TRUE) -> Pairs:
    """Where `here` holds, the request's pull is answered and the slot is idle again."""
    return (*_gone(request, here), (request.open, request.open & ~here))


def dropped(request: Request, here: Bool = TRUE) -> Pairs:
    """Where `here` holds, the request is in no table, list or executor, and its pull still waits for an answer."""
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
    """Where `here` holds, reset the bookkeeping of a request that is in no table, list or executor."""
    return (
        (request.orphan, request.orphan & ~here),
        (request.closed, request.closed & ~here),
        (request.role_news, ite(here, 0, request.role_news)),
        (request.late, ite(here, 0, request.late)),
        (request.waited, ite(here, 0, request.waited)),
    )
