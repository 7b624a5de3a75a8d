"""What a group of a load commits by itself (request 15), and how it asks what it has committed (14).

Now and then an answer to a pull is followed by both, one after the other, while the next pull is in flight and commits
too; so a group never commits less than it did. What the answers say is judged by who records them. Leaves out the
pulls (`.load`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from attrs import define, field

from longpoll_client import RemotingClient
from longpoll_client.errors import ClientError
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames.command import Command
from longpoll_protocol.headers import (
    Header,
    QueryConsumerOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)

EVERY: Final = 4
"""Of so many answers to pulls of a queue one is followed by a question: 4 asks about a thousand of the load's pulls."""
ANSWER_S: Final = 30.0
"""Longer than a recording needs to tell that an answer did not come."""


@define(eq=False)
class Commits:
    """The commits of one group. All of it belongs to the reader thread of `client`."""

    client: RemotingClient
    group: str
    topic: str
    unknown_codes: set[int] = field(factory=set)
    """Requests that the broker says it does not know."""
    told_count: int = 0
    """Questions that were answered with an offset."""
    _answers: Counter[int] = field(factory=Counter)
    """Queue -> answers to its pulls."""
    _waiting: set[int] = field(factory=set)
    """Queues of which a commit or a question is in flight."""

    def answered(self, queue: int, offset: int) -> None:
        """A pull of the queue was answered, and all below `offset` has come.

        Every second time that is followed by something the offset is committed first; else it is asked for alone.
        """
        self._answers[queue] += 1
        if self._answers[queue] % EVERY or queue in self._waiting:
            return
        self._waiting.add(queue)
        if self._answers[queue] % (2 * EVERY):
            self._ask(queue)
        else:
            header = UpdateConsumerOffsetRequestHeader(
                consumer_group=self.group, topic=self.topic, queue_id=queue, commit_offset=offset
            )
            self._send(RequestCode.UPDATE_CONSUMER_OFFSET, header, partial(self._ask, queue))

    def _ask(self, queue: int) -> None:
        header = QueryConsumerOffsetRequestHeader(consumer_group=self.group, topic=self.topic, queue_id=queue)
        self._send(RequestCode.QUERY_CONSUMER_OFFSET, header, partial(self._waiting.discard, queue))

    def _send(self, code: RequestCode, header: Header, then: Callable[[], None]) -> None:
        def told(answer: Command | ClientError) -> None:
            # Without an answer nothing is asked of the queue any more: the record shows that it is missing.
            if isinstance(answer, ClientError):
                return
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                self.unknown_codes.add(code.value)
            self.told_count += code == RequestCode.QUERY_CONSUMER_OFFSET and answer.code == ResponseCode.SUCCESS
            then()

        with suppress(ClientError):  # the connection has ended: the next pull tells
            self.client.call_async(code, header, callback=told, timeout_s=ANSWER_S)
