"""The policy of a broker: every point at which brokers differ, as one frozen class of knobs.

A preset is a named policy. The specification reads a knob while it builds its actions, and the reference broker reads
the same knob while it runs. Bounds and broker configuration (ports, file sizes) are elsewhere.

Sources: `PullRequestHoldService`, `ManyPullRequest` and `PullMessageProcessor` of Apache RocketMQ 4.9; upstream issues
#7358 (suspend after notify) and #10754 (orphaned bucket).
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, reduce
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final, Literal, NoReturn, get_args, get_type_hints

import attrs
from attrs import field, frozen

from longpoll_spec.errors import UnknownKnobError, UnknownPolicyError, not_known

RecheckAfterHold = Literal["none", "before_lock", "in_lock", "after_insert"]
Recheck = Literal["self", "walk"]
Take = Literal["clone_and_clear", "in_place"]
Expiry = Literal["scan", "own_deadline"]
HeapEntry = Literal["one_shot", "until_answered"]
Notify = Literal["dispatcher_poll", "at_append", "before_visible"]
NotifyGrain = Literal["message", "batch"]
OnReject = Literal["drop", "answer_busy"]
OnThrow = Literal["drop_rest", "keep_rest", "answer_and_go_on"]
ScanThrow = Literal["abort_round", "skip_queue"]
OnStop = Literal["silent", "answer"]
OnClose = Literal["ignore", "drop"]
OnRoleChange = Literal["ignore", "answer"]
OnMasterReturn = Literal["ignore", "look_then_take", "answer"]
Slave = Literal["serves", "reads_only"]
AfterReturn = Literal["hold", "redirect"]
OnTruncate = Literal["ignore", "forget_deleted", "wake"]
BucketRemoval = Literal["never", "if_empty_unsafe", "rechecked_under_lock"]
Commit = Literal["before_hold", "after_hold", "monotone_max"]
HoldLimit = Literal["none", "at_read", "in_lock"]
VisibleAfter = Literal["append", "flush", "flush_if_sync"]
Tick = Literal["maximal_progress", "free"]


@frozen
class Extension:
    """The additions and replacements that a specification file makes to a policy; `custom` loads such files."""

    path: str
    """The path of the file, as the user wrote it."""
    digest: int
    """The CRC-32 of the file's text."""
    is_preset: bool = field(default=False, eq=False)
    """Whether the file is part of this package, so that the policy's name is enough to find it."""
    is_alone: bool = field(default=False, eq=False)
    """Whether the file starts from the core (`actions.core`) instead of a policy."""
    knobs: Mapping[str, tuple[Any, ...]] = field(factory=dict, eq=False)
    """Maps a knob that the file adds to its values, the default first, and a knob of `Policy` to the values that the
    file adds."""
    settings: tuple[tuple[str, Any], ...] = ()
    """The knobs that the file adds, each with the chosen value."""
    phases: tuple[str, ...] = field(default=(), eq=False)
    """The phases that the file adds. If the file starts from the core, these are all phases."""
    variables: tuple[Any, ...] = field(default=(), eq=False)
    """The variables that the file adds, as `state.variables.Declared`."""
    families: tuple[Any, ...] = field(default=(), eq=False)
    """The actions of the file, as `model.Family`. An action of the file replaces the policy's action of the same name.
    """
    left_out: frozenset[str] = field(default=frozenset(), eq=False)
    """The names of the policy's actions that the file removes."""
    properties: tuple[Any, ...] = field(default=(), eq=False)
    """The properties of the file, as functions from a model to a `model.Property`."""
    leads_to: tuple[Any, ...] = field(default=(), eq=False)
    """The properties of runs in the file, as functions from a model to several `model.LeadsTo`."""
    predicates: tuple[Any, ...] = field(default=(), eq=False)
    """The named conditions of the file, as functions from a state and a request to a term."""

    @property
    def file(self) -> str | None:
        """The path of the file that the user named; None if the file is part of this package."""
        return None if self.is_preset else self.path

    @property
    def queues_max(self) -> int | None:
        """The greatest number of queues: 1 if the file starts from the core and has nothing per queue, else None."""
        has_queues = any("queue" in each.who for each in (*self.variables, *self.families))
        return 1 if self.is_alone and not has_queues else None


