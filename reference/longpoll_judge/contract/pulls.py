"""The contract's clauses about pulls and about the delivery of each message. `clauses` has the other clauses."""

from __future__ import annotations

from functools import partial
from typing import Final

from longpoll_judge.contract.clause import (
    COLD_MS,
    COMPACTION_MS,
    EARLY_MS,
    LATE_MS,
    RETENTION_MS,
    SHORT_POLLING_MS,
    STOPPED_MS,
    STOPPING_MS,
    UNHELD_MS,
    UNREMOVED_MS,
    Clause,
)
from longpoll_judge.contract.result import (
    ANSWER_IS_RIGHT,
    ANSWERED_BY_DEADLINE,
    ANSWERED_ON_STOP,
    ANSWERED_ONCE,
    HELD_AS_ASKED,
    HOLD_LIMIT_KEPT,
    MESSAGE_IS_DELIVERED,
    NO_LOST_WAKEUP,
    FindingVerdict,
)

_PULL: Final = "request_received(code, offset, queue, request)"
_RESULT: Final = "answer_sent(code, offset_next, offset_min, offset_max, offsets)"
_LOOK: Final = "PullMessageProcessor.processRequest, DefaultMessageStore.getMessage"
_STEPS: Final = "take, keep, expire, run or stop(request)"
_HOLD_SERVICE: Final = "PullRequestHoldService"

_answer: Final = partial(Clause, property=ANSWER_IS_RIGHT, source=_LOOK, needs=(_PULL, _RESULT))
_visible: Final = partial(
    Clause,
    property=ANSWER_IS_RIGHT,
    source=_LOOK,
    needs=(_RESULT, "make_visible(visible_end)"),
    seen="inside",
    whole_record=True,
)
_outside: Final = partial(Clause, property=ANSWER_IS_RIGHT, needs=(_PULL, _RESULT), seen="outside")
_once: Final = partial(
    Clause, property=ANSWERED_ONCE, source="NettyRemotingAbstract.writeResponse: on the request's channel"
)
_held: Final = partial(Clause, property=HELD_AS_ASKED)
_inside: Final = partial(Clause, property=HELD_AS_ASKED, seen="inside")
_whole: Final = partial(Clause, property=HELD_AS_ASKED, seen="inside", whole_record=True)
_deadline: Final = partial(Clause, property=ANSWERED_BY_DEADLINE)

