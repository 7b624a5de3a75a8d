"""Encodes the answers to pulls: a code, offsets, and the messages found.

Decisions: see `hold.pull_runner`. A faster encoder of the same bytes: see `fast.pull_heads`. Source:
`PullMessageProcessor.java` 4.9 and 5.x.
"""

from __future__ import annotations

from typing import Final

from attrs import define

from longpoll_broker.hold.hold_table import ANSWERED, Cause, Pull
from longpoll_broker.hold.pull import Decision, Found, PullChecks, Refused, code_of
from longpoll_broker.hold.pull_events import PullEvents
from longpoll_broker.io.channel import Outbox, Parts
from longpoll_broker.io.processors import Refusal
from longpoll_broker.store.read import GetResult
from longpoll_protocol.codes import CommandFlag
from longpoll_protocol.frames.command import Command, encode_head
from longpoll_protocol.frames.frame import Serialisation

RESPONSE: Final = CommandFlag.RESPONSE.value
JSON: Final = Serialisation.JSON
KINDS: Final = (Serialisation.JSON, Serialisation.ROCKETMQ)
"""Indexed by number, because an enum lookup is slower."""


@define(slots=True, eq=False)
class PullAnswers:
    """Encodes decisions; callable from any thread."""

    desk: PullChecks
    events: PullEvents

    def encode(self, pull: Pull, decision: Decision, cause: Cause, kind: Serialisation, outbox: Outbox) -> Parts:
        """Returns the buffers of an answer; codes 0, 19, 20 and 21 carry offsets, a refusal carries none."""
        pull.phase = ANSWERED
        if isinstance(decision, Refused):
            refusal = self._refusal_fields(decision)
            head = encode_head(
                Command(decision.code, pull.opaque, RESPONSE, refusal, remark=decision.remark, serialisation=kind), 0
            )
            self.events.answered(pull, decision.code, None, cause, outbox)
            return Refusal((head,), decision.code, decision.remark)
        read = decision.read
        is_found = isinstance(decision, Found)
        head = self.head(pull, decision.code, read, kind, read.size_bytes if is_found else 0)
        self.events.answered(pull, decision.code, read, cause, outbox)
        return [head, *read.records] if is_found else [head]

    def head(self, pull: Pull, code: int, read: GetResult, kind: Serialisation, body_size: int) -> bytes:
        """Returns the frame up to the records of an answer with offsets."""
        fields = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(read.offset_next),
            "minOffset": str(read.offset_min),
            "maxOffset": str(read.offset_max),
        }
        if self.desk.traits.explains_refusals:
            fields |= self._flag_fields(pull)
        if not self.desk.standing.is_plain:
            fields |= self._standing_fields(pull, read)
        command = Command(code, pull.opaque, RESPONSE, fields, remark=read.status.name, serialisation=kind)
        return encode_head(command, body_size)

    def _refusal_fields(self, decision: Refused) -> dict[str, str] | None:
        if decision.forbidden_type is None or not self.desk.traits.explains_refusals:
            return None
        return {"forbiddenType": str(decision.forbidden_type)}

    def _flag_fields(self, pull: Pull) -> dict[str, str]:
        """Returns the fields that 5.x adds about the topic and the group."""
        topic, group = self.desk.topics.get(pull.topic), self.desk.groups.by_name.get(pull.group)
        return {
            "topicSysFlag": str(topic.topic_sys_flag if topic is not None else 0),
            "groupSysFlag": str(group.group_sys_flag if group is not None else 0),
        }

    def _standing_fields(self, pull: Pull, read: GetResult) -> dict[str, str]:
        """Returns the fields that differ on a slave, or on a master that may redirect readers to one."""
        standing, status = self.desk.standing, read.status
        group = self.desk.groups.by_name.get(pull.group)
        suggested = standing.suggested_broker(
            group, code_of(status, pull.offset), self.desk.traits, suggests_slave=read.suggest_slave
        )
        offset_next = standing.offset_next(pull.offset, read.offset_next, status)
        return {"suggestWhichBrokerId": str(suggested), "nextBeginOffset": str(offset_next)}
