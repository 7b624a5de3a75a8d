"""Which policy has which hazard: what each preset breaks, and by what name the race or fault is known.

The letters are those of docs/findings.md, in the order in which the hazards were read in RocketMQ's source or seen on
its brokers; a hazard without a letter has a word. This is what is known of the brokers; that the law finds exactly
this, neither less nor more, is a test's. Leaves out our own policies, which break nothing.
"""

from __future__ import annotations

from typing import Final

HAZARDS: Final[dict[str, str]] = {
    "a": "A message comes between the read and the insert: the wakeup is lost until the next scan (#7358).",
    "b": "A message comes between a notifier's take and its put-back: the wakeup is lost until the next scan.",
    "c": "Only the scan sees deadlines, so an answer is late by up to a scan's period.",
    "d": "What the executor refuses, or an exception overtakes, gets no answer at all.",
    "e": "Nothing removes the requests of a closed channel (#8362).",
    "g": "Who waits for an offset that was cut off or deleted is told only at the deadline.",
    "h": "An older offset that a pull carries overwrites a newer one that was committed since.",
    "i": "Buckets that nobody uses stay in the table (#7481).",
    "j": "A bucket is removed while a pull has it in hand: its request is lost for good (#10754).",
    "l": "A scan ends at the first queue whose store throws.",
    "m": "The walk after the master's return ends at a bucket emptied meanwhile, and misses who is in no bucket then.",
    "o": "That a slave becomes master, and in 4.9 that its master is back, is not told to those who wait.",
    "p": "A broker that stops does not answer those who wait.",
    "poll": "The dispatcher polls the log, so time passes before a message is visible.",
    "unflushed": "A message is seen before it is on disk, and a crash takes it back (5.3.2: not under SYNC_FLUSH).",
}
"""Hazard -> its sentence, with upstream's issue where there is one."""

_ALL: Final[dict[str, tuple[str, ...]]] = {
    "lost_by_keep": ("b",),
    "queued_by_deadline": ("c",),
    "answered_by_deadline": ("c",),
    "nothing_dropped": ("d",),
    "dropped_by_reject": ("d",),
    "dropped_by_throw": ("d",),
    "closed_is_let_go": ("e",),
    "moved_is_told": ("g",),
    "commit_never_regresses": ("h",),
    "answered_on_stop": ("p",),
    "told_of_role_change": ("o",),
    "seen_survives": ("unflushed",),
}
_UNCHECKED: Final[dict[str, tuple[str, ...]]] = {
    "lost_by_hold": ("a",),
    "no_lost_wakeup": ("a", "b"),
    "woken_within": ("a", "b", "poll"),
}
_RECHECKED: Final[dict[str, tuple[str, ...]]] = {"no_lost_wakeup": ("b",), "woken_within": ("b", "poll")}
_NEVER_REMOVED: Final[dict[str, tuple[str, ...]]] = {"buckets_are_swept": ("i",)}
_NPE: Final[dict[str, tuple[str, ...]]] = {"return_is_whole": ("m",), "told_of_master_return": ("m",)}

FACTS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "strict": {},
    "strict-clone": {},
    "rocketmq-4.9": {
        **_ALL,
        **_UNCHECKED,
        **_NEVER_REMOVED,
        "round_is_whole": ("l",),
        "told_of_master_return": ("o",),
    },
    "rocketmq-5": {**_ALL, **_UNCHECKED, **_NEVER_REMOVED, **_NPE},
    "rocketmq-pr7359": {**_ALL, **_RECHECKED, **_NEVER_REMOVED, **_NPE},
    "rocketmq-lmq": {**_ALL, **_UNCHECKED, "no_orphan": ("j",), **_NPE},
}
"""Preset -> the properties that it breaks -> the hazards of which each is a sign; every other property it keeps."""


def findings_of(preset: str, property_name: str) -> tuple[str, ...]:
    """The hazards that a broken property of a preset is a sign of; none that is known for other policies."""
    return FACTS.get(preset, {}).get(property_name, ())
