"""The clauses: all requirements on an implementation of the pull path and related requests.

Ids are permanent: the number of a removed clause stays unused. Each clause lists the vectors that demonstrate it
(`vectors`). Codes in sentences are response codes.

A load test and a race test check the clauses without a recorded conversation (`SEEN`), which are the properties of the
same names in the specification and the judge: see `longpoll.verification.under_load`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

from attrs import frozen

Level = Literal["MUST", "SHOULD"]
Capability = Literal["auto-create", "long-polling", "readable", "sql92", "name-server", "lite-pull", "golden-store"]
CAPABILITIES: Final[Mapping[Capability, str]] = MappingProxyType(
    {
        "auto-create": "topics and groups are created on use (autoCreateTopicEnable)",
        "long-polling": "pulls are held (longPollingEnable)",
        "readable": "the broker has read permission (brokerPermission)",
        "sql92": "pulls may filter by SQL92 (enablePropertyFilter)",
        "name-server": "a name server is reachable",
        "lite-pull": "request 361 is known (RocketMQ from 5.0)",
        "golden-store": "the broker serves the store that was recorded (`store-4.9.7-clean`)",
    }
)


@frozen
class Clause:
    """A clause of the contract, stated in one sentence."""

    id: str
    level: Level
    sentence: str
    source: str
    """The Java class from which the clause was read, or the recording that shows it."""
    vectors: tuple[str, ...]
    """The ids of recorded conversations, or the names of checks of a load test or a race test (`SEEN`)."""
    needs: frozenset[Capability] = frozenset()
    lacks: frozenset[Capability] = frozenset()
    """Capabilities that the broker must not have."""


_PULL: Final = "PullMessageProcessor"
_HOLD: Final = "PullRequestHoldService"
_POPS: Final = "PopMessageProcessor, PopLongPollingService"
_STORE: Final = "DefaultMessageStore.getMessage"
_SEND: Final = "SendMessageProcessor"
_OFFSET: Final = "ConsumerManageProcessor"
_ADMIN: Final = "AdminBrokerProcessor"
_CLIENT: Final = "ClientManageProcessor"
_FRAME: Final = "NettyDecoder, RemotingCommand"
_ROUTE: Final = "DefaultRequestProcessor"
_SQL: Final = "ExpressionMessageFilter"

_ROWS: Final[tuple[tuple[str, Level, str, str, str], ...]] = (
    # -- long polling itself
    ("POLL-1", "MUST", "A pull with the suspend bit at the end of a queue is held.", _HOLD, "poll-holds-500 poll-holds-15000"),
    ("POLL-2", "MUST", "A message wakes the pull that waits for it, and nothing does before.", _HOLD, "poll-wakes-500 poll-wakes-15000 poll-wakes-crowd"),
    ("POLL-3", "MUST", "A held pull without a message gets 19 at its deadline, neither before nor after; a scan may be five seconds late.", _HOLD, "poll-deadline-500 poll-deadline-15000 poll-deadline-crowd"),
    # -- pops
    ("POP-1", "MUST", "A pop that finds no message is held: one of a queue, and one of all queues (-1).", _POPS, "pop-holds-15000 popany-holds-15000"),
    ("POP-2", "MUST", "A message wakes a held pop of its queue, and one of all queues, in each group.", _POPS, "pop-wakes-15000 pop-wakes-crowd popany-wakes-15000 popany-wakes-crowd"),
    ("POP-3", "MUST", "A held pop gets 210 at its deadline, neither before nor after.", _POPS, "pop-deadline-15000 pop-deadline-crowd popany-deadline-15000 popany-deadline-crowd"),
    ("POP-4", "MUST", "A message that a group popped is not delivered to the group again before its invisible time is over.", "PopReviveService", "invisible-kept"),
    ("POP-5", "MUST", "A popped message that is not acknowledged is delivered to its group again after its invisible time.", "PopReviveService", "invisible-over"),
    ("POP-6", "MUST", "A popped message that is acknowledged in its invisible time is not delivered to its group again.", "AckMessageProcessor", "invisible-acknowledged"),
    ("POP-7", "MUST", "A changed invisible time, longer or shorter, counts from the change: the message is delivered again after it, not before.", "ChangeInvisibleTimeProcessor", "invisible-longer invisible-shorter"),
    ("POP-8", "MUST", "A notification (200054) is held, gets hasMsg=true once there is a message, and false at its deadline.", "NotificationProcessor", "notification-holds-15000 notification-wakes-15000 notification-wakes-crowd notification-deadline-15000 notification-deadline-crowd"),
    ("POP-9", "MUST", "If too many pops of a group wait for a queue, the next one gets 209 at once, and the others are held.", _POPS, "pop-limit-crowd"),
    # -- checks of a pull, in this order
    ("PULL-CHECK-1", "MUST", "A broker without read permission answers every pull with 16.", _PULL, "pull-276"),
    ("PULL-CHECK-2", "MUST", "With group auto-creation off, a pull from an unknown group gets 26.", _PULL, "pull-292"),
    ("PULL-CHECK-3", "MUST", "With group auto-creation off, a pull from a created group is served.", _PULL, "pull-294"),
    ("PULL-CHECK-4", "MUST", "A pull from a group that may not consume gets 16.", _PULL, "pull-038"),
    ("PULL-CHECK-5", "MUST", "A pull from a topic that does not exist gets 17 at once, whatever hold it asks for.", _PULL, "pull-034"),
    ("PULL-CHECK-6", "MUST", "The topic is checked before the queue id.", _PULL, "pull-040"),
    ("PULL-CHECK-7", "MUST", "A pull from a topic without read permission gets 16.", _PULL, "pull-036"),
    ("PULL-CHECK-8", "MUST", "A pull from a queue id below 0, or not below the number of read queues, gets 1 (4.9) or 29 (5.x).", _PULL, "pull-028 pull-030"),
    ("PULL-CHECK-9", "MUST", "The queue id is checked before the subscription.", _PULL, "pull-042"),
    ("PULL-CHECK-10", "MUST", "The limit of a queue id is the number of read queues, not of write queues.", _PULL, "pull-032"),
    ("PULL-CHECK-11", "MUST", "A pull without its own subscription needs one from a heartbeat; otherwise it gets 24.", _PULL, "pull-044"),
    ("PULL-CHECK-12", "MUST", "A heartbeat that does not name the topic does not count: the pull gets 24.", _PULL, "pull-046"),
    ("PULL-CHECK-13", "MUST", "A heartbeat's subscription serves requests with an older subscription version.", _PULL, "pull-048 pull-052"),
    ("PULL-CHECK-14", "MUST", "With a heartbeat's subscription, the request's own expression is ignored.", _PULL, "pull-050"),
    ("PULL-CHECK-15", "MUST", "A subscription ends with the connection whose heartbeat created it.", "ConsumerManager", "pull-054"),
    ("PULL-CHECK-16", "MUST", "A broadcasting group is served if its settings allow broadcasting.", _PULL, "pull-056"),
    ("PULL-CHECK-17", "MUST", "A heartbeat may have enums as numbers and numbers as strings, as the C++ client sends them.", "HeartbeatData (fastjson)", "pull-058"),
    ("PULL-CHECK-18", "MUST", "A pull without a valid group, queue id or number of messages gets 1.", "PullMessageRequestHeader", "pull-086 pull-088 pull-090 pull-096"),
    ("PULL-CHECK-19", "MUST", "Fields that a pull does not use may be missing.", "PullMessageRequestHeader", "pull-092 pull-094"),
    ("PULL-CHECK-20", "MUST", "Numbers that are not strings, and unknown fields, are accepted.", "RemotingCommand", "pull-098 pull-100"),
    ("PULL-CHECK-21", "MUST", "A one-way pull gets no answer.", "NettyRemotingAbstract", "pull-102"),
    ("PULL-CHECK-22", "MUST", "Other bits of the system flag are ignored.", "PullSysFlag", "pull-104"),
    ("PULL-CHECK-23", "MUST", "A request with a newer subscription than the heartbeat's gets 25 at once, whatever its offset and hold.", _PULL, "pull-500 pull-502 pull-503 pull-505"),
    ("PULL-CHECK-24", "MUST", "A newer heartbeat serves the newer request; the queue id is checked first.", _PULL, "pull-501 pull-504"),
    # -- reading
    ("PULL-READ-1", "MUST", "At the end of a queue, without a hold, the answer is 19 with the end as next offset.", _STORE, "pull-000"),
    ("PULL-READ-2", "MUST", "Available messages are answered with 0, from the requested offset, in order, with the offset after them.", _STORE, "pull-004 pull-010 pull-014"),
    ("PULL-READ-3", "MUST", "An answer has at most the requested number of messages, and one where none was requested.", _STORE, "pull-006 pull-008"),
    ("PULL-READ-4", "MUST", "A pull may request more messages than there are.", _STORE, "pull-012"),
    ("PULL-READ-5", "MUST", "One answer has at most 32 messages.", _STORE, "pull-024"),
    ("PULL-READ-6", "MUST", "One answer has at most 256 KiB of messages, and always one.", _STORE, "pull-026"),
    ("PULL-READ-7", "MUST", "An offset beyond the end is answered 21 with the end, one below the begin 21 with the begin.", _STORE, "pull-002 pull-016 pull-018 pull-020"),
    ("PULL-READ-8", "MUST", "Available messages are answered at once, whatever hold was asked for.", _PULL, "pull-022"),
    # -- tags
    ("PULL-TAG-1", "MUST", "A tag expression selects the messages with its tags.", "FilterAPI", "pull-060 pull-062 pull-068"),
    ("PULL-TAG-2", "MUST", "An expression of bars only gets 23.", "FilterAPI", "pull-064"),
    ("PULL-TAG-3", "MUST", "A single bar is part of a tag's name, and case matters.", "FilterAPI", "pull-066 pull-070"),
    ("PULL-TAG-4", "MUST", "An expression without a type is a tag expression.", "FilterAPI", "pull-072"),
    ("PULL-TAG-5", "MUST", "The broker filters by the hash of a tag, so messages with the same hash are returned too.", "MessageFilter", "pull-076"),
    ("PULL-TAG-6", "MUST", "A stored tag keeps its spaces.", "MessageFilter", "pull-078"),
    ("PULL-TAG-7", "MUST", "If no message matches, the answer is 20 at once, with the offset after the checked messages.", _STORE, "pull-080"),
    ("PULL-TAG-8", "MUST", "One answer checks at most 1,000 messages, unless more are requested.", _STORE, "pull-082"),
    ("PULL-TAG-9", "MUST", "The next offset is after the last checked message.", _STORE, "pull-084"),
    ("PULL-TAG-10", "MUST", "A type in lower case is not the tag type: a broker with tag filters only answers 1.", "ExpressionType", "pull-074"),
    ("PULL-TAG-11", "MUST", "Messages of all tags with one hash are returned, however many tags exist or are asked for.", "MessageFilter", "pull-592 pull-593"),
    ("PULL-TAG-12", "MUST", "A message without a tag has hash 0, and matches a tag with that hash. The smallest hash works like any other.", "MessageFilter", "pull-594 pull-595 pull-596"),
    ("PULL-TAG-13", "MUST", "An empty tag counts as no tag, and a tag may have any characters.", "FilterAPI", "pull-597 pull-598 pull-599"),
    # -- SQL92
    ("PULL-SQL-1", "MUST", "A broker without property filters answers an SQL92 pull with 1.", _SQL, "sql-168 sql-170"),
    ("PULL-SQL-2", "MUST", "A heartbeat's expression selects the messages; the others are skipped.", _SQL, "sql-200 sql-202"),
    ("PULL-SQL-3", "SHOULD", "An expression that is sent with the pull selects every message (it is not compiled).", _SQL, "sql-172 sql-174 sql-176 sql-178 sql-180 sql-182 sql-184 sql-186 sql-188 sql-190 sql-192 sql-196"),
    ("PULL-SQL-4", "MUST", "An expression whose value is not a boolean matches nothing.", _SQL, "sql-194"),
    ("PULL-SQL-5", "MUST", "If a heartbeat's expression is invalid, pulls get 27.", _PULL, "sql-198"),
    ("PULL-SQL-6", "MUST", "A request to check an invalid expression gets 23.", _CLIENT, "sql-204"),
    ("PULL-SQL-7", "MUST", "After a valid expression, an empty one gets 28; older requests keep the valid one.", _SQL, "sql-506 sql-507"),
    ("PULL-SQL-8", "MUST", "The expression of the newest heartbeat counts; if it is invalid, pulls get 27. A request newer than all gets 25.", _SQL, "sql-508 sql-509 sql-510 sql-511"),
    ("PULL-SQL-9", "MUST", "A missing property is unknown, but two missing properties are equal.", _SQL, "sql-512 sql-513 sql-514 sql-515 sql-516 sql-517 sql-518 sql-519 sql-520 sql-521"),
    ("PULL-SQL-10", "MUST", "BETWEEN includes both ends and takes constants, the smaller one first.", _SQL, "sql-522 sql-523 sql-524 sql-525 sql-526 sql-527 sql-528 sql-529"),
    ("PULL-SQL-11", "MUST", "IN takes one string or more; a missing property is neither in nor not in.", _SQL, "sql-530 sql-531 sql-532 sql-533 sql-534 sql-535 sql-536"),
    ("PULL-SQL-12", "MUST", "LIKE, arithmetic and functions end the expression before them; other operators are invalid: 27.", _SQL, "sql-537 sql-538 sql-539 sql-540 sql-541 sql-542 sql-543"),
    ("PULL-SQL-13", "MUST", "A quote in a string is doubled; comments are skipped.", _SQL, "sql-544 sql-545 sql-546 sql-547 sql-548 sql-549 sql-550"),
    ("PULL-SQL-14", "MUST", "A number's size and decimal point decide how a property is parsed; if it cannot be parsed, it does not match.", _SQL, "sql-551 sql-552 sql-553 sql-554 sql-555 sql-556 sql-557 sql-558 sql-559 sql-560 sql-561 sql-562"),
    ("PULL-SQL-15", "MUST", "A property is compared with the type of the value next to it.", _SQL, "sql-563 sql-564 sql-565 sql-566 sql-567 sql-568 sql-569 sql-570 sql-571 sql-572"),
    ("PULL-SQL-16", "MUST", "Logic has three values. An error makes the whole expression fail, unless the part before it decides.", _SQL, "sql-573 sql-574 sql-575 sql-576 sql-577 sql-578 sql-579 sql-580 sql-581"),
    ("PULL-SQL-17", "MUST", "NOT binds tighter than comparisons, and AND tighter than OR. Names are case-sensitive, keywords are not.", _SQL, "sql-582 sql-583 sql-584 sql-585 sql-586 sql-587 sql-588 sql-589 sql-590 sql-591"),
    # -- holding
    ("PULL-HOLD-1", "MUST", "A pull with the suspend bit at the end of a queue is held, and gets 19 when its time is over, not before.", _HOLD, "hold-118 hold-120 hold-122"),
    ("PULL-HOLD-2", "MUST", "A hold without the suspend bit is ignored.", _PULL, "hold-124"),
    ("PULL-HOLD-3", "MUST", "With long polling off, a hold lasts one second, and none without the suspend bit.", _HOLD, "hold-164 hold-166"),
    ("PULL-HOLD-4", "MUST", "A pull of a lite consumer (361) is held and woken like any other.", _PULL, "hold-162"),
    # -- waking
    ("PULL-WAKE-1", "MUST", "A message for a held pull answers the pull with that message.", _HOLD, "hold-126 hold-128 hold-160"),
    ("PULL-WAKE-2", "MUST", "A message wakes a pull that asked for its tag, or for a tag with the same hash.", _HOLD, "hold-130 hold-132"),
    ("PULL-WAKE-3", "MUST", "A message of another topic does not wake the pull.", _HOLD, "hold-136"),
    ("PULL-WAKE-4", "MUST", "Each message of a batch may wake a pull; the answer has all messages that are there, up to the requested number.", _HOLD, "hold-138 hold-158"),
    ("PULL-WAKE-5", "MUST", "Every pull that is held for a queue is woken: also several of one group, or on one connection.", _HOLD, "hold-140 hold-142 hold-144"),
    ("PULL-WAKE-6", "MUST", "A delayed message wakes when it is due.", "ScheduleMessageService", "hold-146"),
    ("PULL-WAKE-7", "MUST", "A half message wakes no pull; its commit does.", "TransactionalMessageServiceImpl", "hold-148"),
    ("PULL-WAKE-8", "MUST", "A woken pull is checked again: permissions, queues, subscription.", _PULL, "hold-152 hold-154"),
    ("PULL-WAKE-9", "MUST", "A held pull keeps the filter that it had when it was held.", _HOLD, "hold-156"),
    ("PULL-WAKE-10", "MUST", "A message that does not match leaves the pull held; at its deadline it gets 20 with the offset after that message.", _HOLD, "hold-134"),
    ("PULL-WAKE-11", "MUST", "If its topic is deleted, a held pull gets 17 by its deadline.", _HOLD, "hold-150"),
    # -- offsets of groups
    ("COMMIT-1", "MUST", "A pull with the commit bit commits, whether it finds messages, finds none, or has a wrong offset.", _PULL, "commit-106 commit-108 commit-110"),
    ("COMMIT-2", "MUST", "A rejected pull commits nothing.", _PULL, "commit-112"),
    ("COMMIT-3", "MUST", "An offset beyond the end is committed too.", "ConsumerOffsetManager", "commit-114"),
    ("COMMIT-4", "MUST", "A held pull commits before its hold ends.", _PULL, "commit-116"),
    ("OFFSET-1", "MUST", "A group without a committed offset starts at 0 while all messages are still in memory.", _OFFSET, "offset-280"),
    ("OFFSET-2", "MUST", "A query for a topic that does not exist gets each version's answer (0 in 4.9, 22 in 5.x).", _OFFSET, "offset-282"),
    ("OFFSET-3", "MUST", "A query returns the committed offset.", _OFFSET, "offset-284 offset-286 offset-288"),
    ("OFFSET-4", "MUST", "With group auto-creation off, an unknown group may commit (4.9) or not (5.x).", _OFFSET, "offset-290"),
    ("OFFSET-5", "MUST", "A commit without an offset is rejected.", _OFFSET, "offset-296"),
    ("OFFSET-6", "MUST", "Queries for the end, the begin and the first store time of an empty or unknown queue are answered.", _ADMIN, "offset-298 offset-300 offset-302 offset-304 offset-306 offset-308"),
    ("OFFSET-7", "MUST", "A query for the end of a queue without a queue id is an error.", _ADMIN, "offset-310"),
    ("OFFSET-8", "MUST", "A query by time returns the first message stored at that time or later.", _ADMIN, "offset-312 offset-314 offset-316 offset-318 offset-320"),
    # -- sending
    ("SEND-1", "MUST", "A send is answered 0 with the queue, the offset there and the message's id.", _SEND, "send-206 send-212 send-214 send-216 send-266"),
    ("SEND-2", "MUST", "Properties are returned as they were sent, without the broker's own.", _SEND, "send-208 send-210"),
    ("SEND-3", "MUST", "For queue -1 the broker chooses a queue.", _SEND, "send-218"),
    ("SEND-4", "MUST", "A send to a queue id that is only a read queue is accepted.", _SEND, "send-220"),
    ("SEND-5", "MUST", "A topic that does not exist is created from TBW102; with topic auto-creation off, the send gets 17.", _SEND, "send-222 send-226"),
    ("SEND-6", "MUST", "A send to a queue beyond both numbers of queues is rejected.", _SEND, "send-224"),
    ("SEND-7", "SHOULD", "The write permission of a topic is not checked.", _SEND, "send-228 send-278"),
    ("SEND-8", "MUST", "Topic names with invalid characters, and names that are too long, are rejected.", "TopicValidator", "send-230 send-232 send-234 send-238 send-240"),
    ("SEND-9", "MUST", "A send to a system topic is rejected; a send to a topic with a reserved prefix is accepted.", "TopicValidator", "send-236 send-242 send-244 send-246"),
    ("SEND-10", "MUST", "A retry message that was consumed too often goes to the dead letter topic.", _SEND, "send-248"),
    ("SEND-11", "MUST", "A batch is stored as its messages, and the answer has their ids.", _SEND, "send-250 send-252"),
    ("SEND-12", "MUST", "An empty batch is rejected.", _SEND, "send-254"),
    ("SEND-13", "MUST", "A batch to a retry topic, or with a delay, is handled as in each version.", _SEND, "send-256 send-258"),
    ("SEND-14", "MUST", "A delay level above the highest counts as the highest; a level below 1 means no delay.", _SEND, "send-260 send-262"),
    ("SEND-15", "MUST", "A half message is stored and not visible.", _SEND, "send-264"),
    ("SEND-16", "MUST", "A send without a required field gets 1.", "SendMessageRequestHeader", "send-268 send-270 send-272 send-274"),
    ("SEND-17", "MUST", "System flag, flag and consume count are stored as sent; a rolled-back message is not visible.", _SEND, "send-600 send-601 send-602 send-603 send-604 send-605 send-606 send-607"),
    ("SEND-18", "MUST", "Messages of a batch are stored with their own properties and the flags of the request.", _SEND, "send-608 send-609 send-610 send-611 send-612"),
    ("SEND-19", "MUST", "Whether a send is a batch depends on its field, not on the request code.", _SEND, "send-613 send-614"),
    # -- viewing messages
    ("VIEW-1", "MUST", "An offset in the log where no message starts returns no message.", "QueryMessageProcessor", "view-322 view-324"),
    ("VIEW-2", "MUST", "Messages are found by each of their keys and by their unique key; case matters.", "QueryMessageProcessor", "view-326 view-328 view-330"),
    # -- clients
    ("CLIENT-1", "MUST", "A heartbeat of producers, consumers, neither, or an unknown group gets 0.", _CLIENT, "client-332 client-340 client-342 client-344"),
    ("CLIENT-2", "MUST", "Members get a notification (40) when a group's subscription changes or a member leaves, and only then.", "DefaultConsumerIdsChangeListener", "client-334 client-336 client-346"),
    ("CLIENT-3", "MUST", "A heartbeat that is not JSON gets 1, and the connection stays open.", _CLIENT, "client-338"),
    ("CLIENT-4", "MUST", "A request to unregister without a client id is answered too.", _CLIENT, "client-348"),
    ("CLIENT-5", "MUST", "A query for the members without a group gets 1.", "ConsumerManageProcessor", "client-350"),
    ("LOCK-1", "MUST", "A client can lock free queues and its own; not those of another client.", "RebalanceLockManager", "lock-352 lock-354"),
    ("LOCK-2", "MUST", "An unlocked queue can be locked by another client.", "RebalanceLockManager", "lock-356"),
    ("LOCK-3", "MUST", "A lock request with no queues locks none; without a body it is an error.", "RebalanceLockManager", "lock-358 lock-360"),
    ("BACK-1", "MUST", "A message that is sent back is delivered again on the group's retry topic, after its delay.", "AbstractSendMessageProcessor", "back-362"),
    ("BACK-2", "MUST", "The dead letter topic is write-only.", "AbstractSendMessageProcessor", "back-364"),
    ("BACK-3", "MUST", "Without retries a message goes to the dead letter topic; without a retry queue it is dropped.", "AbstractSendMessageProcessor", "back-366 back-368"),
    ("BACK-4", "MUST", "With group auto-creation off, an unknown group that sends a message back gets 26.", "AbstractSendMessageProcessor", "back-370"),
    ("BACK-5", "MUST", "Fields that are not used may be missing.", "ConsumerSendMsgBackRequestHeader", "back-372"),
    # -- routes
    ("ROUTE-1", "MUST", "A route request for a topic that does not exist gets 17.", _ROUTE, "route-374 route-376"),
    ("ROUTE-2", "MUST", "A topic's route has its queues and brokers, also for old clients and for a topic without read permission.", _ROUTE, "route-378 route-380"),
    ("ROUTE-3", "MUST", "The cluster info lists the cluster's brokers.", _ROUTE, "route-382"),
    ("ROUTE-4", "SHOULD", "A name server does not answer an unknown request code (4.9), or answers 3 (5.x).", _ROUTE, "route-384"),
    # -- other requests
    ("CODE-1", "MUST", "An unknown request code gets 3, and no answer if the request is one-way.", "NettyRemotingAbstract", "misc-386 misc-388 misc-390 misc-392"),
    ("TOPIC-1", "MUST", "A topic with an invalid name is not created.", _ADMIN, "misc-394"),
    ("TOPIC-2", "MUST", "Creating a topic again keeps its messages.", _ADMIN, "misc-396"),
    ("TOPIC-3", "MUST", "Deleting a topic that does not exist is not an error.", _ADMIN, "misc-398 misc-400"),
    ("FRAME-1", "MUST", "A frame with a negative length, or a length over 16 MiB, closes the connection.", _FRAME, "frame-460 frame-462"),
    ("FRAME-2", "MUST", "A header that is longer than its frame, of an unknown type, or truncated, closes the connection.", _FRAME, "frame-464 frame-466 frame-476"),
    ("FRAME-3", "MUST", "A header that is not a JSON object closes the connection.", _FRAME, "frame-468"),
    ("FRAME-4", "MUST", "A header may lack language, version and flag, and may have unknown fields; without an opaque there is no matching answer.", _FRAME, "frame-458 frame-470 frame-472 frame-474 frame-478"),
    # -- an existing store
    ("STORE-1", "MUST", "In a store that lost its oldest files, a pull below the begin gets 21 with the first offset left, or 19 with the next file.", _STORE, "store-402 store-404 store-406 store-408"),
    ("STORE-2", "MUST", "Messages of a stored log, of every kind, are returned as they were stored.", _STORE, "store-410 store-412 store-414 store-416 store-418 store-420 store-422 store-424 store-426 store-428 store-430"),
    ("STORE-3", "MUST", "Ends, begins, times and committed offsets of a stored log are returned.", _ADMIN, "store-432 store-434 store-436 store-438 store-440 store-442 store-444 store-446 store-448"),
    ("STORE-4", "MUST", "A stored index is used, and sends continue at the stored end.", "IndexService", "store-450 store-452 store-454 store-456"),
    # -- a whole run
    ("RUN-1", "MUST", "Under load, a held pull is answered promptly once a matching message is there.", "no_lost_wakeup of judge and specification", "load-no-lost-wakeup"),
    ("RUN-2", "MUST", "Under load, every pull is answered by its deadline.", "answered_by_deadline of judge and specification", "load-answered-by-deadline"),
    ("RUN-3", "MUST", "No request is answered twice, and no answer comes without a request.", "answered_once of judge and specification", "load-answered-once"),
    ("RUN-4", "MUST", "Every answer has the code, messages and next offset that follow from the log and the filter.", "answer_is_right of judge and specification", "load-answer-is-right"),
    ("RUN-5", "MUST", "The offsets of a queue are assigned once, in order and without a gap.", "offsets_in_order of the judge", "load-offsets-in-order"),
    ("RUN-6", "MUST", "A group's committed offset never decreases, unless a client resets it.", "commit_never_regresses of judge and specification", "load-commit-never-regresses"),
    ("RUN-7", "MUST", "A pull is held as it asked: no longer, no shorter, and not without asking.", "held_as_asked of the judge", "load-held-as-asked"),
    ("RUN-8", "MUST", "An acknowledged message is in its queue, and is delivered.", "send_is_kept of the judge", "load-send-is-kept"),
    ("RUN-9", "MUST", "A query returns the offset that the group committed.", "commit_is_told of the judge", "load-commit-is-told"),
    ("RUN-10", "MUST", "Each message reaches each group that asked for it, once and in order.", "the load's sends and deliveries", "load-delivered"),
    ("RUN-11", "MUST", "A message and the pull that waits for it never miss each other, in either order, on any queue.", "no_lost_wakeup of judge and specification; RocketMQ #7358", "race-no-lost-wakeup"),
)  # fmt: skip

OF_LOAD: Final = "load-"
OF_RACE: Final = "race-"
CROWD: Final = "crowd"
POLLS: Final = tuple(name for clause, *_, names in _ROWS for name in names.split() if clause.startswith("POLL-"))
"""The names of the checks of long polling itself. Each check uses either one pull with a hold in milliseconds, or
thousands of pulls."""
POPS: Final = tuple(name for clause, *_, names in _ROWS for name in names.split() if clause.startswith("POP-"))
"""The checks of pops and notifications."""
SEEN: Final = tuple(name for *_, names in _ROWS for name in names.split() if name.startswith((OF_LOAD, OF_RACE)))
"""The names of the checks of the load test and the race test: `load-` or `race-`, then a property or `delivered`."""

PROFILES: Final[Mapping[str, tuple[frozenset[Capability], frozenset[Capability]]]] = MappingProxyType(
    {
        "default": (frozenset({"auto-create", "long-polling", "readable"}), frozenset()),
        "sql": (frozenset({"auto-create", "long-polling", "readable", "sql92"}), frozenset()),
        "strict": (frozenset({"long-polling", "readable"}), frozenset({"auto-create"})),
        "nolongpoll": (frozenset({"readable"}), frozenset({"long-polling"})),
        "unreadable": (frozenset(), frozenset({"readable"})),
        "store": (frozenset({"golden-store"}), frozenset()),
    }
)
"""Maps each profile to the capabilities that a broker must have, and must not have, to play its vectors."""
LACKING: Final[Mapping[str, frozenset[Capability]]] = MappingProxyType(
    {name: frozenset({"sql92"}) for name in ("PULL-SQL-1", "PULL-TAG-10", "COMMIT-2")}
)
"""Maps a clause to the capabilities that a broker must lack to play the clause's vectors."""


def _needs(name: str) -> frozenset[Capability]:
    return frozenset({"name-server"}) if name.startswith("ROUTE") else frozenset()


CLAUSES: Final = tuple(
    Clause(name, level, sentence, source, tuple(vectors.split()), _needs(name), LACKING.get(name, frozenset()))
    for name, level, sentence, source, vectors in _ROWS
)
BY_ID: Final[Mapping[str, Clause]] = MappingProxyType({clause.id: clause for clause in CLAUSES})
BY_VECTOR: Final[Mapping[str, Clause]] = MappingProxyType(
    {vector: clause for clause in CLAUSES for vector in clause.vectors}
)
