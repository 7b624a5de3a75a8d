"""The breakpoints at which a test stops the threads of the Java broker, per version of RocketMQ.

A thread takes a step of the specification between one breakpoint and the next (`STEPS`), so this table is the
refinement mapping from Java's source to the specification. `longpoll_java` installs the breakpoints and follows the
threads.

Source: `PullMessageProcessor`, `PullRequestHoldService`, `LmqPullRequestHoldService`, `DefaultMessageStore` of 4.9.7,
5.4.0 and 5.5.0, and `PopMessageProcessor`, `PopLongPollingService` of 5.5.0; a test compares every location with the
jars.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs
from attrs import frozen

_LONG_POLLING: Final = "org.apache.rocketmq.broker.longpolling"
_HOLD: Final = f"{_LONG_POLLING}.PullRequestHoldService"
_LMQ_HOLD: Final = f"{_LONG_POLLING}.LmqPullRequestHoldService"
_BUCKET: Final = f"{_LONG_POLLING}.ManyPullRequest"
_REQUEST: Final = f"{_LONG_POLLING}.PullRequest"
_PROCESSOR: Final = "org.apache.rocketmq.broker.processor"
_PULL: Final = f"{_PROCESSOR}.PullMessageProcessor"
_STORE: Final = "org.apache.rocketmq.store.MessageStore"
_NOTIFY: Final = "notifyMessageArriving(String,int,long,Long,long,byte[],java.util.Map)"
_QUEUE: Final = {"topic": "$1", "queue": "$2"}
"""The first two parameters of the hold service's methods, in Byteman's syntax."""


@frozen
class Breakpoint:
    """A location in a Java method at which a thread can be stopped."""

    name: str
    class_name: str
    method: str
    """The name of the method, with its parameter types if it is overloaded, in Byteman's syntax."""
    place: str
    """The location in the method, in Byteman's syntax."""
    told: Mapping[str, str] = attrs.Factory(dict[str, str])
    """Maps the name of a value to the Java expression for it: `topic`, `queue`, `request` (its opaque) or `suspends`.
    """
    bucket: str = ""
    """The Java expression for the current ManyPullRequest, which `request` may use by the name `bucket`."""
    request: str = ""
    """The Java expression for the current PullRequest, which `told` may use by the name `held`."""
    request_class: str = "PullRequest"
    """The Java class of `request`."""
    throws: str = ""
    """The class of the exception that a test may let the thread throw at this location; empty if none."""
    does: tuple[str, str] = ("", "")
    """(condition, action) as Java expressions: the thread does the action when it continues, if the condition is true.
    `does` is empty for the code of a release."""

    @property
    def words(self) -> str:
        """The location in words, such as `PullRequestHoldService.suspendPullRequest, at entry`."""
        method = self.method.partition("(")[0]
        *where, called = self.place.split(maxsplit=2)
        if len(where) < 2:
            return f"{self.class_name.rpartition('.')[2]}.{method}, {self.place.lower()}"
        name, _, number = called.partition(" ")
        which = f", call {number}" if number else ""
        call = ".".join(name.split(".")[-2:])
        return f"{self.class_name.rpartition('.')[2]}.{method}, {where[0].lower()} its call of {call}{which}"


def _pull_gates(method: str, read: str) -> tuple[Breakpoint, ...]:
    known = {"request": "$2.getOpaque()", "suspends": "$3"}
    return (
        Breakpoint("read", _PULL, method, f"AT INVOKE {_STORE}.{read}", known),
        Breakpoint("served", _PULL, method, "AT EXIT", known),
    )


def _notify_gates() -> tuple[Breakpoint, ...]:
    """The breakpoints of a traversal, by the dispatcher or by the scanner for each queue of its round."""
    one = {"request": "held.getRequestCommand().getOpaque()"}
    return (
        Breakpoint("notify", _HOLD, _NOTIFY, "AT ENTRY", _QUEUE),
        Breakpoint("taken", _HOLD, _NOTIFY, f"AFTER INVOKE {_BUCKET}.cloneListAndClear", _QUEUE),
        Breakpoint(
            "each", _HOLD, _NOTIFY, f"AT INVOKE {_REQUEST}.getPullFromThisOffset", {**_QUEUE, **one},
            request="$@[0]", throws="java.lang.RuntimeException",
        ),
        Breakpoint("keep", _HOLD, _NOTIFY, f"AT INVOKE {_BUCKET}.addPullRequest", _QUEUE),
        Breakpoint("done", _HOLD, _NOTIFY, "AT EXIT", _QUEUE),
    )  # fmt: skip


def _hold_gates() -> tuple[Breakpoint, ...]:
    known = {**_QUEUE, "request": "$3.getRequestCommand().getOpaque()"}
    return (
        Breakpoint("hold", _HOLD, "suspendPullRequest", "AT ENTRY", known),
        Breakpoint("put", _HOLD, "suspendPullRequest", f"AT INVOKE {_BUCKET}.addPullRequest", known),
        Breakpoint("held", _HOLD, "suspendPullRequest", "AT EXIT", known),
    )


