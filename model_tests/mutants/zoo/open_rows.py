"""Entries that too few methods find, each with the reason; the page lists them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

OPEN: Final[Mapping[str, str]] = {
    "rocketmq-slave-does-not-notify": (
        "no method but its own tests serves a slave: the recorded conversations are a master's, and the simulated "
        "broker has one life in one role"
    ),
    "rocketmq-slave-holds-beside-its-master": (
        "a slave of 5.x alone sends its readers to a living master, and no method but its own tests serves a slave: "
        "the recorded conversations are a master's, and the simulated broker has one life in one role"
    ),
    "rocketmq-dispatcher-dies-of-an-error": (
        "the inner one of two nets: who calls the dispatcher catches the same error and goes on, so that nothing "
        "of it was seen from outside in 1,400 simulated runs with a failing disk, nor in 500 with a polling dispatcher"
    ),
    "rocketmq-scanner-dies-of-an-error": (
        "a scan raises only when a queue's end cannot be told, which our store has in memory: no disk, request or "
        "schedule makes it fail, and a store of its own test's alone does"
    ),
    "rocketmq-announced-once": (
        "a walk throws only when a filter raises under on_throw=drop_rest, and no filter that a client can send "
        "raises: that of its own test alone does"
    ),
    "lock-remove-left": (
        "only a disk that refuses to remove a topic's files leaves any behind: its own test alone has such a disk, the "
        "stress of the store and the watch over its locks delete on one that works"
    ),
    "rocketmq-retry-answer-is-overwritten": (
        "it changes what a slave answers beyond its end, and no method but its own tests serves a slave"
    ),
    "pulsar-recycled-answer": (
        "what a herd shares is of an older state only when its queue's end moved between two pulls of the herd, and "
        "that answer is a right one still; where the topic was made anew it was forgotten before"
    ),
    "lock-queues-listed": (
        "a topic is in neither table between two lines of its leaving, and is missed only by who lists the queues just "
        "then, for a deletion that fails after it, and a power cut: its own test alone looks at the lock"
    ),
    "lock-expired-queues": (
        "files of the log expire on the thread that makes queues durable, so that the two never meet in a broker; its "
        "own test alone looks at the lock"
    ),
    "lock-put-prepared": (
        "only a batch that is too long for one turn is prepared, and no load of the stress sends one: its own test "
        "alone looks at the lock"
    ),
}