PULL_CLAUSES: Final = (
    _answer(
        "pull.code.known",
        "An answer to a pull has one of the codes 0, 19, 20, 21 or of the refusals 1, 2, 3, 16, 17, 23 to 29, 215, "
        "501, 1500.",
        source="ResponseCode, RemotingSysResponseCode; PullMessageProcessor.processRequest",
        needs=("request_received(code)", "answer_sent(code)"),
    ),
    _answer(
        "pull.error.explained",
        "SYSTEM_ERROR (1) answers only a pull that cannot be served: for a queue of which this history shows no "
        "message, with a subscription that is not a tag expression, or with a negative count. Any other is an "
        "internal error of the broker, which no history can justify or prove.",
        source="PullMessageProcessor.processRequest: 1 for a queue out of range, an expression that is not enabled, a "
        "store that gives nothing",
        needs=("request_received(count_max, expression_type)", "answer_sent(code)", "append or message_acknowledged"),
        verdict="unknown",
    ),
    _answer(
        "answer.after_request",
        "An answer is not sent before its request was received: not answer.before_ns < request.after_ns.",
        source="cause and effect",
        needs=("request_received(request)", "answer_sent(request)"),
    ),
    _answer("pull.found.some", "FOUND (0) carries at least one message."),
    _answer("pull.none.empty", "19, 20 and 21 carry no message."),
    _answer("pull.found.ordered", "The offsets of the messages in one answer ascend, each once."),
    _answer("pull.found.from_asked", "No message in an answer lies before the requested offset."),
    _answer(
        "pull.found.at_most",
        "An answer carries at most max(count_max, 1) messages.",
        source="DefaultMessageStore.isTheBatchFull",
        needs=("request_received(count_max)", _RESULT),
    ),
    _visible(
        "pull.found.visible",
        "Every message in an answer may have been visible before the answer. Inside, for each offset from the first "
        "that the history shows: some make_visible with visible_end > offset has after_ns <= answer.before_ns.",
    ),
    _visible(
        "pull.found.appended",
        "Every message in an answer was appended. Inside, each offset from the first that the history shows has an "
        "append or a message_acknowledged.",
        needs=(_RESULT, "append(queue_offset)"),
    ),
    _answer(
        "pull.found.tag",
        "Every message in an answer matches the subscription, by the hash of its tag.",
        source="ExpressionMessageFilter.isMatchedByConsumeQueue",
        needs=(
            "request_received(expression_type, expression)",
            _RESULT,
            "append or message_acknowledged(queue_offset, tag)",
        ),
    ),
    _answer(
        "pull.found.next",
        "offset_next of a FOUND is greater than the last message's offset. It is that offset plus 1 if the "
        "subscription takes everything or the answer carries max(count_max, 1) messages.",
    ),
    _answer(
        "pull.found.identified",
        "A FOUND lists no ids, or as many as offsets. So it does with bodies.",
        source="PullMessageResponseHeader: each message has its properties and its body",
        needs=("answer_sent(code, offset_min, offsets, ids, bodies)",),
    ),
    _answer(
        "pull.found.complete",
        "A FOUND carries as many messages as the history shows to match in [request.offset, offset_next). Unless "
        "every policy is strict or strict-clone, retention may have removed those before the first that it carries: "
        "the finding is unknown. Retention removes no message that was acknowledged less than "
        f"{UNREMOVED_MS} ms before. If any answer has an offset_min above them, there is no finding, because retention "
        f"corrects the minimum last. Compaction may have removed some if all were visible {COMPACTION_MS} ms before "
        "request.after_ns: then it is unknown too.",
        needs=(_PULL, _RESULT, "append or message_acknowledged(queue_offset, tag)"),
    ),
    _answer(
        "pull.none.true",
        "19 needs a time between receipt and answer at which no message that the pull takes was visible: none was "
        "certainly visible before request.after_ns (from outside: acknowledged --wake-ms before it). A pull that is "
        "stopped, as in pull.hold.not_early, is exempt. Unknown for a possible slave, and as in pull.none.next.",
        needs=(_PULL, _RESULT, "make_visible or message_acknowledged", "append(tag)"),
    ),
    _answer(
        "pull.none.next",
        "offset_next of a 19 is the requested offset. From outside, except with strict or strict-clone, it is unknown "
        "if it is greater and the offset lies within the bounds (offset_min <= request.offset < offset_max): the "
        "broker may lack the file that has the offset.",
        source="DefaultMessageStore.nextOffsetCorrection, getMessage: OFFSET_FOUND_NULL leads to the next file",
    ),
    _answer(
        "pull.passed.next",
        "offset_next of a 20 is greater than the requested offset. Unknown from a source outside that sees no send to "
        "this broker, except with strict or strict-clone: a slave sends pulls to its master with a 20.",
        source="DefaultMessageStore.getMessage: NO_MATCHED_MESSAGE, MESSAGE_WAS_REMOVING",
    ),
    _answer(
        "pull.passed.none_match",
        "No message that the history shows in [request.offset, offset_next) of a 20 matches the subscription. "
        "Retention may have removed it, as in pull.found.complete (MESSAGE_WAS_REMOVING is also 20).",
        needs=(_PULL, _RESULT, "append or message_acknowledged(queue_offset, tag)"),
    ),
    _answer(
        "pull.illegal.outside",
        "21 needs an offset outside the answer's own [offset_min, offset_max]. At 0 of an empty queue the answer is "
        "19. From outside, except with strict or strict-clone, it is unknown: 5.x also tells a group with 21 that its "
        "offset was reset.",
        source="DefaultMessageStore.getMessage: OFFSET_TOO_SMALL, OFFSET_OVERFLOW_BADLY; "
        "PullMessageProcessor.processRequest: NO_MESSAGE_IN_QUEUE and NO_MATCHED_LOGIC_QUEUE are 21 only if the offset "
        "is not 0",
    ),
    _answer(
        "pull.illegal.next",
        "offset_next of a 21 is offset_min if the offset was too low. If it was too high, it is offset_max, or "
        "offset_min if that is 0. Unknown as in pull.illegal.outside.",
        source="DefaultMessageStore.nextOffsetCorrection",
    ),
    _answer(
        "pull.max.least",
        "offset_max is at least the end that was certainly visible before request.after_ns (from outside: "
        "acknowledged --wake-ms before it). Unknown for a possible slave, and as in pull.illegal.outside for a 21 with "
        "the offset_max 0, because a reset may tell no bounds.",
        needs=(_RESULT, "make_visible or message_acknowledged"),
    ),
    _visible("pull.max.most", "offset_max is at most the highest visible end possible at answer.before_ns."),
    _answer("pull.min.below_max", "0 <= offset_min <= offset_max.", needs=(_RESULT,)),
    _visible(
        "pull.next.visible",
        "offset_next of a FOUND or a 20 is at most the highest visible end possible at answer.before_ns.",
    ),
    _answer("pull.found.above_min", "No message in an answer lies below the answer's own offset_min."),
    _answer(
        "pull.found.within",
        "0 and 20 need an offset within the answer's own bounds: offset_min <= request.offset < offset_max. Unknown as "
        "in pull.passed.next, unless offset_next exceeds the requested offset and an offset_max above 0.",
        source="DefaultMessageStore.getMessage: OFFSET_TOO_SMALL, OFFSET_OVERFLOW_ONE and "
        "OFFSET_OVERFLOW_BADLY come first",
    ),
    _answer(
        "pull.next.within",
        "offset_next of a FOUND or a 20 is at most the answer's own offset_max. Applies only if every policy of the "
        "history is strict or strict-clone, with any knobs: RocketMQ reads maxOffset first and may find more.",
        source="longpoll's own store; unlike DefaultMessageStore.getMessage, which reads the end twice",
        needs=(_RESULT, "policy"),
    ),
    _answer(
        "pull.none.at_end",
        "19 comes only at the end: the answer's offset_max is the requested offset. An answer of a stopping broker is "
        "exempt: the pull is stopped, or its connection closes, as in pull.hold.not_early. It is unknown where it is "
        "unknown there. It is also unknown where the stop may lie in a gap. From outside, so it is where the stop may "
        "lie after the end of the record or, if the source's clock may be set, at any later time. Unknown as in "
        "pull.none.next.",
        source="DefaultMessageStore.getMessage: OFFSET_OVERFLOW_ONE, or NO_MESSAGE_IN_QUEUE at 0",
    ),
    _answer(
        "pull.min.never_falls",
        "Of two answers about one queue in one lifetime of its broker, the later one certainly read after the earlier "
        "was sent (earlier.before_ns < later's request.after_ns), the later one's offset_min is not lower. A "
        "connection does not outlive its broker. So answers on one connection are of one lifetime. So are answers on "
        "two connections that certainly overlap, by when they were opened and answered, or on several that link them; "
        "across two sources too, if the broker is named. From outside, it is unknown for two answers of a named broker "
        "that may be of two lifetimes. Does not apply if a deletion of the topic (215) or a gap may lie in between. "
        "Applies only to pulls with a unique identifier.",
        source="DefaultMessageStore.getMinOffsetInQueue: retention only removes",
    ),
    _outside(
        "pull.max.never_falls",
        "The same for offset_max, which is also past every message that the earlier answer delivers or passes over: a "
        "queue's visible end does not move back. Unknown if the two answers may be of two lifetimes of the broker, "
        "and if an acknowledgement of another lifetime shows the higher end. Applies only to queues seen from "
        "outside; inside, pull.max.least is stricter.",
        source="the specification's visible_is_monotone",
    ),
    _outside(
        "pull.min.kept",
        f"No message is gone, below an answer's offset_min, less than {RETENTION_MS} ms after its acknowledgement. A "
        "full disk removes messages earlier, and no history shows that. Does not apply if every policy is strict or "
        "strict-clone.",
        source="CleanCommitLogService: fileReservedTime is in hours, diskMaxUsedSpaceRatio",
        needs=(_PULL, _RESULT, "message_acknowledged(queue_offset)"),
        verdict="unknown",
    ),
    _outside(
        "pull.filter.agrees",
        "If one pull got a message, a 0 or 20 to another pull does not pass over it, if that pull's subscription "
        "takes at least as much (the same text, `*`, or all of its tags). Retention may have removed the message in "
        "between. So a pull that was read later, with nothing delivered before that message, is exempt if any answer "
        "has an offset_min above it. Otherwise it is unknown, unless it passes over everything up to its offset_max. "
        "Does not apply if a deletion of the topic (215) or a gap may lie in between. Applies only to queues seen "
        "from outside, and to pulls whose identifier came once.",
        source="ExpressionMessageFilter: its result depends only on the message and the subscription",
        needs=("request_received(expression_type, expression, offset)", _RESULT),
    ),
    _once(
        "answer.once",
        "No request with a unique identifier has two answers. Unknown if its receipt is not in the record: several "
        "requests may have the identifier.",
        source="the specification's answered_at_most_once",
        needs=("request_received(request)", "answer_sent(request)"),
    ),
    _once(
        "answer.same_connection",
        "An answer uses its request's connection, if both name one and no other request has the identifier.",
        needs=("request_received(request, connection)", "answer_sent(request, connection)"),
    ),
    _once(
        "answer.open_connection",
        "No answer is sent on a connection that was closed before: not close.before_ns < answer.after_ns. This is the "
        "first close of the connection in this source that is not before the request, or the last close if the "
        "request is not in the record. Applies only to requests with a unique identifier.",
        source="NettyRemotingAbstract.writeResponse",
        needs=("request_received(request)", "answer_sent(connection)", "connection_closed(connection)"),
    ),
    Clause(
        "pull.wake.prompt",
        "A pull that was held, or has no answer, is answered within --wake-ms of the time at which the first message "
        "that it takes became visible, or of its receipt if that is later. From outside, a message is visible when it "
        "is acknowledged, or delivered to another pull. This includes a pull without an answer until its connection "
        "closes or until its source's last event. Answers 21 are exempt. The width of the intervals may make it "
        "unknown. From outside, a message that was certainly visible before the pull came makes a slow read "
        "(pull.unheld.prompt), and no wakeup. Unknown for a possible slave. Also unknown if a recheck of a pull that "
        "takes every message saw an end above its offset, and no other event shows that end.",
        NO_LOST_WAKEUP,
        "the specification's no_lost_wakeup; RocketMQ #7358",
        (_PULL, "answer_sent", "make_visible or message_acknowledged", "hold(request) inside"),
    ),
    _deadline(
        "pull.deadline.met",
        "A pull that may be held is answered no later than --late-ms after request.before_ns plus timeout_ms.",
        source=f"the specification's answered_by_deadline; {_HOLD_SERVICE}.notifyMessageArriving",
        needs=("request_received(may_hold, timeout_ms)", "answer_sent"),
    ),
    _deadline(
        "pull.answered",
        "A pull has an answer if the history continues, with its connection open, for longer than --late-ms after its "
        f"deadline. The deadline of a pull that may not be held is {UNHELD_MS} ms after its receipt.",
        source="the specification's answered_by_deadline",
        needs=(
            "request_received(may_hold, timeout_ms, connection)",
            "answer_sent",
            "connection_closed",
            "the source's end",
        ),
        whole_record=True,
    ),
    Clause(
        "pull.stop.answered",
        "A pull is answered if it came more than --late-ms before its source stops in order, and is then open on an "
        "open connection. Applies only if every policy of the history has on_stop=answer.",
        ANSWERED_ON_STOP,
        "the specification's on_stop",
        ("request_received", "answer_sent", "source_stopped", "policy"),
        whole_record=True,
    ),
    _held(
        "pull.unheld.prompt",
        f"A pull that may not be held is answered at most {UNHELD_MS} ms plus --late-ms after request.before_ns. So is "
        "a pull whose first read cannot be PULL_NOT_FOUND, the only result that is held. From outside, or without a "
        "hold, that is a pull that came when an end past its offset was certainly visible, and a pull that gets 21 "
        "for an offset past the end. From outside, a slow read of that kind is unknown from --wake-ms on. Unknown as "
        "in pull.none.next. From outside, except with strict or strict-clone, a 0 or 20 within "
        f"{COLD_MS} ms is unknown too, unless the message at the offset was certainly not visible {COLD_MS} ms before "
        "the request: 5.x may delay old messages (coldDataFlowControlEnable).",
        source="PullMessageProcessor.processRequest: no suspend bit, or another result than PULL_NOT_FOUND, no hold",
        needs=("request_received(may_hold)", "answer_sent"),
    ),
    _held(
        "pull.hold.not_early",
        "A pull that may be held does not get 19 more than --late-ms before its deadline (answer.before_ns + late < "
        "request.after_ns + timeout_ms) without a cause. (1) The pull is stopped: inside, the answer's cause is "
        f"stopped or a stop names the request, and its source's last event comes within {STOPPING_MS} ms after the "
        f"answer. Within {STOPPED_MS} ms it is unknown. For the answer's cause alone it is unknown at any time, unless "
        "every policy answers nothing when a role or a master changes. (2) A deletion of its topic (215) may lie in "
        f"between. (3) A close of its connection may come within {STOPPING_MS} ms after the answer, and no policy has "
        "on_stop=silent. That alone is unknown. It is a cause if the source's last event comes in that time too or, "
        "from outside, so do closes of all connections that may have been opened before the answer began. From "
        f"outside, a pull that may have been held for {SHORT_POLLING_MS} ms is at most unknown: the broker may hold "
        f"for less than requested. So is a pull whose source ends within {STOPPING_MS} ms, because the close may come "
        "later. Unknown as in pull.none.next. Inside, a pull with another answer or none does not expire that early "
        "either, whatever the cause.",
        source=f"PullMessageProcessor.processRequest, {_HOLD_SERVICE}: a suspended pull is run again for a message "
        "that its filter lets through, or at its deadline",
        needs=(
            "request_received(may_hold, timeout_ms)",
            "answer_sent(code, cause)",
            "stop",
            "connection_closed",
            "policy",
        ),
        whole_record=True,
    ),
    _inside(
        "pull.hold.allowed",
        "A pull that may not be held has no hold.",
        source="PullMessageProcessor.processRequest: hasSuspendFlag",
        needs=("request_received(may_hold, request)", "hold(request)"),
    ),
    _inside(
        "pull.hold.after_request",
        "A pull is not held before it was received: not hold.before_ns < request.after_ns.",
        source="cause and effect",
        needs=("request_received(request)", "hold(request)"),
    ),
    _inside(
        "pull.hold.once",
        "A pull is held once: a request has at most one hold event (putting it back is keep).",
        source="PullMessageProcessor.executeRequestWhenWakeup: brokerAllowSuspend is false",
        needs=("hold(request)",),
    ),
    _inside(
        "pull.hold.unanswered",
        "A pull is not held after its answer was sent: not answer.before_ns < hold.after_ns.",
        source="the specification's phases",
        needs=("hold(request)", "answer_sent(request)"),
    ),
    _whole(
        "pull.hold.at_end",
        "A held pull waits at the queue's end at most: the requested offset is at most the highest visible end "
        "possible at the earlier of hold.before_ns and answer.before_ns, or at request.after_ns if that is later.",
        source="DefaultMessageStore.getMessage: OFFSET_OVERFLOW_BADLY is 21 and not held",
        needs=("request_received(offset, request)", "hold(request)", "make_visible(visible_end)"),
    ),
    _inside(
        "pull.hold.read",
        "The visible_end that a hold saw is at least the end that was certainly visible before request.after_ns.",
        source="the specification's visible_is_monotone",
        needs=("request_received(request)", "hold(request, visible_end)", "make_visible(visible_end)"),
    ),
    _inside(
        "pull.step.allowed",
        "A pull that may not be held has no take, keep, expire, run or stop.",
        source="PullMessageProcessor.processRequest: hasSuspendFlag",
        needs=("request_received(may_hold, request)", _STEPS),
    ),
    _inside(
        "pull.step.after_request",
        "No take, keep, expire, run or stop of a pull comes before it was received: not step.before_ns < "
        "request.after_ns.",
        source="cause and effect",
        needs=("request_received(request)", _STEPS),
    ),
    _inside(
        "pull.step.unanswered",
        "No take, keep, expire, run or stop of a pull comes after its answer was sent: not answer.before_ns < "
        "step.after_ns. (A recheck may: the thread that held the pull checks again, even if another thread has "
        "answered it.)",
        source="the specification's phases",
        needs=("answer_sent(request)", _STEPS),
    ),
    _whole(
        "pull.step.held",
        "A take, keep, expire or run needs a hold of its pull that is not certainly later.",
        source="PullRequestHoldService: the table has what was put into it",
        needs=("hold(request)", "take, keep, expire or run(request)"),
    ),
    _whole(
        "pull.take.once",
        "At any time, a pull was taken at most as often as it was put into the table, by its hold and each keep, and "
        "kept at most as often as it was taken. It expires at most as often as it was put there, and is not taken "
        "after that unless it is kept. Without a recheck it runs at most as often as it was held, and is not kept "
        "after that.",
        source="ManyPullRequest.cloneListAndClear: what is taken is out of the table",
        needs=("hold(request)", "take, expire or run(request)", "keep(request)"),
    ),
    Clause(
        "hold.limit.kept",
        "At most hold_limit pulls of the source (in meta.json) are certainly held at once. A pull is certainly held "
        "from the end of its hold or keep, and of its receipt, to the beginning of what may be the next of these: a "
        "take, expire, run, stop or answer; a close of its connection; a recheck after a keep, or one without the "
        "visible end that the hold has; the source's last event.",
        HOLD_LIMIT_KEPT,
        "the specification's hold_limit_kept",
        ("hold(request)", "keep", "take", "expire", "run", "stop", "answer_sent", "hold_limit"),
        seen="inside",
        whole_record=True,
    ),
)


