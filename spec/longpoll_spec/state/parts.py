"""Who and what takes part: requests, queues, tags and notifiers, each as the terms that actions read and write.

Leaves out their variables' ranges and first values (`state.shared`, `state.slots`).
"""

from __future__ import annotations

from typing import Final

from attrs import frozen

from longpoll_spec.bounds import Bounds
from longpoll_spec.policy import Policy
from longpoll_spec.terms import FALSE, Bool, Int

IDLE: Final = 0
"""A notifier that waits for its next reason to walk."""
WALKING: Final = 1
"""A notifier between its take and its put-back."""
DUE: Final = 2
"""A notifier that has a reason to walk and has not taken the bucket yet."""
RECHECKING: Final = 3
"""A notifier that has put requests back and has yet to look at the visible end once more."""
SWEEPING: Final = 4
"""The scanner after its walk, when it has yet to see whether the bucket can be removed."""
REMOVING: Final = 5
"""The scanner that has seen the bucket empty and has yet to remove it."""
NOTIFIER_LABELS: Final = ("idle", "walking", "due", "rechecking", "sweeping", "removing")
COPIES_MAX: Final = 2
"""One more than right, so that a second copy in the executor can be seen."""
NEW_MASTER: Final = 1
"""The broker, a slave, has become master, and the request does not know."""
MASTER_BACK: Final = 2
"""The broker's master is back, and the request does not know."""
ROLE_NEWS: Final = ("none", "new_master", "master_back")
HASHES: Final = (0, 1, 0)
"""Tag -> its hash. The third has the first one's, as two strings may have in Java's `String.hashCode`."""


@frozen
class Phases:
    """The places in which a request can stand. Where notifiers walk in place one list serves all: the lock is one."""

    labels: tuple[str, ...]

    def __getitem__(self, label: str) -> int:
        return self.labels.index(label)

    def __contains__(self, label: str) -> bool:
        return label in self.labels


def notifiers_of(policy: Policy) -> tuple[str, ...]:
    """The names of everyone who walks a bucket."""
    return ("dispatcher", "scanner", *(["rechecker"] * walks_to_recheck(policy)))


def walks_to_recheck(policy: Policy) -> bool:
    """Whether a pull's recheck is a walk through the whole bucket, in the pull's own thread."""
    return policy.recheck_after_hold == "after_insert" and policy.recheck == "walk"


def may_orphan(policy: Policy, bounds: Bounds) -> bool:
    """Whether a bucket can be removed between being found and being filled."""
    return bounds.has("buckets") and policy.bucket_removal == "if_empty_unsafe"


def phases_of(policy: Policy, bounds: Bounds | None = None) -> Phases:
    """The phases of a policy, in the order in which a request goes through them."""
    early: tuple[str, ...] = ("has_bucket",) if bounds is not None and may_orphan(policy, bounds) else ()
    early += ("rechecked",) if policy.recheck_after_hold in {"before_lock", "in_lock"} else ()
    if policy.take == "in_place":
        lists: tuple[str, ...] = ("taken", "kept")
    else:
        lists = tuple(f"{what}_by_{name}" for name in notifiers_of(policy) for what in ("taken", "kept"))
    return Phases(("idle", "pulling", "missed", *early, "held", *lists, "queued"))


@frozen
class Wish:
    """What a pull can want: a tag, or what the one SQL filter lets through."""

    index: int
    name: str
    """The wish as an actor."""


@frozen
class Tag:
    """What a filter can see of a message: its tag, and whether it passes the SQL filter, which is an oracle's word."""

    index: int
    name: str
    """The tag as an actor."""
    tag: int
    alike: tuple[int, ...]
    """The tags of these bounds with its hash, itself among them."""
    by_sql: Wish | None
    """The wish for what the SQL filter lets through, if it lets this message through."""

    def passes(self, wants: Int) -> Bool:
        """Whether the broker lets a message with this tag through to a pull that `wants` that: it compares hashes."""
        return wants.is_one_of(self.alike) | self._passes_sql(wants)

    def is_wanted(self, wants: Int) -> Bool:
        """Whether the message is one that the consumer wants."""
        return wants.is_(self.tag) | self._passes_sql(wants)

    def _passes_sql(self, wants: Int) -> Bool:
        return FALSE if self.by_sql is None else wants.is_(self.by_sql.index)


