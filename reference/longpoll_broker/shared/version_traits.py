"""What tells one version's broker from another where the law says nothing: codes, fields, stored properties.

The preset that a policy started from names the version; a knob set by hand changes the hold table and not the version.
Each trait is one difference seen between 4.9.7 and 5.5.0, or one that `strict` adds. Leaves out the knobs themselves
(`longpoll_spec.policy`).

Sources: the recordings of both versions (`model_tests/conformance`); `DefaultPullMessageResultHandler.java`,
`AbstractSendMessageProcessor.java`, `ConsumerManageProcessor.java`, `ClientManageProcessor.java` of both.
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
"""Requests of administrators that 4.9.7 answers 3."""
TIMER_CODES: Final = frozenset(
    {RequestCode.RECALL_MESSAGE, RequestCode.GET_TIMER_CHECK_POINT, RequestCode.GET_TIMER_METRICS}
)
"""Requests about messages that wait for a time, which only 5.x has."""
PROXY_HEADER_SIZE_MIN: Final = 12
"""What Netty's `HAProxyMessageDecoder` needs to tell whether a connection begins with a proxy's header."""


@frozen
class Traits:
    """How a broker of one version answers; the defaults are those of `strict`."""

    # -- pull
    caps_hold: bool = True
    """No pull is held longer than the broker's own limit, and none longer than it asked."""
    drops_one_way_pull: bool = True
    """A pull that wants no answer is not held."""
    answers_woken_one_way: bool = False
    """A one-way pull that was held is answered when it is woken."""
    woken_in_json: bool = False
    """A woken pull is answered in the server's default serialisation, not in the request's."""
    serves_lite_pull: bool = True
    """361 LITE_PULL_MESSAGE is served as 11 is."""
    refuses_negative_count: bool = True
    """A pull for less than no message is an error where there is something to read, not a pull for one."""
    explains_refusals: bool = False
    """A refused pull carries `forbiddenType`, an answered one `topicSysFlag` and `groupSysFlag`."""
    minimum_follows_log: bool = False
    """A queue whose records are all removed begins at its end, where a reader is sent (21), and not where it did."""
    stores_moved_offsets: bool = False
    """A pull answered 21 leaves a message in the topic `OFFSET_MOVED_EVENT`."""

    # -- slaves
    redirects_to_master: bool = False
    """A slave whose master is alive answers at once that the master should be asked."""
    rejects_as_slave: bool = False
    """A slave answers sends, and pulls unless it may be read from, with SYSTEM_BUSY."""
    changes_as_slave: bool = False
    """A slave's topics and groups can be changed there."""
    commits_as_slave: bool = False
    """A slave stores the offsets that pulls carry along."""
    slave_notifies: bool = True
    """What becomes visible on a slave wakes those who wait there."""
    hears_of_members: bool = True
    """905 NOTIFY_MIN_BROKER_ID_CHANGE is served: which brokers of this name are alive."""

    knows_copied_topics: bool = True
    """A slave knows a topic as soon as it has copied a message of it, before its master's table is copied."""
    begins_with_last_file: bool = False
    """A slave that has nothing is sent only the last file of the log, and not all of it."""
    replicates_visible: bool = True
    """A slave is sent what is visible here, so that nobody sees a message there first."""
    counts_replicas: bool = False
    """A SYNC_MASTER waits for as many slaves as `inSyncReplicas` says, less itself, and not for one that is near."""

    # -- every request
    answers_in_json: bool = False
    """Every answer's header is JSON, whatever the request was written in."""
    bad_parameter_code: int = _SYSTEM_ERROR
    """The code for a queue that is not there and for a topic's name that must not be."""
    checks_deleted_names: bool = True
    """Deleting a topic whose name must not be is an error, and not a topic that is gone already."""
    name_server_is_silent: bool = False
    """A name server does not answer what it does not know."""
    first_size: int = 0
    """Bytes of a connection that are waited for before any is read: 5.x looks for a proxy's header in them."""
    offsets_outlive_topics: bool = False
    """What groups have consumed of a topic stays when it is deleted, and counts for the next one of its name."""
    routes_outlive_topics: bool = False
    """A name server tells of a deleted topic until 216 has it forget its routes, and 216 hides one that is there."""
    null_bodies: frozenset[bytes] = frozenset()
    """The bodies of 200 that are no group, and change nothing."""
    acting_master_fields: bool = True
    """A broker in a route says whether a slave may act as its master."""

    # -- send
    properties_form: PropertiesForm = FORM_4_9
    """How properties are written into a record."""
    stores_region: bool = False
    """A message is stored with its region and trace switch, and with a unique key made up if it has none."""
    stores_wait: bool = False
    """The property `WAIT` stays in the record."""
    merges_batch_properties: bool = True
    """Each message of a batch gets the request's properties and the cluster's name."""
    batches_retries: bool = True
    """A batch may be sent to a retry topic."""
    batch_size_is_an_error: bool = False
    """A batch that is too large as a whole is an error, and not an illegal message."""
    refuses_empty_body: bool = False
    """A send without a body is an error."""
    blank_topic_is_told: bool = True
    """A send without a topic is told so; otherwise its error names no field."""
    marks_dead_letters: bool = False
    """A retry that was tried out carries `DELAY` -1 among the dead letters."""
    commit_forgets_place: bool = False
    """A committed message no longer carries the topic and queue that it waited for."""
    names_transactions: bool = False
    """A prepared message carries its unique key as `__transactionId__`."""
    answers_undecided: bool = True
    """A producer that does not know yet how its transaction ends is answered."""
    serves_timers: bool = True
    """A message waits for the time that its properties `TIMER_*` wish for, and may be recalled by then."""
    returns_transaction_id: bool = False
    """The answer to a send carries the message's unique key."""
    returns_prepared_id: bool = True
    """The answer to the send of a prepared message does."""

    # -- offsets and clients
    commits_of_known_only: bool = False
    """An offset is stored only for a group and a topic that there are."""
    zero_for_stored_only: bool = False
    """A group without an offset is told 0 only where the queue's first message is there."""
    searches_by_boundary: bool = False
    """A search for a time finds the first message at or after it, or, for UPPER, the last at or before it."""
    version_name: str = "V4_9_7"
    """What the broker says of its version in words."""
    given_rate_key: str = "getTransferedTps"
    """How the rate of messages that were given is called."""
    tells_if_active: bool = False
    """28 says that the broker serves."""
    tells_pull_offsets: bool = False
    """How far a group is is told with the offset that it asked for last."""
    unknown_codes: frozenset[int] = frozenset()
    """Requests of other versions, which this one does not know."""
    heartbeat_fields: bool = False
    """A heartbeat is answered with what the broker supports."""
    believes_tag_hashes: bool = False
    """A heartbeat's tags are the hashes that it names, also none, and not its expression's."""
    filters_outlive_groups: bool = False
    """The SQL92 filters of a group stay when its last member leaves, and count before older ones of later members."""
    filters_with_parts: bool = False
    """SQL92 filters know CONTAINS, STARTSWITH and ENDSWITH."""
    registers_unknown_groups: bool = True
    """A heartbeat of a group that must not be made registers its members all the same."""
    group_size_max: int = GROUP_SIZE_MAX
    """Most characters of a group's name; 4.9 has no limit, and ours is to keep its tables small."""
    validates_groups: bool = False
    """A group's name has the characters of a topic's, and no more of them than 5.x allows."""
    lists_each_connection: bool = False
    """38 lists a client once for each of its connections in the group."""
    removes_offsets_by: frozenset[str] = frozenset({"removeOffset", "cleanOffset"})
    """The fields of 207 of which one that is true has a group's offsets forgotten too."""


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
    knows_copied_topics=False,
    begins_with_last_file=True,
    replicates_visible=False,
    name_server_is_silent=True,
    unknown_codes=CODES_OF_5 | TIMER_CODES,
    offsets_outlive_topics=True,
    routes_outlive_topics=True,
    acting_master_fields=False,
    returns_prepared_id=False,
    serves_timers=False,
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
    counts_replicas=True,
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
    blank_topic_is_told=False,
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
    # The pull request and the report of the orphaned bucket were made against 5.x.
    "rocketmq-pr7359": TRAITS_5,
    "rocketmq-lmq": TRAITS_5,
}


def traits_of(policy: Policy) -> Traits:
    """The traits of the version that the policy's preset is; those of `strict` for a policy of one's own."""
    return _BY_PRESET.get(policy.name.partition("+")[0], STRICT_TRAITS)
