"""The hold table in which RocketMQ 5 holds the requests that pop messages, as a specification file.

`longpoll check --policy rocketmq-5-pop` explores it. A request pops one message of one queue, or of every queue of its
topic, and of the group's retry topic. A request that finds no message waits in the set of its key, ordered by expiry.

A pop takes its message, so that other requests of the group do not get it. An arrival wakes only one request of each
key, and a pop that leaves messages wakes the next request. The state has one topic, one consumer group and requests
that pop one message. The retry topic has one message, and its queue is none of the topic's queues here.

| key | Java's `queueId` |
|-----|------------------|
| the requests with `asks[queue]` | the queue's number |
| the requests that ask no queue: they read all | -1 |

With `holds=notifications` the file specifies the table of `NotificationProcessor`. A notification asks whether there is
a message, and does not take it: its client then pops. A notification may have a filter, which in this model refuses
every message of the topic's queues; the retry topic is not filtered. If the table holds notifications, a pop is one
step, because pops wait in a separate table.

Source: `PopLongPollingService`, `PopRequest`, `PopMessageProcessor` and `NotificationProcessor` of Apache RocketMQ
5.3.3 and 5.5.0; filters of notifications are new in 5.5.0. A `PopRequest` is polled from its set before a thread
completes it, so `complete()` always succeeds and needs no action.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeAlias

from longpoll_spec.custom import (
    FALSE,
    TRUE,
    CoreQueue,
    CoreRequest,
    CoreState,
    Specification,
    Step,
    all_of,
    any_of,
    assign,
    ite,
)
from longpoll_spec.terms import Bool, Int, Term

Pairs: TypeAlias = list[tuple[Term, Term | int | bool]]


class Flag(Protocol):
    """A truth-valued variable that this file declares per queue, per request, or per queue and request."""

    def __getitem__(self, of: object) -> Bool: ...


class Number(Protocol):
    """An integer variable that this file declares per queue."""

    def __getitem__(self, of: object) -> Int: ...


spec = Specification(phases=("idle", "reading", "missed", "held", "taken"))

spec.knob("holds", "pops", "notifications")
spec.knob("second_look", True, False)
spec.knob("order", "any", "by_expiry")
spec.knob("scan", "peek", "take")
spec.knob("hand_over", True, False)
spec.knob("when_rejected", "answer", "drop")
spec.knob("rest_wakes", "every_key", "own_key")
spec.knob("retry_wakes", "every_key", "all_queues", "no_key")
spec.knob("when_closed", "drop", "ignore")
spec.knob("limit", "at_insert", "before_insert")
spec.knob("count", "exact", "drifts")
spec.knob("evicts", False, True)
spec.knob("wakes", "every", "one")
spec.knob("refused", "next", "back")

LIMITS = ("none", "total", "key")
RETRIES = ("none", "visible", "taken")

popped: Number = spec.number("popped", "The number of messages of the queue that the group has popped.", "queue")
called: Flag = spec.flag("called", "A pop that left messages is about to wake a request of the queue's key.", "queue")
asks: Flag = spec.flag("asks", "The request pops from this queue alone.", "queue", "request")
called_all: Bool = spec.flag(
    "called_all", "A pop that left messages is about to wake a request that reads every queue."
)
submitting: Flag = spec.flag(
    "submitting", "The dispatcher has taken the request, and submits it to the executor.", "request"
)
all_told: Bool = spec.flag("all_told", "The dispatcher has woken a request that reads every queue, or found none.")
retry: Int = spec.number("retry", "The message of the group's retry topic.", words=RETRIES)
limit: Int = spec.number(
    "limit", "The configured limit of waiting requests: in total one, or one for each key.", words=LIMITS
)
drifted: Bool = spec.flag("drifted", "The counter of all waiting requests is too low.")
unanswered: Flag = spec.flag("unanswered", "The client waits for the answer.", "request")
gone: Flag = spec.flag("gone", "The client's channel is closed.", "request")
left: Flag = spec.flag("left", "The read found a message that another pop had locked.", "request")
admitted: Flag = spec.flag("admitted", "The request's thread has found the limit not reached.", "request")
scanned: Flag = spec.flag("scanned", "The scanner has taken the request out of its set to look at its time.", "request")
rechecks: Flag = spec.flag("rechecks", "The request's thread will look once more for messages.", "request")
refuses: Flag = spec.flag("refuses", "The notification's filter refuses the messages of the topic's queues.", "request")
notified: Flag = spec.flag("notified", "The notification's client knows of a message, and is about to pop.", "request")


def holds_pops(state: CoreState) -> bool:
    """Whether the table holds pops, and not notifications."""
    return bool(state.knob("holds") == "pops")


def holds_notifications(state: CoreState) -> bool:
    """Whether the table holds notifications."""
    return not holds_pops(state)


def puts_back(state: CoreState) -> bool:
    """Whether a notification whose filter refuses a message is put back, and its thread does not take the next one."""
    return holds_notifications(state) and bool(state.knob("refused") == "back")


def wakes_every(state: CoreState) -> bool:
    """Whether a message wakes every notification of a key; it wakes only one pop, because this pop takes it."""
    return holds_notifications(state) and bool(state.knob("wakes") == "every")


def checks_before(state: CoreState) -> bool:
    """Whether the broker compares the number of waiting requests with the limit before the insert."""
    return bool(state.knob("limit") == "before_insert")


def looks_twice(state: CoreState) -> bool:
    """Whether the request's thread checks for messages again after the insert."""
    return bool(state.knob("second_look"))


