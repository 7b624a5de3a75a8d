"""The findings of docs/findings.md on RocketMQ's pull path, each as a knob value of the policy."""

from __future__ import annotations

from typing import Final

from model_tests.mutants.zoo.entry import POLICY, Change, Entry, default_of

KEEP: Final = Change(POLICY, 'take="clone_and_clear", recheck_after_keep=True)', 'take="clone_and_clear")')
"""`strict-clone` sets this knob by itself."""


def _knob(  # noqa: PLR0917 - a row of a table
    name: str, source: str, setting: str, now: str, says: str, policy: str = "strict", units: tuple[str, ...] = ()
) -> Entry:
    change = KEEP if setting.startswith("recheck_after_keep") else default_of(setting.partition("+")[0], now)
    return Entry(
        f"rocketmq-{name}", "historic", f"Apache RocketMQ, {source}", says, (change,), units=units, knob=setting,
        policy=policy,
    )  # fmt: skip


FINDINGS: Final = (
    _knob(
        "no-recheck",
        "finding (a), issue #7358",
        "recheck_after_hold=none",
        '"after_insert"',
        "A message comes between a pull's read and its insert into the table, and the dispatcher finds the bucket "
        "empty. Nobody looks again, so the pull waits for the next message or scan: a consumer of a quiet topic gets "
        "a message up to 5 s late.",
    ),
    _knob(
        "recheck-before-lock",
        "finding (a), a recheck in the wrong place",
        "recheck_after_hold=before_lock",
        '"after_insert"',
        "The pull looks once more, and then waits for the bucket's lock. A message that comes between the look and the "
        "insert is as lost as without a recheck: the same late delivery, only more seldom.",
    ),
    _knob(
        "recheck-in-lock",
        "finding (a), a recheck in the wrong place",
        "recheck_after_hold=in_lock",
        '"after_insert"',
        "The pull looks once more under the lock, before the insert. The dispatcher passes over a bucket that looks "
        "empty without taking the lock, so between look and insert a wakeup is lost still.",
    ),
    _knob(
        "clone-and-clear",
        "finding (b)",
        "take=clone_and_clear",
        '"in_place"',
        "A scan has the bucket's list in its own hands while a message becomes visible; the dispatcher finds the "
        "bucket empty, and the scan puts back pulls that have something to read. Thousands of consumers are late by "
        "one scan at once.",
    ),
    _knob(
        "no-recheck-after-keep",
        "finding (b), which pull request #7359 leaves open",
        "recheck_after_keep=false",
        "True",
        "The same window between take and put-back, in a broker that rechecks after the insert only: the put-back "
        "is another insert, and nobody looks after it.",
        policy="strict-clone",
    ),
    _knob(
        "deadline-by-scan",
        "finding (c)",
        "expiry=scan",
        '"own_deadline"',
        "A deadline is noticed by the scan alone, once in 5 s: a pull of 15 s is answered after 15 to 20 s, and a "
        "client that waits a little longer than it asked for gives up a connection that is fine.",
    ),
    _knob(
        "refused-and-dropped",
        "finding (d)",
        "on_reject=drop",
        '"answer_busy"',
        "A woken pull leaves the table before it is given to the executor; one that is full refuses it, and a line "
        "in the log is all that is left. The client waits until its own time is over, although messages are there.",
    ),
    _knob(
        "throw-drops-the-rest",
        "finding (d)",
        "on_throw=drop_rest",
        '"answer_and_go_on"',
        "One filter raises while a notifier has the bucket's list: the exception leaves the walk, and everybody in "
        "the list is in no bucket any more. None of them is ever answered.",
    ),
    _knob(
        "throw-ends-the-walk",
        "finding (d), mended by half",
        "on_throw=keep_rest",
        '"answer_and_go_on"',
        "A walk that meets an exception puts everything back and ends: nothing is dropped, but who stands behind the "
        "pull that throws is not told of the message, and neither at the next one.",
        policy="strict-clone",
    ),
    _knob(
        "closed-stays-held",
        "finding (e), issue #8362",
        "on_close=ignore",
        '"drop"',
        "The pulls of a closed connection stay in the table to their deadlines, are read for and answered to nobody. "
        "Clients that reconnect often fill the table, and messages are read for the dead.",
    ),
    _knob(
        "truncated-is-not-told",
        "finding (g)",
        "on_truncate=ignore",
        '"wake"',
        "A queue is cut back or deleted while a pull waits at an offset beyond its end: it waits on to its deadline "
        "for a message that can only come at a smaller offset.",
    ),
    _knob(
        "commit-after-hold",
        "finding (h), as 4.9 does",
        "commit=after_hold",
        '"monotone_max"',
        "The offset that a pull carries is committed after the hold. A newer one that the consumer has committed "
        "meanwhile is overwritten, and after a rebalance messages are consumed again.",
    ),
    _knob(
        "commit-before-hold",
        "finding (h), as 5.x does",
        "commit=before_hold",
        '"monotone_max"',
        "To commit a pull's offset before the hold narrows the window and does not close it: an older pull that is "
        "served late still overwrites a newer commit.",
    ),
    _knob(
        "buckets-stay",
        "finding (i), issue #7481",
        "bucket_removal=never",
        '"rechecked_under_lock"',
        "Every queue that anybody ever pulled keeps its bucket. With many short-lived topics the table grows without "
        "end, and each scan goes through all of it.",
    ),
    _knob(
        "orphaned-bucket",
        "finding (j), issue #10754",
        "bucket_removal=if_empty_unsafe",
        '"rechecked_under_lock"',
        "A bucket that looked empty is removed while a pull has it in hand: the pull is put into a bucket that no "
        "notifier finds. It is never woken, by no message and no scan.",
    ),
    _knob(
        "scan-round-aborted",
        "finding (l), mended in 5.0",
        "scan_throw=abort_round",
        '"skip_queue"',
        "One queue's end cannot be read, and the exception ends the scan's round. Every queue behind it waits another "
        "five seconds, each time.",
    ),
    _knob(
        "return-walk-breaks-off",
        "finding (m)",
        "on_master_return=look_then_take",
        '"answer"',
        "When the master is back, a walk looks whether a bucket is empty and then takes it; one that is emptied in "
        "between ends the walk by a NullPointerException. All behind it go on waiting at a slave.",
    ),
    _knob(
        "return-is-not-told",
        "finding (o), as 4.9 does",
        "on_master_return=ignore",
        '"answer"',
        "Nobody tells those who wait at a slave that its master is back: they wait where nothing is served, to their "
        "deadline.",
    ),
    _knob(
        "role-change-is-not-told",
        "finding (o)",
        "on_role_change=ignore",
        '"answer"',
        "A slave becomes master, and who waits at it is not told to look: their answers are late by up to the hold.",
    ),
    _knob(
        "silent-stop",
        "finding (p)",
        "on_stop=silent",
        '"answer"',
        "A stopping broker ends without a word to those who wait. Their clients learn of it from the closed "
        "connection, or, where a proxy stands between, after their whole timeout.",
    ),
    _knob(
        "polling-dispatcher",
        "finding (poll), `ReputMessageService`",
        "notify=dispatcher_poll",
        '"at_append"',
        "The dispatcher looks into the log once a millisecond, so time passes between an append and its wake: half a "
        "millisecond more for each message, and an idle processor that is never idle (#8485).",
    ),
    _knob(
        "notify-before-visible",
        "docs/findings.md, when to notify",
        "notify=before_visible",
        '"at_append"',
        "Who is told of a message before its queue's end has moved reads nothing and waits again, and nobody tells "
        "it a second time: the message is delivered at the deadline.",
    ),
    _knob(
        "batch-by-its-last-tag",
        "docs/findings.md, when to notify (`notifyMessageArriveInBatch`)",
        "notify_grain=batch",
        '"message"',
        "Several messages are announced by the last one's tag. Who wants the tag of an earlier one is not woken: a "
        "consumer with a filter is late whenever its message does not come last.",
    ),
    _knob(
        "limit-looked-at-before",
        "docs/findings.md, the limit of POP's table",
        "hold_limit=at_read",
        '"in_lock"',
        "The limit to how many pulls are held is looked at before the insert's lock: many that look at once pass it "
        "together, and the table is larger than the memory that was given to it.",
    ),
    _knob(
        "seen-before-flushed",
        "finding (unflushed), mended for SYNC_FLUSH in 5.3.2",
        "visible_after=append",
        '"flush"',
        "A message is shown to consumers before it is on disk. A power cut takes it back, and the next message gets "
        "its offset: a consumer has seen what never was, and skips what is.",
    ),
    _knob(
        "wakes-whatever-the-tag",
        "issue #10034, 300,000 useless wakes a second",
        "notify_only_if_tag_matches=false",
        "True",
        "Every message wakes everybody who waits for its queue, whatever their filters. Each reads, finds nothing and "
        "asks again: nothing is wrong, and the broker does little else.",
        units=("core/test_notifier.py", "service/test_pull_service.py", "service/test_hold_service.py"),
    ),
    _knob(
        "one-shot-deadline",
        "the delay of a request that a notifier has taken (`docs/decisions/0002-specification.md`)",
        "heap_entry=one_shot+tick=free",
        '"until_answered"',
        "A deadline fires while a notifier has the pull in its list, and its entry is spent. The pull is put back "
        "without one, and waits for a message for ever.",
        policy="strict-clone",
    ),
)
