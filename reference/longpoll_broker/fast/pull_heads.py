"""Answers to pulls from a frame template, for answers that contain only offsets."""

from __future__ import annotations

from attrs import define

from longpoll_broker.hold.hold_table import Pull
from longpoll_broker.hold.pull import PullChecks
from longpoll_broker.hold.pull_answers import JSON, RESPONSE, PullAnswers
from longpoll_broker.store.read import GetResult
from longpoll_protocol.fast.pull_answer import encode_pull_head
from longpoll_protocol.frames.frame import Serialisation


def tells_offsets_only(desk: PullChecks) -> bool:
    """Whether answers have no fields except the offsets: on a lone master before 5.x."""
    return desk.standing.is_plain and not desk.traits.explains_refusals


@define(slots=True, eq=False)
class PatchedPullAnswers(PullAnswers):
    """`PullAnswers` for brokers with `tells_offsets_only`."""

    def head(self, pull: Pull, code: int, read: GetResult, kind: Serialisation, body_size: int) -> bytes:
        """Returns the frame up to the records."""
        if kind is not JSON:
            return super().head(pull, code, read, kind, body_size)
        return encode_pull_head(
            code, pull.opaque, RESPONSE, read.status,
            read.offset_next, read.offset_min, read.offset_max, body_size,
        )  # fmt: skip