def keeps_closed(state: CoreState) -> bool:
    """Whether a request stays in its set when its channel closes."""
    return bool(state.knob("when_closed") == "ignore")


def drops_closed(state: CoreState) -> bool:
    """Whether a request leaves its set when its channel closes."""
    return bool(state.knob("when_closed") == "drop")


def takes_to_look(state: CoreState) -> bool:
    """Whether the scanner takes a request out of its set to check the request's deadline."""
    return bool(state.knob("scan") == "take")


def counts_apart(state: CoreState) -> bool:
    """Whether the policy counts requests apart from the sets, so that the counter may differ from their sizes."""
    return bool(state.knob("count") == "drifts")


def may_drift(state: CoreState) -> bool:
    """Whether the counter may become too low, because threads that wake requests drop those with closed channels."""
    return counts_apart(state) and keeps_closed(state)


def evicts_sets(state: CoreState) -> bool:
    """Whether the map of all sets drops sets with requests in them."""
    return bool(state.knob("evicts"))


def others(state: CoreState, request: CoreRequest) -> list[CoreRequest]:
    """All requests except this one."""
    return [each for each in state.requests if each.index != request.index]


@spec.predicate
def asks_one(state: CoreState, request: CoreRequest) -> Bool:
    """Whether the request is about one queue."""
    return any_of(asks[queue, request] for queue in state.queues)


def reads_all(state: CoreState, request: CoreRequest) -> Bool:
    """Whether the request is about every queue."""
    return ~asks_one(state, request)


def reads(state: CoreState, queue: CoreQueue, request: CoreRequest) -> Bool:
    """Whether the request asks for this queue or for all queues, and its filter does not refuse the messages."""
    return (asks[queue, request] | reads_all(state, request)) & ~refuses[request]


def has_messages(queue: CoreQueue) -> Bool:
    """Whether the queue has a message that the consumer group has not popped."""
    return popped[queue] < queue.visible_end


def is_locked(state: CoreState, queue: CoreQueue, request: CoreRequest) -> Bool:
    """Whether another request pops from the queue."""
    return any_of(each.is_("reading") & reads(state, queue, each) for each in others(state, request))


def finds(state: CoreState, request: CoreRequest) -> Bool:
    """Whether a read would find a message for the request."""
    own = any_of(reads(state, queue, request) & has_messages(queue) for queue in state.queues)
    return own | retry.is_(RETRIES.index("visible"))


def shares_key(state: CoreState, one: CoreRequest, other: CoreRequest) -> Bool:
    """Whether both requests are in the same set if they wait."""
    return all_of(asks[queue, one].is_(asks[queue, other]) for queue in state.queues)


def in_key(state: CoreState, request: CoreRequest, of: Callable[[CoreRequest], Bool]) -> Bool:
    """Whether `of` is true of some request under the same key: of one same queue, or both of every queue."""
    of_all = any_of(of(each) & reads_all(state, each) for each in state.requests)
    of_one = (
        asks[queue, request] & any_of(of(each) & asks[queue, each] for each in state.requests) for queue in state.queues
    )
    return reads_all(state, request) & of_all | any_of(of_one)


def is_listed(request: CoreRequest) -> Bool:
    """Whether the request is in its set."""
    return request.is_("held") & ~scanned[request]


def is_first(state: CoreState, request: CoreRequest) -> Bool:
    """Whether the request is in its set and, if the set is ordered, no request of the set expires earlier."""
    return _leads(state, request, lambda each: each.deadline < request.deadline)


def is_next(state: CoreState, request: CoreRequest) -> Bool:
    """Whether a thread that wakes requests takes this request of its set: the first pop, or the last notification.

    Java: `PopLongPollingService.pollRemotingCommands`, `notifyLast`.
    """
    if holds_pops(state):
        return is_first(state, request)
    return _leads(state, request, lambda each: (request.deadline < each.deadline) & ~is_passed(state, each))


def _leads(state: CoreState, request: CoreRequest, is_before: Callable[[CoreRequest], Bool]) -> Bool:
    """Whether the request is in its set and, if the set is ordered, no request of the set is before it."""
    if state.knob("order") == "any":
        return is_listed(request)
    return is_listed(request) & ~in_key(state, request, lambda each: is_listed(each) & is_before(each))


def calls(state: CoreState, request: CoreRequest, here: Bool, *, every: bool) -> Pairs:
    """The effect, where `here`, that a thread is about to wake a request under its key, or under each if `every`."""
    own = TRUE if every else reads_all(state, request)
    made: Pairs = [(called_all, called_all | here & own)]
    for queue in state.queues:
        made.append((called[queue], called[queue] | here & (TRUE if every else asks[queue, request])))
    return made


