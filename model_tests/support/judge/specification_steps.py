"""A recording that our own broker made of itself, as steps of the law: one queue, each connection a consumer.

| recorded                              | step of the law                                              |
|---------------------------------------|--------------------------------------------------------------|
| `append`, `make_visible`              | the same                                                     |
| `request_received` of a pull          | `next_pull`, of the slot that the connection has             |
| its `answer_sent`, cause `immediate`  | `pull_read`, between receipt and answer, with the offset     |
| its first `hold`                      | `pull_read` between receipt and hold, then `hold`            |
| `recheck`, `expire`                   | the same                                                     |
| `run` with the `answer_sent` it led to| `run`, with the offset                                       |

What walkers do is hidden, and so is time: a broker on a real clock may be late, so its policy's `tick` is taken as
`free`. The law's consumers read on from where they are, so a recording whose clients jump is refused and says where.
Leaves out refusals by the executor, filters, commits, and everything that another aspect of the law has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from attrs import define, field, frozen

from longpoll_judge.errors import JudgeUserError
from longpoll_judge.recording import PULLS, Recording, change
from longpoll_judge.rules.queue_case import FOUND
from longpoll_spec.history import FORMAT_VERSION, Event, Law, Meta
from longpoll_spec.policy import Policy, policy_named

WALKS: Final = tuple(f"{kind}_{part}" for kind in ("notify", "scan", "walk") for part in ("start", "each", "end"))
CONSUMERS_MAX: Final = 8
"""More slots have too many orders to be followed."""
ANSWERS: Final = {"immediate": "pull_read", "woken": "run", "expired": "run"}
"""The cause of an answer -> the step that read it."""


class NotProjectableError(JudgeUserError):
    """A recording has something that the law without aspects has not."""


@frozen
class Steps:
    """A history of steps."""

    events: list[Event]
    meta: Meta


@define
class _Pull:
    """One pull and what was recorded of it."""

    slot: int
    received: Event
    seen: dict[str, Event] = field(factory=dict)
    """By name, the first event of each kind."""
    answer: Event | None = None


def project(recording: Recording, topic: str, queue: int) -> Steps:
    """The steps of one queue; raises `NotProjectableError` with what stands against it."""
    meta = recording.meta
    assert meta is not None, "a loaded recording has one"
    policy = policy_named(f"{policy_named(meta.policy).name}+tick=free")
    sources = {event.source for event in recording.events}
    if len(sources) != 1:
        raise NotProjectableError(f"the recording has {len(sources)} sources; record one broker without a restart")
    mine = [event for event in recording.events if event.topic == topic and event.queue == queue]
    base = _base(mine)
    pulls = _pulls(mine)
    for slot in range(CONSUMERS_MAX):
        _check_reads_on([pull for pull in pulls.values() if pull.slot == slot], base)
    shown = [*_log_steps(mine, base), *(step for pull in pulls.values() for step in _pull_steps(pull, policy, base))]
    shown.sort(key=lambda event: (event.before_ns, event.after_ns))
    law = Law(
        requests=1 + max((pull.slot for pull in pulls.values()), default=0),
        hidden=_hidden(policy, stops=any("stop" in pull.seen for pull in pulls.values())),
    )
    ends = [event for event in recording.events if event.event in {"source_started", "source_stopped"}]
    events = [*ends[:1], *shown, *ends[1:]]
    return Steps(
        [change(event, sequence=number) for number, event in enumerate(events)],
        Meta(format_version=FORMAT_VERSION, sources=meta.sources, policy=policy.name, law=law),
    )


def _base(mine: Iterable[Event]) -> int:
    """The visible end at the start, as an event that comes before all others of the queue."""
    first = next((event for event in mine if event.event in {"append", "make_visible", "request_received"}), None)
    return first.visible_end if first is not None and first.event == "make_visible" else 0


def _pulls(mine: Iterable[Event]) -> dict[str, _Pull]:
    """The queue's pulls by their identifiers."""
    slots: dict[str, int] = {}
    pulls: dict[str, _Pull] = {}
    for event in mine:
        if event.event == "request_received" and event.code in PULLS:
            slot = slots.setdefault(event.connection, len(slots))
            pulls[event.request] = _Pull(slot, event)
        elif event.request in pulls:
            pull = pulls[event.request]
            if event.event == "answer_sent":
                pull.answer = event
            pull.seen.setdefault(event.event, event)
    if len(slots) > CONSUMERS_MAX:
        raise NotProjectableError(f"{len(slots)} connections pull from the queue; at most {CONSUMERS_MAX} are allowed")
    return pulls


def _check_reads_on(pulls: Iterable[_Pull], base: int) -> None:
    """Whether a consumer pulls everything, each time from where its last pull ended."""
    offset = base
    for pull in pulls:
        asked, answer = pull.received, pull.answer
        if asked.offset != offset:
            raise NotProjectableError(
                f"pull {asked.request} asks for {asked.offset}; the specification's consumer is at {offset}"
            )
        if asked.expression_type not in {"", "TAG"} or asked.expression not in {"", "*"}:
            raise NotProjectableError(f"pull {asked.request} has a filter, but a specification without tags has none")
        if answer is not None:
            if answer.cause not in {*ANSWERS, "stopped"}:
                raise NotProjectableError(
                    f"pull {asked.request} was answered {answer.cause!r}, which has no step in the specification"
                )
            if answer.code == FOUND and len(answer.offsets) == asked.count_max:
                raise NotProjectableError(
                    f"pull {asked.request} may have left messages in the queue, but "
                    "a pull in the specification reads all"
                )
            offset = answer.offset_next


def _log_steps(mine: Iterable[Event], base: int) -> Iterator[Event]:
    for event in mine:
        if event.event == "append":
            yield _step(event, "append", "", queue_offset=event.queue_offset - base)
        elif event.event == "make_visible" and event.visible_end > base:
            yield _step(event, "make_visible", "", visible_end=event.visible_end - base)


def _pull_steps(pull: _Pull, policy: Policy, base: int) -> Iterator[Event]:
    slot, received, answer, held = str(pull.slot), pull.received, pull.answer, pull.seen.get("hold")
    yield _step(received, "next_pull", slot)
    if held is not None:
        yield _step(change(held, after_ns=received.after_ns), "pull_read", slot, offset=received.offset - base)
        yield _step(held, "hold", slot)
    elif answer is not None:
        read = change(answer, after_ns=received.after_ns)
        yield _step(read, ANSWERS[answer.cause], slot, offset=answer.offset_next - base)
    rechecks = policy.recheck_after_hold == "after_insert"
    for name in ("recheck", "expire") if rechecks else ("expire",):
        if name in pull.seen:
            yield _step(pull.seen[name], name, slot)
    if "run" in pull.seen and held is not None:
        known = {} if answer is None else {"offset": answer.offset_next - base}
        yield _step(pull.seen["run"], "run", slot, **known)


def _hidden(policy: Policy, *, stops: bool) -> list[str]:
    """Actions that the recorder does not write, or writes as part of a request and not as a step."""
    walkers = [f"recheck({name})" for name in ("dispatcher", "scanner")]
    early = ["recheck"] if policy.recheck_after_hold in {"before_lock", "in_lock"} else walkers
    return ["tick", *WALKS, *early, *(["stop"] if stops else [])]


def _step(event: Event, name: str, actors: str, **known: Any) -> Event:
    return Event(
        event=name,
        after_ns=event.after_ns,
        before_ns=event.before_ns,
        source=event.source,
        sequence=0,
        broker=event.broker,
        topic=event.topic,
        queue=event.queue,
        request=event.request,
        actors=actors,
        **known,
    )