_SENT: Final = "request_received(code, ids)"
_GOT: Final = "answer_sent(offsets, ids)"
_TOLD: Final = "message_acknowledged(queue_offset, ids)"
_POLLS: Final = ("request_received(code, group, offset)", "answer_sent(offset_next)")


def _message(
    name: str, says: str, source: str, *needs: str, verdict: FindingVerdict = "violated", whole: bool = False
) -> Clause:
    return Clause(f"message.{name}", says, MESSAGE_IS_DELIVERED, source, needs, whole_record=whole, verdict=verdict)


MESSAGE_CLAUSES: Final = (
    _message(
        "one_value",
        "All acknowledgements and deliveries of one queue offset have one unique id and one body, as far as they "
        "record them. This holds over an orderly stop and start. From outside, the broker may have been killed and "
        "have lost the first message. It is then unknown if all connections were closed in between, and the first "
        "message was not old enough to be on disk. Without opened connections in the record, it is unknown unless the "
        "connection of the first was open until the second. Without an acknowledgement of its offset, a delivery has "
        "the body of a send of its id that came before, if it has sends that were not refused, and also the queue if "
        "no acknowledgement has its id. A message from the retry topic has the body. This is unknown as in "
        "message.stored.once.",
        "CommitLog.putMessage",
        _TOLD,
        "answer_sent(offsets, ids, bodies)",
    ),
    _message(
        "stored.once",
        "A message that is sent once, and committed at most once, is at one offset of one queue of its topic. From "
        "outside it is unknown: the producer may have sent it again past the observer. It is also unknown in two "
        "brokers, and without an append at both places: one may be from before the record.",
        "SendMessageProcessor: one append a request",
        _SENT,
        _TOLD,
        _GOT,
        whole=True,
    ),
    _message(
        "stored.again",
        "The same for a message that is sent, or committed, more than once: the broker stores each send.",
        "DefaultMQProducerImpl: a retry keeps the unique id",
        _SENT,
        _TOLD,
        _GOT,
        verdict="observed",
    ),
    _message(
        "committed",
        "A message whose sends are all prepared, or refused (not with 1 or 14), is delivered only after a possible "
        "commit (37): commit.after_ns <= answer.before_ns. From outside, or without its append, it is unknown unless a "
        "rollback of a single send came before: another send or commit may be missing from the record.",
        "TransactionalMessageServiceImpl, EndTransactionProcessor",
        "request_received(code, ids, transaction)",
        _GOT,
        whole=True,
    ),
    _message(
        "early",
        f"A delayed message is not delivered more than {EARLY_MS} ms before the earliest of its sends' "
        "request.after_ns plus delay. Unknown for a delay level: the broker's configuration defines the levels.",
        "ScheduleMessageService, TimerMessageStore (timerPrecisionMs)",
        "request_received(code, ids, delay_ms or delay_level)",
        _GOT,
    ),
    _message(
        "late",
        f"A delayed message is not first delivered more than {LATE_MS} ms after it was due, to a pull that waited "
        "since before.",
        "ScheduleMessageService, TimerMessageStore",
        "request_received(code, ids, delay_ms or delay_level)",
        _GOT,
        verdict="observed",
    ),
    _message(
        "overdue",
        f"No pull that comes more than {LATE_MS} ms after a message was due gets an offset_max at or below its offset. "
        "Due is a message that was delayed, and one that was stored (0, 10, 11, 12) without a place: after its delay, "
        "its answer and its commit. It is unknown: the broker may have been busy.",
        "ScheduleMessageService, TimerMessageStore, EndTransactionProcessor",
        _SENT,
        _GOT,
    ),
    _message(
        "lost",
        "A message that its broker stored (0, 10, 11, 12) without a place is acknowledged or delivered by its unique "
        "id. A prepared one needs a commit first. The finding is unknown. Each offset between two ends has another "
        "message then. They are the greatest end before the send, and the greatest in an answer to a pull more than "
        f"{LATE_MS} ms after it was due.",
        "SendMessageProcessor, ScheduleMessageService, EndTransactionProcessor",
        "request_received(code, ids)",
        "answer_sent(code, request)",
        _GOT,
    ),
    _message(
        "skipped",
        "No member of a group asks past the greatest offset_next that any member may have received by then.",
        "DefaultMQPushConsumerImpl.pullMessage",
        *_POLLS,
        verdict="observed",
    ),
    _message(
        "read_back",
        "No member of a group asks for less than the offset_next of its last answer. After a rebalance, a restart or "
        "a reset it may.",
        "DefaultMQPushConsumerImpl.pullMessage, RebalancePushImpl.computePullFromWhere",
        *_POLLS,
        verdict="observed",
    ),
    _message(
        "unseen",
        "Every acknowledged message of a queue that a group reads lies before some answer's offset_next.",
        "the end of the record",
        "message_acknowledged(queue_offset)",
        "answer_sent(offset_next)",
        verdict="observed",
    ),
)