def goes(state: CoreState, request: CoreRequest, *, answered: bool = True, knows: Bool = FALSE) -> Pairs:
    """The effect that the request leaves the broker; unless `answered`, its client waits; if `knows`, it pops next."""
    made: Pairs = [(request.phase, request.phases["idle"]), (request.deadline, 0)]
    made += [(each[request], FALSE) for each in (gone, left, admitted, scanned, rechecks, submitting)]
    made += [(asks[queue, request], asks[queue, request] & knows) for queue in state.queues]
    made += [(refuses[request], refuses[request] & knows), (notified[request], knows)]
    return made + [(unanswered[request], FALSE)] * answered


# -- messages ----------------------------------------------------------------------------------------------------------


@spec.action("queue", urgent=False, thread="dispatcher")
def append(state: CoreState, queue: CoreQueue) -> Step:
    """The dispatcher makes a message of the queue visible, and is about to wake requests that wait for it.

    Java: `ReputMessageService.doReput` calls `PopMessageProcessor.notifyMessageArriving` before the next message.
    """
    guard = queue.has_room & ~any_of(each.due for each in state.queues) & is_free(state)
    return Step(guard, assign((queue.visible_end, queue.visible_end + 1), (queue.due, TRUE)))


@spec.action(urgent=False, thread="dispatcher")
def retry_append(state: CoreState) -> Step:
    """A popped message was not acknowledged in time and comes to the group's retry topic.

    Java: `PopReviveService.reviveRetry`; `notifyMessageArrivingWithRetryTopic` (5.3.3), and
    `notifyMessageArrivingFromRetry` (5.5.0), which wakes the key -1 and the key of the retry topic's own queue.
    """
    guard = retry.is_(RETRIES.index("none")) & any_of(popped[queue] > 0 for queue in state.queues)
    wakes = state.knob("retry_wakes")
    told: Pairs = [(called_all, TRUE)] if wakes != "no_key" else []
    told += [(called[queue], TRUE) for queue in state.queues if wakes == "every_key"]
    return Step(guard, assign((retry, RETRIES.index("visible")), *told))


# -- a pop -------------------------------------------------------------------------------------------------------------


def begins(state: CoreState, request: CoreRequest) -> Pairs:
    """The effect that a request arrives, with its deadline."""
    return [
        (request.phase, request.phases["reading"]),
        (request.deadline, state.hold_ticks),
        (unanswered[request], TRUE),
    ]


def is_new(request: CoreRequest) -> Bool:
    """Whether the client has no request."""
    return request.is_("idle") & ~unanswered[request] & ~notified[request]


@spec.action("request", urgent=False)
def pop_all(state: CoreState, request: CoreRequest) -> Step:
    """A client pops from every queue of the topic, or asks for a notification about them."""
    return Step(is_new(request), assign(*begins(state, request)))


@spec.action("queue", "request", urgent=False)
def pop_queue(state: CoreState, queue: CoreQueue, request: CoreRequest) -> Step:
    """A client pops from one queue, or asks for a notification about it."""
    return Step(is_new(request), assign((asks[queue, request], TRUE), *begins(state, request)))


@spec.action("request", urgent=False, thread="client", exists=holds_notifications)
def set_filter(_state: CoreState, request: CoreRequest) -> Step:
    """A client gives its next notification a filter that refuses the messages of the queues.

    Java: `NotificationProcessor.processRequest`, `ExpressionMessageFilter` (5.5.0).
    """
    return Step(is_new(request) & ~refuses[request], assign((refuses[request], TRUE)))


@spec.action("request", exists=holds_notifications)
def read_notifies(state: CoreState, request: CoreRequest) -> Step:
    """The thread finds a message and answers the notification; the client, unless it is gone, is about to pop.

    Java: `NotificationProcessor.processRequest`, `hasMsgFromTopic` and `hasMsgFromQueue`.
    """
    return Step(request.is_("reading") & finds(state, request), assign(*goes(state, request, knows=~gone[request])))


@spec.action("request", urgent=False, thread="client", exists=holds_notifications)
def forget(state: CoreState, request: CoreRequest) -> Step:
    """A client that was notified does not pop, because it is gone or another client was faster."""
    return Step(notified[request], assign(*goes(state, request)))


def takes(state: CoreState, request: CoreRequest) -> Bool:
    """Whether the request takes the message that it finds, because it is a pop or the pop of a notified client."""
    return request.is_("reading") if holds_pops(state) else notified[request]


def leaves(state: CoreState, request: CoreRequest, rest: Bool, *, every: bool) -> Pairs:
    """The effect of a pop that leaves messages (`rest`): if the table holds pops, a thread is about to wake a pop."""
    return calls(state, request, rest, every=every) if holds_pops(state) else []


@spec.action("queue", "request")
def read_finds(state: CoreState, queue: CoreQueue, request: CoreRequest) -> Step:
    """The pop takes a message of the queue and is answered. A pop that leaves messages wakes a waiting request.

    Java: `PopMessageProcessor.processRequest`, "all queue pop can not notify specified queue pop, and vice versa".
    """
    every = state.knob("rest_wakes") == "every_key"
    more = popped[queue] + 1 < queue.visible_end
    elsewhere = (reads(state, each, request) & has_messages(each) for each in state.queues if each.index != queue.index)
    rest = more | any_of(elsewhere) | (retry.is_(RETRIES.index("visible")) if every else FALSE)
    guard = takes(state, request) & reads(state, queue, request) & has_messages(queue)
    told = leaves(state, request, rest, every=every)
    return Step(guard, assign((popped[queue], popped[queue] + 1), *told, *goes(state, request)))


