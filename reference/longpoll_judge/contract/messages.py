"""The contract's lines about what becomes of each message, by who it is. How they are judged: `rules.messages`."""

from __future__ import annotations

from typing import Final

from longpoll_judge.contract.clause import EARLY_MS, LATE_MS, Clause
from longpoll_judge.contract.result import MESSAGE_IS_DELIVERED, FindingVerdict

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
        "Outside it is unknown: its producer may have sent it again past the observer.",
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
        "A message all of whose sends are prepared is delivered only if a commit of it (37) may have come before: "
        "commit.after_ns <= answer.before_ns. Outside it is unknown where no rollback of it came before either, since "
        "another commit may have passed the observer.",
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