@frozen
class Policy:
    """How one broker holds, wakes and expires pulls. Every field is a knob, except `name` and `extension`.

    The docstring of a knob is the description that users read. The default values are those of `strict`. Raises
    `UnknownKnobError` with the allowed values for any other value.
    """

    name: str = field(default="")
    """The name of the preset, with `+knob=value` for each changed knob. By default the name is derived from the knobs.
    """

    recheck_after_hold: RecheckAfterHold = field(default="after_insert")
    """When a pull that found nothing reads the visible end again: never, before it takes the bucket's lock, under the
    lock before the insert, or after the insert. Only the last is safe in every variant: it removes the request from
    the table under the bucket's lock and only then queues it, and does nothing if a notifier has taken it.
    """

    recheck: Recheck = field(default="self")
    """What a recheck after the insert does when it finds something: it takes its own request out of the table, or it
    traverses the whole bucket as an arrival does, in the pull's own thread. Used only with a recheck after the
    insert.
    """

    recheck_after_keep: bool = field(default=False)
    """Whether a notifier that has put requests back reads the visible end once more, and traverses again if one of the
    bucket's requests has something to read. Needed with clone_and_clear, but not in place, where the lock covers these
    requests."""

    take: Take = field(default="in_place")
    """How a notifier traverses a bucket: it clones and clears the list and works without the lock, or it works in place
    under the lock.
    """

    empty_shortcut: bool = field(default=True)
    """Whether a notifier skips a bucket that looks empty without waiting for its lock."""

    expiry: Expiry = field(default="own_deadline")
    """Whether deadlines are checked by the periodic scan only, or at the request's own deadline as well."""

    heap_entry: HeapEntry = field(default="until_answered")
    """Whether a request's entry in the deadline heap is used up when it first fires, or stays until the answer. Used
    only where requests expire at their own deadline.
    """

    notify: Notify = field(default="at_append")
    """Whether the dispatcher polls the log, so that time passes before it sees an append; or the append triggers it,
    and it announces the message once it is visible; or it announces the message when it is appended, before it is
    visible.
    """

    notify_grain: NotifyGrain = field(default="message")
    """Whether the dispatcher announces each message before it makes the next one visible, or several at once, by the
    last one's tag.
    """

    notify_only_if_tag_matches: bool = field(default=True)
    """Whether the dispatcher wakes only requests whose filter the announced message passes, or all that have anything
    to read. A scan announces no message and wakes all that have anything to read.
    """

    visible_after: VisibleAfter = field(default="flush")
    """Whether a message is visible as soon as it is appended; only once it is on disk; or only once it is on disk where
    the broker flushes before it acknowledges (`flushDiskType=SYNC_FLUSH`), as 5.3.2 does. The specified broker flushes
    asynchronously, as RocketMQ does by default, so for this broker `flush_if_sync` equals `append`. Used only where the
    broker can crash."""

    bucket_removal: BucketRemoval = field(default="rechecked_under_lock")
    """What happens to an empty bucket after a scan: it stays; it is removed if it looked empty, though a pull may have
    found it in between; or it is removed under its lock if it is empty then, and inserts go through the table.
    """

    hold_limit: HoldLimit = field(default="in_lock")
    """Whether the number of held requests is limited, and when a pull beyond the limit is rejected: after its read, or
    under the lock of its insert.
    """

    commit: Commit = field(default="monotone_max")
    """When the offset that a pull carries becomes its group's committed one: at the read, before the hold; after the
    hold; or at the read, if it is greater than the current one.
    """

    on_reject: OnReject = field(default="answer_busy")
    """What happens to a woken request that the executor rejects: nothing, or an answer SYSTEM_BUSY."""

    on_throw: OnThrow = field(default="answer_and_go_on")
    """What happens to a notifier's list when checking a request throws: the exception leaves the traversal and the
    whole list is dropped; the traversal catches it, puts the whole list back and ends; or the request that threw is
    answered and the traversal continues. A dispatcher that an exception reaches has not advanced, and announces the
    same message again.
    """

    scan_throw: ScanThrow = field(default="skip_queue")
    """What happens to a scan's round when the store fails for one queue: it ends, or continues with the next queue."""

    on_stop: OnStop = field(default="answer")
    """Whether the broker answers held requests when it stops, and later those that are about to be inserted."""

    on_close: OnClose = field(default="drop")
    """Whether the requests of a closed channel stay in the table, or leave it at once."""

    on_role_change: OnRoleChange = field(default="answer")
    """What a slave that becomes master does with held requests: nothing, or it answers all."""

    on_master_return: OnMasterReturn = field(default="answer")
    """What a slave does with held requests when its master is back: nothing; a traversal that checks whether a bucket
    is empty, then takes it, and aborts if the bucket was emptied in between; or it answers all at once.
    """

    after_return: AfterReturn = field(default="hold")
    """Whether a slave whose master is back holds a new pull that finds nothing, or answers it at once, so that the
    consumer goes to the master.
    """

    slave: Slave = field(default="serves")
    """Whether a slave does all that its master does, or only answers reads: then its dispatcher notifies no request,
    and it commits no offset that a pull carries.
    """

    on_truncate: OnTruncate = field(default="wake")
    """What happens to offsets beyond a queue's end after it was truncated or deleted. Held requests keep waiting and
    groups keep their committed offsets (ignore); the same, but the committed offsets of a deleted queue are removed
    (forget_deleted); or the requests are woken to learn of it, and the groups' offsets are set to the end (wake).
    """

    tick: Tick = field(default="maximal_progress")
    """Whether time may pass while the broker's threads have work that is due (free), or not."""

    extension: Extension | None = field(default=None, repr=False)
    """The additions of the specification file, if the policy was loaded from one."""

    def __attrs_post_init__(self) -> None:
        """Reject a value that a knob does not have; raises `UnknownKnobError`."""
        values = knobs_of(self)
        changed: list[str] = []
        for knob in knob_values():
            value = getattr(self, knob)
            if value not in values[knob]:
                _refuse(knob, value, values)
            if value != _DEFAULTS[knob]:
                changed.append(f"+{knob}={str(value).lower()}")
        if not self.name:
            object.__setattr__(self, "name", "strict" + "".join(changed))


