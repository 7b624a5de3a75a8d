"""Describes a trace step by step: the actor, the target and the changes of each step, and the violation at the end.

`step_texts` derives the sentence of a step from the states before and after it, so the sentence describes this run. The
violation, and the Java methods that the race spans, are derived from the last state and the steps before it. For
properties of features the text about the violation is fixed (`WRONG`). A trace of a `sometimes` property has no
violation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from attrs import frozen

from longpoll_spec.model import Action, Trace
from longpoll_spec.properties.progress import time_can_pass
from longpoll_spec.properties.statement import sentence_of
from longpoll_spec.render.notation import sizes_of
from longpoll_spec.render.rocketmq_names import Participant, in_order, place_of
from longpoll_spec.render.step_texts import StepValues, text_of_step
from longpoll_spec.specification import leads_to_of, properties_of
from longpoll_spec.threads import thread_of

WRONG: Final[dict[str, tuple[str, str]]] = {
    "round_is_whole": (
        (
            "The window is PullRequestHoldService.checkHoldRequest of 4.9: its loop over the table has no try "
            "around getMaxOffsetInQueue, so one queue that throws ends the round, and all others wait for the next one."
        ),
        "Fix: skip the queue that throws (knob scan_throw=skip_queue, as 5.x does).",
    ),
    "buckets_are_swept": (
        ("No entry of pullRequestTable is ever removed: a bucket stays for every topic and queue ever pulled."),
        "Fix: remove an empty bucket under its lock (knob bucket_removal=rechecked_under_lock).",
    ),
    "no_orphan": (
        (
            "The window lies between pullRequestTable.get, which gave the pull's thread its bucket, and "
            "addPullRequest: in between, the scan found the bucket empty and removed it. Arrivals and scans use the "
            "table, so the request is lost for good, and so is every later one whose thread had looked up the bucket."
        ),
        ("Fix: check again, under the bucket's lock, before removing it (knob bucket_removal=rechecked_under_lock)."),
    ),
    "commit_never_regresses": (
        (
            "The window lies between the send of the pull, which carries the client's committed offset of that time, "
            "and ConsumerOffsetManager.commitOffset: a newer commit came between them, and the last writer wins."
        ),
        "Fix: keep the greater of the two (knob commit=monotone_max).",
    ),
    "commit_in_queue": (
        (
            "The queue ends earlier now, and ConsumerOffsetManager keeps the group's offset: the group skips the "
            "next messages, up to its offset."
        ),
        "Fix: set offsets beyond a queue's end back to the end when it is truncated (knob on_truncate=wake).",
    ),
    "closed_is_let_go": (
        (
            "PullRequestHoldService is not notified that a channel has closed: the request is held until its "
            "deadline, and its answer cannot be delivered."
        ),
        "Fix: drop the requests of a closed channel (knob on_close=drop).",
    ),
    "moved_is_told": (
        (
            "No thread traverses the bucket when a queue is truncated: the request waits for an offset that its "
            "queue no longer has, until the next arrival or its deadline, and only then learns that its offset moved."
        ),
        "Fix: wake the requests whose offset is gone when a queue is truncated (knob on_truncate=wake).",
    ),
    "seen_survives": (
        "The message was shown to pulls before it was on disk, and the crash lost it.",
        "Fix: show only flushed messages (knob visible_after=flush, as 5.3.2 does under SYNC_FLUSH).",
    ),
    "told_of_role_change": (
        "A role change traverses no bucket: a pull held by a slave that is now master keeps waiting.",
        (
            "Fix: answer the held requests when the role changes, and at their insert those that missed before it "
            "(knob on_role_change=answer)."
        ),
    ),
    "told_of_master_return": (
        (
            "No traversal after the master's return reaches this request: 4.9 has none, and that of 5.x misses "
            "requests in a notifier's list or on their way into the bucket. The request keeps waiting, and is not sent "
            "to the master."
        ),
        (
            "Fix: answer the held requests when the master is back, and at their insert those that missed before "
            "it (knob on_master_return=answer)."
        ),
    ),
    "return_is_whole": (
        (
            "The window lies between ManyPullRequest.isEmpty and cloneListAndClear in notifyMasterOnline: the "
            "dispatcher took the list in between, cloneListAndClear returns null, and the NullPointerException ends "
            "the traversal of all buckets."
        ),
        "Fix: take each list in one step, whether it is empty or not (knob on_master_return=answer).",
    ),
}
"""Maps a property to (where the mistake is in RocketMQ, how to fix it)."""


SCAN_MS: Final = 5000
"""The milliseconds that `PullRequestHoldService.run` waits between two scans."""


@frozen
class End:
    """The last state of a trace, and the questions about it that a diagnosis asks."""

    trace: Trace

    @property
    def values(self) -> Mapping[str, int]:
        """The values of the variables in the last state, by name."""
        names = [variable.name for variable in self.trace.model.variables]
        return dict(zip(names, self.trace.steps[-1].state, strict=True))

    @property
    def last(self) -> Action | None:
        """The last action of the run, if there is one."""
        return self.trace.steps[-1].action

    @property
    def slots(self) -> range:
        """The indices of all request slots."""
        return range(self.trace.model.bounds.requests)

    def phase(self, slot: int) -> str:
        """The label of the request's phase in the last state of the run."""
        return self.trace.model.state.phases.labels[self.values[f"phase_{slot}"]]

    def end_of(self, slot: int, name: str) -> int:
        """The value of a variable such as `visible_end` for the queue that the request reads."""
        queue = self.values.get(f"queue_{slot}")
        return self.values[name if queue is None else f"{name}_q{queue}"]

    def has_more(self, slot: int) -> bool:
        """Whether the request has a message to read that passes its filter; false if it reads no queue."""
        reads = self.values.get(f"queue_{slot}", 0) < self.trace.model.bounds.queues
        passes = self.values.get(f"passes_{slot}", 1)
        return bool(reads and passes and self.values[f"offset_{slot}"] < self.end_of(slot, "visible_end"))

    def latest(self, *labels: str, before: int | None = None) -> int | None:
        """The number of the last step with one of these actions; None if there is no such step.

        Only steps before step `before` count, if that is given.
        """
        stop = len(self.trace.steps) if before is None else before
        found = [
            number
            for number, step in enumerate(self.trace.steps[:stop])
            if step.action is not None and (step.action.label in labels or step.action.name in labels)
        ]
        return found[-1] if found else None


