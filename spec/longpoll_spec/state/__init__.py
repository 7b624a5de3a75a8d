"""The state of the pull path: its variables depend on the policy and the bounds.

The state has queues, request slots, the executor, and the notifiers that traverse buckets: the dispatcher, the scanner,
and under one policy a pull's thread. Time is stored as remaining time, so that the state space is finite although time
is unbounded. A variable exists only if its values can differ under the policy and bounds. A request may be in the
executor and in the table or a list at the same time: `phase` says where it is in table and lists, and `copies` how
often it is in the executor.

| name           | belongs to                                                                       |
|----------------|----------------------------------------------------------------------------------|
| `offset_1`     | request slot 1; slots are interchangeable                                        |
| `log_end_q1`   | queue 1; queues are interchangeable, and a single queue has no number            |
| `scanner`      | the broker                                                                       |
| `queue_1`, `scanner_queue` | as above; the value is the number of a queue (`numbers_queues`) or none |

docs/decisions/0002-specification.md explains why the state is modelled in this way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import frozen

from longpoll_spec.bounds import Bounds
from longpoll_spec.errors import BoundsError
from longpoll_spec.policy import Policy, setting_of
from longpoll_spec.state.parts import (
    DUE,
    IDLE,
    MASTER_BACK,
    NEW_MASTER,
    RECHECKING,
    REMOVING,
    SWEEPING,
    WALKING,
    Notifier,
    Phases,
    Queue,
    Request,
    Tag,
    Wish,
    notifiers_of,
    phases_of,
    tags_of,
    wishes_of,
)
from longpoll_spec.state.variables import (
    HELD_LIMIT,
    REFUSAL_NEEDS,
    SWITCHES,
    Variable,
    fact,
    hold_ticks_of,
    notifier_of,
    number,
    queue_of,
    request_of,
    scan_ticks_of,
    shared_variables,
    slot_variables,
)
from longpoll_spec.terms import FALSE, TRUE, Bool, Effect, Int, Term, all_of, any_of, const, ite, lift


@frozen
class State:
    """Every variable of a policy under bounds, as terms that the actions read and write."""

    policy: Policy
    bounds: Bounds
    phases: Phases
    variables: tuple[Variable, ...]
    hold_ticks: Int
    scan_ticks: Int
    running: Bool
    next_scan: Int
    changed: Bool
    is_master: Bool
    """Whether the broker, which is a slave at first, has become master; false if no action depends on this."""
    return_queue: Int
    """The queue whose bucket the traversal after the master's return has seen occupied and will take, or `no_queue`."""
    announced: Int
    """The index of the tag that the dispatcher announces, or `no_tag`."""
    queues: tuple[Queue, ...]
    tags: tuple[Tag, ...]
    wishes: tuple[Wish, ...]
    notifiers: tuple[Notifier, ...]
    """The threads that traverse a bucket: the dispatcher, the scanner, and a pull's thread if it rechecks by
    traversal.
    """
    requests: tuple[Request, ...]

    @property
    def initial(self) -> tuple[int, ...]:
        """The first state, in the order of `variables`."""
        return tuple(variable.initial for variable in self.variables)

    def knob(self, name: str) -> Any:
        """The value of a knob of the policy, which may be a knob that a specification file adds."""
        return setting_of(self.policy, name)

    @property
    def dispatcher(self) -> Notifier:
        """The thread that makes messages visible."""
        return self.notifiers[0]

    @property
    def scanner(self) -> Notifier:
        """The thread that traverses every bucket once per period."""
        return self.notifiers[1]

    @property
    def rechecker(self) -> Notifier:
        """The pull's thread that rechecks by traversal; only some policies have this thread."""
        return self.notifiers[2]

    @property
    def log_end(self) -> Int:
        """The end of the first queue's log."""
        return self.queues[0].log_end

    @property
    def visible_end(self) -> Int:
        """The first queue's visible end."""
        return self.queues[0].visible_end

    @property
    def no_queue(self) -> Int:
        """The value for "no queue" of a variable that names a queue."""
        return const(self.bounds.queues)

    @property
    def no_tag(self) -> Int:
        """The value for "no tag" of a variable that names a tag."""
        return const(len(self.tags))

    @property
    def filters(self) -> bool:
        """Whether a pull's filter can exclude a message; see `Bounds.filters`."""
        return self.bounds.filters

    def lock_free(self, queue: Queue) -> Bool:
        """Whether no thread holds the lock of the queue's bucket between two steps.

        Only a traversal in place, and a hold that rechecks before it inserts, keep the lock across steps.
        """
        owners = [each.at(WALKING, queue) for each in self.notifiers] if self.policy.take == "in_place" else []
        if self.policy.recheck_after_hold == "in_lock":
            owners += [request.is_("rechecked") & request.at(queue) for request in self.requests]
        return ~any_of(owners)

    def lock_free_of(self, request: Request) -> Bool:
        """Whether the lock of the request's bucket is free."""
        return self.at_queue_of(request, self.lock_free)

    def bucket_looks_empty(self, queue: Queue) -> Bool:
        """Whether the bucket looks empty without the lock: a clone clears the list, a traversal in place does not."""
        seen = [each.is_listed if self.policy.take == "in_place" else each.is_("held") for each in self.requests]
        pairs = zip(self.requests, seen, strict=True)
        return all_of(~(each.at(queue) & ~each.orphan & here) for each, here in pairs)

    def at_queue_of(self, request: Request, fact_of: Callable[[Queue], Bool]) -> Bool:
        """The fact `fact_of` of the queue that the request reads; false if the request reads no queue."""
        return any_of(request.at(queue) & fact_of(queue) for queue in self.queues)

    def visible_end_of(self, request: Request) -> Int:
        """The visible end of the queue that the request reads; 0 if the request reads no queue."""
        end = const(0)
        for queue in self.queues:
            end = ite(request.at(queue), queue.visible_end, end)
        return end

    def offset_after_read(self, request: Request) -> Int:
        """The offset after a read: the queue's beginning if the read's own offset is less, else the visible end."""
        start = const(0)
        for queue in self.queues:
            start = ite(request.at(queue), queue.visible_start, start)
        return ite(self.is_trimmed(request), start, self.visible_end_of(request))

    def is_trimmed(self, request: Request) -> Bool:
        """Whether the request's offset is before its queue's beginning."""
        if not self.bounds.has("truncate"):
            return FALSE
        return self.at_queue_of(request, lambda queue: request.offset < queue.visible_start)

    def has_more(self, request: Request) -> Bool:
        """Whether a read for this request would find messages now, regardless of its filter."""
        return self.at_queue_of(request, lambda queue: request.offset < queue.visible_end)

    def is_moved(self, request: Request) -> Bool:
        """Whether the request's offset is past its queue's end, after truncation, deletion or a crash."""
        if not self.bounds.has("truncate") and not self.bounds.has("crash"):
            return FALSE
        return self.at_queue_of(request, lambda queue: request.offset > queue.visible_end)

    def is_told_moved(self, request: Request) -> Bool:
        """Whether a check wakes the request because its offset is past its queue's end."""
        return self.is_moved(request) if self.policy.on_truncate == "wake" else FALSE

    def corrected(self, request: Request, offset: Int) -> Int:
        """The offset that the broker commits: at most the queue's end, if the policy reports lost offsets."""
        end = self.visible_end_of(request)
        return ite(offset > end, end, offset) if self.policy.on_truncate == "wake" else offset

    def is_told_of_role(self, request: Request) -> Bool:
        """Whether the request is answered instead of inserted, because the broker's role has changed since its read."""
        knobs = {NEW_MASTER: self.policy.on_role_change, MASTER_BACK: self.policy.on_master_return}
        return request.role_news.is_one_of(news for news, knob in knobs.items() if knob == "answer")

    @property
    def only_reads(self) -> Bool:
        """Whether the broker is a slave that neither notifies nor commits."""
        return ~self.is_master if self.bounds.has("role") and self.policy.slave == "reads_only" else FALSE

    @property
    def redirects(self) -> Bool:
        """Whether the broker is a slave that sends consumers to its master, which is back."""
        return self.changed & ~self.is_master if self.policy.after_return == "redirect" else FALSE

    def is_answered_by_read(self, request: Request) -> Bool:
        """Whether a read for this request answers at once."""
        return self.has_more(request) | self.is_moved(request)

    @property
    def is_full(self) -> Bool:
        """Whether no more requests may be held. If the number of held requests is limited, the limit is 1."""
        return self.is_limited & any_of(each.is_listed for each in self.requests)

    @property
    def is_limited(self) -> Bool:
        """Whether the number of held requests is limited; a proof leaves this open, so no proof depends on it."""
        return HELD_LIMIT.is_(1) if self.bounds.has("limit") else FALSE

    @property
    def refuses_beside(self) -> Bool:
        """Whether the executor rejects a request only while it has another request; a proof leaves this open."""
        return REFUSAL_NEEDS.is_(1) if self.bounds.has("capacity") else FALSE

    @property
    def parameters(self) -> tuple[Int, ...]:
        """The parameters that a proof leaves open."""
        return (self.hold_ticks, self.scan_ticks, *(each for name, each in SWITCHES.items() if self.bounds.has(name)))

    def end_to_show(self, queue: Queue) -> Int:
        """The offset up to which the dispatcher may make messages visible: the end of the log or its flushed part."""
        return queue.flushed_end if self.shows_flushed_only else queue.log_end

    @property
    def shows_flushed_only(self) -> bool:
        """Whether a message has to be on disk before it is visible."""
        return self.bounds.has("crash") and self.policy.visible_after == "flush"

    def fits(self, request: Request) -> Bool:
        """Whether a read for this request would find a message that the broker's filter lets through."""
        return request.passes if self.filters else self.has_more(request)

    def announces_for(self, notifier: Notifier, request: Request) -> Bool:
        """Whether the notifier would wake the request if it has something to read.

        A notifier that announces no tag wakes all requests.
        """
        if notifier is not self.dispatcher:
            return TRUE
        told = (self.announced.is_(tag.index) & tag.passes(request.wants) for tag in self.tags)
        return self.announced.is_(self.no_tag) | any_of(told)

    @property
    def round_is_due(self) -> Bool:
        """Whether a round of the scan may begin: the period is over, and the last round is complete."""
        left = any_of(queue.unscanned for queue in self.queues)
        return self.running & self.scanner.at(IDLE) & (self.next_scan <= 0) & ~left

    def walks_for(self, notifier: Notifier, request: Request) -> Bool:
        """Whether the notifier is at the request's bucket."""
        return self.at_queue_of(request, lambda queue: notifier.queue.is_(queue.index))