_DEFAULTS: Final = {each.name: each.default for each in attrs.fields(Policy)}
_NO_KNOBS: Final = frozenset({"name", "extension"})


@cache
def knob_values() -> Mapping[str, tuple[Any, ...]]:
    """Each knob's name with its values, in the order of the class."""
    hints = get_type_hints(Policy)
    found = {
        knob.name: (False, True) if hints[knob.name] is bool else get_args(hints[knob.name])
        for knob in attrs.fields(Policy)
        if knob.name not in _NO_KNOBS
    }
    return MappingProxyType(found)


def knobs_of(policy: Policy) -> Mapping[str, tuple[Any, ...]]:
    """`knob_values`, with the knobs and values that the policy's specification file adds."""
    own = {} if policy.extension is None else policy.extension.knobs
    known = knob_values()
    return {**known, **{name: (*known.get(name, ()), *values) for name, values in own.items()}}


def setting_of(policy: Policy, knob: str) -> Any:
    """The value of a knob of the policy, or of a knob that the policy's specification file adds."""
    own = {} if policy.extension is None else dict(policy.extension.settings)
    return own[knob] if knob in own else getattr(policy, knob)


def _refuse(knob: str, value: object, values: Mapping[str, tuple[Any, ...]]) -> NoReturn:
    known = ", ".join(str(each).lower() for each in values[knob])
    raise UnknownKnobError(f"knob {knob} cannot be {value!r}; known values: {known}")


STRICT: Final = Policy(name="strict")
STRICT_CLONE: Final = attrs.evolve(STRICT, name="strict-clone", take="clone_and_clear", recheck_after_keep=True)
ROCKETMQ_4_9: Final = Policy(
    name="rocketmq-4.9",
    recheck_after_hold="none",
    take="clone_and_clear",
    empty_shortcut=False,
    expiry="scan",
    heap_entry="one_shot",
    notify="dispatcher_poll",
    visible_after="append",
    bucket_removal="never",
    hold_limit="none",
    commit="after_hold",
    on_reject="drop",
    on_throw="drop_rest",
    scan_throw="abort_round",
    on_stop="silent",
    on_close="ignore",
    on_role_change="ignore",
    on_master_return="ignore",
    slave="reads_only",
    on_truncate="ignore",
)

