"""The participants: requests, queues, tags and notifiers, each with the terms that actions read and write.

`state.variables` has the ranges and first values of the participants' variables.
"""

from __future__ import annotations

from typing import ClassVar, Final

from attrs import frozen

from longpoll_spec.bounds import Bounds
from longpoll_spec.errors import UnknownPhaseError, not_known
from longpoll_spec.policy import Policy
from longpoll_spec.terms import FALSE, Bool, Int

IDLE: Final = 0
"""Program counter: the notifier waits for its next reason to traverse."""
WALKING: Final = 1
"""Program counter: the notifier is between its take and its put-back."""
DUE: Final = 2
"""Program counter: the notifier has a reason to traverse and has not taken the bucket yet."""
RECHECKING: Final = 3
"""Program counter: the notifier has put requests back and must read the visible end again."""
SWEEPING: Final = 4
"""Program counter: the scanner has traversed the bucket, and has yet to check whether it can be removed."""
REMOVING: Final = 5
"""Program counter: the scanner has seen the bucket empty and is about to remove it."""
NOTIFIER_LABELS: Final = ("idle", "walking", "due", "rechecking", "sweeping", "removing")
COPIES_MAX: Final = 2
"""The greatest number of copies of a request in the executor. One copy is correct; a second copy shows a broker's
mistake."""
NEW_MASTER: Final = 1
"""News for a request: the broker, which was a slave, has become master since the request's read."""
MASTER_BACK: Final = 2
"""News for a request: the master of the broker, which is a slave, has come back since the request's read."""
ROLE_NEWS: Final = ("none", "new_master", "master_back")
HASHES: Final = (0, 1, 0)
"""Maps a tag to its hash. The third tag has the hash of the first, because two strings may collide in Java's
`String.hashCode`."""


@frozen
class Phases:
    """The phases of a request.

    Notifiers that traverse in place share one list, because the lock admits one notifier at a time.
    """

    labels: tuple[str, ...]

    def __getitem__(self, label: str) -> int:
        if label not in self.labels:
            raise UnknownPhaseError(not_known("phase", label, self.labels))
        return self.labels.index(label)

    def __contains__(self, label: str) -> bool:
        return label in self.labels


def notifiers_of(policy: Policy) -> tuple[str, ...]:
    """The names of the threads that traverse a bucket."""
    return ("dispatcher", "scanner", *(["rechecker"] * walks_to_recheck(policy)))


def walks_to_recheck(policy: Policy) -> bool:
    """Whether a pull rechecks by traversing the whole bucket in its own thread."""
    return policy.recheck_after_hold == "after_insert" and policy.recheck == "walk"


def may_orphan(policy: Policy, bounds: Bounds) -> bool:
    """Whether a bucket can be removed between lookup and insert."""
    return bounds.has("buckets") and policy.bucket_removal == "if_empty_unsafe"


def phases_of(policy: Policy, bounds: Bounds | None = None) -> Phases:
    """The phases of a policy, in the order in which a request goes through them."""
    own = policy.extension
    if own is not None and own.is_alone:
        return Phases(own.phases)
    early: tuple[str, ...] = ("has_bucket",) if bounds is not None and may_orphan(policy, bounds) else ()
    early += ("rechecked",) if policy.recheck_after_hold in {"before_lock", "in_lock"} else ()
    if policy.take == "in_place":
        lists: tuple[str, ...] = ("taken", "kept")
    else:
        lists = tuple(f"{what}_by_{name}" for name in notifiers_of(policy) for what in ("taken", "kept"))
    added = () if own is None else own.phases
    return Phases(("idle", "pulling", "missed", *early, "held", *lists, "queued", *added))


@frozen
class Wish:
    """A subscription: a tag, or the messages that pass the one SQL filter."""

    index: int
    name: str
    """The name of the wish as an actor in labels."""


@frozen
class Tag:
    """The part of a message that a filter sees: its tag, and whether it passes the SQL filter."""

    index: int
    name: str
    """The name of the tag as an actor in labels."""
    tag: int
    alike: tuple[int, ...]
    """The tags that have the same hash as this tag, including this tag."""
    by_sql: Wish | None
    """The wish for messages that pass the SQL filter; None if this message does not pass."""

    def passes(self, wants: Int) -> Bool:
        """Whether the broker, which compares hashes of tags, delivers this tag to a pull that asks for `wants`."""
        return wants.is_one_of(self.alike) | self._passes_sql(wants)

    def is_wanted(self, wants: Int) -> Bool:
        """Whether a consumer that asks for `wants` keeps the message, because it compares the tags themselves."""
        return wants.is_(self.tag) | self._passes_sql(wants)

    def _passes_sql(self, wants: Int) -> Bool:
        return FALSE if self.by_sql is None else wants.is_(self.by_sql.index)


