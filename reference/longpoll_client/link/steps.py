"""Exchanges with brokers as generators, which threads and event loops run alike.

A generator yields a question and gets its answer, so it decides without I/O. `ClientInstance.run` blocks for each
answer; `AsyncInstance.run` awaits it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from attrs import frozen

from longpoll_client.errors import RefusedError
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames import EMPTY, Buffer, Command
from longpoll_protocol.headers import Header
from longpoll_spec.errors import LongpollError

T = TypeVar("T")


@frozen
class Ask:
    """A request to one server. Its answer is a Command with code 0; any other code raises RefusedError."""

    code: RequestCode
    header: Header | None = None
    body: Buffer = EMPTY
    address: str = ""
    """HOST:PORT."""
    broker_name: str = ""
    """Without an address: the broker. With neither, a name server answers."""


@frozen
class FindRoute:
    """The route of a topic."""

    topic: str
    is_fresh: bool = False
    """Whether a name server must answer now, even if the route is known."""


@frozen
class Connect:
    """The connection to HOST:PORT, which is made on demand."""

    address: str


@frozen
class Together:
    """Several exchanges, at once on an event loop; the answer has each result, or the LongpollError instead."""

    steps: Sequence[Steps[Any]]


class File(Protocol):
    """A file that is written from time to time."""

    def unwritten(self) -> bytes | None:
        """The next content of the file; None if the file has it."""
        ...

    def write(self, content: bytes, /) -> None:
        """Write the file; raises ConfigError."""
        ...


@frozen
class WriteFile:
    """Write a file. On an event loop a thread of asyncio's executor writes it, one content after the other."""

    file: File


Question: TypeAlias = "Ask | Connect | FindRoute | Together | WriteFile"
Steps: TypeAlias = Generator[Question, Any, T]
"""One exchange; returns its result, and raises a LongpollError."""


def ask_once(question: Ask) -> Steps[Command]:
    """One request, for `Together`."""
    return (yield question)  # type: ignore[no-any-return]


class _Drive(Generic[T]):
    """A running exchange: `question` is the next one, until `is_over`."""

    def __init__(self, steps: Steps[T]) -> None:
        self._steps = steps
        self.is_over = False
        self.question: Question
        self.result: T
        self._advance(partial(next, steps))

    def answer(self, given: object) -> None:
        """Resume the exchange with this answer."""
        self._advance(partial(self._steps.send, given))

    def fail(self, error: LongpollError) -> None:
        """Resume the exchange with this error."""
        self._advance(partial(self._steps.throw, error))

    def _advance(self, proceed: Callable[[], Question]) -> None:
        try:
            self.question = proceed()
        except StopIteration as ended:
            self.is_over, self.result = True, ended.value


def run(steps: Steps[T], answer: Callable[[Question], object]) -> T:
    """Answer each question, and return the result; raises a LongpollError."""
    with closing(steps):
        drive = _Drive(steps)
        while not drive.is_over:
            try:
                given = answer(drive.question)
            except LongpollError as error:
                drive.fail(error)
            else:
                drive.answer(given)
        return drive.result


async def run_async(steps: Steps[T], answer: Callable[[Question], Awaitable[object]]) -> T:
    """As `run`, awaited."""
    with closing(steps):
        drive = _Drive(steps)
        while not drive.is_over:
            try:
                given = await answer(drive.question)
            except LongpollError as error:
                drive.fail(error)
            else:
                drive.answer(given)
        return drive.result


def succeeded(code: RequestCode, address: str, answer: Command) -> Command:
    """The answer, if its code is 0; raises RefusedError."""
    if answer.code != ResponseCode.SUCCESS:
        raise RefusedError(f"{code.name} to {address}", answer.code, answer.remark)
    return answer
