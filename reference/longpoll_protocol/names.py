"""Names and permissions of topics and groups: RocketMQ's reserved names, and checks of names.

`longpoll_broker.shared` has the tables of a broker.

Source: `TopicValidator.java`, `PermName.java`, `MixAll.java`.
"""

from __future__ import annotations

import re
from typing import Final

PERM_INHERIT: Final = 1
PERM_WRITE: Final = 2
PERM_READ: Final = 4
PERM_READ_WRITE: Final = PERM_READ | PERM_WRITE

NAME_SIZE_MAX: Final = 127
"""Maximum characters of a topic (`TopicValidator.TOPIC_MAX_LENGTH`), because the commit log stores a topic's length in
one signed byte.
"""
GROUP_SIZE_MAX: Final = 255
"""Maximum characters of a group in 4.9 (`Validators.CHARACTER_MAX_LENGTH`), which clients check but brokers do not."""
GROUP_SIZE_MAX_5: Final = 120
"""Maximum characters of a group in 5.x (`TopicValidator.GROUP_MAX_LENGTH`), which the broker checks."""
LONG_GROUP_SIZE_MAX: Final = 1024
"""Maximum characters of a group on a broker that accepts names that clients refuse. The broker of 4.9 has no limit."""
UNIT_FLAG: Final = 1
"""The bit in `TopicSysFlag` of a topic that a producer of a unit (`unitName`) created."""
UNIT_RETRY_FLAG: Final = 2
"""The bit in `TopicSysFlag` of the retry topic of a group in a unit."""
LEGAL_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")

DEFAULT_TOPIC: Final = "TBW102"
RETRY_PREFIX: Final = "%RETRY%"
DEAD_PREFIX: Final = "%DLQ%"
LMQ_PREFIX: Final = "%LMQ%"
"""The prefix of light topics and groups (`MixAll.LMQ_PREFIX`), which need not be created."""
LIGHT_NAME_SIZE_MAX: Final = 255
"""Maximum bytes of the name of a light queue, because it is also the name of a directory."""
SYSTEM_TOPICS: Final = (
    "SELF_TEST_TOPIC",
    "BenchmarkTest",
    "OFFSET_MOVED_EVENT",
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
)
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
"""The topic of timed messages in 5.x. Java's broker accepts a send to this topic, and then the broker's timer stops."""
_NOT_FOR_SENDING: Final = frozenset(
    {"SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC",
     "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"}
)  # fmt: skip
"""The topics that RocketMQ's clients may not send to (`TopicValidator.NOT_ALLOWED_SEND_TOPIC_SET`)."""
NOT_FOR_SENDING: Final = _NOT_FOR_SENDING | {TIMER_TOPIC}
"""The topics that clients of our broker may not send to."""
SYSTEM_NAMES: Final = frozenset({*SYSTEM_TOPICS, *_NOT_FOR_SENDING, DEFAULT_TOPIC, "RMQ_SYS_TRACE_TOPIC"})
"""The names of system topics (`TopicValidator.SYSTEM_TOPIC_SET`). Each broker adds its own name and the name of its
cluster."""
SYSTEM_PREFIX: Final = "rmq_sys_"
REPLY_SUFFIX: Final = "_REPLY_TOPIC"
"""The name of a cluster and this suffix form the name of the cluster's topic for replies between clients."""
FILTER_TYPES: Final = frozenset({"SINGLE_TAG", "MULTI_TAG"})
"""The names of `TopicFilterType`."""


def name_problem(topic: str) -> str | None:
    """Returns why a topic name is illegal, in RocketMQ's words; None if it is legal."""
    if not topic.strip():
        return "The specified topic is blank."
    if not LEGAL_NAME.fullmatch(topic):
        return "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    if len(topic) > NAME_SIZE_MAX:
        return f"The specified topic is longer than topic max length {NAME_SIZE_MAX}."
    return None


def queue_name_problem(name: str) -> str | None:
    """Returns why a queue name is illegal; None if it is legal.

    As in RocketMQ, the name of a light queue only needs to be a valid name of a directory.
    """
    if not name.startswith(LMQ_PREFIX):
        return name_problem(name)
    if "/" in name or not name.isprintable():
        return "The name of a light queue cannot be that of a directory."
    if len(name.encode("utf-8", "surrogatepass")) > LIGHT_NAME_SIZE_MAX:
        return f"The name of a light queue has more than {LIGHT_NAME_SIZE_MAX} bytes."
    return None


def group_problem(group: str) -> str | None:
    """Returns why 5.x refuses a group name, in the words of 5.x; None if it accepts the name.

    The returned text quotes at most the first `GROUP_SIZE_MAX` characters of the name.
    """
    if not group.strip():
        return "The specified group is blank."
    shown = f"The specified group: {group[:GROUP_SIZE_MAX]}, "
    if not LEGAL_NAME.fullmatch(group):
        return f"{shown}contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    if len(group) > GROUP_SIZE_MAX_5:
        return f"{shown}is longer than group max length: {GROUP_SIZE_MAX_5}"
    return None
