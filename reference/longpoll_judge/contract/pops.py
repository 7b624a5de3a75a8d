"""The clauses about pops, RocketMQ 5's requests for messages, and about popped messages. Judged by `kernel.pops`."""

from __future__ import annotations

from functools import partial
from typing import Final

from longpoll_judge.contract.clause import UNHELD_MS, Clause
from longpoll_judge.contract.result import POP_IS_KEPT

POP, NOTIFICATION, ACKNOWLEDGE, CHANGE = 200_050, 200_054, 200_051, 200_053
POP_CODES: Final = (POP, NOTIFICATION, ACKNOWLEDGE, CHANGE)
"""POP_MESSAGE, NOTIFICATION, ACK_MESSAGE and CHANGE_MESSAGE_INVISIBLETIME."""
POP_ANSWERS: Final = (0, 1, 2, 3, 13, 16, 17, 23, 24, 25, 26, 27, 28, 29, 208, 209, 210, 215, 501, 1500)
"""Codes of answers to requests about pops (`POP_CODES`)."""
RETRIED: Final = "retry"
"""The cause of a `message_popped` event whose message comes from the retry topic."""
POP_READS: Final = (0, 209, 210)
"""Codes of answers that a broker gives after a pop's read: messages (0), too many waiting requests (209), or no message
in time (210)."""
POLLING_TIMEOUT: Final = 210
POP_EARLY_MS: Final = 60
"""How much too early a held pop may be answered without messages: 50 ms (`PopRequest.isTimeout`) plus two roundings."""
ACK_MS: Final = 1_000
"""An acknowledgement in the last second (1000 ms) of the invisible time may be too late
(`PopAckConstants.ackTimeInterval`)."""
AGAIN_MS: Final = 30_000
"""The time limit in ms from the end of a message's invisible time until the message is in the retry topic: RocketMQ's
revive service scans every second, and waits for three seconds without new messages (`PopReviveService`)."""
AGAIN_MOST: Final = 16
"""After this many deliveries, a message may be in the dead-letter topic instead of the retry topic."""

_POPPED: Final = "message_popped(request, queue_offset, ids)"
_ASKED: Final = "request_received(code, request)"
_ANSWERED: Final = "answer_sent(code, request)"
_pop: Final = partial(Clause, property=POP_IS_KEPT, needs=(_ASKED, _ANSWERED), source="PopMessageProcessor")
_message: Final = partial(Clause, property=POP_IS_KEPT, needs=(_ASKED, _ANSWERED, _POPPED))

POP_CLAUSES: Final = (
    _pop(
        "pop.code.known",
        "An answer to a pop, a notification, an acknowledgement or a change (200050, 200054, 200051, 200053) has "
        f"one of the codes {', '.join(map(str, POP_ANSWERS))}.",
        source="PopMessageProcessor, NotificationProcessor, AckMessageProcessor, ChangeInvisibleTimeProcessor",
    ),
    _message(
        "pop.found.some",
        "A pop that is answered 0 gets a message.",
        source="PopMessageProcessor.processRequest",
        whole_record=True,
    ),
    _message(
        "pop.found.at_most",
        "A pop gets at most `count_max` messages.",
        source="PopMessageProcessor.popMsgFromQueue",
    ),
    _message(
        "pop.found.once",
        "A pop with one answer gets no message twice: no place outside the retry topic.",
        source="PopMessageProcessor.popMsgFromQueue",
        whole_record=True,
    ),
    _message(
        "pop.found.asked",
        "Each message has the topic of its pop. If the pop names a queue, a message that is not from the retry "
        "topic is of that queue.",
        source="PopMessageProcessor.popMsgFromTopic",
    ),
    _message(
        "pop.found.tag",
        "Each message that is not from the retry topic matches the pop's subscription, if tags decide.",
        source="ExpressionMessageFilter",
    ),
    _message(
        "pop.wake.prompt",
        "No pop or notification with `may_hold` waits for longer than --wake-ms while a message is there that it "
        "could take. It waits from its receipt to its answer. The message is there from its acknowledgement to its "
        "first delivery to the group. The history must show this delivery, with the message's id and not from the "
        f"retry topic. If the acknowledgement was more than --wake-ms before the request came, {UNHELD_MS} ms are "
        "allowed. Each request and each message is reported at most once.",
        source="PopLongPollingService.notifyMessageArriving",
        whole_record=True,
    ),
    _pop(
        "pop.deadline.met",
        "A pop or notification with `may_hold` is answered at most --late-ms after receipt plus `timeout_ms`.",
        source="PopLongPollingService.run",
    ),
    _pop(
        "pop.answered",
        "Each pop, notification, acknowledgement or change is answered, unless the history does not continue with "
        f"its connection open for more than --late-ms after receipt plus `timeout_ms`, or plus {UNHELD_MS} ms if it "
        "may not be held. Applies to a pop or notification only if `may_hold` is recorded.",
        source="PopLongPollingService.run",
        whole_record=True,
    ),
    _pop(
        "pop.hold.not_early",
        f"A pop with `may_hold` is not answered 210, and a notification not with `expired`, more than {POP_EARLY_MS} "
        "ms before receipt plus `timeout_ms`. Unknown if the connection was closed within 5 s after it, because the "
        "broker may have stopped.",
        source="PopRequest.isTimeout",
    ),
    _message(
        "pop.invisible.kept",
        "A message is not delivered to a group again before the end of its invisible time: not answer.before_ns < "
        "start + `delay_ms` of its last delivery. The start is that pop's received.after_ns or, if this is later, "
        "the send's; for a copy that comes again, also the end of the delivery before it. If there is one change "
        "(200053), it was answered 0, and that was before this end, then its own received.after_ns + `delay_ms` is the "
        "end. Any other change counts only if its end is earlier. Unknown if the broker may have been restarted, or "
        "topics or offsets changed, in between.",
        source="PopReviveService, PopCheckPoint.getReviveTime",
        whole_record=True,
    ),
    _message(
        "pop.acknowledged.final",
        f"A message whose acknowledgement (200051) was answered 0 more than {ACK_MS} ms before the end of its "
        "invisible time is not delivered to the group after that. Does not apply to a delivery with a change. "
        "Unknown as above.",
        source="AckMessageProcessor, PopReviveService",
        whole_record=True,
    ),
    _message(
        "pop.delivered.again",
        "A message without an acknowledgement is delivered again: no pop of its group and topic with the "
        f"subscription `*` is answered 210 more than {AGAIN_MS} ms and --wake-ms after the last end of its invisible "
        f"time, if the history does not show it again. Does not apply after {AGAIN_MOST} deliveries. It is unknown, "
        "because a client that bypasses the observer may have taken the message.",
        source="PopReviveService.reviveRetry",
        verdict="unknown",
    ),
)
