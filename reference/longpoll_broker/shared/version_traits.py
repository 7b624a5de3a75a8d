"""Differences between versions that the specification does not cover: codes, fields, stored properties.

A policy's preset determines the version, while a knob changes only the hold table. Each trait is a difference seen
between 4.9.7 and 5.5.0, or a difference that `strict` adds. Knobs: see `longpoll_spec.policy`.

Sources: the recordings of both versions (`model_tests/conformance`); `DefaultPullMessageResultHandler.java`,
`AbstractSendMessageProcessor.java`, `ConsumerManageProcessor.java`, `ClientManageProcessor.java` of both versions.
"""

from __future__ import annotations

from typing import Final

import attrs
from attrs import frozen

from longpoll_protocol.codes import RequestCode
from longpoll_protocol.names import GROUP_SIZE_MAX, LONG_GROUP_SIZE_MAX
from longpoll_protocol.properties import FORM_4_9, FORM_5, PropertiesForm
from longpoll_spec.policy import Policy

_SYSTEM_ERROR: Final = 1
_INVALID_PARAMETER: Final = 29
CODES_OF_5: Final = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.QUERY_TOPICS_BY_CONSUMER,
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
        RequestCode.GET_TOPIC_CONFIG,
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_BROKER_HA_STATUS,
        RequestCode.QUERY_ASSIGNMENT,
    }
)
"""Administration requests that 4.9.7 answers with code 3, because they exist only in 5.x."""
TIMER_CODES: Final = frozenset(
    {RequestCode.RECALL_MESSAGE, RequestCode.GET_TIMER_CHECK_POINT, RequestCode.GET_TIMER_METRICS}
)
"""Requests about timed messages, which exist only in 5.x."""
PROXY_HEADER_SIZE_MIN: Final = 12
"""Number of bytes that Netty's `HAProxyMessageDecoder` needs to recognise the header of a proxy."""


