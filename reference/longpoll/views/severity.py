"""The harm of a violated property for a user, the worst first.

This table's order is not the specification's order: `worst` picks from it what `longpoll check` prints by default. Harm
without a fault comes before harm that needs a full executor, an exception or a crash.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

Kind = Literal["lost", "missed", "unanswered", "late", "repeated", "crash", "wasted"]
HARMS: Final[tuple[tuple[Kind, str, str], ...]] = (
    # A message does not reach a consumer, or an answer is wrong.
    ("lost", "nothing_skipped", "A consumer never gets a message that has its tag."),
    ("lost", "visible_is_monotone", "A message that was visible disappears without a crash."),
    ("lost", "offset_goes_on", "A consumer's next pull skips messages or asks for some again."),
    ("lost", "answer_is_right", "A pull gets an answer that does not match its queue."),
    # A message is there, and the pull that waits for it is not woken.
    ("missed", "no_lost_wakeup", "A pull keeps waiting although a message for it is there."),
    ("missed", "lost_by_hold", "A message that comes between a pull's read and its hold does not wake the pull."),
    ("missed", "lost_by_keep", "A message that comes while a notifier has the pull in its list wakes no pull."),
    ("missed", "woken_within", "A message is visible, and the pull that waits for it is answered ticks later."),
    # A consumer waits until its own timeout.
    ("unanswered", "no_orphan", "A held pull is lost in the table: no message, no scan and no deadline answers it."),
    ("unanswered", "nothing_dropped", "The broker drops a waiting pull and never answers it."),
    ("unanswered", "dropped_by_reject", "A pull that the executor rejects never gets an answer."),
    ("unanswered", "dropped_by_throw", "An exception in a notifier drops its pulls: they never get an answer."),
    ("unanswered", "time_can_pass", "The broker can reach a state in which it does nothing more."),
    # A message or an answer comes later than it should.
    ("late", "answered_by_deadline", "A pull is answered after its deadline."),
    ("late", "queued_by_deadline", "A held pull stays in the table past its deadline."),
    ("late", "no_lost_deadline", "A held pull that is past its deadline cannot expire."),
    ("late", "moved_is_told", "A pull waits on for an offset that was truncated or deleted."),
    ("late", "round_is_whole", "A scan stops at a queue whose store fails, and pulls on the other queues wait longer."),
    ("late", "return_is_whole", "When the master returns, some held pulls are not answered."),
    ("late", "told_of_role_change", "When a slave becomes master, held pulls are not answered."),
    ("late", "told_of_master_return", "When the master returns, pulls that its slave holds are not answered."),
    ("late", "answered_on_stop", "A broker that stops does not answer the pulls that it holds."),
    # A consumer does or gets something once too often.
    (
        "repeated",
        "commit_never_regresses",
        "A committed offset moves back: after a restart messages are consumed again.",
    ),
    ("repeated", "answered_once", "A pull is answered twice."),
    ("repeated", "not_answered_early", "A pull is answered as not found before its deadline."),
    ("repeated", "deadline_is_its_pulls", "A pull's deadline changes while it waits."),
    # Only a crash shows these.
    ("crash", "seen_survives", "A crash removes a message that a consumer may already have seen."),
    ("crash", "commit_in_queue", "After a queue loses messages, a group skips some that come next."),
    ("crash", "only_disk_survives", "After a crash the broker is not in the state that is on disk."),
    # Wasted memory or work.
    ("wasted", "hold_limit_kept", "The broker holds more pulls than its limit allows."),
    ("wasted", "closed_is_let_go", "Pulls of a closed connection stay in memory."),
    ("wasted", "buckets_are_swept", "Empty buckets stay in the table."),
    ("wasted", "table_is_tidy", "Entries of answered pulls stay in memory."),
)
"""Kind of harm, property, sentence; the worst first."""
PART_OF: Final = {
    "dropped_by_reject": "nothing_dropped",
    "dropped_by_throw": "nothing_dropped",
    "lost_by_hold": "no_lost_wakeup",
    "lost_by_keep": "no_lost_wakeup",
    "woken_within": "no_lost_wakeup",
    "queued_by_deadline": "answered_by_deadline",
}
"""A property -> the more general one that is violated with it."""
SENTENCES: Final = {name: sentence for _kind, name, sentence in HARMS}
_RANK: Final = {name: place for place, (_kind, name, _sentence) in enumerate(HARMS)}


def worst(violated: Iterable[str], most: int) -> list[str]:
    """At most `most` of the violated properties: the worst first, without those that are part of another."""
    names = set(violated)
    whole = [name for name in names if PART_OF.get(name) not in names]
    return sorted(whole, key=lambda name: (_RANK.get(name, len(_RANK)), name))[:most]