_ENDLESS: Final = "From the last state a run can go on for ever."
_NEVER: Final = "It never comes to what the property promises."
_STOPS: Final = f"This breaks the property {time_can_pass.__name__}: {sentence_of(time_can_pass)}"


def diagnosis_of(trace: Trace) -> tuple[str, ...]:
    """The sentences about the violation at the end of a trace; empty if the trace ends without a violation."""
    for said in leads_to_of(trace.model):
        if said.name == trace.property_name:
            return f"{_ENDLESS} {_NEVER}", f"This breaks the property {said.name} ({said.place}): {said.sentence}"
    if trace.property_name == time_can_pass.__name__ and trace.model.policy.extension is not None:
        return f"{_ENDLESS} No time passes in it: urgent actions follow one another, or no action is possible.", _STOPS
    stated = {item.name: item for item in properties_of(trace.model)}
    item = stated.get(trace.property_name)
    if item is None or item.kind == "sometimes":
        return ()
    if item.place:  # a specification file may have its own property with the name of a property in `_TELLERS`
        return (f"This breaks the property {item.name} ({item.place}): {item.sentence}",)
    teller = _TELLERS.get(trace.property_name)
    told = tuple(teller(End(trace))) if teller is not None else WRONG.get(trace.property_name, ())
    return (*told, f"This breaks the property {item.name}: {item.sentence}")


