"""The bounds of a state space: how large it is, and which features of the model it contains.

A bound cuts the state space without changing the meaning of an action, because a guard disables the action at a bound
and no value is clamped. A feature is a part of the model that can be left out, such as several queues or offset
commits. The variables and actions of a feature exist only if the feature is on. docs/decisions/0002-specification.md
explains why there are features instead of one large state.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs
from attrs import frozen

from longpoll_spec.errors import BoundsError, not_known
from longpoll_spec.policy import Policy

REQUESTS_MAX: Final = 64
MESSAGES_MAX: Final = 255
TICKS_MAX: Final = 255
QUEUES_MAX: Final = 8
TAGS_MAX: Final = 3
"""The greatest number of tags. The first two tags differ in name and hash, and the third tag has the hash of the first.
"""

ASPECTS: Final[dict[str, str]] = {
    "buckets": "A bucket is an entry of the table that the first hold creates and that may be removed.",
    "commits": "A consumer commits its progress, and each pull carries the offset committed when it was sent.",
    "channels": "A consumer's channel may close while its pull waits.",
    "limit": "At most one request is held at a time.",
    "capacity": "The executor rejects a request only while it has another one.",
    "truncate": "A queue may lose its first message, lose its last message, or be deleted and recreated.",
    "sql": "A pull may use an SQL filter, which each message passes or does not.",
    "crash": "Messages are flushed to disk after they are appended; a crash loses unflushed ones and all memory.",
    "role": "The broker is a slave. Once, its master comes back or it becomes master itself.",
    "lateness": "Each request counts the ticks that it is late, and those that it waits although a message is visible.",
}
"""Maps a feature to its addition to the model. Several queues and several tags are features too, switched on by
`Bounds.queues` and `Bounds.tags`."""


@frozen
class Bounds:
    """The bounds of one state space. `messages=None` leaves the log unbounded, which only a proof can handle."""

    name: str
    requests: int = 2
    """The number of request slots. Each slot belongs to one consumer, which has at most one pull in flight."""
    messages: int | None = 1
    """The greatest number of messages that are appended to one queue."""
    hold_ticks: int = 1
    """The hold time: ticks from the receipt of a pull to its deadline."""
    scan_ticks: int = 2
    """The ticks between two scans, at least 2. With one tick a scan would always be due, which would hide lateness."""
    queues: int = 1
    """The number of queues, which share one dispatcher, one scanner and one executor."""
    tags: int = 1
    """The number of tags that messages can have and pulls can ask for. With one tag, no message is ever filtered."""
    aspects: frozenset[str] = frozenset()
    """The names of the features that are on, from `ASPECTS`."""

    def __attrs_post_init__(self) -> None:
        """Reject bounds that cannot be explored; raises `BoundsError`."""
        _within("requests", self.requests, 1, REQUESTS_MAX)
        if self.messages is not None:
            _within("messages", self.messages, 1, MESSAGES_MAX)
        _within("hold_ticks", self.hold_ticks, 1, TICKS_MAX)
        _within("scan_ticks", self.scan_ticks, 2, TICKS_MAX)
        _within("queues", self.queues, 1, QUEUES_MAX)
        _within("tags", self.tags, 1, TAGS_MAX)
        for aspect in sorted(self.aspects - set(ASPECTS)):
            raise BoundsError(not_known("aspect", aspect, ASPECTS))

    @property
    def filters(self) -> bool:
        """Whether a pull's filter can exclude a message: there are several tags, or SQL filters."""
        return self.tags > 1 or "sql" in self.aspects

    @property
    def late_max(self) -> int:
        """The greatest lateness that is counted, in ticks; there time stops, because the count is not clamped."""
        return self.hold_ticks + self.scan_ticks

    @property
    def is_plain(self) -> bool:
        """Whether these are bounds of the model without features."""
        return self.queues == self.tags == 1 and not self.aspects

    def has(self, aspect: str) -> bool:
        """Whether the feature is on."""
        assert aspect in ASPECTS, aspect
        return aspect in self.aspects


def _within(name: str, value: int, lower: int, upper: int) -> None:
    if not lower <= value <= upper:
        raise BoundsError(f"{name} must be from {lower} to {upper}, not {value}")


