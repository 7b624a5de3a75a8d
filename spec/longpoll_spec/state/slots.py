"""The variables of one request slot, and the slot as terms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from longpoll_spec.bounds import Bounds
from longpoll_spec.policy import Policy
from longpoll_spec.state.lookup import fact, number
from longpoll_spec.state.parts import COPIES_MAX, ROLE_NEWS, Phases, Request, may_orphan, wishes_of
from longpoll_spec.state.variables import Variable, flag, hold_ticks_of, queue_number


def slot_variables(policy: Policy, bounds: Bounds, phases: Phases, index: int) -> Sequence[Variable]:
    """Every variable of one slot."""
    deadline = Variable(
        f"deadline_{index}",
        0,
        bounds.hold_ticks,
        0,
        "Ticks left to the request's deadline.",
        limit=hold_ticks_of(bounds),
    )
    slot = [
        Variable(f"phase_{index}", 0, len(phases.labels) - 1, 0, "Where the request stands.", labels=phases.labels),
        Variable(f"offset_{index}", 0, bounds.messages, 0, "The next offset that the consumer reads."),
        deadline,
        Variable(f"copies_{index}", 0, COPIES_MAX, 0, "How often the request is in the executor."),
        flag(f"open_{index}", "A pull waits for its answer."),
    ]
    if policy.recheck_after_hold == "after_insert":
        slot.append(flag(f"recheck_due_{index}", "The pull's thread has not rechecked yet."))
    if policy.expiry == "own_deadline" and policy.heap_entry == "one_shot":
        slot.append(flag(f"armed_{index}", "Its entry is in the deadline heap."))
    if bounds.queues > 1:
        slot.append(queue_number(f"queue_{index}", bounds, "The queue that the consumer reads."))
    return (*slot, *_about_tags(bounds, index), *_of_aspects(policy, bounds, index))


def _of_aspects(policy: Policy, bounds: Bounds, index: int) -> Iterator[Variable]:
    if may_orphan(policy, bounds):
        yield flag(f"orphan_{index}", "Its bucket is no longer in the table.")
    if bounds.has("channels"):
        yield flag(f"closed_{index}", "The channel of its pull is closed.")
    if bounds.has("commits"):
        yield Variable(f"committed_{index}", 0, bounds.messages, 0, "The offset that its consumer's group committed.")
        yield Variable(f"carried_{index}", 0, bounds.messages, 0, "The committed offset that its pull carries.")
        if policy.commit == "after_hold":
            yield flag(f"commit_due_{index}", "The pull's thread has not committed the pull's offset yet.")
    if bounds.has("role"):
        sentence = "The change of the broker's role since the pull's read, not yet reported to the request."
        yield Variable(f"role_news_{index}", 0, len(ROLE_NEWS) - 1, 0, sentence, labels=ROLE_NEWS)
    if bounds.has("lateness"):
        yield Variable(f"late_{index}", 0, bounds.late_max, 0, "Ticks since the request's deadline passed.")
        yield Variable(f"waited_{index}", 0, bounds.late_max, 0, "Ticks since the request has something to read.")


def _about_tags(bounds: Bounds, index: int) -> Sequence[Variable]:
    if not bounds.filters:
        return ()
    labels = (*(wish.name for wish in wishes_of(bounds)), "nothing")
    nothing = len(labels) - 1
    passes = "A visible message at or after its offset passes the broker's test for it, which compares hashes."
    found = [
        Variable(f"wants_{index}", 0, nothing, nothing, "What the consumer wants.", labels=labels),
        flag(f"passes_{index}", passes),
    ]
    if bounds.tags > 2:
        found.append(flag(f"wanted_{index}", "A visible message at or after its offset has exactly the tag it wants."))
    return found


def request_of(index: int, phases: Phases, variables: Mapping[str, Variable]) -> Request:
    """The slot as terms; variables that its policy or bounds lack are constants."""
    return Request(
        index=index,
        phases=phases,
        phase=number(variables, f"phase_{index}"),
        offset=number(variables, f"offset_{index}"),
        deadline=number(variables, f"deadline_{index}"),
        copies=number(variables, f"copies_{index}"),
        open=fact(variables, f"open_{index}"),
        recheck_due=fact(variables, f"recheck_due_{index}"),
        armed=fact(variables, f"armed_{index}"),
        queue=number(variables, f"queue_{index}"),
        wants=number(variables, f"wants_{index}"),
        passes=fact(variables, f"passes_{index}"),
        wanted=fact(variables, f"wanted_{index}"),
        orphan=fact(variables, f"orphan_{index}"),
        closed=fact(variables, f"closed_{index}"),
        committed=number(variables, f"committed_{index}"),
        carried=number(variables, f"carried_{index}"),
        commit_due=fact(variables, f"commit_due_{index}"),
        late=number(variables, f"late_{index}"),
        waited=number(variables, f"waited_{index}"),
        role_news=number(variables, f"role_news_{index}"),
    )
