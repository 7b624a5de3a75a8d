"""Limits of a batch, checked before any of it is stored: a stored message must be acknowledged.

Limits of a message: see `store.limits`. Storing: see `send.send_processor`.

Sources: `DefaultMessageStore.checkMessages` 4.9.7, `MessageExtEncoder.encode` 5.x.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Self

from attrs import frozen

from longpoll_broker.shared.version_traits import Traits
from longpoll_protocol.errors import HeaderError, MessageRefusedError
from longpoll_protocol.frames.frame import HEADER_SIZE_MAX, Buffer
from longpoll_protocol.message import BatchMessage, read_batch

ID_REST_SIZE: Final = 17
"""Characters of a message id after the host part, with the separating comma."""
OTHER_FIELDS_SIZE: Final = 4_096
"""Space for the rest of an answer's header."""


@frozen
class BatchLimits:
    """The limits of one batch."""

    size_max: int
    """Maximum bytes of the body (`maxMessageSize`)."""
    count_max: int
    """Maximum messages, so that their ids fit the answer's header; Java's headers may have 16 MiB, so it takes more."""
    size_is_an_error: bool
    """`Traits.batch_size_is_an_error`."""

    @classmethod
    def of(cls, size_max: int, host_size: int, traits: Traits) -> Self:
        """Returns the limits of a broker whose host takes `host_size` characters in a message id."""
        count_max = (HEADER_SIZE_MAX - OTHER_FIELDS_SIZE) // (host_size + ID_REST_SIZE)
        return cls(size_max, count_max, traits.batch_size_is_an_error)

    def read(self, body: Buffer) -> Iterator[BatchMessage]:
        """Iterate over the messages of a batch.

        Raises HeaderError for a damaged or empty batch, MessageRefusedError over a limit. Store a message only after
        the last was read.
        """
        if len(body) > self.size_max:
            problem = f"the batch has {len(body)} bytes, at most {self.size_max} are allowed"
            raise (
                HeaderError("a batch", "body", f"is too large: {problem}")
                if self.size_is_an_error
                else (MessageRefusedError(problem))
            )
        if not len(body):
            raise no_message()
        return read_batch(body, self.count_max)


def no_message() -> HeaderError:
    """Returns the error for an empty batch: Java fails on it, so the reply lacks the fields of a refusal."""
    return HeaderError("a batch", "body", "has no message")
