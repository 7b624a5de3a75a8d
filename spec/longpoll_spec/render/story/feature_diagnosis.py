"""What is wrong at the end of a run that breaks a property of a feature: location and fix.

These texts are fixed. Texts that depend on the last state: `diagnosis`.
"""

from __future__ import annotations

from typing import Final

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
"""Property -> (location, fix)."""