ROCKETMQ_5: Final = attrs.evolve(
    ROCKETMQ_4_9,
    name="rocketmq-5",
    visible_after="flush_if_sync",
    commit="before_hold",
    scan_throw="skip_queue",
    on_master_return="look_then_take",
    after_return="redirect",
    slave="serves",
    on_truncate="forget_deleted",
)
ROCKETMQ_PR7359: Final = attrs.evolve(
    ROCKETMQ_5, name="rocketmq-pr7359", recheck_after_hold="after_insert", recheck="walk"
)
ROCKETMQ_LMQ: Final = attrs.evolve(ROCKETMQ_5, name="rocketmq-lmq", bucket_removal="if_empty_unsafe")

PRESETS: Final[dict[str, Policy]] = {
    policy.name: policy for policy in (STRICT, STRICT_CLONE, ROCKETMQ_4_9, ROCKETMQ_5, ROCKETMQ_PR7359, ROCKETMQ_LMQ)
}

PRESET_SENTENCES: Final[dict[str, str]] = {
    "strict": "Our own design: traverses the bucket in place, rechecks after the insert and expires at the deadline.",
    "strict-clone": "The same with RocketMQ's clone and clear, made safe by a recheck after the put-back.",
    "rocketmq-4.9": "What Apache RocketMQ 4.9.8 does.",
    "rocketmq-5": "What Apache RocketMQ 5.3.3 does.",
    "rocketmq-pr7359": "The same with the recheck of upstream's pull request #7359, which was not merged.",
    "rocketmq-lmq": "What Apache RocketMQ 5.3.3 does for light message queues: it removes empty buckets.",
}

_ROCKETMQ_5_TABLE: Final = (
    "second_look=false",
    "order=by_expiry",
    "scan=take",
    "hand_over=false",
    "when_rejected=drop",
    "retry_wakes=all_queues",
    "when_closed=ignore",
    "limit=before_insert",
    "count=drifts",
    "evicts=true",
)
POP_KNOBS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "strict-pop": (),
        "rocketmq-5-pop": (*_ROCKETMQ_5_TABLE, "rest_wakes=own_key"),
        "strict-notification": ("holds=notifications",),
        "rocketmq-5-notification": ("holds=notifications", *_ROCKETMQ_5_TABLE, "wakes=one", "refused=back"),
    }
)
"""Maps a preset of a table of pops or notifications to the knobs in which it differs from the specification file
`pop.py`."""

POP_SENTENCES: Final[dict[str, str]] = {
    "strict-pop": "Our own design of a table that holds pops, to check and prove; no broker here runs it.",
    "rocketmq-5-pop": "What Apache RocketMQ 5.5.0 does with pops, to check; no broker here runs it.",
    "strict-notification": "Our own design of a table that holds notifications, to check and prove; no broker runs it.",
    "rocketmq-5-notification": "What Apache RocketMQ 5.5.0 does with notifications, to check; no broker here runs it.",
}

_WAITS: Final = "The notifier then waits for a lock that it does not need; it finds the same under the lock."
_SEEN: Final = "No time passes during a traversal, so the thread with the request sees the deadline of the used entry."
_UNSTATED: Final = (
    "The other properties do not depend on timing, and the timing properties do not apply under free time."
)
_OWN_TOO: Final = (
    "A traversal of the bucket reaches the pull's own request too; the only cost is the check of the others."
)
_WASTED: Final = "A request woken for an unwanted message is answered that its offset moved: wasteful, but not wrong."
_ELSEWHERE: Final = "A pull that is answered at once is not held, and its consumer asks the master."
_NO_LIMIT: Final = "A policy without a limit promises none."

