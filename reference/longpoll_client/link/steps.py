"""Exchanges with brokers as generators, so that threads and event loops can run the same code.

A generator yields a question (such as a request) and gets its answer, so it decides without I/O. `ClientInstance.run`
blocks for each answer; `AsyncInstance.run` awaits it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, TypeAlias, TypeVar

from attrs import frozen

from longpoll_client.errors import RefusedError
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames import EMPTY, Buffer, Command
from longpoll_protocol.headers import Header
from longpoll_runtime.recoverable import ANYTHING

T = TypeVar("T")


@frozen
class Ask:
    """A request to one server. Its answer is a Command with code 0; any other code raises RefusedError by default."""

    code: RequestCode
    header: Header | None = None
    body: Buffer = EMPTY
    address: str = ""
    """HOST:PORT."""
    broker_name: str = ""
    """The broker to ask if `address` is empty. If `broker_name` is empty too, a name server is asked."""
    takes_any_code: bool = False
    """Whether the answer may have any code."""


@frozen
class FindRoute:
    """Asks for the route of a topic."""

    topic: str
    is_fresh: bool = False
    """Whether a name server must answer now, even if the route is known."""


@frozen
class Connect:
    """Asks for the connection to HOST:PORT, which is made on demand."""

    address: str


@frozen
class Call:
    """Calls a function, such as a function of the user. On an event loop the function's result is awaited."""

    work: Callable[[], object]


@frozen
class Together:
    """Runs several exchanges. The answer has each exchange's result or LongpollError.

    On threads the exchanges run one after the other, and on an event loop they run concurrently.
    """

    steps: Sequence[Steps[Any]]


@frozen
class WriteFile:
    """Writes a file. On an event loop, a thread of asyncio's executor does the writes in order."""

    unwritten: Callable[[], bytes | None]
    """Returns the next content of the file, or None if the file already has the current content."""
    write: Callable[[bytes], None]
    """Writes the file; raises ConfigError."""


Question: TypeAlias = "Ask | Call | Connect | FindRoute | Together | WriteFile"
Steps: TypeAlias = Generator[Question, Any, T]
"""The generator of one exchange, which returns the exchange's result and raises a LongpollError or an error of a
`Call`."""


def ask_once(question: Ask) -> Steps[Command]:
    """Ask one question; this exchange is for `Together`."""
    return (yield question)  # type: ignore[no-any-return]


def _proceed(proceed: Callable[[], Question]) -> tuple[Question | None, Any]:
    """Return (next question, None), or (None, result) at the end of the exchange.

    If a `Call` raises StopIteration, Python replaces it by a RuntimeError, and this function raises the original error.
    """
    try:
        return proceed(), None
    except StopIteration as ended:
        return None, ended.value
    except RuntimeError as error:
        if isinstance(error.__cause__, StopIteration):
            raise error.__cause__ from None
        raise


def run(steps: Steps[T], answer: Callable[[Question], object]) -> T:
    """Answer each question, and return the result. An error of an answer is raised within the exchange."""
    with closing(steps):
        question, result = _proceed(partial(next, steps))
        while question is not None:
            try:
                proceed = partial(steps.send, answer(question))
            except ANYTHING as error:
                proceed = partial(steps.throw, error)
            question, result = _proceed(proceed)
    return result  # type: ignore[no-any-return] # a T


async def run_async(steps: Steps[T], answer: Callable[[Question], Awaitable[object]]) -> T:
    """Answer each question as `run` does, and await each answer."""
    with closing(steps):
        question, result = _proceed(partial(next, steps))
        while question is not None:
            try:
                proceed = partial(steps.send, await answer(question))
            except ANYTHING as error:
                proceed = partial(steps.throw, error)
            question, result = _proceed(proceed)
    return result  # type: ignore[no-any-return] # a T


def succeeded(question: Ask, address: str, answer: Command) -> Command:
    """Return the answer if its code is accepted; raises RefusedError otherwise."""
    if answer.code != ResponseCode.SUCCESS and not question.takes_any_code:
        raise RefusedError(f"{question.code.name} to {address}", answer.code, answer.remark)
    return answer
