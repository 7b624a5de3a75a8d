"""The judge's contract as data: what a correct broker may do on the pull path, clause by clause.

Every finding and every gap names its clause by id. `docs/contract.md` prints these clauses and their definitions, and a
test injects a fault for each clause. The clauses are judged by `answers`, `promptness`, `holding`, `order`, `ends`,
`sends`, `commits`, `conformance` and `survey`. The clauses about pulls are in `pulls`, and those about pops in `pops`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from attrs import evolve

from longpoll_judge.contract.clause import RETRY_MS, SEND_ANSWERS, SEND_MS, SHOWN_MS, UNHELD_MS, Clause
from longpoll_judge.contract.pops import POP_CLAUSES
from longpoll_judge.contract.pulls import MESSAGE_CLAUSES, PULL_CLAUSES
from longpoll_judge.contract.result import (
    COMMIT_IS_TOLD,
    COMMIT_NEVER_REGRESSES,
    EVIDENCE,
    FOLLOWS_THE_LAW,
    OFFSETS_IN_ORDER,
    SEND_IS_KEPT,
    VISIBLE_IS_MONOTONE,
    Finding,
    FindingVerdict,
)

_log: Final = partial(
    Clause,
    property=OFFSETS_IN_ORDER,
    source="ConsumeQueue.putMessagePositionInfo",
    needs=("append(queue_offset)",),
    seen="inside",
)
_visible: Final = partial(Clause, property=VISIBLE_IS_MONOTONE, seen="inside")
_send: Final = partial(Clause, property=SEND_IS_KEPT)
_inside: Final = partial(Clause, property=SEND_IS_KEPT, seen="inside")
_told: Final = partial(
    Clause, property=COMMIT_IS_TOLD, source="ConsumerOffsetManager.queryOffset: what was committed last"
)

LOG_CLAUSES: Final = (
    _log("log.append.once", "No two messages are appended with one queue offset."),
    _log("log.append.ordered", "No message is appended with an offset below one that was certainly appended before."),
    _log(
        "log.append.gapless",
        "Every offset between the lowest and the highest appended offset was appended.",
        whole_record=True,
    ),
    Clause(
        "log.acknowledged.once",
        "No two messages are acknowledged with one queue offset. Unknown if the broker may have lost the first in a "
        "restart.",
        OFFSETS_IN_ORDER,
        "ConsumeQueue.putMessagePositionInfo",
        ("message_acknowledged(queue_offset)",),
    ),
    _visible(
        "log.visible.monotone",
        "The visible end is never below one that was certainly there before.",
        source="the specification's visible_is_monotone",
        needs=("make_visible(visible_end)",),
    ),
    _visible(
        "log.visible.appended",
        "Only appended messages become visible. If a make_visible has a visible_end greater than the first offset "
        "that its source appended, the message before that end has an append, not certainly after it.",
        source="DefaultMessageStore.ReputMessageService: dispatches what is in the log",
        needs=("append(queue_offset)", "make_visible(visible_end)"),
        whole_record=True,
    ),
)

SEND_CLAUSES: Final = (
    _send(
        "send.acknowledged.after_request",
        "A message is not acknowledged before its send was received: not acknowledgement.before_ns < "
        "request.after_ns. Applies only to sends with a unique identifier.",
        source="cause and effect",
        needs=("request_received(code, request)", "message_acknowledged(request)"),
    ),
    _send(
        "send.acknowledged.same_connection",
        "An acknowledgement uses its send's connection, if both name one and no other request has the send's "
        "identifier.",
        source="NettyRemotingAbstract.writeResponse: on the request's channel",
        needs=("request_received(code, request, connection)", "message_acknowledged(request, connection)"),
    ),
    _send(
        "send.acknowledged.open_connection",
        "No message is acknowledged on a connection that was closed before: not close.before_ns < "
        "acknowledgement.after_ns. This is the first close of the connection in this source that is not before the "
        "send. Applies only to sends with a unique identifier.",
        source="NettyRemotingAbstract.writeResponse",
        needs=("request_received(code, request)", "message_acknowledged(request, connection)", "connection_closed"),
    ),
    _send(
        "send.acknowledged.once",
        "A send with a unique identifier is answered once: it has no answer_sent in addition to an acknowledgement, "
        "and no acknowledgement that comes certainly after another one (those of a batch come together).",
        source="SendMessageProcessor: one response a request",
        needs=("request_received(code, request)", "message_acknowledged(request)", "answer_sent(request)"),
    ),
    _send(
        "send.acknowledged.place",
        "A send with a unique identifier is acknowledged in its topic, and in its queue if it names one (not -1). The "
        "broker's internal topics are exempt: %..., RMQ_SYS_..., rmq_sys_..., SCHEDULE_TOPIC_..., TRANS_CHECK_....",
        source="SendMessageProcessor.sendMessage: the requested queue",
        needs=("request_received(code, request, topic, queue)", "message_acknowledged(request, topic, queue)"),
    ),
    _send(
        "send.acknowledged.identity",
        "A send with a unique identifier that lists its messages' ids is acknowledged with one of these, and with the "
        "body that it lists for this id. The broker's internal topics are exempt.",
        source="SendMessageProcessor.sendMessage: the requested messages",
        needs=("request_received(code, request, ids, bodies)", "message_acknowledged(request, ids, bodies)"),
    ),
    _send(
        "send.answered",
        "A send that has an identifier is acknowledged or refused, if its connection and its source continue for more "
        f"than {SEND_MS} ms after it came. Unknown if the connection was not read in that time, and if an "
        "acknowledgement comes later than that. Applies only to sources all of whose acknowledgements name their "
        "send.",
        source="SendMessageProcessor.processRequest",
        needs=(
            "request_received(code, request)",
            "message_acknowledged(request)",
            "answer_sent(request)",
            "the source's end",
        ),
        whole_record=True,
    ),
    _inside(
        "send.acknowledged.appended",
        "Inside, an acknowledged message has an append of the same source with its queue and offset, not certainly "
        "after the acknowledgement. The append may lie in a gap since its send came or, if that is not recorded "
        "exactly once, in any earlier gap. Applies only to sources that write appends.",
        source="SendMessageProcessor.handlePutMessageResult: queueOffset is the appended one",
        needs=("append(queue_offset)", "message_acknowledged(queue_offset)"),
        whole_record=True,
    ),
    _inside(
        "send.acknowledged.tag",
        "Inside, an acknowledged message has the tag that was appended.",
        source="SendMessageProcessor, CommitLog.putMessage",
        needs=("append(queue_offset, tag)", "message_acknowledged(queue_offset, tag)"),
    ),
    _inside(
        "send.shown",
        "Inside, an acknowledged message is soon visible: a make_visible of its source past the offset may have begun "
        f"by {SHOWN_MS} ms after the acknowledgement, if the source certainly continues for longer. The same for an "
        "appended message without an acknowledgement is unknown. Applies only to queues of which the source has a "
        "make_visible, where sends are recorded. Does not apply if a deletion of the topic (215) may lie in between. "
        "Only the first such message of a queue's generation is reported.",
        source="DefaultMessageStore.ReputMessageService: dispatches what is in the log",
        needs=(
            "message_acknowledged(queue_offset)",
            "append(queue_offset)",
            "make_visible(visible_end)",
            "the source's end",
        ),
        whole_record=True,
    ),
    _send(
        "send.sequential",
        "Of two sends of one source to one queue, the later one received certainly after the earlier was acknowledged "
        "(acknowledgement.before_ns < request.after_ns), the later one has the greater offsets, if both have a unique "
        "identifier. The same holds for two sources of one named broker, if both were recording at both times. Does "
        "not apply if a deletion of the topic (215) or a gap may lie in between.",
        source="CommitLog.putMessage: offsets are given under the lock of its append",
        needs=("request_received(code, request)", "message_acknowledged(request, queue_offset)"),
    ),
    _send(
        "send.code.known",
        f"An answer to a send with a unique identifier has one of the codes {', '.join(map(str, SEND_ANSWERS))}.",
        source="SendMessageProcessor.processRequest, handlePutMessageResult; RemotingSysResponseCode",
        needs=("request_received(code, request)", "answer_sent(code, request)"),
    ),
    _send(
        "send.batch.gapless",
        "The messages of one send have consecutive offsets in each queue in which they were acknowledged, in the "
        "order of the send's ids. A send that lists ids is acknowledged for each of its messages. Applies only to "
        "sends whose identifier came once.",
        source="CommitLog.putMessages: one lock for the whole batch",
        needs=("request_received(code, request)", "message_acknowledged(request, queue_offset)"),
        whole_record=True,
    ),
    _send(
        "send.delivered.after_request",
        "No answer delivers a message before its send was received: not answer.before_ns < the send's "
        "request.after_ns, in one source. From outside, no earlier answer has an offset_max past the message, and no "
        "earlier pop gets a message past it. Does not apply if a deletion or a gap may lie in between, as in "
        "send.sequential, or if the answer names another queue than its request. Applies only to sends with a unique "
        "identifier. In two sources of one named broker it is unknown: one may watch another broker of that name. By "
        "unique id alone the producer may have sent the message before. That is certain only for a send more than "
        f"{RETRY_MS} ms after the record began, on a connection that was opened in the record.",
        source="cause and effect",
        needs=(
            "request_received(code, request)",
            "message_acknowledged(request, queue_offset)",
            "answer_sent(offsets, offset_max)",
        ),
    ),
)

COMMIT_CLAUSES: Final = (
    Clause(
        "commit.told.kept",
        "No query of a group returns an offset below one that the group had certainly committed (answer.before_ns < "
        "the query's request.after_ns), unless a commit of at most the returned offset may have come after that one: "
        "an update (15) that was not certainly done before, or a pull that was not certainly received before. A "
        "client may move its own offset back. Unknown if the broker may have lost the greater one in a restart.",
        COMMIT_NEVER_REGRESSES,
        "the specification's commit_never_regresses; ConsumerOffsetManager.commitOffset",
        ("request_received(code, group, commit_offset)", "answer_sent(code, offset)"),
        whole_record=True,
    ),
    _told(
        "commit.told.most",
        "No query of a group returns an offset above 0 and above every one that the group may have committed by then "
        "(request.after_ns <= the answer's before_ns), once an earlier query was certainly answered by then with a "
        "lower one or with none. Otherwise it is unknown if there certainly was a commit, because the offset before "
        "the record is not known.",
        needs=("request_received(code, group, commit_offset)", "answer_sent(code, offset)"),
        whole_record=True,
    ),
    _told(
        "commit.told.some",
        "If a group has certainly committed, or a query has certainly returned an offset above 0, no later query "
        "returns that it has none (22). Unknown if the broker may have lost the offset in a restart.",
        source="ConsumerManageProcessor.queryConsumerOffset: 22 only if offsetTable has none",
        needs=("request_received(code, group, commit_offset)", "answer_sent(code)"),
        whole_record=True,
    ),
    _told(
        "commit.told.written",
        "Another offset was certainly there once an earlier query returned it (or none) or an update (15) of it was "
        "answered 0. From then on, a query of the group returns only an offset that may have been committed later, by "
        "a request that was not certainly over before that began, or that another query returned since; also 0 if the "
        "group may have none. Unknown if no earlier query returned another offset, because a query may return an "
        "offset that was reset before the record.",
        source="ConsumerOffsetManager.commitOffset, queryOffset: what was committed last",
        needs=("request_received(code, group, commit_offset)", "answer_sent(code, offset)"),
        whole_record=True,
    ),
    _told(
        "commit.told.within",
        "No query of a group returns an offset above the greatest offset_max of any answer about the queue, unless a "
        "commit of at least that much may have come by then (request.after_ns <= the answer's before_ns). A client "
        "may commit any offset, also before the record. Applies only to queues for which an answer shows an end.",
        needs=("request_received(code, group, commit_offset)", "answer_sent(code, offset)", "answer_sent(offset_max)"),
        verdict="unknown",
    ),
    _told(
        "commit.answered",
        f"A query (14) or an update (15) that has an identifier is answered within {UNHELD_MS} ms plus --late-ms, "
        "unless the history does not continue for longer than that with its connection open.",
        source="ConsumerManageProcessor",
        needs=("request_received(code, request)", "answer_sent(request)", "connection_closed", "the source's end"),
        whole_record=True,
    ),
    _told(
        "commit.code.known",
        "An answer to a query has one of the codes 0, 1, 2, 16, 17, 22, 26, 29, 215, 501, 1500; an answer to an "
        "update has one of these except 22.",
        source="ConsumerManageProcessor",
        needs=("request_received(code)", "answer_sent(code)"),
    ),
)

LAW_CLAUSES: Final = (
    Clause(
        "law.step",
        "If a history declares a specification, the specification allows every step, in some order that the recorded "
        "times permit.",
        FOLLOWS_THE_LAW,
        "the specification",
        ("the specification's actions", "policy and law of meta.json"),
        whole_record=True,
    ),
)


def _evidence(kind: str, says: str, *needs: str) -> Clause:
    name = kind.replace(" ", "_")
    return Clause(f"{EVIDENCE}.{name}", says, EVIDENCE, "history files", needs or ("every event",), verdict="unknown")


EVIDENCE_CLAUSES: Final = (
    _evidence("damage", "Every part and every line can be read, and every directory has its meta.json."),
    _evidence("field missing", "Every event has the fields that its kind needs."),
    _evidence("undeclared source", "Every source is declared in meta.json.", "source"),
    _evidence("source silent", "Every source that meta.json declares has events.", "meta.json"),
    _evidence(
        "source start", "Every source begins with exactly one source_started, with sequence 0.", "source_started"
    ),
    _evidence(
        "source end", "Every source ends with exactly one source_stopped, with its highest sequence.", "source_stopped"
    ),
    _evidence("unknown policy", "The policy that meta.json names exists.", "meta.json"),
    _evidence("unknown law", "The specification that meta.json declares exists.", "meta.json"),
    _evidence("unknown event", "Every event has a name of the schema.", "event"),
    _evidence("lost", "No source reports lost events.", "lost"),
    _evidence("excerpt", "Nothing is left out. An excerpt is judged by one clause only and is never valid.", "omitted"),
    _evidence("sequence gap", "The sequence numbers of a source have no gaps.", "sequence"),
    _evidence("sequence repeated", "Each sequence number of a source occurs once.", "sequence"),
    _evidence("clock jump", "No source's clock was set back.", "after_ns", "sequence"),
    _evidence(
        "begun anew",
        "No source outside sees a queue give offset 0 to two sends without a deletion in between: a client that "
        "bypasses the observer may have deleted the topic.",
        "message_acknowledged",
    ),
    _evidence(
        "not judged",
        "Every request can be judged; notes say how many could not, and why. Answers and steps of pulls have their "
        "requests in the history; so do acknowledgements, if their source records sends.",
    ),
    evolve(
        _evidence(
            "restart",
            "No broker seen from outside is without any connection for a second, as the term restart counts them: it "
            "may have been restarted then. "
            "A note says when.",
            "connection_opened",
            "connection_closed",
        ),
        verdict="observed",
    ),
    _evidence(
        "nothing judged",
        "Something was judged: a pull, a pop, a query of a committed offset, or a step of a specification.",
    ),
    _evidence("empty", "The history has events."),
)


CLAUSES: Final = (
    *PULL_CLAUSES, *POP_CLAUSES, *LOG_CLAUSES, *SEND_CLAUSES, *MESSAGE_CLAUSES, *COMMIT_CLAUSES, *LAW_CLAUSES,
    *EVIDENCE_CLAUSES
)  # fmt: skip
"""The whole contract, in the order of `docs/contract.md`."""
CLAUSE: Final = {clause.id: clause for clause in CLAUSES}


def finding_of(
    evidence: list[dict[str, Any]],
    subject: dict[str, Any],
    *,
    clause: str,
    verdict: FindingVerdict,
    why: str,
    messages: Sequence[int] = (),
) -> Finding:
    """Create a finding with these events as evidence; broker, topic and queue come from the event `subject`."""
    return Finding(
        property=CLAUSE[clause].property,
        clause=clause,
        verdict=verdict,
        topic=subject.get("topic", ""),
        queue=subject.get("queue", -1),
        request=subject.get("request", ""),
        window_start_ms=min(event["after_ns"] for event in evidence) / 1_000_000,
        window_end_ms=max(event["before_ns"] for event in evidence) / 1_000_000,
        why=why,
        evidence=evidence,
        messages=list(messages),
    )
