"""Entries that too few methods find, each with the reason; the page lists them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

OPEN: Final[Mapping[str, str]] = {
    "rocketmq-closed-waiter-spends-the-notification": (
        "of a path that stages and the law do not have (filters, limits or a stop): one suite knows of it"
    ),
    "rocketmq-slave-does-not-notify": "a slave's, which no suite drives but by its own tests",
    "rocketmq-slave-holds-beside-its-master": "a slave's, which no suite drives but by its own tests",
    "rocketmq-dispatcher-dies-of-an-error": (
        "of a path of the served broker that one suite knows of: the simulated world has not come there in its time"
    ),
    "rocketmq-scanner-dies-of-an-error": (
        "of the pool or the scanner, which the served policy does not have: the simulated world has not come "
        "there in its time"
    ),
    "rocketmq-late-task-is-not-told": (
        "of the pool or the scanner, which the served policy does not have: the simulated world has not come "
        "there in its time"
    ),
    "rocketmq-announced-once": (
        "of a path of the served broker that one suite knows of: the simulated world has not come there in its time"
    ),
    "rocketmq-retry-answer-is-overwritten": "a slave's, which no suite drives but by its own tests",
    "pulsar-recycled-answer": (
        "of a path of the served broker that one suite knows of: the simulated world has not come there in its time"
    ),
    "redis-deleted-key-wakes-nobody": (
        "of a path of the served broker that one suite knows of: the simulated world has not come there in its time"
    ),
}