@spec.action("request")
def read_finds_retry(state: CoreState, request: CoreRequest) -> Step:
    """The pop takes the message of the retry topic and is answered. A pop that leaves messages wakes another request.

    Java: `PopMessageProcessor.processRequest`, `popMsgFromTopic(retryTopic, true, ...)`.
    """
    every = state.knob("rest_wakes") == "every_key"
    rest = any_of(reads(state, queue, request) & has_messages(queue) for queue in state.queues)
    guard = takes(state, request) & retry.is_(RETRIES.index("visible"))
    told = leaves(state, request, rest, every=every)
    return Step(guard, assign((retry, RETRIES.index("taken")), *told, *goes(state, request)))


@spec.action("request")
def read_misses(state: CoreState, request: CoreRequest) -> Step:
    """The request finds no message.

    Java: `PopMessageProcessor.processRequest` with an empty `GetMessageResult`; `NotificationProcessor`, `!hasMsg`.
    """
    return Step(request.is_("reading") & ~finds(state, request), assign((request.phase, request.phases["missed"])))


@spec.action("request", urgent=False, exists=holds_pops)
def read_locked(state: CoreState, request: CoreRequest) -> Step:
    """The pop finds a message, but another pop has locked the queue, so it takes none.

    Java: `PopMessageProcessor.popMsgFromQueue`, where `queueLockManager.tryLock` fails and the rest is counted.
    """
    free = (
        reads(state, queue, request) & has_messages(queue) & ~is_locked(state, queue, request) for queue in state.queues
    )
    own = any_of(reads(state, queue, request) & has_messages(queue) for queue in state.queues)
    guard = request.is_("reading") & own & ~any_of(free) & ~retry.is_(RETRIES.index("visible"))
    return Step(guard, assign((request.phase, request.phases["missed"]), (left[request], TRUE)))


# -- polling -----------------------------------------------------------------------------------------------------------


def is_held(request: CoreRequest) -> Bool:
    """Whether the request waits in its set, or the scanner has taken it out to check its deadline."""
    return request.is_("held")


def is_full(state: CoreState, request: CoreRequest) -> Bool:
    """Whether the number of waiting requests, as the policy counts it, has reached the limit for this request."""

    def has_company(one: CoreRequest) -> Bool:
        return is_held(one) & any_of(is_held(each) for each in others(state, one))

    def has_company_in_key(one: CoreRequest) -> Bool:
        return is_held(one) & any_of(is_held(each) & shares_key(state, each, one) for each in others(state, one))

    in_total, in_own = any_of(is_held(each) for each in state.requests), in_key(state, request, is_held)
    if counts_apart(state):
        in_total &= ~drifted | any_of(has_company(each) for each in state.requests)
    if checks_before(state):
        in_own = in_key(state, request, has_company_in_key)
    return limit.is_(LIMITS.index("total")) & in_total | limit.is_(LIMITS.index("key")) & in_own


def at_limit(request: CoreRequest) -> Bool:
    """Whether the request missed before its deadline, and its thread has yet to compare the count with the limit."""
    return request.is_("missed") & (request.deadline > 0) & ~admitted[request]


@spec.action("request")
def times_out(state: CoreState, request: CoreRequest) -> Step:
    """The request found nothing and its time is over: it is answered POLLING_TIMEOUT.

    Java: `PopLongPollingService.polling`, `isTimeout`.
    """
    guard = request.is_("missed") & (request.deadline <= 0)
    return Step(guard, assign(*goes(state, request)))


@spec.action("request")
def refuse(state: CoreState, request: CoreRequest) -> Step:
    """The request found nothing and the limit is reached: it is answered POLLING_FULL.

    Java: `PopLongPollingService.polling`, `isFull` and `queue.size()`.
    """
    guard = at_limit(request) & is_full(state, request)
    return Step(guard, assign(*goes(state, request)))


@spec.action("request", exists=checks_before)
def admit(state: CoreState, request: CoreRequest) -> Step:
    """The request found nothing and the limit is not reached, so its thread is about to put the request into its set.

    Java: `PopLongPollingService.polling`, between `totalPollingNum.get()` and `queue.add`.
    """
    limited = ~limit.is_(LIMITS.index("none"))
    guard = at_limit(request) & limited & ~is_full(state, request)
    return Step(guard, assign((admitted[request], TRUE)))


@spec.action("request")
def insert(state: CoreState, request: CoreRequest) -> Step:
    """The thread puts the request into the set of its key, and the request waits there.

    Java: `PopLongPollingService.polling`, `queue.add`; since #8472 `processRequest` then wakes a request of the key if
    the read had counted messages.
    """
    unlimited = limit.is_(LIMITS.index("none"))
    may = ~is_full(state, request) if not checks_before(state) else unlimited
    there = ~gone[request] if drops_closed(state) else TRUE
    guard = request.is_("missed") & (request.deadline > 0) & (may | admitted[request]) & there
    own: Pairs = [(request.phase, request.phases["held"]), (left[request], FALSE), (admitted[request], FALSE)]
    own += [(rechecks[request], TRUE)] * looks_twice(state)
    return Step(guard, assign(*own, *calls(state, request, left[request], every=False)))


