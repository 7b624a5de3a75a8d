"""The contract's clauses about pulls and about the delivery of each message. All other clauses: `clauses`."""

from __future__ import annotations

from typing import Final

from longpoll_judge.contract.clause import (
    EARLY_MS,
    LATE_MS,
    RETENTION_MS,
    SHORT_POLLING_MS,
    STOPPED_MS,
    STOPPING_MS,
    UNHELD_MS,
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

PULL_CLAUSES: Final = (
    Clause(
        "pull.code.known",
        ANSWER_IS_RIGHT,
        "An answer to a pull has one of the codes 0, 19, 20, 21 or of the refusals 1, 2, 3, 16, 17, 23 to 29, 215, "
        "501, 1500.",
        "ResponseCode, RemotingSysResponseCode; PullMessageProcessor.processRequest",
        ("request_received(code)", "answer_sent(code)"),
    ),
    Clause(
        "pull.error.explained",
        ANSWER_IS_RIGHT,
        "SYSTEM_ERROR (1) answers only what cannot be served: a queue of which this history shows no message, a "
        "subscription that is no tag expression, a negative count. Any other is a failure of the broker's own, which "
        "no history can excuse or prove.",
        "PullMessageProcessor.processRequest: 1 for a queue out of range, an expression that is not enabled, a store "
        "that gives nothing",
        ("request_received(count_max, expression_type)", "answer_sent(code)", "append or message_acknowledged"),
        verdict="unknown",
    ),
    Clause(
        "answer.after_request",
        ANSWER_IS_RIGHT,
        "An answer is not sent before its request was received: not answer.before_ns < request.after_ns.",
        "cause and effect",
        ("request_received(request)", "answer_sent(request)"),
    ),
    Clause(
        "pull.found.some",
        ANSWER_IS_RIGHT,
        "FOUND (0) carries at least one message.",
        _LOOK,
        (_PULL, _RESULT),
    ),
    Clause(
        "pull.none.empty",
        ANSWER_IS_RIGHT,
        "19, 20 and 21 carry no message.",
        _LOOK,
        (_PULL, _RESULT),
    ),
    Clause(
        "pull.found.ordered",
        ANSWER_IS_RIGHT,
        "The offsets of the messages in one answer ascend, each once.",
        _LOOK,
        (_PULL, _RESULT),
    ),
    Clause(
        "pull.found.from_asked",
        ANSWER_IS_RIGHT,
        "No message in an answer lies before the offset that was asked for.",
        _LOOK,
        (_PULL, _RESULT),
    ),
    Clause(
        "pull.found.at_most",
        ANSWER_IS_RIGHT,
        "An answer carries at most count_max messages, and one at least where count_max is 0.",
        "DefaultMessageStore.isTheBatchFull",
        ("request_received(count_max)", _RESULT),
    ),
    Clause(
        "pull.found.visible",
        ANSWER_IS_RIGHT,
        "Every message in an answer may have been visible before the answer: inside, not answer.before_ns < the "
        "after_ns of every make_visible with visible_end > offset, for offsets from the first that the history shows.",
        _LOOK,
        (_RESULT, "make_visible(visible_end)"),
        seen="inside",
        whole_record=True,
    ),
    Clause(
        "pull.found.appended",
        ANSWER_IS_RIGHT,
        "Every message in an answer was appended: inside, each offset from the first that the history shows has an "
        "append or a message_acknowledged.",
        _LOOK,
        (_RESULT, "append(queue_offset)"),
        seen="inside",
        whole_record=True,
    ),
    Clause(
        "pull.found.tag",
        ANSWER_IS_RIGHT,
        "Every message in an answer matches the subscription, by the hash of its tag.",
        "ExpressionMessageFilter.isMatchedByConsumeQueue",
        ("request_received(expression_type, expression)", _RESULT, "append or message_acknowledged(queue_offset, tag)"),
    ),
    Clause(
        "pull.found.next",
        ANSWER_IS_RIGHT,
        "offset_next of a FOUND is greater than the last message's offset; and is that offset plus 1 where the "
        "subscription takes everything or the answer carries max(count_max, 1) messages.",
        _LOOK,
        (_PULL, _RESULT),
    ),
    Clause(
        "pull.found.complete",
        ANSWER_IS_RIGHT,
        "A FOUND carries as many messages as the history shows to match in [asked, offset_next). Retention may have "
        "removed those before the first that it carries, unless every policy is strict or strict-clone: unknown, and "
        "excused where any answer tells an offset_min above them, since retention corrects the minimum last.",
        _LOOK,
        (_PULL, _RESULT, "append or message_acknowledged(queue_offset, tag)"),
    ),
    Clause(
        "pull.none.true",
        ANSWER_IS_RIGHT,
        "19 needs a moment between receipt and answer at which nothing that the pull takes was visible: not "
        "certainly visible before request.after_ns (from outside: acknowledged --wake-ms before it). What is "
        "told to stop, as for pull.hold.not_early, is excused.",
        _LOOK,
        (_PULL, _RESULT, "make_visible or message_acknowledged", "append(tag)"),
    ),
    Clause(
        "pull.none.next",
        ANSWER_IS_RIGHT,
        "offset_next of a 19 is the offset that was asked for.",
        "DefaultMessageStore.nextOffsetCorrection",
        (_PULL, _RESULT),
    ),
    Clause(
        "pull.passed.next",
        ANSWER_IS_RIGHT,
        "offset_next of a 20 is greater than the offset that was asked for.",
        "DefaultMessageStore.getMessage: NO_MATCHED_MESSAGE, MESSAGE_WAS_REMOVING",
        (_PULL, _RESULT),
    ),
    Clause(
        "pull.passed.none_match",
        ANSWER_IS_RIGHT,
        "No message that the history shows in [asked, offset_next) of a 20 matches the subscription. Retention may "
        "have removed it, as for pull.found.complete (MESSAGE_WAS_REMOVING is 20 too).",
        _LOOK,
        (_PULL, _RESULT, "append or message_acknowledged(queue_offset, tag)"),
    ),
    Clause(
        "pull.illegal.outside",
        ANSWER_IS_RIGHT,
        "21 needs an offset outside of the answer's own [offset_min, offset_max]: at 0 of an empty queue 19 is said.",
        "DefaultMessageStore.getMessage: OFFSET_TOO_SMALL, OFFSET_OVERFLOW_BADLY; PullMessageProcessor.processRequest: "
        "NO_MESSAGE_IN_QUEUE and NO_MATCHED_LOGIC_QUEUE are 21 only if the offset is not 0",
        (_PULL, _RESULT),
    ),
    Clause(
        "pull.illegal.next",
        ANSWER_IS_RIGHT,
        "offset_next of a 21 is offset_min where the offset was too low, and offset_max where it was too high (or "
        "offset_min, where that is 0).",
        "DefaultMessageStore.nextOffsetCorrection",
        (_PULL, _RESULT),
    ),
    Clause(
        "pull.max.least",
        ANSWER_IS_RIGHT,
        "offset_max is no less than the end that was certainly visible before request.after_ns (from outside: "
        "acknowledged --wake-ms before it).",
        _LOOK,
        (_RESULT, "make_visible or message_acknowledged"),
    ),
    Clause(
        "pull.max.most",
        ANSWER_IS_RIGHT,
        "offset_max is no more than the highest visible end possible at answer.before_ns.",
        _LOOK,
        (_RESULT, "make_visible(visible_end)"),
        seen="inside",
        whole_record=True,
    ),
    Clause(
        "pull.min.below_max",
        ANSWER_IS_RIGHT,
        "offset_min is not negative, and no more than offset_max.",
        _LOOK,
        (_RESULT,),
    ),
    Clause(
        "pull.next.visible",
        ANSWER_IS_RIGHT,
        "offset_next of a FOUND or a 20 is no more than the highest visible end possible at answer.before_ns.",
        _LOOK,
        (_RESULT, "make_visible(visible_end)"),
        seen="inside",
        whole_record=True,
    ),
    Clause(
        "pull.found.above_min",
        ANSWER_IS_RIGHT,
        "No message in an answer lies below the answer's own offset_min.",
        _LOOK,
        (_PULL, _RESULT),
    ),
    Clause(
        "pull.found.within",
        ANSWER_IS_RIGHT,
        "0 and 20 need an offset within the answer's own bounds: offset_min <= asked < offset_max.",
        "DefaultMessageStore.getMessage: OFFSET_TOO_SMALL, OFFSET_OVERFLOW_ONE and OFFSET_OVERFLOW_BADLY come first",
        (_PULL, _RESULT),
    ),
    Clause(
        "pull.next.within",
        ANSWER_IS_RIGHT,
        "offset_next of a FOUND or a 20 is no more than the answer's own offset_max. Asked where every policy of the "
        "history is strict or strict-clone, with whatever knobs: RocketMQ reads maxOffset first and may find more.",
        "longpoll's own store; unlike DefaultMessageStore.getMessage, which reads the end twice",
        (_RESULT, "policy"),
    ),
    Clause(
        "pull.none.at_end",
        ANSWER_IS_RIGHT,
        "19 is said at the end only: the answer's offset_max is the offset that was asked for. An answer of a broker "
        "that stops is excused: it is told to stop, or its connection closes, as it may for "
        "pull.hold.not_early; it is unknown where it is so there, and where that may lie in a hole or, from outside, "
        "after the end of the record or at any time after by a clock that may be set.",
        "DefaultMessageStore.getMessage: OFFSET_OVERFLOW_ONE, or NO_MESSAGE_IN_QUEUE at 0",
        (_PULL, _RESULT),
    ),
    Clause(
        "pull.min.never_falls",
        ANSWER_IS_RIGHT,
        "Of two answers about one queue in one life of its broker, the later one certainly read after the earlier was "
        "sent (earlier.before_ns < later's request.after_ns), the later one's offset_min is not lower. A connection "
        "does not outlive its broker: answers on one connection are of one life, and so are those on two that "
        "certainly overlap, by when they were opened and answered, or on several that link them; of two sources too, "
        "if the broker is named. A deletion of the topic (215) or a hole of the record that may lie in between "
        "excuses. Asked of pulls whose identifier came once, with whatever requests.",
        "DefaultMessageStore.getMinOffsetInQueue: retention only removes",
        (_PULL, _RESULT),
    ),
    Clause(
        "pull.max.never_falls",
        ANSWER_IS_RIGHT,
        "The same of offset_max, which is also past every message that the earlier answer delivers or passes over: a "
        "queue's visible end does not move back. Unknown where the two may be of two lives of the broker, and where an "
        "acknowledgement of another life shows the higher end. Asked of queues that are seen from outside; inside "
        "pull.max.least says more.",
        "the law's visible_is_monotone",
        (_PULL, _RESULT),
        seen="outside",
    ),
    Clause(
        "pull.min.kept",
        ANSWER_IS_RIGHT,
        f"No message is gone, below an answer's offset_min, less than {RETENTION_MS} ms after its acknowledgement. A "
        "full disk removes messages earlier, and no history tells of that. Not asked where every policy is strict or "
        "strict-clone.",
        "CleanCommitLogService: fileReservedTime is in hours, diskMaxUsedSpaceRatio",
        (_PULL, _RESULT, "message_acknowledged(queue_offset)"),
        seen="outside",
        verdict="unknown",
    ),
    Clause(
        "pull.filter.agrees",
        ANSWER_IS_RIGHT,
        "A message that one pull was given is not passed over by a 0 or 20 to another pull whose subscription takes at "
        "least as much (the same text, `*`, or all of its tags). Retention may have removed it in between: a pull that "
        "was read later, with nothing delivered before that message, is excused where any answer tells an offset_min "
        "above it, and else unknown unless it passes over all up to its offset_max. A deletion of the topic (215) or "
        "a hole of the record excuses too. Asked of queues that are seen from outside, and of pulls whose identifier "
        "came once.",
        "ExpressionMessageFilter: what it lets through hangs on the message and the subscription alone",
        ("request_received(expression_type, expression, offset)", _RESULT),
        seen="outside",
    ),
    Clause(
        "answer.once",
        ANSWERED_ONCE,
        "No request has two answers, unless its identifier came more than once, with whatever requests. Unknown where "
        "its receipt is not in the record: the identifier may be that of several.",
        "the law's answered_at_most_once",
        ("request_received(request)", "answer_sent(request)"),
    ),
    Clause(
        "answer.same_connection",
        ANSWERED_ONCE,
        "An answer uses its request's connection, if both name one and no other request has the identifier.",
        "NettyRemotingAbstract.writeResponse: on the request's channel",
        ("request_received(request, connection)", "answer_sent(request, connection)"),
    ),
    Clause(
        "answer.open_connection",
        ANSWERED_ONCE,
        "No answer is sent on a connection that was closed before: not close.before_ns < answer.after_ns, of the first "
        "close of this connection in this source that is not before its request (of the last one where that is not "
        "there), unless its identifier came more than once, with whatever requests.",
        "NettyRemotingAbstract.writeResponse",
        ("request_received(request)", "answer_sent(connection)", "connection_closed(connection)"),
    ),
    Clause(
        "pull.wake.prompt",
        NO_LOST_WAKEUP,
        "A pull that was held, or has no answer, is answered within --wake-ms of the moment at which the first message "
        "that it takes became visible (from outside: was acknowledged), or of its receipt if that is later; also where "
        "none comes until its connection closes or its source's last event. Answers 21 are excused. It may be unknown "
        "by the width of the intervals. From outside a pull is not held, and its answer no wake, whose message was "
        "certainly visible before it came: that is a slow read (pull.unheld.prompt).",
        "the law's no_lost_wakeup; RocketMQ #7358",
        (_PULL, "answer_sent", "make_visible or message_acknowledged", "hold(request) inside"),
    ),
    Clause(
        "pull.deadline.met",
        ANSWERED_BY_DEADLINE,
        "A pull that may be held is answered no later than --late-ms after request.before_ns plus timeout_ms.",
        f"the law's answered_by_deadline; {_HOLD_SERVICE}.notifyMessageArriving",
        ("request_received(may_hold, timeout_ms)", "answer_sent"),
    ),
    Clause(
        "pull.answered",
        ANSWERED_BY_DEADLINE,
        "A pull has an answer, if the history goes on for longer than --late-ms after its deadline with its connection "
        f"open; the deadline of one that may not be held is {UNHELD_MS} ms after its receipt.",
        "the law's answered_by_deadline",
        ("request_received(may_hold, timeout_ms, connection)", "answer_sent", "connection_closed", "the source's end"),
        whole_record=True,
    ),
    Clause(
        "pull.stop.answered",
        ANSWERED_ON_STOP,
        "A pull that is open on an open connection when its source stops in order, and came more than --late-ms "
        "before, is answered, where every policy of the history has on_stop=answer.",
        "the law's on_stop",
        ("request_received", "answer_sent", "source_stopped", "policy"),
        whole_record=True,
    ),
    Clause(
        "pull.unheld.prompt",
        HELD_AS_ASKED,
        f"A pull that may not be held is answered no later than {UNHELD_MS} ms plus --late-ms after request.before_ns. "
        "So is one whose first read cannot be PULL_NOT_FOUND, the only result that is held: from outside, or without a "
        "hold, one that came when something past its offset was certainly visible, and one that is answered 21 for an "
        "offset past the end. From outside a slow read of that kind is unknown from --wake-ms on.",
        "PullMessageProcessor.processRequest: no suspend bit, or another result than PULL_NOT_FOUND, no hold",
        ("request_received(may_hold)", "answer_sent"),
    ),
    Clause(
        "pull.hold.not_early",
        HELD_AS_ASKED,
        "A pull that may be held is not told 19 more than --late-ms before its deadline "
        "(answer.before_ns + late < request.after_ns + timeout_ms) without a cause. Causes: it is told to stop, "
        "inside, where the answer's cause is stopped or a stop names the request, and its source's last event comes "
        f"within {STOPPING_MS} ms after the answer (within {STOPPED_MS} ms: unknown; and so at any time for the cause "
        "alone, unless every policy answers nothing when a role or a master changes); a deletion of its topic "
        "(215) that may lie in between; a close of its connection that may"
        f" come within {STOPPING_MS} ms after the answer, if the source's last event does too or, from outside, closes "
        "of all connections that may have been opened before the answer began, and the policy is not one with "
        "on_stop=silent (else unknown). "
        f"From outside one that may have been held for {SHORT_POLLING_MS} ms is unknown at most: the broker may hold "
        "for less than it is asked; and so is one whose source ends within that time, since the close may come later. "
        "Inside, a pull with another answer or none does not expire that early either, whatever the cause.",
        f"PullMessageProcessor.processRequest, {_HOLD_SERVICE}: a suspended pull is run again for a message that its "
        "filter lets through, or at its deadline",
        ("request_received(may_hold, timeout_ms)", "answer_sent(code, cause)", "stop", "connection_closed", "policy"),
        whole_record=True,
    ),
    Clause(
        "pull.hold.allowed",
        HELD_AS_ASKED,
        "A pull that may not be held is not held: it has no hold.",
        "PullMessageProcessor.processRequest: hasSuspendFlag",
        ("request_received(may_hold, request)", "hold(request)"),
        seen="inside",
    ),
    Clause(
        "pull.hold.after_request",
        HELD_AS_ASKED,
        "A pull is not held before it was received: not hold.before_ns < request.after_ns.",
        "cause and effect",
        ("request_received(request)", "hold(request)"),
        seen="inside",
    ),
    Clause(
        "pull.hold.once",
        HELD_AS_ASKED,
        "A pull is held once: one request has no two hold events (putting it back is keep).",
        "PullMessageProcessor.executeRequestWhenWakeup: brokerAllowSuspend is false",
        ("hold(request)",),
        seen="inside",
    ),
    Clause(
        "pull.hold.unanswered",
        HELD_AS_ASKED,
        "A pull is not held after its answer was sent: not answer.before_ns < hold.after_ns.",
        "the law's phases",
        ("hold(request)", "answer_sent(request)"),
        seen="inside",
    ),
    Clause(
        "pull.hold.at_end",
        HELD_AS_ASKED,
        "What is held waits at the queue's end at most: the offset that was asked for is no more than the highest "
        "visible end possible at the earlier of hold.before_ns and answer.before_ns, or at request.after_ns if that is "
        "later.",
        "DefaultMessageStore.getMessage: OFFSET_OVERFLOW_BADLY is 21 and not held",
        ("request_received(offset, request)", "hold(request)", "make_visible(visible_end)"),
        seen="inside",
        whole_record=True,
    ),
    Clause(
        "pull.step.allowed",
        HELD_AS_ASKED,
        "Nothing is done with a pull that may not be held as with one that is: it has no take, keep, expire, run or "
        "stop.",
        "PullMessageProcessor.processRequest: hasSuspendFlag",
        ("request_received(may_hold, request)", _STEPS),
        seen="inside",
    ),
    Clause(
        "pull.step.after_request",
        HELD_AS_ASKED,
        "No take, keep, expire, run or stop of a pull comes before it was received: not step.before_ns < "
        "request.after_ns.",
        "cause and effect",
        ("request_received(request)", _STEPS),
        seen="inside",
    ),
    Clause(
        "pull.step.unanswered",
        HELD_AS_ASKED,
        "No take, keep, expire, run or stop of a pull comes after its answer was sent: not answer.before_ns < "
        "step.after_ns. (A recheck may: who held it looks once more, whoever has answered it.)",
        "the law's phases",
        ("answer_sent(request)", _STEPS),
        seen="inside",
    ),
    Clause(
        "pull.step.held",
        HELD_AS_ASKED,
        "A take, keep, expire or run needs a hold of its pull that is not certainly later.",
        "PullRequestHoldService: the table has what was put into it",
        ("hold(request)", "take, keep, expire or run(request)"),
        seen="inside",
        whole_record=True,
    ),
    Clause(
        "pull.take.once",
        HELD_AS_ASKED,
        "By any moment a pull is taken no more often than it was put into the table, by its hold and each keep; and "
        "kept no more often than it was taken. It expires no more often than it was put there, and is not taken after "
        "that unless it is kept. Without a recheck it runs no more often than it was held, and is not kept after that.",
        "ManyPullRequest.cloneListAndClear: what is taken is out of the table",
        ("hold(request)", "take, expire or run(request)", "keep(request)"),
        seen="inside",
        whole_record=True,
    ),
    Clause(
        "hold.limit.kept",
        HOLD_LIMIT_KEPT,
        "No more pulls are certainly held at once than the source's hold_limit in meta.json: from the end of their "
        "hold or keep, and of their receipt, to the beginning of what may be the next of these: a take, expire, run, "
        "stop or answer, a close of their connection, a recheck after a keep or one that does not tell the visible end "
        "that their hold tells, the source's last event.",
        "the law's hold_limit_kept",
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
    return Clause(f"message.{name}", MESSAGE_IS_DELIVERED, says, source, needs, whole_record=whole, verdict=verdict)


MESSAGE_CLAUSES: Final = (
    _message(
        "one_value",
        "All acknowledgements and deliveries of one queue offset tell one unique id and one body, as far as they tell "
        "them. From outside a broker may have been killed and have lost the first message: unknown, unless both came "
        "on one connection, or that of the first was not closed before the second.",
        "CommitLog.putMessage",
        _TOLD,
        "answer_sent(offsets, ids, bodies)",
    ),
    _message(
        "stored.once",
        "A message that is sent once, and committed once at most, lies at one offset of one queue of its topic. "
        "Outside it is unknown: its producer may have sent it again past the observer. Without an append at "
        "both places it is unknown too: one may be from before the record.",
        "SendMessageProcessor: one append a request",
        _SENT,
        _TOLD,
        _GOT,
        whole=True,
    ),
    _message(
        "stored.again",
        "The same of a message that is sent, or committed, more than once: each send is stored.",
        "DefaultMQProducerImpl: a retry keeps the unique id",
        _SENT,
        _TOLD,
        _GOT,
        verdict="observed",
    ),
    _message(
        "committed",
        "A message whose sends are all prepared, or refused (not with 1 or 14), is delivered only after a possible "
        "commit (37): commit.after_ns <= answer.before_ns. Outside, or without its append, it is unknown where "
        "no rollback came before: another send or commit may be missing from the record.",
        "TransactionalMessageServiceImpl, EndTransactionProcessor",
        "request_received(code, ids, transaction)",
        _GOT,
        whole=True,
    ),
    _message(
        "early",
        f"A delayed message is not delivered more than {EARLY_MS} ms before the earliest of its sends' "
        "request.after_ns plus delay. Unknown of a delay that is a level: what levels mean is the broker's to set.",
        "ScheduleMessageService, TimerMessageStore (timerPrecisionMs)",
        "request_received(code, ids, delay_ms or delay_level)",
        _GOT,
    ),
    _message(
        "late",
        f"A delayed message is not first delivered more than {LATE_MS} ms after it was due, to a pull that "
        "waited since before.",
        "ScheduleMessageService, TimerMessageStore",
        "request_received(code, ids, delay_ms or delay_level)",
        _GOT,
        verdict="observed",
    ),
    _message(
        "skipped",
        "No member of a group asks past the greatest offset_next that any member may have been told by then.",
        "DefaultMQPushConsumerImpl.pullMessage",
        *_POLLS,
        verdict="observed",
    ),
    _message(
        "read_back",
        "No member of a group asks for less than the offset_next of its last answer: after a rebalance, a restart or a "
        "reset it may.",
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