def _scan_gates(class_name: str) -> tuple[Breakpoint, ...]:
    queue = {"topic": "$@[1]", "queue": "$@[2]"}
    store = f"AT INVOKE {_STORE}.getMaxOffsetInQueue"
    return (
        Breakpoint("round", class_name, "checkHoldRequest", "AT ENTRY"),
        Breakpoint("queue", class_name, "checkHoldRequest", store, queue, throws="java.lang.RuntimeException"),
        Breakpoint("rounded", class_name, "checkHoldRequest", "AT EXIT"),
    )


_SWEEP: Final = (
    Breakpoint("sweep", _LMQ_HOLD, "checkHoldRequest", f"AT INVOKE {_BUCKET}.getPullRequestList"),
    Breakpoint("remove", _LMQ_HOLD, "checkHoldRequest", "AT INVOKE java.util.concurrent.ConcurrentMap.remove 2"),
)
_COMMON: Final = (
    *_hold_gates(),
    *_notify_gates(),
    Breakpoint(
        "submit",
        _PULL,
        "executeRequestWhenWakeup",
        "AT INVOKE java.util.concurrent.ExecutorService.submit",
        {"request": "$2.getOpaque()"},
        throws="java.util.concurrent.RejectedExecutionException",
    ),
    Breakpoint(
        "dispatch",
        "org.apache.rocketmq.store.DefaultMessageStore",
        "doDispatch",
        "AT ENTRY",
        {"topic": "$1.getTopic()", "queue": "$1.getQueueId()"},
    ),
    Breakpoint("closed", "org.apache.rocketmq.broker.client.ClientHousekeepingService", "onChannelClose", "AT ENTRY"),
)


def _asked(field: str) -> str:
    return f'held.getRequestCommand().getExtFields().get("{field}")'


_RETURN: Final = (
    Breakpoint("return", _HOLD, "notifyMasterOnline", "AT ENTRY"),
    Breakpoint(
        "take",
        _HOLD,
        "notifyMasterOnline",
        f"AT INVOKE {_BUCKET}.cloneListAndClear",
        {"topic": _asked("topic"), "queue": _asked("queueId")},
        bucket="$@[0]",
        request="bucket.pullRequestList.get(0)",
    ),
    Breakpoint("returned", _HOLD, "notifyMasterOnline", "AT EXIT"),
)
"""The breakpoints of the thread that notifies a slave of its master's return (5.x)."""
_CHANNEL: Final = "io.netty.channel.Channel,org.apache.rocketmq.remoting.protocol.RemotingCommand,boolean"
_PULL_4: Final = f"processRequest({_CHANNEL})"
_PULL_5: Final = f"processRequest({_CHANNEL},boolean)"
_GATES_4: Final = (
    *_pull_gates(_PULL_4, "getMessage"),
    Breakpoint(
        "commit",
        _PULL,
        _PULL_4,
        "AT INVOKE org.apache.rocketmq.broker.offset.ConsumerOffsetManager.commitOffset",
        {"request": "$2.getOpaque()", "suspends": "$3"},
    ),
    *_COMMON,
)
_GATES_5: Final = (*_pull_gates(_PULL_5, "getMessageAsync"), *_RETURN, *_COMMON)


_END: Final = "$0.brokerController.getMessageStore().getMaxOffsetInQueue($1, $2)"
RECHECK: Final = Breakpoint(
    "recheck",
    _HOLD,
    "suspendPullRequest",
    f"AFTER INVOKE {_BUCKET}.addPullRequest",
    {**_QUEUE, "request": "$3.getRequestCommand().getOpaque()"},
    does=(f"{_END} > $3.getPullFromThisOffset()", f"$0.notifyMessageArriving($1, $2, {_END})"),
)
"""The recheck of upstream pull request #7359, which no release has: after the insert the pull's thread checks if the
queue has grown, and traverses the bucket if it has.
"""


def breakpoints_of(version: str, *, lmq: bool = False) -> tuple[Breakpoint, ...]:
    """The breakpoints of a version, such as 4.9.7; with `lmq` those of the hold service for light message queues."""
    common = _GATES_4 if version.startswith("4.") else _GATES_5
    scan = _scan_gates(_LMQ_HOLD if lmq else _HOLD)
    return (*common, *scan, *(_SWEEP if lmq else ()))