@spec.action("request", exists=drops_closed)
def drop_gone(state: CoreState, request: CoreRequest) -> Step:
    """The thread sees that the channel is closed, and drops the request instead of inserting it."""
    return Step(request.is_("missed") & gone[request], assign(*goes(state, request)))


@spec.action("request", exists=looks_twice)
def recheck(state: CoreState, request: CoreRequest) -> Step:
    """After the insert the thread reads once more, and takes the request out of its set if there is a message."""
    again = is_listed(request) & finds(state, request)
    phase = ite(again, request.phases["reading"], request.phase)
    return Step(rechecks[request], assign((request.phase, phase), (rechecks[request], FALSE)))


# -- predicates of waking ----------------------------------------------------------------------------------------------


def is_called(state: CoreState, request: CoreRequest) -> Bool:
    """Whether the thread of a pop is about to wake a request under this request's key."""
    return reads_all(state, request) & called_all | any_of(asks[q, request] & called[q] for q in state.queues)


def is_free(state: CoreState) -> Bool:
    """Whether the dispatcher submits no request, so that it can go on to the next key or message."""
    return ~any_of(submitting[each] for each in state.requests)


def is_told(state: CoreState, request: CoreRequest) -> Bool:
    """Whether the dispatcher, which visits one key after another, is at the key of the request."""
    of_all = reads_all(state, request) & any_of(queue.due for queue in state.queues) & ~all_told
    of_one = any_of(asks[queue, request] & queue.due & all_told for queue in state.queues)
    return (of_all | of_one) & is_free(state)


def is_refused(state: CoreState, request: CoreRequest) -> Bool:
    """Whether the filter of the request refuses the message that the dispatcher announces."""
    return refuses[request] & ~is_called(state, request)


def is_passed(state: CoreState, request: CoreRequest) -> Bool:
    """Whether a thread that wakes requests passes over this request, because its filter refuses the message."""
    return FALSE if puts_back(state) else is_refused(state, request)


def is_offered(state: CoreState, request: CoreRequest) -> Bool:
    """Whether the request is in its set, and a thread that wakes requests does not pass over it."""
    return is_listed(request) & ~is_passed(state, request)


def is_due(state: CoreState, request: CoreRequest) -> Bool:
    """Whether a thread that wakes requests is at the request's key and may take the request."""
    return is_called(state, request) | is_told(state, request) & ~refuses[request]


def passes(state: CoreState, request: CoreRequest, here: Bool) -> Pairs:
    """The effect, where `here`, that a thread leaves the request's key: a pop's thread first, then the dispatcher."""
    of_all = here & reads_all(state, request)
    made: Pairs = [(called_all, called_all & ~of_all)]
    told = all_told | of_all & ~called_all
    for queue in state.queues:
        own = here & asks[queue, request]
        ends = own & ~called[queue]
        told &= ~ends
        made += [(called[queue], called[queue] & ~own), (queue.due, queue.due & ~ends)]
    return [*made, (all_told, told)]


@spec.action("request", thread="waker")
def wake(state: CoreState, request: CoreRequest) -> Step:
    """A thread that is about to wake requests of a key takes one pop out of its set, or every notification of the key.

    Java: `PopLongPollingService.pollRemotingCommands`.
    """
    guard = is_next(state, request) & is_due(state, request) & ~gone[request]
    own: Pairs = [(request.phase, request.phases["taken"]), (submitting[request], ~is_called(state, request))]
    for each in others(state, request) if wakes_every(state) else ():
        too = is_listed(each) & shares_key(state, each, request) & is_due(state, each) & ~gone[each]
        own.append((each.phase, ite(too, each.phases["taken"], each.phase)))
        own.append((submitting[each], submitting[each] | too & ~is_called(state, each)))
    return Step(guard, assign(*own, *passes(state, request, TRUE)))


@spec.action("request", thread="waker", exists=puts_back)
def put_back(state: CoreState, request: CoreRequest) -> Step:
    """The filter of the notification refuses the message: the thread puts it back, and leaves the key.

    Java: `PopLongPollingService.notifyMessageArriving`, `remotingCommands.add(popRequest)`.
    """
    guard = is_next(state, request) & is_told(state, request) & is_refused(state, request) & ~gone[request]
    return Step(guard, assign(*passes(state, request, TRUE)))


@spec.action("request", thread="waker", exists=keeps_closed)
def discard(state: CoreState, request: CoreRequest) -> Step:
    """The first request of the set has a closed channel: the thread drops this request and goes on to the next.

    Java: `PopLongPollingService.pollRemotingCommands`, which counts down once more when the set is empty (#4072).
    """
    last = ~any_of(is_listed(each) & shares_key(state, each, request) for each in others(state, request))
    guard = is_next(state, request) & (is_called(state, request) | is_told(state, request)) & gone[request]
    drifts = last if counts_apart(state) else FALSE
    leaves = passes(state, request, last)
    return Step(guard, assign((drifted, drifted | drifts), *leaves, *goes(state, request)))


