"""What a batch may have in all, asked before any of it is stored: what is stored must be acknowledged.

Leaves out the limits of each message (`store.limits`) and storing them (`send.send_processor`).

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
"""Characters of a message's id after the host's, and the comma between two."""
OTHER_FIELDS_SIZE: Final = 4_096
"""Room for the rest of an answer's header."""


@frozen
class BatchLimits:
    """How much one batch may have."""

    size_max: int
    """Bytes of the body (`maxMessageSize`)."""
    count_max: int
    """Messages whose ids fit the header of an answer; Java's headers may have 16 MiB, so it takes more."""
    size_is_an_error: bool
    """`Traits.batch_size_is_an_error`."""

    @classmethod
    def of(cls, size_max: int, host_size: int, traits: Traits) -> Self:
        """The limits of a broker whose host takes `host_size` characters of a message's id."""
        count_max = (HEADER_SIZE_MAX - OTHER_FIELDS_SIZE) // (host_size + ID_REST_SIZE)
        return cls(size_max, count_max, traits.batch_size_is_an_error)

    def read(self, body: Buffer) -> Iterator[BatchMessage]:
        """The messages of a batch, one after the other.

        Raises HeaderError where it is damaged or has no message, MessageRefusedError over a limit: none of them is to
        be stored before the last was read.
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
    """What a batch without a message is told: Java fails on it, and so the reply lacks the fields of a refusal."""
    return HeaderError("a batch", "body", "has no message")