def _lost(end: End) -> Iterable[str]:
    values = end.values
    for slot in end.slots:
        if end.phase(slot) == "held" and end.has_more(slot):
            offset, visible = values[f"offset_{slot}"], end.end_of(slot, "visible_end")
            yield (
                f"Request {slot} waits in the bucket for offset {offset} although maxOffset is {visible}: its wakeup "
                f"is lost. No thread will check it before the next arrival on this queue or the next scan, "
                f"{values['next_scan']} tick(s) away (RocketMQ scans every {SCAN_MS // 1000} s)."
            )
            yield from _window(end, slot)


def _window(end: End, slot: int) -> Iterable[str]:
    put = end.latest(f"hold({slot})", "notify_end", "scan_end", "walk_end", "notifier_throws")
    if put is None:
        return
    action = end.trace.steps[put].action
    assert action is not None
    notified = end.latest("notify_start", "walk_start", before=put)
    if notified is None:
        yield from _unannounced(end, slot)
        return
    if action.name == "hold":
        read = end.latest(f"pull_read({slot})", f"recheck({slot})", before=put)
        yield (
            f"The window lies between step {read}, where PullMessageProcessor.processRequest has read the store, and "
            f"step {put}, where PullRequestHoldService.suspendPullRequest puts the request into the table: "
            f"notifyMessageArriving in step {notified} came between them and did not find the request yet."
        )
        yield "Fix: read maxOffset again after the insert (knob recheck_after_hold=after_insert)."
        return
    families = {"scan_end": "scan", "walk_end": "walk", "notify_end": "notify"}
    walker = families.get(action.name, "scan" if action.actors[:1] == ("scanner",) else "notify")
    took = end.latest(f"{walker}_start", before=put)
    yield (
        f"The window lies between step {took}, ManyPullRequest.cloneListAndClear, and step {put}, "
        f"ManyPullRequest.addPullRequest of the replay list: in between, the request was in the traversal's own list"
        + (f", and notifyMessageArriving in step {notified} found the bucket empty." if notified != took else ".")
    )
    yield "Fix: traverse in place under the lock (take=in_place), or recheck after the put-back (recheck_after_keep)."


def _unannounced(end: End, slot: int) -> Iterable[str]:
    """The text about a wakeup that is lost because the due traversal announces a message with another tag."""
    announced, tags = end.values.get("announced"), end.trace.model.bounds.tags
    if announced is not None and announced < tags:
        yield (
            f"The dispatcher will notify, but announces only the last message of a batch, with tag t{announced}; the "
            f"message for request {slot}, which wants tag t{end.values[f'wants_{slot}']}, is never announced."
        )
        yield "Fix: announce every message (knob notify_grain=message), or wake requests regardless of tags."


def _late(end: End) -> Iterable[str]:
    values = end.values
    before = dict(zip(values, end.trace.steps[-2].state, strict=True))
    for slot in end.slots:
        if end.phase(slot) != "idle" and before[f"deadline_{slot}"] <= 0:
            yield (
                f"The deadline of request {slot} had passed, it is {end.phase(slot).replace('_', ' ')}, and time "
                f"passed; the next scan is {values['next_scan']} tick(s) away."
            )
            if end.phase(slot) == "held" and end.trace.model.policy.expiry == "scan":
                yield (
                    "The window is the whole period of PullRequestHoldService.run, which sleeps "
                    f"{SCAN_MS} ms between two checkHoldRequest: an answer comes up to {SCAN_MS // 1000} s late."
                )
                yield "Fix: expire a request at its own deadline (knob expiry=own_deadline)."


def _waiting(end: End) -> Iterable[str]:
    values = end.values
    for slot in end.slots:
        if end.phase(slot) != "idle" and values[f"offset_{slot}"] < end.end_of(slot, "log_end"):
            yield (
                f"Time passes while request {slot} waits for offset {values[f'offset_{slot}']}, which is appended "
                f"already (log end {end.end_of(slot, 'log_end')}, maxOffset {end.end_of(slot, 'visible_end')})."
            )


