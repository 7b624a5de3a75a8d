"""The findings of each preset: the properties that it breaks, and the known races or faults behind them.

The letters are those of docs/findings.md, in the order of discovery in RocketMQ's source or on its brokers; a finding
without a letter is named by a word. A test checks that the specification finds exactly these findings. Our own policies
break nothing and are not listed.
"""

from __future__ import annotations

from typing import Final

HAZARDS: Final[dict[str, str]] = {
    "a": "A message comes between the read and the insert: the wakeup is lost until the next scan (#7358).",
    "b": "A message comes between a notifier's take and its put-back: the wakeup is lost until the next scan.",
    "c": "Only the scan checks deadlines, so an answer is up to a scan period late.",
    "d": "A request that the executor rejects, or whose check throws, gets no answer at all.",
    "e": "Nothing removes the requests of a closed channel (#8362).",
    "g": "A request that waits for a truncated or deleted offset learns of it only at its deadline.",
    "h": "An older offset that a pull carries overwrites a newer committed one.",
    "i": "Unused buckets stay in the table (#7481).",
    "j": "A bucket is removed while a pull's thread holds a reference to it: its request is lost for good (#10754).",
    "l": "A scan ends at the first queue whose store throws.",
    "m": "The traversal after a master's return ends at a bucket emptied meanwhile, and misses requests in no bucket.",
    "o": "Held requests do not learn that a slave becomes master, nor, in 4.9, that its master is back.",
    "p": "A broker that stops does not answer held requests.",
    "poll": "The dispatcher polls the log, so time passes before a message is visible.",
    "slave": "A 4.9 slave notifies no pull of a message, so a pull that it holds waits until the next scan.",
    "unflushed": "A message is visible before it is on disk, and a crash loses it (5.3.2: not under SYNC_FLUSH).",
}
"""Maps a finding to its sentence, with upstream's issue if there is one."""

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
        "no_lost_wakeup": ("a", "b", "slave"),
        "woken_within": ("a", "b", "poll", "slave"),
        "round_is_whole": ("l",),
        "told_of_master_return": ("o",),
    },
    "rocketmq-5": {**_ALL, **_UNCHECKED, **_NEVER_REMOVED, **_NPE},
    "rocketmq-pr7359": {**_ALL, **_RECHECKED, **_NEVER_REMOVED, **_NPE},
    "rocketmq-lmq": {**_ALL, **_UNCHECKED, "no_orphan": ("j",), **_NPE},
}
"""Maps a preset to the properties that it breaks, and each property to the findings behind it. The preset keeps every
other property."""


def findings_of(preset: str, property_name: str) -> tuple[str, ...]:
    """The findings behind a property that a preset breaks; empty if the preset keeps it, or for another policy."""
    return FACTS.get(preset, {}).get(property_name, ())