@spec.action(thread="waker")
def nobody_reads_all(state: CoreState) -> Step:
    """A thread that is about to wake a request that reads every queue finds no such request.

    Java: `PopLongPollingService.notifyMessageArriving`, `remotingCommands.isEmpty()`.
    """
    due = any_of(queue.due for queue in state.queues) & ~all_told & is_free(state)
    nobody = ~any_of(is_offered(state, each) & reads_all(state, each) for each in state.requests)
    effect = assign((called_all, FALSE), (all_told, all_told | ~called_all))
    return Step((called_all | due) & nobody, effect)


@spec.action("queue", thread="waker")
def nobody_asks(state: CoreState, queue: CoreQueue) -> Step:
    """A thread that is about to wake a request of one queue finds no such request.

    Java: `PopLongPollingService.notifyMessageArriving`, `remotingCommands.isEmpty()`.
    """
    nobody = ~any_of(is_offered(state, each) & asks[queue, each] for each in state.requests)
    ends = queue.due & ~called[queue]
    effect = assign((called[queue], FALSE), (queue.due, queue.due & ~ends), (all_told, all_told & ~ends))
    return Step((called[queue] | queue.due & all_told & is_free(state)) & nobody, effect)


@spec.action("request", thread="waker")
def submit(_state: CoreState, request: CoreRequest) -> Step:
    """The thread gives the request to the executor, which will read again.

    Java: `PopLongPollingService.wakeUp`.
    """
    guard = request.is_("taken") & ~gone[request]
    return Step(guard, assign((request.phase, request.phases["reading"]), (submitting[request], FALSE)))


@spec.action("request", thread="waker")
def submit_fails(state: CoreState, request: CoreRequest) -> Step:
    """The channel of the taken request is closed, so the thread drops the request.

    Java: `PopLongPollingService.wakeUp` returns false, which `notifyMessageArriving` does not look at.
    """
    guard = request.is_("taken") & gone[request]
    told = calls(state, request, TRUE, every=True) if state.knob("hand_over") else []
    return Step(guard, assign(*goes(state, request), *told))


@spec.action("request", urgent=False, thread="executor")
def executor_rejects(state: CoreState, request: CoreRequest) -> Step:
    """The executor is full and rejects the request. A dispatcher that took the request announces its message again.

    Java: `PopLongPollingService.wakeUp`, where `submit` throws after `complete()`; the exception ends
    `ReputMessageService.doReput` before it goes on to the next message.
    """
    guard = request.is_("taken") & ~gone[request]
    again = submitting[request]
    told: Pairs = [(all_told, all_told & ~again)]
    told += [(queue.due, queue.due | again & asks[queue, request]) for queue in state.queues]
    told += calls(state, request, TRUE, every=True) if state.knob("hand_over") else []
    answered = state.knob("when_rejected") == "answer"
    return Step(guard, assign(*goes(state, request, answered=answered), *told))


# -- the scan ----------------------------------------------------------------------------------------------------------


@spec.action("request", thread="pop scanner")
def expire(state: CoreState, request: CoreRequest) -> Step:
    """The scanner takes the first request out of a set because its time is over.

    Java: `PopLongPollingService.run`, every 20 ms.
    """
    guard = is_first(state, request) & (request.deadline <= 0)
    return Step(guard, assign((request.phase, request.phases["taken"])))


@spec.action("request", urgent=False, thread="pop scanner", exists=takes_to_look)
def scan_takes(state: CoreState, request: CoreRequest) -> Step:
    """The scanner takes the first request out of a set, to check the request's deadline.

    Java: `PopLongPollingService.run`, `popQ.pollFirst()`.
    """
    busy = any_of(scanned[each] for each in state.requests)
    guard = is_first(state, request) & (request.deadline > 0) & ~busy
    return Step(guard, assign((scanned[request], TRUE)))


@spec.action("request", thread="pop scanner", exists=takes_to_look)
def scan_puts_back(_state: CoreState, request: CoreRequest) -> Step:
    """The request has time left: the scanner puts it back into its set.

    Java: `PopLongPollingService.run`, `popQ.add(first)`.
    """
    return Step(scanned[request], assign((scanned[request], FALSE)))


@spec.action(urgent=False, thread="pop scanner", exists=may_drift)
def recount(_state: CoreState) -> Step:
    """The scanner sets the counter to the number of requests in all sets.

    Java: `PopLongPollingService.run`, every 100 rounds, which take about two seconds.
    """
    return Step(drifted, assign((drifted, FALSE)))


# -- the world ---------------------------------------------------------------------------------------------------------


@spec.action("request", urgent=False, thread="client")
def channel_closes(state: CoreState, request: CoreRequest) -> Step:
    """The client's channel is closed."""
    leaves = request.is_("held") if drops_closed(state) else FALSE
    return Step(~request.is_("idle") & ~gone[request] & ~leaves, assign((gone[request], TRUE)))


@spec.action("request", urgent=False, thread="client", exists=drops_closed)
def waiting_closes(state: CoreState, request: CoreRequest) -> Step:
    """The client's channel is closed while its request waits, and the request leaves its set."""
    return Step(request.is_("held") & ~gone[request], assign(*goes(state, request)))