def assign(*pairs: tuple[Term, Term | int | bool]) -> Effect:
    """The effect that assigns each variable its new value.

    A variable that does not exist under the policy and bounds is a constant in `State`, and assigning it has no effect.
    """
    effect: dict[str, Term] = {}
    for target, value in pairs:
        if target.op != "var":
            continue
        assert target.args[0] not in effect, f"{target.args[0]} is written twice"
        effect[target.args[0]] = (TRUE if value else FALSE) if isinstance(value, bool) else _term(value)
    return effect


def _term(value: Term | int) -> Term:
    return value if isinstance(value, Bool) else lift(value)


def down(left: Int) -> Int:
    """Remaining time, one tick later; zero stays zero."""
    return ite(left > 0, left - 1, 0)


def state_of(policy: Policy, bounds: Bounds) -> State:
    """The state of a policy under bounds; raises `BoundsError` for features that its specification file lacks."""
    own = policy.extension
    if own is not None and own.is_alone:
        if bounds.aspects or bounds.tags > 1:
            raise BoundsError(f"{own.file or policy.name} starts from the core, which has no features and no tags")
        if bounds.queues > (own.queues_max or bounds.queues):
            raise BoundsError(
                f"{own.file or policy.name} has one queue, because none of its actions and variables belongs to a queue"
            )
    phases = phases_of(policy, bounds)
    slots = [slot_variables(policy, bounds, phases, index) for index in range(bounds.requests)]
    variables = (*shared_variables(policy, bounds), *(variable for slot in slots for variable in slot))
    by_name = {variable.name: variable for variable in variables}
    return State(
        policy=policy,
        bounds=bounds,
        phases=phases,
        variables=variables,
        hold_ticks=hold_ticks_of(bounds),
        scan_ticks=scan_ticks_of(bounds),
        running=fact(by_name, "running"),
        next_scan=number(by_name, "next_scan"),
        changed=fact(by_name, "changed"),
        is_master=fact(by_name, "is_master"),
        return_queue=number(by_name, "return_queue", otherwise=bounds.queues),
        announced=number(by_name, "announced", otherwise=len(tags_of(bounds))),
        queues=tuple(queue_of(index, bounds, by_name) for index in range(bounds.queues)),
        tags=tags_of(bounds),
        wishes=wishes_of(bounds),
        notifiers=tuple(notifier_of(name, phases, by_name) for name in notifiers_of(policy) if name in by_name),
        requests=tuple(request_of(index, phases, by_name) for index in range(bounds.requests)),
    )


__all__ = [
    "DUE",
    "IDLE",
    "MASTER_BACK",
    "NEW_MASTER",
    "RECHECKING",
    "REMOVING",
    "SWEEPING",
    "WALKING",
    "Notifier",
    "Phases",
    "Queue",
    "Request",
    "State",
    "Tag",
    "Variable",
    "Wish",
    "assign",
    "const",
    "down",
    "phases_of",
    "state_of",
]