@frozen
class Traits:
    """How a broker of one version answers. The defaults describe `strict`."""

    # -- pull
    caps_hold: bool = True
    """A pull is held no longer than the broker's limit and the timeout in the request."""
    drops_one_way_pull: bool = True
    """A one-way pull that finds no message is dropped instead of held."""
    answers_woken_one_way: bool = False
    """A held one-way pull gets an answer when it is woken."""
    woken_in_json: bool = False
    """A woken pull is answered in the server's default serialisation instead of the request's."""
    serves_lite_pull: bool = True
    """Code 361 (LITE_PULL_MESSAGE) is served like code 11."""
    refuses_negative_count: bool = True
    """A pull for a negative number of messages is an error if messages exist, instead of a pull for one message."""
    explains_refusals: bool = False
    """A refused pull's answer has `forbiddenType`; a pull's other answers have `topicSysFlag` and `groupSysFlag`."""
    minimum_follows_log: bool = False
    """If a queue's records are all deleted, its minimum offset becomes its end; code 21 redirects consumers to it."""
    stores_moved_offsets: bool = False
    """A pull answered with code 21 adds a message to the topic `OFFSET_MOVED_EVENT`."""

    # -- slaves
    redirects_to_master: bool = False
    """If its master is alive, a slave redirects clients to the master at once."""
    rejects_as_slave: bool = False
    """A slave answers sends with SYSTEM_BUSY, and also pulls unless consumers may read from the slave."""
    changes_as_slave: bool = False
    """Clients may change a slave's topics and groups."""
    commits_as_slave: bool = False
    """A slave stores the offsets that pulls commit."""
    slave_notifies: bool = True
    """Messages that become visible on a slave wake its pulls."""
    hears_of_members: bool = True
    """Code 905 (NOTIFY_MIN_BROKER_ID_CHANGE) is served; it reports the lowest id of a living broker of this name."""

    # -- every request
    answers_in_json: bool = False
    """Every answer's header is JSON, whatever serialisation the request used."""
    bad_parameter_code: int = _SYSTEM_ERROR
    """The response code for an unknown queue and for an illegal topic name."""
    checks_deleted_names: bool = True
    """Deleting a topic with an illegal name is an error instead of a success."""
    name_server_is_silent: bool = False
    """A name server does not answer unknown requests."""
    first_size: int = 0
    """Number of bytes that must arrive on a connection before any are read, because 5.x looks for a proxy's header."""
    offsets_outlive_topics: bool = False
    """A group's offsets stay when their topic is deleted, and apply to a new topic with that name."""
    routes_outlive_topics: bool = False
    """A name server reports a deleted topic until code 216 removes it. Code 216 also hides an existing topic."""
    null_bodies: frozenset[bytes] = frozenset()
    """Bodies that contain no group, in a request that creates or changes a group (code 200). Such a request changes
    nothing."""
    acting_master_fields: bool = True
    """The route of a broker says whether a slave may act as its master."""

    # -- send
    properties_form: PropertiesForm = FORM_4_9
    """The format of properties in a record."""
    stores_region: bool = False
    """A message is stored with its region and trace switch, and with a generated unique key if it has no key."""
    stores_wait: bool = False
    """The property `WAIT` stays in the record."""
    merges_batch_properties: bool = True
    """Each message of a batch gets the request's properties and the cluster's name."""
    batches_retries: bool = True
    """A batch may be sent to a retry topic."""
    batch_size_is_an_error: bool = False
    """A batch that is too large as a whole gets an error instead of the answer "illegal message"."""
    refuses_empty_body: bool = False
    """A send without a body is an error."""
    reports_blank_topic: bool = True
    """A send without a topic gets an error about the topic; if false, the error names no field."""
    marks_dead_letters: bool = False
    """A message moved to the dead letters has the property `DELAY` -1."""
    commit_forgets_place: bool = False
    """A committed message no longer carries its original topic and queue as properties."""
    names_transactions: bool = False
    """A prepared message has its unique key in the property `__transactionId__`."""
    answers_undecided: bool = True
    """A producer that reports the state "unknown" for its transaction (code 37) gets an answer."""
    serves_timers: bool = True
    """A message waits for the delivery time in its properties `TIMER_*`, and may be recalled until then."""
    refuses_timed_batches: bool = True
    """A batch with a timed message is illegal; 5.x delivers that message at once."""
    returns_transaction_id: bool = False
    """The answer to a send carries the message's unique key."""
    returns_prepared_id: bool = True
    """The answer to the send of a prepared message carries the message's unique key."""

    # -- offsets and clients
    commits_of_known_only: bool = False
    """An offset is stored only for an existing group and topic."""
    zero_for_stored_only: bool = False
    """A group without an offset gets 0 only if the queue's first message still exists."""
    searches_by_boundary: bool = False
    """A search by time finds the first message at or after the time; with UPPER, the last at or before the time."""
    version_name: str = "V4_9_7"
    """The broker's version as text."""
    given_rate_key: str = "getTransferedTps"
    """The name under which the rate of delivered messages is reported."""
    tells_if_active: bool = False
    """The answer to code 28 (GET_BROKER_RUNTIME_INFO) says that the broker is active."""
    tells_pull_offsets: bool = False
    """A group's progress includes the offset of its last pull."""
    unknown_codes: frozenset[int] = frozenset()
    """Request codes of other versions, which this version does not know."""
    heartbeat_fields: bool = False
    """The answer to a heartbeat lists what the broker supports."""
    believes_tag_hashes: bool = False
    """The hashes in a heartbeat decide which tags match, even if there are none; its expression is ignored."""
    filters_outlive_groups: bool = False
    """A group's SQL92 filters stay when its last member leaves, and later members cannot register lower versions."""
    filters_with_parts: bool = False
    """SQL92 filters support CONTAINS, STARTSWITH and ENDSWITH."""
    registers_unknown_groups: bool = True
    """A heartbeat of a group that may not be created still registers its members."""
    group_size_max: int = GROUP_SIZE_MAX
    """Maximum characters of a group's name. RocketMQ 4.9 has no limit; this limit keeps the broker's tables small."""
    validates_groups: bool = False
    """A group's name may have only the characters of a topic's name, and at most the length that 5.x allows."""
    lists_each_connection: bool = False
    """Code 38 (GET_CONSUMER_LIST_BY_GROUP) lists a client once for each of its connections in the group."""
    removes_offsets_by: frozenset[str] = frozenset({"removeOffset", "cleanOffset"})
    """The boolean fields of code 207 (delete a group); if one is true, the group's offsets are deleted too."""