SIZES: Final = ("tiny", "small", "wide", "bench")
"""The names of bounds of the model without features."""

EXPLORATIONS: Final[dict[str, Bounds]] = {
    "queues": Bounds("queues", requests=2, messages=1, queues=2),
    "tags": Bounds("tags", requests=2, messages=2, tags=3),
    "sql": Bounds("sql", requests=2, messages=2, tags=2, aspects=frozenset({"sql"})),
    "buckets": Bounds("buckets", requests=2, messages=1, aspects=frozenset({"buckets"})),
    "commits": Bounds("commits", requests=2, messages=2, aspects=frozenset({"commits"})),
    "channels": Bounds("channels", requests=2, messages=1, aspects=frozenset({"channels"})),
    "limit": Bounds("limit", requests=2, messages=1, aspects=frozenset({"limit"})),
    "capacity": Bounds("capacity", requests=2, messages=1, aspects=frozenset({"capacity"})),
    "truncate": Bounds("truncate", requests=2, messages=2, aspects=frozenset({"truncate"})),
    "crash": Bounds("crash", requests=2, messages=2, aspects=frozenset({"crash"})),
    "role": Bounds("role", requests=2, messages=1, queues=2, aspects=frozenset({"role"})),
}
"""The bounds under which each feature is explored: just large enough to show the feature's purpose, with two requests.

With one request, a broker that wakes or answers only the first of several requests would pass."""

TIMEOUTS: Final[dict[str, Bounds]] = {
    "timeout": Bounds("timeout", requests=1, messages=1, hold_ticks=3, tags=2),
    "timeout-5": Bounds("timeout-5", requests=2, messages=1, hold_ticks=5, scan_ticks=3),
    "timeout-8": Bounds("timeout-8", requests=2, messages=1, hold_ticks=8, scan_ticks=5),
}
"""Bounds with hold times of more than one tick, because with one tick a restarted deadline does not show.

No hold time is a multiple of the scan period. The bounds `timeout` have tags, because without tags all requests that a
dispatcher keeps arrived in the same tick. `longpoll check` explores the bounds `timeout` for every policy; tests
compare the results under the other bounds with recorded results."""

NAMES: Final = (*SIZES, *EXPLORATIONS, *TIMEOUTS)


def named(
    name: str,
    policy: Policy,
    *,
    requests: int | None = None,
    messages: int | None = None,
    hold_ticks: int | None = None,
    scan_ticks: int | None = None,
    queues: int | None = None,
    tags: int | None = None,
    aspects: Iterable[str] = (),
) -> Bounds:
    """The bounds of this name for this policy, with the given values replaced; raises `BoundsError`.

    The features `aspects` are added to the features of the named bounds. A policy that traverses in place has fewer
    interleavings, so the same name gives it one more request, unless it is a specification file. The presets of pops
    have more states, so the name gives them one request fewer.
    """
    own = policy.extension
    more = -1 if own is not None and own.is_preset else 1 if policy.take == "in_place" and own is None else 0
    table = {
        "tiny": Bounds("tiny", requests=2, messages=1),
        "small": Bounds("small", requests=3 + more, messages=2),
        "wide": Bounds("wide", requests=4 + more, messages=3),
        "bench": Bounds("bench", requests=4 + more, messages=2),
        **EXPLORATIONS,
        **TIMEOUTS,
    }
    if name not in table:
        raise BoundsError(not_known("bounds", name, NAMES))
    base = table[name]
    numbers = {
        "requests": requests,
        "messages": messages,
        "hold_ticks": hold_ticks,
        "scan_ticks": scan_ticks,
        "queues": queues,
        "tags": tags,
    }
    changed = {key: value for key, value in numbers.items() if value is not None and value != getattr(base, key)}
    more_aspects = sorted(set(aspects) - base.aspects)
    if not changed and not more_aspects:
        return base
    text = "".join(f"+{key}={value}" for key, value in changed.items()) + "".join(f"+{each}" for each in more_aspects)
    return attrs.evolve(base, name=f"{name}{text}", aspects=base.aspects.union(more_aspects), **changed)
