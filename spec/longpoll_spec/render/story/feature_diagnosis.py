"""What is wrong at the end of a run that breaks a promise about an aspect of the world: where it lies, what closes it.

These read alike wherever they happen. Leaves out what depends on the last state (`diagnosis`).
"""

from __future__ import annotations

from typing import Final

WRONG: Final[dict[str, tuple[str, str]]] = {
    "round_is_whole": (
        (
            "The window is PullRequestHoldService.checkHoldRequest of 4.9: its loop over the table has no try of "
            "its own around getMaxOffsetInQueue, so one queue that throws ends the round, and all others wait for"
            "the next one."
        ),
        "Remedy: pass over the queue that throws (knob scan_throw=skip_queue, as 5.x does).",
    ),
    "buckets_are_swept": (
        (
            "Nothing ever removes an entry of pullRequestTable: one bucket stays for every topic and queue that was "
            "pulled."
        ),
        "Remedy: remove an empty bucket under its lock (knob bucket_removal=rechecked_under_lock).",
    ),
    "no_orphan": (
        (
            "The window lies between pullRequestTable.get, which gave the pull's thread its bucket, and "
            "addPullRequest: the scan found the bucket empty meanwhile and removed it. Arrivals and scans look into "
            "the table, so the request is lost for good, and so is every later one that had the bucket in hand."
        ),
        (
            "Remedy: look again, under the bucket's lock, before it is removed (knob "
            "bucket_removal=rechecked_under_lock)."
        ),
    ),
    "commit_never_regresses": (
        (
            "The window lies between the client's sending of the pull, which carries the offset that it had "
            "committed then, and ConsumerOffsetManager.commitOffset: a newer commit came between them, and the last"
            "writer wins."
        ),
        "Remedy: keep the greater of the two (knob commit=monotone_max).",
    ),
    "commit_in_queue": (
        (
            "The queue ends earlier now, and ConsumerOffsetManager keeps the group's offset: the group skips the "
            "messages that come next, as many as the offset is beyond the end."
        ),
        "Remedy: set offsets beyond a queue's end back to it when it is cut (knob on_truncate=wake).",
    ),
    "closed_is_let_go": (
        (
            "Nobody tells PullRequestHoldService that a channel has closed: the request is held to its deadline, "
            "and its answer goes nowhere."
        ),
        "Remedy: let go what a closed channel holds (knob on_close=drop).",
    ),
    "moved_is_told": (
        (
            "Nobody walks the bucket when a queue is cut: the request waits for an offset that its queue no longer "
            "has, until the next arrival or its deadline, and only then is answered that its offset moved."
        ),
        "Remedy: wake those whose offset is gone when a queue is cut (knob on_truncate=wake).",
    ),
    "seen_survives": (
        "The message was shown to pulls before it was on disk, and the crash took it back.",
        "Remedy: show only what is flushed (knob visible_after=flush, as 5.3.2 does under SYNC_FLUSH).",
    ),
    "told_of_role_change": (
        "A change of the broker's role walks no bucket: a pull that waits at a slave, now master, waits on.",
        (
            "Remedy: answer the held requests when the role changes, and at their insert those that missed before it "
            "(knob on_role_change=answer)."
        ),
    ),
    "told_of_master_return": (
        (
            "No walk after the master's return comes to this request: 4.9 has none, and that of 5.x misses a request "
            "that is in a notifier's list or on its way into its bucket. It waits on, and is not sent to the master."
        ),
        (
            "Remedy: answer the held requests when the master is back, and at their insert those that missed before "
            "it (knob on_master_return=answer)."
        ),
    ),
    "return_is_whole": (
        (
            "The window lies between ManyPullRequest.isEmpty and cloneListAndClear in notifyMasterOnline: the "
            "dispatcher took the list meanwhile, cloneListAndClear gives null, and the NullPointerException ends "
            "the walk over all buckets."
        ),
        "Remedy: take each list in one step, whether it is empty or not (knob on_master_return=answer).",
    ),
}
"""Property -> (where it lies, what closes it)."""