def wishes_of(bounds: Bounds) -> tuple[Wish, ...]:
    """Everything that a pull may ask for: each tag, and with the feature `sql` the messages that pass the filter."""
    names = (*(f"t{tag}" for tag in range(bounds.tags)), *(["sql"] if bounds.has("sql") else []))
    return tuple(Wish(index, name) for index, name in enumerate(names))


def tags_of(bounds: Bounds) -> tuple[Tag, ...]:
    """Every tag of a message that fails the SQL filter, and with the feature `sql` also of a message that passes."""
    alike = [tuple(other for other in range(bounds.tags) if HASHES[other] == HASHES[tag]) for tag in range(bounds.tags)]
    plain = tuple(Tag(tag, f"t{tag}", tag, same, None) for tag, same in enumerate(alike))
    if not bounds.has("sql"):
        return plain
    sql = wishes_of(bounds)[-1]
    return (*plain, *(Tag(bounds.tags + each.tag, f"{each.name}_sql", each.tag, each.alike, sql) for each in plain))


@frozen
class Queue:
    """One queue, with the ends of its log and of its consume queue."""

    kind: ClassVar[str] = "queue"
    index: int
    log_end: Int
    visible_end: Int
    visible_start: Int
    """The first offset that the queue still has; it is greater than 0 if earlier messages were deleted."""
    flushed_end: Int
    unscanned: Bool
    present: Bool
    """Whether the queue's bucket is in the table."""
    return_due: Bool
    """Whether the traversal after the master's return has yet to visit the queue's bucket."""
    due: Bool
    """Only in the core: whether a message was appended that no action has handled yet."""

    @property
    def name(self) -> str:
        """The name of the queue as an actor in labels."""
        return f"q{self.index}"


@frozen
class Request:
    """One request slot, as terms. Slots are interchangeable, and not tied to a queue."""

    kind: ClassVar[str] = "request"
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
    """The change of the broker's role since the request's read: 0 for none, `NEW_MASTER` or `MASTER_BACK`."""

    def is_(self, *labels: str) -> Bool:
        """Whether the request is in one of these phases; false for a phase that the policy lacks."""
        return self.phase.is_one_of(self.phases[label] for label in labels if label in self.phases)

    def at(self, queue: Queue) -> Bool:
        """Whether the request reads this queue."""
        return self.queue.is_(queue.index)

    @property
    def in_table(self) -> Bool:
        """Whether the request is in the table's bucket for its queue, where a traversal finds it."""
        return self.is_("held") & ~self.orphan

    @property
    def has_missed(self) -> Bool:
        """Whether the request's read found nothing and no notifier has woken the request yet."""
        return self.is_listed | self.is_("missed", "has_bucket", "rechecked")

    @property
    def may_be_queued(self) -> Bool:
        """Whether the executor can count one more copy."""
        return self.copies < COPIES_MAX

    @property
    def is_listed(self) -> Bool:
        """Whether the request is in the table or in a notifier's list."""
        return self.is_("held", *(label for label in self.phases.labels if label.startswith(("taken", "kept"))))


@frozen
class Notifier:
    """A thread that traverses a bucket: its program counter, its queue, and the phases of its local list."""

    name: str
    phases: Phases
    counter: Int
    queue: Int
    """The queue whose bucket the notifier traverses, or the value for "no queue"."""

    @property
    def taken(self) -> int:
        """The phase of a request that this notifier has taken and not checked yet."""
        return self.phases["taken" if "taken" in self.phases else f"taken_by_{self.name}"]

    @property
    def kept(self) -> int:
        """The phase of a request that this notifier has checked and will put back."""
        return self.phases["kept" if "kept" in self.phases else f"kept_by_{self.name}"]

    def at(self, counter: int, queue: Queue | None = None) -> Bool:
        """Whether the notifier has this program counter, and this queue if one is given."""
        here = self.counter.is_(counter)
        return here if queue is None else here & self.queue.is_(queue.index)
