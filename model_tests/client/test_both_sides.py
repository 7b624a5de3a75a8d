"""The clients on threads and on an event loop have the same calls with the same options, but for what is named here."""

from __future__ import annotations

import inspect

import attrs
import pytest

import longpoll_client as client

ONLY = {
    "Producer": set[str](),
    "AsyncProducer": set[str](),
    "PullConsumer": {"deliver", "is_busy"},
    "AsyncPullConsumer": set[str](),
    "PushConsumer": set[str](),
    "AsyncPushConsumer": {"give"},
    "TransactionProducer": set[str](),
    "AsyncTransactionProducer": set[str](),
}
"""For the package's own use."""


def calls_of(kind: type) -> dict[str, set[str]]:
    """Each public call, and the making of one, with the names of its options."""
    fields = {field.name for field in attrs.fields(kind)} if attrs.has(kind) else set()
    names = [name for name in dir(kind) if not name.startswith("_") and name not in fields]
    found = {name: getattr(kind, name) for name in [*names, "__init__"]}
    return {name: set(inspect.signature(call).parameters) for name, call in found.items() if callable(call)}


@pytest.mark.parametrize("name", [name for name in ONLY if not name.startswith("Async")])
def test_both_have_the_same_calls(name: str) -> None:
    """And every call the same options."""
    threads, loop = calls_of(getattr(client, name)), calls_of(getattr(client, f"Async{name}"))
    assert (threads.keys() - loop.keys(), loop.keys() - threads.keys()) == (ONLY[name], ONLY[f"Async{name}"])
    shared = threads.keys() & loop.keys()
    assert {call: threads[call] for call in shared} == {call: loop[call] for call in shared}
    assert len(shared) > 3


def test_planted_a_call_or_an_option_that_one_has_is_seen() -> None:
    """By comparing a class with one that has more."""

    class More(client.AsyncProducer):
        async def flush(self, now: bool = True) -> bool:
            """Nothing."""
            return now

    assert calls_of(More).keys() - calls_of(client.Producer).keys() == {"flush"}
    assert calls_of(More)["flush"] == {"self", "now"}