@spec.action("request", urgent=False, thread="cache", exists=evicts_sets)
def evict(state: CoreState, request: CoreRequest) -> Step:
    """The map of all sets drops the set of a request, with the requests in it.

    Java: Caffeine's `maximumSize` and `expireAfterAccess` (5.5.0), `ConcurrentLinkedHashMap` (5.3.3), and
    `cleanUnusedResource`.
    """
    return Step(is_listed(request), assign(*goes(state, request, answered=False)))


def unused(state: CoreState) -> Bool:
    """Whether nothing has happened yet: no message, no pop and no limit."""
    empty = all_of(queue.visible_end <= 0 for queue in state.queues) & limit.is_(LIMITS.index("none"))
    return empty & all_of(each.is_("idle") & ~unanswered[each] for each in state.requests)


@spec.action(urgent=False, thread="operator")
def limit_total(state: CoreState) -> Step:
    """The operator limits the number of all waiting requests to one.

    Java: `maxPopPollingSize`.
    """
    return Step(unused(state), assign((limit, LIMITS.index("total"))))


@spec.action(urgent=False, thread="operator")
def limit_key(state: CoreState) -> Step:
    """The operator limits the number of requests that wait under one key to one.

    Java: `popPollingSize`.
    """
    return Step(unused(state), assign((limit, LIMITS.index("key"))))


# -- properties --------------------------------------------------------------------------------------------------------


def waits(request: CoreRequest) -> Bool:
    """Whether the request waits, and its client is there."""
    return request.is_("held") & ~gone[request]


def comes(state: CoreState, request: CoreRequest) -> Bool:
    """Whether a thread is about to wake a request under the same key, or this request's thread will check again."""
    own = any_of(queue.due & asks[queue, request] for queue in state.queues)
    for_all = any_of(queue.due for queue in state.queues) & reads_all(state, request) & ~all_told
    return is_called(state, request) | (own | for_all) & ~refuses[request] | rechecks[request]


def is_served(request: CoreRequest) -> Bool:
    """Whether a thread reads for the request or is about to, or its client knows of a message and is about to pop."""
    return request.is_("reading", "taken") | notified[request]


@spec.always
def no_lost_wakeup(state: CoreState) -> Iterator[Bool]:
    """While a request waits although its queue has a message, a thread is about to wake it or to take the message."""
    for queue in state.queues:
        taken = any_of(is_served(each) & reads(state, queue, each) for each in state.requests)
        yield taken | all_of(
            (waits(each) & reads(state, queue, each) & has_messages(queue)).implies(comes(state, each))
            for each in state.requests
        )


@spec.always
def no_lost_retry(state: CoreState) -> Bool:
    """If a request waits although the retry topic has a message, a thread is about to wake it or take the message."""
    taken = any_of(is_served(each) for each in state.requests)
    missed = any_of(waits(each) & ~comes(state, each) for each in state.requests)
    return (missed & retry.is_(RETRIES.index("visible"))).implies(taken)


@spec.always
def all_are_notified(state: CoreState) -> Iterator[Bool]:
    """While a notification waits although it would find a message, a thread is about to wake it.

    It is not enough to answer another notification, because the client of that notification may not pop.
    """
    for each in state.requests if holds_notifications(state) else ():
        yield (waits(each) & finds(state, each)).implies(comes(state, each))


@spec.no_step("tick")
def wake_finds_its_taker(state: CoreState) -> Iterator[Bool]:
    """No time passes while a request waits and there is a message that it can take."""
    for each in state.requests:
        yield waits(each) & finds(state, each)


@spec.no_step("tick")
def answered_by_deadline(state: CoreState) -> Iterator[Bool]:
    """No time passes while a pop that the broker has is past its deadline."""
    for each in state.requests:
        yield ~each.is_("idle") & (each.deadline <= 0)


@spec.always
def answered_once(state: CoreState) -> Iterator[Bool]:
    """The broker has no pop that it has answered, so it answers no pop twice."""
    for each in state.requests:
        yield each.is_("idle") | unanswered[each]


@spec.always
def nothing_dropped(state: CoreState) -> Iterator[Bool]:
    """While a client waits for its answer, the broker has its pop."""
    for each in state.requests:
        yield unanswered[each].implies(~each.is_("idle"))


@spec.no_step("insert", who=("request",))
def limit_kept(state: CoreState, request: CoreRequest) -> Bool:
    """No pop begins to wait while the limit is reached."""
    total, keyed = any_of(is_held(each) for each in state.requests), in_key(state, request, is_held)
    return limit.is_(LIMITS.index("total")) & total | limit.is_(LIMITS.index("key")) & keyed


@spec.no_step("times_out", who=("request",))
def not_answered_early(_state: CoreState, request: CoreRequest) -> Bool:
    """No pop is answered without a message before its deadline, unless the limit is reached."""
    return request.deadline > 0


@spec.no_step("refuse")
def full_means_full(state: CoreState) -> Bool:
    """No pop is refused because of the limit while no client waits."""
    return ~any_of(each.is_("held") & ~gone[each] for each in state.requests)