_POPS: Final = f"{_LONG_POLLING}.PopLongPollingService"
_POP_SET: Final = "java.util.concurrent.ConcurrentSkipListSet"
_POLLING: Final = (
    "polling(io.netty.channel.ChannelHandlerContext,org.apache.rocketmq.remoting.protocol.RemotingCommand,"
    f"{_LONG_POLLING}.PollingHeader,org.apache.rocketmq.remoting.protocol.heartbeat.SubscriptionData,"
    "org.apache.rocketmq.store.MessageFilter)"
)
_NOTIFY_KEY: Final = (
    "notifyMessageArriving(String,int,String,boolean,Long,long,byte[],java.util.Map,"
    "org.apache.rocketmq.remoting.CommandCallback)"
)
_WAKE_UP: Final = f"wakeUp({_LONG_POLLING}.PopRequest,org.apache.rocketmq.remoting.CommandCallback)"
_TOPIC_OF_KEY: Final = {"topic": '$key.substring(0, $key.indexOf("@"))'}
_POPPED: Final = {"request": "$2.getOpaque()"}
_WOKEN: Final = {"request": "$1.getRemotingCommand().getOpaque()"}
POP_GATES: Final = (
    Breakpoint("read", f"{_PROCESSOR}.PopMessageProcessor", "processRequest", "AT ENTRY", _POPPED),
    Breakpoint("put", _POPS, _POLLING, f"AT INVOKE {_POP_SET}.add", _POPPED),
    Breakpoint("held", _POPS, _POLLING, "AT EXIT", _POPPED),
    Breakpoint("notify", _POPS, _NOTIFY_KEY, "AT ENTRY", _QUEUE),
    Breakpoint("done", _POPS, _NOTIFY, "AT EXIT", _QUEUE),
    Breakpoint("wake", _POPS, _WAKE_UP, "AT ENTRY", _WOKEN),
    Breakpoint(
        "submit", _POPS, _WAKE_UP, "AT INVOKE java.util.concurrent.ExecutorService.submit", _WOKEN,
        throws="java.util.concurrent.RejectedExecutionException",
    ),
    Breakpoint("look", _POPS, "run", f"AT INVOKE {_POP_SET}.pollFirst", _TOPIC_OF_KEY),
    Breakpoint(
        "scan", _POPS, "run", f"AT INVOKE {_LONG_POLLING}.PopRequest.isTimeout",
        {"request": "held.getRemotingCommand().getOpaque()"}, request="$@[0]", request_class="PopRequest",
    ),
    *(gate for gate in _COMMON if gate.name in {"dispatch", "closed"}),
)  # fmt: skip
"""The breakpoints of the table that holds pops. The table of notifications runs the same code, but is empty in a
replay.
"""
POP_VERSION: Final = "5.5.0"
"""The version of RocketMQ that `POP_GATES` belongs to."""


STEPS: Final[Mapping[str, tuple[str, str]]] = {
    "make_visible": ("dispatch", "notify"),
    "pull_read": ("read", "hold"),
    "find_bucket": ("hold", "put"),
    "hold": ("put", "held"),
    "commit_pulled": ("commit", "served"),
    "notify_start": ("notify", "taken"),
    "notify_each": ("each", "keep"),
    "notify_end": ("keep", "done"),
    "scan_start": ("queue", "taken"),
    "scan_each": ("each", "keep"),
    "scan_end": ("keep", "done"),
    "sweep": ("sweep", "remove"),
    "remove_bucket": ("remove", "rounded"),
    "return_look": ("return", "take"),
    "return_take": ("take", "returned"),
    "run": ("read", "served"),
    "executor_rejects": ("submit", "submit"),
    "notifier_throws": ("each", "each"),
    "scan_throws": ("queue", "queue"),
}
"""Maps an action to its two breakpoints: the thread stops at the first one, and the step ends at the second one or
before.

In a traversal, the step that checks a request ends before the check of the next request, if there is one. An action
that is missing here is taken by the driver of the test (`append`, `next_pull`, `offset_commit`, ...) or by time
(`tick`), or does not exist in Java."""


def presets_of(version: str) -> tuple[str, ...]:
    """The names of the presets that describe a version; the first is that of the default hold service."""
    return ("rocketmq-4.9" if version.startswith("4.") else "rocketmq-5", "rocketmq-lmq")


SHOWN: Final = ("4.9.7", "5.5.0")
"""The versions whose locations docs/spec.md shows."""


def stopped_at(name: str) -> list[str]:
    """The locations between which a thread takes an action: a text per version, or one for both versions.

    The list is empty if no thread of the broker takes the action without the driver.
    """
    if name not in STEPS:
        return []
    said: dict[str, list[str]] = {}
    for version in SHOWN:
        gates = {gate.name: gate for gate in breakpoints_of(version, lmq=name in {"sweep", "remove_bucket"})}
        first, last = STEPS[name]
        if first in gates and last in gates:
            words = gates[first].words + (f"; to {gates[last].words}" if first != last else "; where it throws")
            said.setdefault(words, []).append(version)
    return [f"{' and '.join(versions)}: from {words}" for words, versions in said.items()]
