"""The first clauses: whether a broker holds pulls, wakes them, and answers them at their deadline.

Each pull has its own connection and queue, and all wait at the same time, so the longest hold decides how long
the clauses take. Both sides of each time are bounded. A recorded conversation cannot show them: its holds are short,
and the five-second scan of RocketMQ allows every time up to five seconds.

Source: `PullRequestHoldService.java` and `DefaultMQPushConsumerImpl.BROKER_SUSPEND_MAX_TIME_MILLIS` 4.9.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from attrs import frozen

from longpoll_conform.capabilities import ANSWER_S, NO_PERMISSION, ask, pull_fields, send_fields, topic_fields
from longpoll_conform.clauses import BY_VECTOR, OF_POLL
from longpoll_conform.compare import NO_ANSWER, Difference
from longpoll_conform.connection import Answer, Connection, Conversation, SilentError
from longpoll_conform.play import Place
from longpoll_conform.suite import Result, Seen

HELD_PART: Final = 4
"""A broker that answers in the first quarter of a hold does not hold the pull."""
WOKEN_PART: Final = 3
"""The message comes after a third of a hold, or after a second."""
SCAN_MS: Final = 5_000
"""How late an answer may come from RocketMQ's scan."""
LATE_MS: Final = 1_500
"""How late an answer may come on a busy machine."""
EARLY_MS: Final = 20
"""The granularity of clocks."""
FOUND, NOT_FOUND = 0, 19


@frozen
class _Held:
    """One pull, and its answer."""

    hold_ms: int
    sent_ms: float | None
    """When the message was sent, ms after the pull; None without one."""
    answer: Answer
    after_ms: float
    conversation: Conversation

    @property
    def code(self) -> int | None:
        """The response code; None for no answer."""
        return None if self.answer.command is None else int(self.answer.command["code"])

    def result(self, name: str, expected: str, *, fits: bool) -> Result:
        """The result of a clause that this answer shows."""
        clause = BY_VECTOR[name]
        seen = Seen(name, f"a hold of {self.hold_ms} ms")
        if self.code == NO_PERMISSION:
            return Result(seen, clause, "UNTESTED", "the broker lacks: readable")
        if fits:
            return Result(seen, clause, "PASS", seconds=self.after_ms / 1000)
        got = NO_ANSWER if self.code is None else f"{self.code} after {self.after_ms:.0f} ms"
        difference = Difference("answer, when", expected, got)
        return Result(
            seen,
            clause,
            "FAIL",
            str(difference),
            (difference,),
            tuple(self.conversation.spoken),
            0,
            self.after_ms / 1000,
        )


def see(place: Place, run: str, names: Sequence[str], *, scans: bool) -> list[Result]:
    """The results of the clauses with these names, in their order. Raises SilentError.

    With `scans` an answer at the deadline may be as late as RocketMQ's scan.
    """
    topic = f"tpoll{run}"
    answer, _after_ms = ask(place, 17, topic_fields(topic))
    if answer is None:
        raise SilentError("the broker does not answer a request to create a topic")
    wanted = {(name.split("-")[1] == "wakes", int(name.rpartition("-")[2])) for name in names}
    with ThreadPoolExecutor(len(wanted)) as pool:
        found = {
            key: pool.submit(_hold, place, topic, queue, *key, late_ms=SCAN_MS * scans)
            for queue, key in enumerate(sorted(wanted))
        }
        held = {key: future.result() for key, future in found.items()}
    return [_result(name, held, late_ms=LATE_MS + SCAN_MS * scans) for name in names]


def _result(name: str, held: dict[tuple[bool, int], _Held], *, late_ms: int) -> Result:
    what, hold_ms = name.removeprefix(OF_POLL).split("-")
    one = held[what == "wakes", int(hold_ms)]
    if what == "holds":
        least_ms = one.hold_ms // HELD_PART
        return one.result(
            name, f"no answer in the first {least_ms} ms", fits=one.code is None or one.after_ms > least_ms
        )
    if what == "wakes":
        first_ms = one.sent_ms or 0.0
        expected = f"0 from {first_ms:.0f} to {first_ms + LATE_MS:.0f} ms, after the message"
        is_timely = first_ms <= one.after_ms <= first_ms + LATE_MS
        return one.result(name, expected, fits=one.code == FOUND and is_timely)
    least_ms, most_ms = one.hold_ms - EARLY_MS, one.hold_ms + late_ms
    expected = f"{NOT_FOUND} from {one.hold_ms} to {most_ms} ms"
    return one.result(name, expected, fits=one.code == NOT_FOUND and least_ms <= one.after_ms <= most_ms)


def _hold(place: Place, topic: str, queue: int, wakes: bool, hold_ms: int, *, late_ms: int) -> _Held:
    conversation = Conversation()
    line = Connection("pull", place.broker, conversation)
    try:
        begun_s = time.monotonic()
        fields = pull_fields(topic, queue=queue, hold_ms=hold_ms)
        opaque = line.ask({"code": 11, "extFields": fields, "body": b""})
        sent_ms = None
        if wakes:
            early = line.wait(opaque, min(hold_ms / WOKEN_PART, 1_000) / 1000)
            if early.command is not None:
                return _Held(hold_ms, None, early, (early.at_s - begun_s) * 1000, conversation)
            sent_ms = (time.monotonic() - begun_s) * 1000
            ask(place, 310, {**send_fields(topic), "e": str(queue)}, b"wakes")
        limit_s = hold_ms / 1000 + late_ms / 1000 + 2 * LATE_MS / 1000 - (time.monotonic() - begun_s)
        answer = line.wait(opaque, min(limit_s, 3 * ANSWER_S))
        return _Held(hold_ms, sent_ms, answer, (answer.at_s - begun_s) * 1000, conversation)
    finally:
        line.close()