STRICT_TRAITS: Final = Traits()
TRAITS_4_9: Final = Traits(
    caps_hold=False,
    drops_one_way_pull=False,
    answers_woken_one_way=True,
    woken_in_json=True,
    serves_lite_pull=False,
    stores_moved_offsets=True,
    slave_notifies=False,
    hears_of_members=False,
    name_server_is_silent=True,
    unknown_codes=CODES_OF_5 | TIMER_CODES,
    offsets_outlive_topics=True,
    routes_outlive_topics=True,
    acting_master_fields=False,
    returns_prepared_id=False,
    serves_timers=False,
    refuses_timed_batches=False,
    null_bodies=frozenset({b"null"}),
    answers_undecided=False,
    believes_tag_hashes=True,
    filters_outlive_groups=True,
    group_size_max=LONG_GROUP_SIZE_MAX,
    lists_each_connection=True,
    removes_offsets_by=frozenset({"removeOffset"}),
)
TRAITS_5: Final = attrs.evolve(
    TRAITS_4_9,
    answers_woken_one_way=False,
    serves_lite_pull=True,
    refuses_negative_count=False,
    explains_refusals=True,
    minimum_follows_log=True,
    stores_moved_offsets=False,
    redirects_to_master=True,
    rejects_as_slave=True,
    changes_as_slave=True,
    commits_as_slave=True,
    offsets_outlive_topics=False,
    slave_notifies=True,
    hears_of_members=True,
    answers_in_json=True,
    bad_parameter_code=_INVALID_PARAMETER,
    checks_deleted_names=False,
    name_server_is_silent=False,
    unknown_codes=frozenset(),
    version_name="V5_5_0",
    given_rate_key="getTransferredTps",
    tells_if_active=True,
    tells_pull_offsets=True,
    first_size=PROXY_HEADER_SIZE_MIN,
    null_bodies=frozenset({b"null", b""}),
    acting_master_fields=True,
    properties_form=FORM_5,
    stores_region=True,
    stores_wait=True,
    merges_batch_properties=False,
    batches_retries=False,
    batch_size_is_an_error=True,
    refuses_empty_body=True,
    reports_blank_topic=False,
    marks_dead_letters=True,
    commit_forgets_place=True,
    names_transactions=True,
    serves_timers=True,
    returns_transaction_id=True,
    returns_prepared_id=True,
    commits_of_known_only=True,
    zero_for_stored_only=True,
    searches_by_boundary=True,
    heartbeat_fields=True,
    filters_with_parts=True,
    registers_unknown_groups=False,
    group_size_max=GROUP_SIZE_MAX,
    validates_groups=True,
    removes_offsets_by=frozenset({"cleanOffset"}),
)
_BY_PRESET: Final = {
    "rocketmq-4.9": TRAITS_4_9,
    "rocketmq-5": TRAITS_5,
    # The pull request and the report of the orphaned bucket are about 5.x.
    "rocketmq-pr7359": TRAITS_5,
    "rocketmq-lmq": TRAITS_5,
}


def traits_of(policy: Policy) -> Traits:
    """Returns the traits of the version in the policy's preset; a custom policy has the traits of `strict`."""
    return _BY_PRESET.get(policy.name.partition("+")[0], STRICT_TRAITS)