def _dropped(end: End) -> Iterable[str]:
    values = end.values
    for slot in end.slots:
        if values[f"open_{slot}"] and end.phase(slot) == "idle" and values[f"copies_{slot}"] == 0:
            yield (
                f"Consumer {slot} waits for an answer that will never come: request {slot} is in no thread, not in "
                "the table, in no list and not in the executor. Only the client's own timeout frees it."
            )
    action = end.last
    if action is not None and action.name == "executor_rejects":
        yield (
            "The window is PullMessageProcessor.executeRequestWhenWakeup: submit() throws RejectedExecutionException, "
            "which is only logged, and the request has already left the table."
        )
        yield "Fix: answer SYSTEM_BUSY on a rejection (knob on_reject=answer_busy)."
    if action is not None and action.name == "notifier_throws":
        yield (
            "The window is the loop of PullRequestHoldService.notifyMessageArriving: it has no try/finally, so an "
            "exception loses the list that cloneListAndClear took."
        )
        yield "Fix: answer the request that threw and continue (knob on_throw=answer_and_go_on)."


def _silent(end: End) -> Iterable[str]:
    for slot in end.slots:
        if end.phase(slot) == "held":
            yield (
                f"Request {slot} is in the table of a stopped broker: PullRequestHoldService.shutdown only ends "
                "its thread, so the connection closes without an answer."
            )
    yield "Fix: answer held requests on stop (knob on_stop=answer)."


_TELLERS: Final[Mapping[str, Callable[[End], Iterable[str]]]] = {
    "no_lost_wakeup": _lost,
    "lost_by_hold": _lost,
    "lost_by_keep": _lost,
    "queued_by_deadline": _late,
    "answered_by_deadline": _late,
    "woken_within": _waiting,
    "nothing_dropped": _dropped,
    "dropped_by_reject": _dropped,
    "dropped_by_throw": _dropped,
    "answered_on_stop": _silent,
}


@frozen
class Scene:
    """One step of a story, with an arrow from `source` to `target`. `source` and `target` are empty if time passes."""

    number: int
    action: str
    source: str
    target: str
    short: str
    """The text of the arrow: a few words."""
    sentence: str
    place: str
    """The class and method of the step in RocketMQ's source."""
    changes: tuple[str, ...]


@frozen
class Story:
    """The description of a whole trace. `wrong` has the sentences about the trace's violation, if there is one."""

    policy: str
    bounds: str
    property_name: str
    participants: tuple[Participant, ...]
    scenes: tuple[Scene, ...]
    wrong: tuple[str, ...]

    @property
    def title(self) -> str:
        """A title of one line: the policy, the property and the number of steps."""
        what = f"{self.property_name} is violated" if self.wrong else self.property_name or "a run"
        when = f"in {len(self.scenes)} steps" if self.scenes else "in the first state"
        return f"{self.policy}: {what}, {when}"


def story_of(trace: Trace) -> Story:
    """Describe a trace; see `Story`."""
    scenes = tuple(_scene(trace, index) for index in range(1, len(trace.steps)))
    keys = {key for scene in scenes for key in (scene.source, scene.target) if key}
    return Story(
        policy=trace.model.policy.name,
        bounds=sizes_of(trace.model.bounds),
        property_name=trace.property_name,
        participants=in_order(keys),
        scenes=scenes,
        wrong=diagnosis_of(trace),
    )


def _scene(trace: Trace, index: int) -> Scene:
    action = trace.steps[index].action
    assert action is not None
    names = [variable.name for variable in trace.model.variables]
    before, after = (dict(zip(names, step.state, strict=True)) for step in trace.steps[index - 1 : index + 1])
    target, short, rest = text_of_step(StepValues(trace.model, action, before, after))
    source = thread_of(action)
    return Scene(
        number=index,
        action=action.label,
        source=source,
        target=target,
        short=short,
        sentence=rest,
        place=place_of(action),
        changes=tuple(f"{each.name}: {each.show(old)} -> {each.show(new)}" for each, old, new in trace.changes(index)),
    )