@spec.always
def no_closed_one_waits(state: CoreState) -> Iterator[Bool]:
    """No request with a closed channel waits."""
    for each in state.requests:
        yield ~(each.is_("held") & gone[each])


@spec.always
def one_announced(state: CoreState) -> Iterator[Bool]:
    """The dispatcher announces at most one message at a time, and is past the first key only while it announces one."""
    yield all_told.implies(any_of(queue.due for queue in state.queues))
    for queue in state.queues:
        yield queue.due.implies(~any_of(other.due for other in state.queues if other.index != queue.index))


@spec.always
def submitting_is_taken(state: CoreState) -> Iterator[Bool]:
    """The requests that the dispatcher submits are taken, and share the key of one announced message."""
    due = any_of(queue.due for queue in state.queues)
    for each in state.requests:
        elsewhere = any_of(queue.due & ~asks[queue, each] for queue in state.queues)
        yield submitting[each].implies(each.is_("taken") & ite(reads_all(state, each), due, ~elsewhere))
    for queue in state.queues:
        of_it = any_of(submitting[each] & asks[queue, each] for each in state.requests)
        yield of_it.implies(all_of(submitting[each].implies(asks[queue, each]) for each in state.requests))


@spec.always
def one_key(state: CoreState) -> Iterator[Bool]:
    """A request has one key, and only a request that the broker has, or whose client is notified, asks for a queue."""
    for each in state.requests:
        alone = (
            asks[queue, each].implies(
                ~any_of(asks[other, each] for other in state.queues if other.index != queue.index)
            )
            for queue in state.queues
        )
        yield asks_one(state, each).implies((~each.is_("idle") | notified[each]) & all_of(alone))


@spec.always
def idle_is_new(state: CoreState) -> Iterator[Bool]:
    """A client without a pop in the broker has no deadline, and keeps nothing of its last pop."""
    for each in state.requests:
        old = any_of(flag[each] for flag in (gone, left, admitted, scanned, rechecks))
        yield each.is_("idle").implies((each.deadline <= 0) & ~old)


@spec.always
def only_notifications(state: CoreState) -> Iterator[Bool]:
    """Only a notification has a filter, and only an answered notification lets its client know of a message."""
    for each in state.requests:
        if holds_pops(state):
            yield ~refuses[each]
        yield notified[each].implies(each.is_("idle") & ~unanswered[each] if holds_notifications(state) else FALSE)


@spec.always
def pops_what_is_there(state: CoreState) -> Iterator[Bool]:
    """No more messages of a queue are popped than the queue has."""
    for queue in state.queues:
        yield popped[queue] <= queue.visible_end


@spec.no_step("read_finds_retry")
def retries_what_is_there(_state: CoreState) -> Bool:
    """No pop takes a message from the retry topic while this topic has no message."""
    return ~retry.is_(RETRIES.index("visible"))


@spec.no_step("read_finds", "read_finds_retry", who=("request",))
def takes_as_asked(state: CoreState, request: CoreRequest) -> Bool:
    """Only a pop that reads, or the pop of a client that was notified, takes a message."""
    return ~takes(state, request)


@spec.no_step("read_notifies", who=("request",))
def notified_of_something(state: CoreState, request: CoreRequest) -> Bool:
    """No client is notified while there is no message for it."""
    return ~finds(state, request)


@spec.always
def looked_at_waits(state: CoreState) -> Iterator[Bool]:
    """A request that the scanner has taken out of its set waits; under some policies the scanner takes none out."""
    for each in state.requests:
        yield scanned[each].implies(each.is_("held") if takes_to_look(state) else FALSE)


@spec.always
def admitted_at_the_limit(state: CoreState) -> Iterator[Bool]:
    """Only a pop that found nothing, under a configured limit that is compared before the insert, is admitted."""
    limited = ~limit.is_(LIMITS.index("none")) if checks_before(state) else FALSE
    for each in state.requests:
        yield admitted[each].implies(each.is_("missed") & limited)


@spec.always
def count_is_right(_state: CoreState) -> Bool:
    """The counter of waiting requests equals their number."""
    return ~drifted


@spec.sometimes
def whole_time_for_all(state: CoreState) -> Bool:
    """A request that reads every queue waits, and its whole hold time is left."""
    return any_of(waits(each) & reads_all(state, each) & (each.deadline >= state.hold_ticks) for each in state.requests)


@spec.sometimes
def whole_time_for_one(state: CoreState) -> Bool:
    """A request of one queue waits, and its whole hold time is left."""
    return any_of(
        waits(each) & ~reads_all(state, each) & (each.deadline >= state.hold_ticks) for each in state.requests
    )


@spec.sometimes
def some_filter_waits(state: CoreState) -> Bool:
    """A notification with a filter waits, if the table holds notifications."""
    return TRUE if holds_pops(state) else any_of(waits(each) & refuses[each] for each in state.requests)


@spec.leads_to("request")
def every_pop_is_answered(_state: CoreState, request: CoreRequest) -> tuple[Bool, Bool]:
    """Every pop is answered at some time, unless its client is gone."""
    return unanswered[request], ~unanswered[request] | gone[request]