REDUNDANT: Final[dict[tuple[str, str], str]] = {
    ("strict", "recheck_after_keep=true"): (
        "The lock is held from take to put-back and the dispatcher waits for it, so the recheck finds nothing new."
    ),
    ("strict", "empty_shortcut=false"): _WAITS,
    ("strict", "heap_entry=one_shot"): _SEEN,
    ("strict", "recheck=walk"): _OWN_TOO,
    ("strict", "notify_only_if_tag_matches=false"): _WASTED,
    ("strict", "hold_limit=none"): _NO_LIMIT,
    ("strict", "after_return=redirect"): _ELSEWHERE,
    ("strict", "tick=free"): _UNSTATED,
    ("strict-clone", "take=in_place"): (
        "The lock then covers take to put-back; the recheck after the put-back stays, and finds nothing new."
    ),
    ("strict-clone", "empty_shortcut=false"): _WAITS,
    ("strict-clone", "heap_entry=one_shot"): _SEEN,
    ("strict-clone", "recheck=walk"): _OWN_TOO,
    ("strict-clone", "notify_only_if_tag_matches=false"): _WASTED,
    ("strict-clone", "hold_limit=none"): _NO_LIMIT,
    ("strict-clone", "after_return=redirect"): _ELSEWHERE,
    ("strict-clone", "tick=free"): _UNSTATED,
}
"""Maps (preset, setting of one knob) to the reason why this change of our own design breaks no property.
`engines.ablate` checks the entries."""


def preset(name: str) -> Policy:
    """The preset of this name; raises `UnknownPolicyError` with the list of names."""
    if name in POP_KNOBS:
        raise UnknownPolicyError(
            f"{name} is the specification of a table of RocketMQ 5: only check, prove, explain, "
            "export and policies take it"
        )
    if name not in PRESETS:
        raise UnknownPolicyError(not_known("policy", name, (*PRESETS, *POP_KNOBS), "longpoll policies"))
    return PRESETS[name]


NAME_LENGTH_MAX: Final = 4096
"""The longest accepted policy name, in characters, so that hostile input is cheap to reject. A name that sets every
knob twice is shorter.
"""


def policy_of(policy: str | Policy) -> Policy:
    """The policy itself, or the policy of this name; raises what `policy_named` raises."""
    return policy_named(policy) if isinstance(policy, str) else policy


def policy_named(text: str) -> Policy:
    """The policy of this name: a preset, and `+KNOB=VALUE` for each changed knob.

    Raises `UnknownPolicyError` for an unknown preset, and `UnknownKnobError` for an unknown knob or value.
    """
    if len(text) > NAME_LENGTH_MAX:
        raise UnknownPolicyError(
            f"the policy's name has {len(text)} characters; at most {NAME_LENGTH_MAX} are allowed; set each knob once"
        )
    name, *settings = text.split("+")
    return with_knobs(preset(name), settings)


def with_knobs(policy: Policy, settings: Iterable[str]) -> Policy:
    """The policy with each of these settings `KNOB=VALUE`; raises what `with_knob` raises."""
    return reduce(with_knob, settings, policy)


def knob_sentences() -> dict[str, str]:
    """Map each knob to its docstring in `Policy`, on one line."""
    body = ast.parse(inspect.getsource(Policy)).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for knob, text in pairwise(body.body):
        if isinstance(knob, ast.AnnAssign) and isinstance(knob.target, ast.Name) and isinstance(text, ast.Expr):
            assert isinstance(text.value, ast.Constant)
            found[knob.target.id] = " ".join(str(text.value.value).split())
    return {name: found[name] for name in knob_values()}


def other_settings(policy: Policy) -> Iterator[str]:
    """Every setting of one knob that differs from the policy's own, in the order of the knobs."""
    for knob, values in knobs_of(policy).items():
        yield from (f"{knob}={str(value).lower()}" for value in values if value != setting_of(policy, knob))


def with_knob(policy: Policy, setting: str) -> Policy:
    """The policy with one knob set from text such as `expiry=scan`; raises `UnknownKnobError`."""
    name, equals, text = setting.partition("=")
    values = knobs_of(policy)
    if name not in values:
        raise UnknownKnobError(not_known("knob", name, values, "longpoll policies"))
    by_text = {str(value).lower(): value for value in values[name]}
    if not equals:
        raise UnknownKnobError(f"knob {name} has no value; write {name}=VALUE with one of: {', '.join(by_text)}")
    if text.lower() not in by_text:
        _refuse(name, text, values)
    value, named = by_text[text.lower()], f"{policy.name}+{name}={text.lower()}"
    own = policy.extension
    if own is None or name not in dict(own.settings):
        return attrs.evolve(policy, name=named, **{name: value})
    settings = tuple((knob, value if knob == name else other) for knob, other in own.settings)
    return attrs.evolve(policy, name=named, extension=attrs.evolve(own, settings=settings))
