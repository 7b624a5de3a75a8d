"""The clauses: every sentence that an implementation of the pull path and what belongs to it is held to.

An id is for ever: a clause that is given up leaves its number empty. Each names the vectors that show it (`vectors`).
Codes in sentences are response codes.

What no recorded conversation shows is seen of a broker under a load, and in a race (`SEEN`): these clauses are
the properties of law and judge, by their names. Leaves out seeing it (`longpoll.verification.under_load`).
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
        "auto-create": "topics and groups that nobody made are made on use (autoCreateTopicEnable)",
        "long-polling": "pulls are held (longPollingEnable)",
        "readable": "the broker may be read (brokerPermission)",
        "sql92": "pulls may filter by SQL92 (enablePropertyFilter)",
        "name-server": "a name server is reachable",
        "lite-pull": "request 361 is known (RocketMQ from 5.0)",
        "golden-store": "the broker serves the store that was recorded (`store-4.9.7-clean`)",
    }
)


@frozen
class Clause:
    """One sentence."""

    id: str
    level: Level
    sentence: str
    source: str
    """The Java class it is read from, or what recorded it."""
    vectors: tuple[str, ...]
    """Ids of what shows it: recorded conversations, or what is seen of a load or a race (`SEEN`)."""
    needs: frozenset[Capability] = frozenset()
    lacks: frozenset[Capability] = frozenset()
    """Capabilities that the broker must not have."""


_PULL: Final = "PullMessageProcessor"
_HOLD: Final = "PullRequestHoldService"
_STORE: Final = "DefaultMessageStore.getMessage"
_SEND: Final = "SendMessageProcessor"
_OFFSET: Final = "ConsumerManageProcessor"
_ADMIN: Final = "AdminBrokerProcessor"
_CLIENT: Final = "ClientManageProcessor"
_FRAME: Final = "NettyDecoder, RemotingCommand"
_ROUTE: Final = "DefaultRequestProcessor"
_SQL: Final = "ExpressionMessageFilter"

_ROWS: Final[tuple[tuple[str, Level, str, str, str], ...]] = (
    # -- what a pull is asked first, in this order
    ("PULL-CHECK-1", "MUST", "A broker that may not be read answers every pull 16.", _PULL, "pull-276"),
    ("PULL-CHECK-2", "MUST", "A group that nobody made, where groups are not made on use, is answered 26.", _PULL, "pull-292"),
    ("PULL-CHECK-3", "MUST", "A group that was made is served there.", _PULL, "pull-294"),
    ("PULL-CHECK-4", "MUST", "A group that may not consume is answered 16.", _PULL, "pull-038"),
    ("PULL-CHECK-5", "MUST", "A topic that is not there is answered 17 at once, whatever hold was asked for.", _PULL, "pull-034"),
    ("PULL-CHECK-6", "MUST", "The topic is looked at before the queue id.", _PULL, "pull-040"),
    ("PULL-CHECK-7", "MUST", "A topic that may not be read is answered 16.", _PULL, "pull-036"),
    ("PULL-CHECK-8", "MUST", "A queue id below 0, or not below the read queues, is answered 1 (4.9) or 29 (5.x).", _PULL, "pull-028 pull-030"),
    ("PULL-CHECK-9", "MUST", "The queue id is looked at before the subscription.", _PULL, "pull-042"),
    ("PULL-CHECK-10", "MUST", "The read queues count, not the write queues.", _PULL, "pull-032"),
    ("PULL-CHECK-11", "MUST", "Without a subscription in the request one of a heartbeat is needed: else 24.", _PULL, "pull-044"),
    ("PULL-CHECK-12", "MUST", "A heartbeat that does not name the topic is none for it: 24.", _PULL, "pull-046"),
    ("PULL-CHECK-13", "MUST", "A heartbeat's subscription that is newer than the request's version serves it.", _PULL, "pull-048 pull-052"),
    ("PULL-CHECK-14", "MUST", "With a heartbeat's subscription the request's own text means nothing.", _PULL, "pull-050"),
    ("PULL-CHECK-15", "MUST", "A subscription ends with the connection whose heartbeat made it.", "ConsumerManager", "pull-054"),
    ("PULL-CHECK-16", "MUST", "A group that broadcasts is served where its settings allow that.", _PULL, "pull-056"),
    ("PULL-CHECK-17", "MUST", "Enums as numbers and numbers as texts in a heartbeat are read, as the C++ client writes them.", "HeartbeatData (fastjson)", "pull-058"),
    ("PULL-CHECK-18", "MUST", "A pull that lacks its group, queue id or number of messages, or has no number there, is answered 1.", "PullMessageRequestHeader", "pull-086 pull-088 pull-090 pull-096"),
    ("PULL-CHECK-19", "MUST", "Fields that this pull does not use may be missing.", "PullMessageRequestHeader", "pull-092 pull-094"),
    ("PULL-CHECK-20", "MUST", "Numbers that are no texts, and fields that nobody knows, do no harm.", "RemotingCommand", "pull-098 pull-100"),
    ("PULL-CHECK-21", "MUST", "A one-way pull gets no answer.", "NettyRemotingAbstract", "pull-102"),
    ("PULL-CHECK-22", "MUST", "Other bits of the system flag change nothing.", "PullSysFlag", "pull-104"),
    ("PULL-CHECK-23", "MUST", "A request whose subscription is newer than the heartbeat's is answered 25 at once, whatever offset and hold it has.", _PULL, "pull-500 pull-502 pull-503 pull-505"),
    ("PULL-CHECK-24", "MUST", "A newer heartbeat serves the newer request; the queue id is looked at before.", _PULL, "pull-501 pull-504"),
    # -- what is read
    ("PULL-READ-1", "MUST", "At the end of a queue, without a hold, the answer is 19 with the end as next offset.", _STORE, "pull-000"),
    ("PULL-READ-2", "MUST", "What is there is answered 0, from the offset asked for, in order, with the offset behind it.", _STORE, "pull-004 pull-010 pull-014"),
    ("PULL-READ-3", "MUST", "At most as many messages come as were asked for, and one where none was.", _STORE, "pull-006 pull-008"),
    ("PULL-READ-4", "MUST", "More may be asked for than there is.", _STORE, "pull-012"),
    ("PULL-READ-5", "MUST", "One answer has at most 32 messages.", _STORE, "pull-024"),
    ("PULL-READ-6", "MUST", "One answer has at most 256 KiB of messages, and always one.", _STORE, "pull-026"),
    ("PULL-READ-7", "MUST", "An offset beyond the end is answered 21 with the end, one below the begin 21 with the begin.", _STORE, "pull-002 pull-016 pull-018 pull-020"),
    ("PULL-READ-8", "MUST", "What is there is answered at once, whatever hold was asked for.", _PULL, "pull-022"),
    # -- tags
    ("PULL-TAG-1", "MUST", "A tag expression lets messages of its tags through.", "FilterAPI", "pull-060 pull-062 pull-068"),
    ("PULL-TAG-2", "MUST", "An expression of bars alone is answered 23.", "FilterAPI", "pull-064"),
    ("PULL-TAG-3", "MUST", "One bar is a part of a tag's name, and case matters.", "FilterAPI", "pull-066 pull-070"),
    ("PULL-TAG-4", "MUST", "Without a type an expression is of tags.", "FilterAPI", "pull-072"),
    ("PULL-TAG-5", "MUST", "The broker filters by the hash of a tag: what has the same hash comes too.", "MessageFilter", "pull-076"),
    ("PULL-TAG-6", "MUST", "A stored tag is taken with its spaces.", "MessageFilter", "pull-078"),
    ("PULL-TAG-7", "MUST", "Where nothing matches the answer is 20 at once, with the offset behind what was looked at.", _STORE, "pull-080"),
    ("PULL-TAG-8", "MUST", "One answer looks at 1,000 messages at most where no more are asked for.", _STORE, "pull-082"),
    ("PULL-TAG-9", "MUST", "The next offset is behind the last message that was looked at.", _STORE, "pull-084"),
    ("PULL-TAG-10", "MUST", "A type in lower case is not that of tags: a broker that knows tags alone answers 1.", "ExpressionType", "pull-074"),
    ("PULL-TAG-11", "MUST", "All tags of one hash come, however many there are and are asked for.", "MessageFilter", "pull-592 pull-593"),
    ("PULL-TAG-12", "MUST", "A message without a tag has hash 0, and comes for a tag of that hash; the least hash is one like others.", "MessageFilter", "pull-594 pull-595 pull-596"),
    ("PULL-TAG-13", "MUST", "An empty tag is none, and tags may have any letters.", "FilterAPI", "pull-597 pull-598 pull-599"),
    # -- SQL92
    ("PULL-SQL-1", "MUST", "A broker that does not filter by properties answers an SQL92 pull 1.", _SQL, "sql-168 sql-170"),
    ("PULL-SQL-2", "MUST", "What an expression of a heartbeat lets through is answered, the rest is passed over.", _SQL, "sql-200 sql-202"),
    ("PULL-SQL-3", "SHOULD", "An expression that is sent with the pull itself lets everything through (it is not compiled).", _SQL, "sql-172 sql-174 sql-176 sql-178 sql-180 sql-182 sql-184 sql-186 sql-188 sql-190 sql-192 sql-196"),
    ("PULL-SQL-4", "MUST", "An expression that is not true or false matches nothing.", _SQL, "sql-194"),
    ("PULL-SQL-5", "MUST", "A heartbeat's expression that cannot be read makes pulls be answered 27.", _PULL, "sql-198"),
    ("PULL-SQL-6", "MUST", "Who asks whether an expression can be read is answered 23 where it cannot.", _CLIENT, "sql-204"),
    ("PULL-SQL-7", "MUST", "An empty expression after a good one is answered 28 to who asks for it, and leaves the good one for older requests.", _SQL, "sql-506 sql-507"),
    ("PULL-SQL-8", "MUST", "The newest heartbeat's expression counts, 27 where it cannot be read; a request that is newer than all is answered 25.", _SQL, "sql-508 sql-509 sql-510 sql-511"),
    ("PULL-SQL-9", "MUST", "A missing property is unknown, but two that are missing are equal.", _SQL, "sql-512 sql-513 sql-514 sql-515 sql-516 sql-517 sql-518 sql-519 sql-520 sql-521"),
    ("PULL-SQL-10", "MUST", "BETWEEN has both its ends, is of constants, and these in their order.", _SQL, "sql-522 sql-523 sql-524 sql-525 sql-526 sql-527 sql-528 sql-529"),
    ("PULL-SQL-11", "MUST", "IN is of texts, and of one at least; a missing property is neither in nor not in.", _SQL, "sql-530 sql-531 sql-532 sql-533 sql-534 sql-535 sql-536"),
    ("PULL-SQL-12", "MUST", "LIKE, arithmetic and functions end the expression before them, and other operators cannot be read: 27.", _SQL, "sql-537 sql-538 sql-539 sql-540 sql-541 sql-542 sql-543"),
    ("PULL-SQL-13", "MUST", "A quote in a text is doubled; comments are passed over.", _SQL, "sql-544 sql-545 sql-546 sql-547 sql-548 sql-549 sql-550"),
    ("PULL-SQL-14", "MUST", "A number's size and point say how a property is read, and what cannot be read so is no match.", _SQL, "sql-551 sql-552 sql-553 sql-554 sql-555 sql-556 sql-557 sql-558 sql-559 sql-560 sql-561 sql-562"),
    ("PULL-SQL-15", "MUST", "A property is compared as the kind of the value beside it.", _SQL, "sql-563 sql-564 sql-565 sql-566 sql-567 sql-568 sql-569 sql-570 sql-571 sql-572"),
    ("PULL-SQL-16", "MUST", "There are three truth values, and what fails makes the whole expression fail unless what stands before decides.", _SQL, "sql-573 sql-574 sql-575 sql-576 sql-577 sql-578 sql-579 sql-580 sql-581"),
    ("PULL-SQL-17", "MUST", "NOT binds tighter than comparisons, AND tighter than OR; names have their case and words have not.", _SQL, "sql-582 sql-583 sql-584 sql-585 sql-586 sql-587 sql-588 sql-589 sql-590 sql-591"),
    # -- holding
    ("PULL-HOLD-1", "MUST", "At the end of a queue a pull with the suspend bit is held, and answered 19 when its time is over, not before.", _HOLD, "hold-118 hold-120 hold-122"),
    ("PULL-HOLD-2", "MUST", "A hold without the suspend bit is none.", _PULL, "hold-124"),
    ("PULL-HOLD-3", "MUST", "Where long polling is off a hold is a second, and without the suspend bit none.", _HOLD, "hold-164 hold-166"),
    ("PULL-HOLD-4", "MUST", "A held pull of a lite consumer (361) is held and woken as others are.", _PULL, "hold-162"),
    # -- waking
    ("PULL-WAKE-1", "MUST", "A message for a held pull answers it with that message.", _HOLD, "hold-126 hold-128 hold-160"),
    ("PULL-WAKE-2", "MUST", "A message of a tag, or of the hash of a tag, that it asked for wakes a pull.", _HOLD, "hold-130 hold-132"),
    ("PULL-WAKE-3", "MUST", "A message of another topic wakes nobody.", _HOLD, "hold-136"),
    ("PULL-WAKE-4", "MUST", "Each message of a batch may wake, and all that is there by then is answered, as much as was asked for.", _HOLD, "hold-138 hold-158"),
    ("PULL-WAKE-5", "MUST", "Every pull that is held for a queue is woken, also of one group, and on one connection by its own opaque.", _HOLD, "hold-140 hold-142 hold-144"),
    ("PULL-WAKE-6", "MUST", "A delayed message wakes when it is due.", "ScheduleMessageService", "hold-146"),
    ("PULL-WAKE-7", "MUST", "A prepared message wakes nobody, its commit does.", "TransactionalMessageServiceImpl", "hold-148"),
    ("PULL-WAKE-8", "MUST", "What is woken is asked everything anew: permissions, queues, subscription.", _PULL, "hold-152 hold-154"),
    ("PULL-WAKE-9", "MUST", "The filter of a held pull is that of its begin.", _HOLD, "hold-156"),
    ("PULL-WAKE-10", "MUST", "A message that does not match leaves a pull held, and its time over, 20 tells the offset behind that message.", _HOLD, "hold-134"),
    ("PULL-WAKE-11", "MUST", "A pull whose topic is deleted is answered 17 by the end of its time.", _HOLD, "hold-150"),
    # -- offsets of groups
    ("COMMIT-1", "MUST", "A pull with the commit bit commits, whether it finds something, nothing, or an offset that moved.", _PULL, "commit-106 commit-108 commit-110"),
    ("COMMIT-2", "MUST", "A pull that is refused commits nothing.", _PULL, "commit-112"),
    ("COMMIT-3", "MUST", "An offset beyond the end is committed all the same.", "ConsumerOffsetManager", "commit-114"),
    ("COMMIT-4", "MUST", "A held pull has committed while it is held.", _PULL, "commit-116"),
    ("OFFSET-1", "MUST", "A group that has committed nothing begins at 0 where everything is still in memory.", _OFFSET, "offset-280"),
    ("OFFSET-2", "MUST", "A topic that is not there is answered as each version does (0 in 4.9, 22 in 5.x).", _OFFSET, "offset-282"),
    ("OFFSET-3", "MUST", "What was committed is asked for again.", _OFFSET, "offset-284 offset-286 offset-288"),
    ("OFFSET-4", "MUST", "A group that nobody made may commit where groups are not made on use (4.9), or not (5.x).", _OFFSET, "offset-290"),
    ("OFFSET-5", "MUST", "A commit without an offset is refused.", _OFFSET, "offset-296"),
    ("OFFSET-6", "MUST", "The end, the begin and the first time of storing of an empty queue, or one that is not there, are told.", _ADMIN, "offset-298 offset-300 offset-302 offset-304 offset-306 offset-308"),
    ("OFFSET-7", "MUST", "The end of no queue is an error.", _ADMIN, "offset-310"),
    ("OFFSET-8", "MUST", "An offset by time is the first message stored at that time or after it.", _ADMIN, "offset-312 offset-314 offset-316 offset-318 offset-320"),
    # -- sending
    ("SEND-1", "MUST", "A send is answered 0 with the queue, the offset there and the message's id.", _SEND, "send-206 send-212 send-214 send-216 send-266"),
    ("SEND-2", "MUST", "Properties come back as they were, less those that are the broker's own.", _SEND, "send-208 send-210"),
    ("SEND-3", "MUST", "For queue -1 the broker picks one.", _SEND, "send-218"),
    ("SEND-4", "MUST", "A queue that may only be read may be sent to.", _SEND, "send-220"),
    ("SEND-5", "MUST", "A topic that is not there is made of TBW102, or where topics are not made on use refused with 17.", _SEND, "send-222 send-226"),
    ("SEND-6", "MUST", "A queue beyond both numbers of queues is refused.", _SEND, "send-224"),
    ("SEND-7", "SHOULD", "Whether a topic may be written is not asked.", _SEND, "send-228 send-278"),
    ("SEND-8", "MUST", "Names with letters that no topic may have, and names too long, are refused.", "TopicValidator", "send-230 send-232 send-234 send-238 send-240"),
    ("SEND-9", "MUST", "To topics of the broker's own nobody may send; to others with a known beginning one may.", "TopicValidator", "send-236 send-242 send-244 send-246"),
    ("SEND-10", "MUST", "A retry that was consumed too often goes among the dead letters.", _SEND, "send-248"),
    ("SEND-11", "MUST", "A batch is stored as its messages, and answered with their ids.", _SEND, "send-250 send-252"),
    ("SEND-12", "MUST", "A batch without messages is refused.", _SEND, "send-254"),
    ("SEND-13", "MUST", "A batch to a retry topic, or with a delay, is dealt with as each version does.", _SEND, "send-256 send-258"),
    ("SEND-14", "MUST", "A level of delay beyond the last one is the last one, one below 1 is none.", _SEND, "send-260 send-262"),
    ("SEND-15", "MUST", "A prepared message is stored, and nobody sees it.", _SEND, "send-264"),
    ("SEND-16", "MUST", "A send that lacks a field it needs is answered 1.", "SendMessageRequestHeader", "send-268 send-270 send-272 send-274"),
    ("SEND-17", "MUST", "System flag, flag and how often it was consumed are stored as they were sent; what is rolled back nobody sees.", _SEND, "send-600 send-601 send-602 send-603 send-604 send-605 send-606 send-607"),
    ("SEND-18", "MUST", "Messages of a batch are stored with their own properties, and the flags of the request.", _SEND, "send-608 send-609 send-610 send-611 send-612"),
    ("SEND-19", "MUST", "The request's code says nothing of a batch that the field does not say.", _SEND, "send-613 send-614"),
    # -- looking at messages
    ("VIEW-1", "MUST", "A place in the log where no message begins is no message.", "QueryMessageProcessor", "view-322 view-324"),
    ("VIEW-2", "MUST", "Messages are found by each of their keys, by their own key, and by their case.", "QueryMessageProcessor", "view-326 view-328 view-330"),
    # -- clients
    ("CLIENT-1", "MUST", "A heartbeat of producers, of consumers, of neither or of a group that nobody made is answered 0.", _CLIENT, "client-332 client-340 client-342 client-344"),
    ("CLIENT-2", "MUST", "Members are told (40) when a group's subscription changes or one leaves, and not when nothing changes.", "DefaultConsumerIdsChangeListener", "client-334 client-336 client-346"),
    ("CLIENT-3", "MUST", "A heartbeat that is no JSON is answered 1, and the connection lives.", _CLIENT, "client-338"),
    ("CLIENT-4", "MUST", "Who leaves without a client's id is answered all the same.", _CLIENT, "client-348"),
    ("CLIENT-5", "MUST", "Who asks for the members of no group is answered 1.", "ConsumerManageProcessor", "client-350"),
    ("LOCK-1", "MUST", "Queues that are free, or one's own, are locked; those of another client are not.", "RebalanceLockManager", "lock-352 lock-354"),
    ("LOCK-2", "MUST", "What is given back may be locked by another.", "RebalanceLockManager", "lock-356"),
    ("LOCK-3", "MUST", "No queues are locked as none; without a body it is an error.", "RebalanceLockManager", "lock-358 lock-360"),
    ("BACK-1", "MUST", "A message that is sent back comes again on the group's retry topic, after its delay.", "AbstractSendMessageProcessor", "back-362"),
    ("BACK-2", "MUST", "The topic of dead letters may be written only.", "AbstractSendMessageProcessor", "back-364"),
    ("BACK-3", "MUST", "Where nothing is tried again a message goes among the dead letters, or nowhere without a retry queue.", "AbstractSendMessageProcessor", "back-366 back-368"),
    ("BACK-4", "MUST", "A group that nobody made may send nothing back where groups are not made on use: 26.", "AbstractSendMessageProcessor", "back-370"),
    ("BACK-5", "MUST", "Fields that are not used may be missing.", "ConsumerSendMsgBackRequestHeader", "back-372"),
    # -- routes
    ("ROUTE-1", "MUST", "The route of a topic that is not there is answered 17.", _ROUTE, "route-374 route-376"),
    ("ROUTE-2", "MUST", "The route of a topic has its queues and its brokers, also for old clients and for one that may not be read.", _ROUTE, "route-378 route-380"),
    ("ROUTE-3", "MUST", "The cluster's brokers are told.", _ROUTE, "route-382"),
    ("ROUTE-4", "SHOULD", "What a name server does not know it does not answer (4.9), or answers 3 (5.x).", _ROUTE, "route-384"),
    # -- anything else
    ("CODE-1", "MUST", "A request that nobody knows is answered 3, and nothing when it is one-way.", "NettyRemotingAbstract", "misc-386 misc-388 misc-390 misc-392"),
    ("TOPIC-1", "MUST", "A topic with a name that none may have is not made.", _ADMIN, "misc-394"),
    ("TOPIC-2", "MUST", "A topic that is made again keeps its messages.", _ADMIN, "misc-396"),
    ("TOPIC-3", "MUST", "Deleting what is not there is no error.", _ADMIN, "misc-398 misc-400"),
    ("FRAME-1", "MUST", "A frame whose length is negative, or over 16 MiB, closes the connection.", _FRAME, "frame-460 frame-462"),
    ("FRAME-2", "MUST", "A header that is longer than its frame, of an unknown kind, or cut short, closes the connection.", _FRAME, "frame-464 frame-466 frame-476"),
    ("FRAME-3", "MUST", "A header that is no JSON object closes the connection.", _FRAME, "frame-468"),
    ("FRAME-4", "MUST", "A header may lack its language, version and flag, and have what nobody knows; without an opaque nobody is answered.", _FRAME, "frame-458 frame-470 frame-472 frame-474 frame-478"),
    # -- a store that was there before
    ("STORE-1", "MUST", "Of a store that lost its oldest files a pull from below is answered 21 with the first that is left, or 19 with the next file.", _STORE, "store-402 store-404 store-406 store-408"),
    ("STORE-2", "MUST", "Messages of a stored log come as they were stored, of every kind.", _STORE, "store-410 store-412 store-414 store-416 store-418 store-420 store-422 store-424 store-426 store-428 store-430"),
    ("STORE-3", "MUST", "Ends, begins, times and committed offsets of a stored log are told.", _ADMIN, "store-432 store-434 store-436 store-438 store-440 store-442 store-444 store-446 store-448"),
    ("STORE-4", "MUST", "A stored index is asked, and sending goes on at the stored end.", "IndexService", "store-450 store-452 store-454 store-456"),
    # -- a whole run
    ("RUN-1", "MUST", "Under a load a held pull is answered promptly once a message is there that it asks for.", "no_lost_wakeup of judge and law", "load-no-lost-wakeup"),
    ("RUN-2", "MUST", "Under a load every pull is answered by its deadline.", "answered_by_deadline of judge and law", "load-answered-by-deadline"),
    ("RUN-3", "MUST", "No request is answered twice, and none that was not asked.", "answered_once of judge and law", "load-answered-once"),
    ("RUN-4", "MUST", "Every answer has the code, the messages and the next offset that the log and the filter make right.", "answer_is_right of judge and law", "load-answer-is-right"),
    ("RUN-5", "MUST", "The offsets of a queue are given once, in order and without a gap.", "offsets_in_order of the judge", "load-offsets-in-order"),
    ("RUN-6", "MUST", "A group's committed offset is told no lower than it was, unless somebody set it back.", "commit_never_regresses of judge and law", "load-commit-never-regresses"),
    ("RUN-7", "MUST", "A pull is held as it asked: no longer, no shorter, and not without asking.", "held_as_asked of the judge", "load-held-as-asked"),
    ("RUN-8", "MUST", "What was acknowledged is in its queue, and delivered.", "send_is_kept of the judge", "load-send-is-kept"),
    ("RUN-9", "MUST", "A group is told the offset that it committed.", "commit_is_told of the judge", "load-commit-is-told"),
    ("RUN-10", "MUST", "Each message comes to each group that asked for it, once and in order.", "what the load has sent and got", "load-delivered"),
    ("RUN-11", "MUST", "A message and the pull that waits for it do not miss each other, whichever comes first, on any queue.", "no_lost_wakeup of judge and law; RocketMQ #7358", "race-no-lost-wakeup"),
)  # fmt: skip

OF_LOAD: Final = "load-"
OF_RACE: Final = "race-"
SEEN: Final = tuple(name for *_, names in _ROWS for name in names.split() if name.startswith((OF_LOAD, OF_RACE)))
"""What is seen of a whole run: `load-`, or `race-`, and the property that it shows, or `delivered`."""
PARTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "lost_by_hold": "RUN-1",
        "lost_by_keep": "RUN-1",
        "woken_within": "RUN-1",
        "nothing_skipped": "RUN-1",
        "queued_by_deadline": "RUN-2",
        "no_lost_deadline": "RUN-2",
        "nothing_dropped": "RUN-2",
        "dropped_by_reject": "RUN-2",
        "dropped_by_throw": "RUN-2",
        "deadline_is_its_pulls": "RUN-7",
        "not_answered_early": "RUN-7",
        "offset_goes_on": "RUN-4",
        "moved_is_told": "PULL-READ-7",
    }
)
"""Properties of the law that are seen from outside by a clause of another name."""
_TABLE: Final = "the hold table is not seen from outside"
_CHANGE: Final = "a conformance run changes no roles, and neither stops nor kills a broker that serves"
INSIDE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "visible_is_monotone": "when a message becomes visible is told by a record from inside",
        "follows_the_law": "the law's steps are told by a record from inside",
        "hold_limit_kept": _TABLE,
        "table_is_tidy": _TABLE,
        "no_orphan": _TABLE,
        "buckets_are_swept": _TABLE,
        "closed_is_let_go": _TABLE,
        "round_is_whole": "a walk over the hold table is not seen from outside",
        "time_can_pass": "it is of the law itself: time is never stopped for good",
        "answered_on_stop": _CHANGE,
        "seen_survives": _CHANGE,
        "only_disk_survives": _CHANGE,
        "told_of_role_change": _CHANGE,
        "told_of_master_return": _CHANGE,
        "return_is_whole": _CHANGE,
    }
)
"""Properties of law and judge that no clause has, and why."""

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
"""What a broker must have, and must not have, for the vectors of each profile."""
LACKING: Final[Mapping[str, frozenset[Capability]]] = MappingProxyType(
    {name: frozenset({"sql92"}) for name in ("PULL-SQL-1", "PULL-TAG-10", "COMMIT-2")}
)
"""What brokers with more than they need for them are not asked."""


def _clauses() -> tuple[Clause, ...]:
    found = [
        Clause(name, level, sentence, source, tuple(vectors.split()), _needs(name), LACKING.get(name, frozenset()))
        for name, level, sentence, source, vectors in _ROWS
    ]
    return tuple(found)


def _needs(name: str) -> frozenset[Capability]:
    return frozenset({"name-server"}) if name.startswith("ROUTE") else frozenset()


CLAUSES: Final = _clauses()
BY_ID: Final[Mapping[str, Clause]] = MappingProxyType({clause.id: clause for clause in CLAUSES})
BY_VECTOR: Final[Mapping[str, Clause]] = MappingProxyType(
    {vector: clause for clause in CLAUSES for vector in clause.vectors}
)
"""The clause that each vector shows."""
