"""Describes a step in words, from the values before and after it: which thread does what to which request.

If there are several queues, a sentence names its queue, and if there are tags, its tag. Most steps of the features have
fixed descriptions (`PLAIN`). `story` describes the violation at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from attrs import frozen

from longpoll_spec.model import Action, Model
from longpoll_spec.state import IDLE
from longpoll_spec.threads import thread_of

PLAIN: Final[dict[str, tuple[str, str, str]]] = {
    "scan_throws": ("store", "getMaxOffsetInQueue throws", "asks for maxOffset and gets an exception"),
    "find_bucket": ("bucket", "find the bucket", "looks up the queue's bucket in the table"),
    "sweep": ("bucket", "empty?", "checks whether the bucket that it has traversed is empty"),
    "remove_bucket": ("bucket", "remove the bucket", "removes the bucket from the table, because it looked empty"),
    "return_look": ("bucket", "empty?", "checks whether the next bucket is empty, because the master is back"),
    "return_take": (
        "bucket",
        "take the bucket",
        "takes the bucket's list to wake all its requests, because the master is back",
    ),
    "commit_pulled": ("store", "commit the pull's offset", "commits the offset that the pull carried when it was sent"),
    "offset_commit": ("store", "UPDATE_CONSUMER_OFFSET", "sends an offset commit for the messages that it has handled"),
    "offset_reset": ("store", "offset back to 0", "sets the group's committed offset back to the beginning"),
    "channel_closes": ("bucket", "channel closes", "goes away: its channel closes"),
    "trim": ("store", "delete the first message", "deletes the queue's first message because of its age"),
    "truncate": ("store", "truncate by one", "truncates the queue by its last message"),
    "queue_deleted": ("store", "delete the queue", "deletes the queue; one of the same name begins at 0"),
    "role_change": ("bucket", "slave becomes master", "makes the broker, which was a slave, master"),
    "master_returns": ("bucket", "master is back", "tells the broker, a slave, that its master is back"),
    "flush": ("store", "flush", "writes the appended messages to disk"),
    "crash_and_recover": ("bucket", "crash and restart", "kills the broker and restarts it with the data on disk"),
}
"""Maps an action to (key of the arrow's target, a few words for the arrow, the sentence without its subject)."""


@frozen
class StepValues:
    """One step, with the values of all variables before and after it."""

    model: Model
    action: Action
    before: Mapping[str, int]
    after: Mapping[str, int]

    @property
    def slot(self) -> int:
        """The index of the request that the step names."""
        return next(actor for actor in reversed(self.action.actors) if isinstance(actor, int))

    @property
    def queue(self) -> str:
        """The name of the step's queue; empty if the model has only one queue.

        The step's queue is the queue that the action names, else the queue that its request reads, else the queue whose
        bucket its notifier traverses.
        """
        names = [queue.name for queue in self.model.state.queues]
        if len(names) == 1:
            return ""
        named = [actor for actor in self.action.actors if actor in names]
        if named:
            return str(named[0])
        requests = [actor for actor in self.action.actors if isinstance(actor, int)]
        notifier = [actor for actor in (*self.action.actors, thread_of(self.action)) if f"{actor}_queue" in self.after]
        places = [f"queue_{slot}" for slot in requests] + [f"{name}_queue" for name in notifier]
        numbers = [values[place] for place in places for values in (self.after, self.before)]
        return next((names[number] for number in numbers if number < len(names)), "")

    @property
    def of_queue(self) -> str:
        """A suffix for sentences, such as ` of q1`; empty if the model has only one queue."""
        return f" of {self.queue}" if self.queue else ""

    @property
    def bucket(self) -> str:
        """The key of the queue's bucket as a participant (`threads`)."""
        return f"bucket {self.queue}".rstrip()

    @property
    def tag(self) -> str:
        """The tag that the step names; empty if it names none."""
        named = [str(actor) for actor in self.action.actors if str(actor).startswith("t")]
        return named[0] if named else ""

    def end(self, name: str, *, after: bool = False) -> int:
        """The value of a variable such as `visible_end` for the step's queue."""
        values = self.after if after else self.before
        return values[f"{name}_{self.queue}" if self.queue else name]

    def phase(self, slot: int, *, after: bool = True) -> str:
        """The phase of a request, by default after the step."""
        return self.model.state.phases.labels[(self.after if after else self.before)[f"phase_{slot}"]]

    def has_more(self, slot: int) -> bool:
        """Whether there was something to read for the request before the step."""
        return self.before[f"offset_{slot}"] < self.end("visible_end")

    def filtered(self, slot: int) -> bool:
        """Whether there was something to read, but nothing that passes the request's filter."""
        return self.has_more(slot) and not self.before.get(f"passes_{slot}", 1)

    def moved(self, prefix: str) -> list[int]:
        """The requests that this step moved into a phase with this prefix."""
        return [
            slot
            for slot in range(self.model.bounds.requests)
            if self.phase(slot).startswith(prefix) and not self.phase(slot, after=False).startswith(prefix)
        ]


Told = tuple[str, str, str]
"""(key of the arrow's target, a few words for the arrow, the sentence without its subject, which is the actor)."""


def _append(beat: StepValues) -> Told:
    number = beat.end("log_end")
    return (
        "store",
        f"append message {number}{beat.of_queue}",
        f"appends message {number}{beat.of_queue} to the log; pulls do not see it yet",
    )


def _make_visible(beat: StepValues) -> Told:
    end = beat.end("visible_end", after=True)
    tag = f", which has tag {beat.tag}," if beat.tag else ""
    rest = f"writes message {end - 1}{tag} into the consume queue{beat.of_queue}: maxOffset is now {end}"
    is_silent = beat.after["dispatcher"] == IDLE and not beat.after.get("is_master", 1)
    follows = "but a slave does not call arriving()" if is_silent else "and arriving() follows"
    return "store", f"maxOffset{beat.of_queue} = {end}", f"{rest}, {follows}"


def _next_pull(beat: StepValues) -> Told:
    offset, wanted = beat.after[f"offset_{beat.slot}"], f" and tag {beat.tag}" if beat.tag else ""
    held = f"to be held for {beat.after[f'deadline_{beat.slot}']} tick(s)"
    return (
        f"pull {beat.slot}",
        f"PULL_MESSAGE offset {offset}{beat.of_queue}",
        f"sends PULL_MESSAGE for offset {offset}{beat.of_queue}{wanted}, {held}",
    )


def _pull_read(beat: StepValues) -> Told:
    offset, end = beat.before[f"offset_{beat.slot}"], beat.end("visible_end")
    if beat.filtered(beat.slot):
        return (
            f"consumer {beat.slot}",
            f"PULL_RETRY_IMMEDIATELY, next {end}",
            f"reads offset {offset}, maxOffset is {end}, and no message passes the filter: PULL_RETRY_IMMEDIATELY",
        )
    if beat.has_more(beat.slot):
        return (
            f"consumer {beat.slot}",
            f"FOUND, next {end}",
            f"reads offset {offset}, maxOffset is {end}: answers FOUND",
        )
    if beat.phase(beat.slot) == "idle":
        status = "PULL_RETRY_IMMEDIATELY" if beat.after.get("changed") else "PULL_NOT_FOUND"
        return f"consumer {beat.slot}", status, f"reads offset {offset} and finds nothing: answers {status}"
    return (
        "store",
        f"getMessage({offset}): nothing",
        f"reads offset {offset} and finds nothing, as maxOffset is {end}: PULL_NOT_FOUND, the request will be held",
    )


def _hold(beat: StepValues) -> Told:
    if beat.phase(beat.slot) != "held":
        return f"consumer {beat.slot}", "answer: stopping", "finds the broker stopped and answers instead of holding"
    offset, end = beat.before[f"offset_{beat.slot}"], beat.end("visible_end")
    late = f", although maxOffset is {end} by now" if offset < end else ""
    return (
        beat.bucket,
        f"hold request {beat.slot}",
        f"puts request {beat.slot} into the bucket{beat.of_queue}, waiting for offset {offset}{late}",
    )


def _recheck(beat: StepValues) -> Told:
    if isinstance(beat.action.actors[0], str):
        counter = beat.after[beat.action.actors[0]]
        again = "finds something to read and must traverse the bucket again" if counter else "finds nothing new"
        return (
            "store",
            "recheck: traverse again" if counter else "recheck: nothing new",
            f"reads maxOffset again and {again}",
        )
    slot, end = beat.slot, beat.end("visible_end")
    if beat.after.get("rechecker") != beat.before.get("rechecker"):
        return (
            beat.bucket,
            "recheck: traverse",
            f"checks again: maxOffset is {end}; must traverse the bucket{beat.of_queue}",
        )
    if beat.moved("queued"):
        return (
            "executor",
            f"recheck: wake {slot}",
            f"checks again: maxOffset is {end}; request {slot} goes to the executor",
        )
    where = beat.phase(slot, after=False).replace("_", " ")
    return (
        "store",
        "recheck: nothing to do",
        f"checks again: maxOffset is {end}, request {slot} is {where}; nothing to do",
    )


def _take(beat: StepValues) -> Told:
    taken = beat.moved("taken")
    if not taken:
        return (
            beat.bucket,
            "list is empty",
            f"goes to the bucket{beat.of_queue} and finds no request in it to wake",
        )
    names = _requests(taken)
    rest = f"takes {names} out of the bucket{beat.of_queue}, to check one after another"
    return beat.bucket, f"take {names}", rest


def _look(beat: StepValues) -> Told:
    slot, end = beat.slot, beat.end("visible_end")
    if beat.moved("queued"):
        why = f"maxOffset is {end}" if beat.has_more(slot) else "its deadline has passed"
        return "executor", f"wake {slot}", f"checks request {slot}: {why}; wakes it for the executor"
    why = "and the announced message is not for it" if beat.has_more(slot) else "nothing for it"
    return thread_of(beat.action), f"keep {slot}", f"checks request {slot}: maxOffset is {end}, {why}; keeps it"


def _put_back(beat: StepValues) -> Told:
    back = beat.moved("held")
    refused = beat.moved("idle")
    if back:
        names = _requests(back)
        return beat.bucket, f"put back {names}", f"puts {names} back into the bucket{beat.of_queue}"
    if refused:
        return beat.bucket, f"answer {_requests(refused)}", f"finds the broker stopped and answers {_requests(refused)}"
    return beat.bucket, "nothing to put back", "has nothing to put back and ends its traversal"


def _expire(beat: StepValues) -> Told:
    slot = beat.slot
    if beat.moved("queued"):
        return (
            "executor",
            f"expire {slot}",
            f"sees that the deadline of request {slot} has passed and hands it to the executor",
        )
    return (
        beat.bucket,
        f"entry of {slot} spent",
        f"uses up the entry of request {slot}, which a notifier has at the moment",
    )


def _run(beat: StepValues) -> Told:
    slot = beat.slot
    found = "PULL_RETRY_IMMEDIATELY" if beat.filtered(slot) else "FOUND"
    status = found if beat.has_more(slot) else "PULL_NOT_FOUND"
    return f"consumer {slot}", status, f"runs pull {slot} again with holding off and answers {status}"


def _rejects(beat: StepValues) -> Told:
    slot = beat.slot
    if beat.after[f"open_{slot}"]:
        return (
            "executor",
            f"reject {slot}: lost",
            f"rejects request {slot}; this is logged, but the request gets no answer",
        )
    return f"consumer {slot}", "SYSTEM_BUSY", f"rejects request {slot}, which gets SYSTEM_BUSY"


def _throws(beat: StepValues) -> Told:
    slot, back = beat.slot, beat.moved("held")
    throws = f"gets an exception at request {slot}"
    gone = [each for each in beat.moved("idle") if beat.after[f"open_{each}"]]
    if gone:
        names = _requests(gone)
        return beat.bucket, f"throws: {names} lost", f"{throws}: its list with {names} is lost"
    if back:
        return beat.bucket, "throws: puts all back", f"{throws} and puts {_requests(back)} back"
    return f"consumer {slot}", "error", f"{throws}, answers it and continues"


def _stop(beat: StepValues) -> Told:
    answered = beat.moved("idle")
    end = f"and {_requests(answered)} is answered" if answered else "and nothing is answered"
    return "bucket", "shutdown", f"stops the broker: no append, dispatch, pull or scan begins any more, {end}"


def _tick(beat: StepValues) -> Told:
    return (
        "",
        "time passes",
        "One tick passes." if beat.before != beat.after else "One tick passes; it changes nothing.",
    )


def _requests(slots: Sequence[int]) -> str:
    return f"request {slots[0]}" if len(slots) == 1 else "requests " + ", ".join(map(str, slots))


_TELLERS: Final[Mapping[str, Callable[[StepValues], Told]]] = {
    "append": _append,
    "make_visible": _make_visible,
    "next_pull": _next_pull,
    "pull_read": _pull_read,
    "hold": _hold,
    "recheck": _recheck,
    "notify_start": _take,
    "notify_each": _look,
    "notify_end": _put_back,
    "scan_start": _take,
    "scan_each": _look,
    "scan_end": _put_back,
    "walk_start": _take,
    "walk_each": _look,
    "walk_end": _put_back,
    "expire": _expire,
    "run": _run,
    "tick": _tick,
    "executor_rejects": _rejects,
    "notifier_throws": _throws,
    "stop": _stop,
}


def text_of_step(beat: StepValues) -> Told:
    """The participant to which a step's arrow points, the words on the arrow, and a sentence about the step.

    The step of a specification file is described by the docstring of its action.
    """
    thread = beat.action.thread
    if thread:
        return thread, beat.action.name.replace("_", " "), beat.action.sentence
    plain = PLAIN.get(beat.action.name)
    if plain is None:
        return _TELLERS[beat.action.name](beat)
    target, short, rest = plain
    return (beat.bucket if target == "bucket" else target), short, f"{rest}{f' ({beat.queue})' if beat.queue else ''}"
