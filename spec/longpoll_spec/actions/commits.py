"""The actions of commits: a consumer reports its progress by an offset commit and in each pull.

Source: `PullMessageProcessor.processRequest` commits the offset that a pull carries, after the hold (4.9.8) or before
it (5.x, `tryCommitOffset`). In `ConsumerOffsetManager.commitOffset` the last writer wins. In the model, the consumer of
each slot is a separate group, which sends its next pull only after the commit of its last pull. In Java the next pull
may come before this commit, which can only add regressions."""

from __future__ import annotations

from longpoll_spec.actions.family import action, never
from longpoll_spec.actions.wake import Pairs
from longpoll_spec.model import Step
from longpoll_spec.state import Queue, Request, State, assign
from longpoll_spec.terms import FALSE, Bool, Int, ite


def _exists(state: State) -> bool:
    return state.bounds.has("commits")


def carried_by(request: Request, committed: Int) -> Pairs:
    """The effect on a new pull: it carries the offset that its consumer has committed so far."""
    return ((request.committed, committed), (request.carried, committed))


def by_read(state: State, request: Request, ends: Bool) -> Pairs:
    """The effect of a read on the committed offset.

    `ends` says that the read answers the pull, so the pull is not held."""
    carried = state.corrected(request, request.carried)
    older = carried < request.committed
    committed = {
        "before_hold": carried,
        "monotone_max": ite(older, request.committed, carried),
        "after_hold": ite(ends, carried, request.committed),
    }[state.policy.commit]
    return ((request.committed, ite(state.only_reads, request.committed, committed)),)


def cut_commit(request: Request, queue: Queue, end: Int, *, cuts: bool) -> tuple[Int, Int]:
    """The effect that lowers a committed offset to `end`, its queue's new end, if the broker `cuts` such offsets."""
    beyond = request.at(queue) & (request.committed > end)
    return request.committed, ite(beyond, end, request.committed) if cuts else request.committed


@action("request", exists=lambda state: _exists(state) and state.policy.commit == "after_hold")
def commit_pulled(state: State, request: Request) -> Step:
    """After the hold the pull's thread commits the offset that its pull carries, whatever was committed in between.
    Some slaves commit nothing.
    """
    # GUARD
    guard = request.commit_due
    # EFFECT
    carried = state.corrected(request, request.carried)
    effect = assign((request.committed, ite(state.only_reads, request.committed, carried)), (request.commit_due, FALSE))
    return Step(guard, effect)


@action("request", exists=_exists, urgent=never)
def offset_commit(state: State, request: Request) -> Step:
    """The consumer has handled every message it received, and sends an offset commit."""
    position = state.corrected(request, request.offset)
    # GUARD
    guard = state.running & (request.committed < position)
    # EFFECT
    effect = assign((request.committed, position))
    return Step(guard, effect)


@action("request", exists=_exists, urgent=never)
def offset_reset(state: State, request: Request) -> Step:
    """An operator sets the group's committed offset back to the beginning of the queue. The reset is intended, so no
    property counts it as a loss."""
    # GUARD
    guard = state.running & (request.committed > 0)
    # EFFECT
    effect = assign((request.committed, 0))
    return Step(guard, effect)
