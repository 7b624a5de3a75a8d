"""Exchanges with brokers as generators, which threads and event loops run alike.

A generator yields a question and gets its answer, so it decides without I/O. `ClientInstance.run` blocks for each
answer; `AsyncInstance.run` awaits it.
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
    """A request to one server. Its answer is a Command with code 0; any other code raises RefusedError."""

    code: RequestCode
    header: Header | None = None
    body: Buffer = EMPTY
    address: str = ""
    """HOST:PORT."""
    broker_name: str = ""
    """Without an address: the broker. With neither, a name server answers."""
    takes_any_code: bool = False
    """Whether the answer may have any code."""


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
class Call:
    """A call that is not an exchange, such as one of the user's function; on an event loop its result is awaited."""

    work: Callable[[], object]


@frozen
class Together:
    """Several exchanges, at once on an event loop; the answer has each result, or the LongpollError instead."""

    steps: Sequence[Steps[Any]]


@frozen
class WriteFile:
    """Write a file. On an event loop a thread of asyncio's executor writes it, one content after the other."""

    unwritten: Callable[[], bytes | None]
    """The next content of the file; None if the file has it."""
    write: Callable[[bytes], None]
    """Writes the file; raises ConfigError."""


Question: TypeAlias = "Ask | Call | Connect | FindRoute | Together | WriteFile"
Steps: TypeAlias = Generator[Question, Any, T]
"""One exchange; returns its result, and raises a LongpollError, or what a `Call` raises."""


def ask_once(question: Ask) -> Steps[Command]:
    """One request, for `Together`."""
    return (yield question)  # type: ignore[no-any-return]


def _proceed(proceed: Callable[[], Question]) -> tuple[Question | None, Any]:
    """The next question, or at the end the result. A `Call` may raise StopIteration, which Python replaces."""
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
    """As `run`, awaited."""
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
    """The answer, if it may have its code; raises RefusedError."""
    if answer.code != ResponseCode.SUCCESS and not question.takes_any_code:
        raise RefusedError(f"{question.code.name} to {address}", answer.code, answer.remark)
    return answer