def wishes_of(bounds: Bounds) -> tuple[Wish, ...]:
    """Everything that a pull can want."""
    names = (*(f"t{tag}" for tag in range(bounds.tags)), *(["sql"] if bounds.has("sql") else []))
    return tuple(Wish(index, name) for index, name in enumerate(names))


def tags_of(bounds: Bounds) -> tuple[Tag, ...]:
    """Every tag, and with an SQL filter every tag of a message that passes it."""
    alike = [tuple(other for other in range(bounds.tags) if HASHES[other] == HASHES[tag]) for tag in range(bounds.tags)]
    plain = tuple(Tag(tag, f"t{tag}", tag, same, None) for tag, same in enumerate(alike))
    if not bounds.has("sql"):
        return plain
    sql = wishes_of(bounds)[-1]
    return (*plain, *(Tag(bounds.tags + each.tag, f"{each.name}_sql", each.tag, each.alike, sql) for each in plain))


@frozen
class Queue:
    """One queue with its consume queue's ends."""

    index: int
    log_end: Int
    visible_end: Int
    visible_start: Int
    """Its first offset; what was before has been deleted."""
    flushed_end: Int
    unscanned: Bool
    present: Bool
    """Its bucket is in the table."""
    return_due: Bool
    """The walk after the master's return has yet to come to its bucket."""

    @property
    def name(self) -> str:
        """The queue as an actor."""
        return f"q{self.index}"


@frozen
class Request:
    """One request slot, as terms. Slots are interchangeable, and none is tied to a queue."""

    index: int
    phases: Phases
    phase: Int
    offset: Int
    deadline: Int
    copies: Int
    open: Bool
    recheck_due: Bool
    armed: Bool
    queue: Int
    wants: Int
    passes: Bool
    wanted: Bool
    orphan: Bool
    closed: Bool
    committed: Int
    carried: Int
    commit_due: Bool
    late: Int
    waited: Int
    role_news: Int
    """The change of the broker's role since its read: 0 for none, `NEW_MASTER` or `MASTER_BACK`."""

    def is_(self, *labels: str) -> Bool:
        """Whether the request stands in one of these phases; a phase that the policy lacks is never stood in."""
        return self.phase.is_one_of(self.phases[label] for label in labels if label in self.phases)

    def at(self, queue: Queue) -> Bool:
        """Whether it reads this queue."""
        return self.queue.is_(queue.index)

    @property
    def in_table(self) -> Bool:
        """Whether it stands in the bucket that the table has for its queue, so that a walk through it finds it."""
        return self.is_("held") & ~self.orphan

    @property
    def has_missed(self) -> Bool:
        """Whether its read found nothing and no notifier has woken it yet."""
        return self.is_listed | self.is_("missed", "has_bucket", "rechecked")

    @property
    def may_be_queued(self) -> Bool:
        """Whether one more copy in the executor can be counted."""
        return self.copies < COPIES_MAX

    @property
    def is_listed(self) -> Bool:
        """Whether the request is in the table or in a notifier's list."""
        return self.is_("held", *(label for label in self.phases.labels if label.startswith(("taken", "kept"))))


@frozen
class Notifier:
    """A thread that walks a bucket: its program counter, whose bucket, and the phases that are its local list."""

    name: str
    phases: Phases
    counter: Int
    queue: Int
    """The queue whose bucket it is at, or none."""

    @property
    def taken(self) -> int:
        """The phase of a request that this notifier has taken and not looked at yet."""
        return self.phases["taken" if "taken" in self.phases else f"taken_by_{self.name}"]

    @property
    def kept(self) -> int:
        """The phase of a request that this notifier has looked at and will put back."""
        return self.phases["kept" if "kept" in self.phases else f"kept_by_{self.name}"]

    def at(self, counter: int, queue: Queue | None = None) -> Bool:
        """Whether the notifier is at this place of its program, and at this queue if one is named."""
        here = self.counter.is_(counter)
        return here if queue is None else here & self.queue.is_(queue.index)
