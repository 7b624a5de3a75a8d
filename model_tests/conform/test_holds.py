"""The clauses of long polling itself, against brokers that hold too short, too long or not at all."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest
from click.testing import CliRunner
from model_tests.conform.relay import Fault, Relay, again, answers, whole
from model_tests.support.broker.brokers import SMALL_STORE

from longpoll.cli import main
from longpoll_broker.broker import Broker
from longpoll_conform import holds
from longpoll_conform.clauses import POLLS
from longpoll_conform.play import Place
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import ROCKETMQ_5

Spoil = Callable[[dict[str, Any]], bytes | None]
LONG: Final = "-15000"


def asking(change: Callable[[dict[str, str]], dict[str, str]]) -> Spoil:
    """Pulls get to the broker with other fields."""

    def spoil(command: dict[str, Any]) -> bytes | None:
        if command["code"] != 11:
            return None
        return again(command, extFields={**command["extFields"], **change(command["extFields"])})

    return spoil


def held_for(part: float) -> Spoil:
    return asking(lambda fields: {"suspendTimeoutMillis": str(int(int(fields["suspendTimeoutMillis"]) * part))})


def untouched(_asked: object, _command: object, _frame: bytes) -> None:
    return None


NEVER: Final = asking(lambda fields: {"sysFlag": str(int(fields["sysFlag"]) & ~2)})
FAULTS: Final[Mapping[str, tuple[Fault, Spoil, set[str]]]] = {
    "none": (untouched, lambda _command: None, set()),
    "holds half as long": (untouched, held_for(0.5), {"poll-deadline-15000"}),
    "holds twice as long": (untouched, held_for(2), {"poll-deadline-15000"}),
    "never holds": (untouched, NEVER, set(POLLS)),
    "wakes late": (whole(11, lambda frame: [(4.0, frame)], when=0), lambda _command: None, {"poll-wakes-15000"}),
    "never answers": (whole(11, lambda _frame: []), lambda _command: None, {*POLLS} - {*POLLS[:2]}),
    "answers another": (
        answers(11, lambda command: {**command, "opaque": command["opaque"] + 7}),
        lambda _command: None,
        {*POLLS} - {*POLLS[:2]},
    ),
}
"""By the fault: what happens to answers, what happens to requests, and clauses that must fail."""
BY_CHANCE: Final[Mapping[str, set[str]]] = {
    "holds half as long": {"poll-deadline-500"},
    "wakes late": {"poll-wakes-500"},
}
"""Whether these fail depends on when the scan comes."""


@pytest.fixture(scope="module")
def failed() -> Iterator[Mapping[str, set[str]]]:
    """By the fault, what failed: all at once, before a broker that checks deadlines every five seconds."""
    with (
        tempfile.TemporaryDirectory() as store,
        Broker.start(RealRuntime(), store, policy=ROCKETMQ_5, store_config=SMALL_STORE) as broker,
        ThreadPoolExecutor(len(FAULTS)) as pool,
    ):

        def see(name: str) -> set[str]:
            fault, spoil, _wanted = FAULTS[name]
            relay = Relay(broker.address, fault, spoil)
            try:
                run = name.replace(" ", "-")
                results = holds.see(Place(relay.address, relay.address), run, POLLS, scans=True)
                assert [result.vector.id for result in results] == list(POLLS)
                return {result.vector.id for result in results if result.outcome == "FAIL"}
            finally:
                relay.close()

        yield dict(zip(FAULTS, pool.map(see, FAULTS), strict=True))


@pytest.mark.xdist_group("holds")  # else each worker waits for all the holds again
@pytest.mark.parametrize("name", FAULTS)
def test_each_side_of_a_hold_is_bounded(name: str, failed: Mapping[str, set[str]]) -> None:
    assert failed[name] - BY_CHANCE.get(name, set()) == FAULTS[name][2]


def test_the_headline_tells_of_a_broker_that_does_not_poll() -> None:
    """Its failures are one entry, and their bytes come on request."""
    with (
        tempfile.TemporaryDirectory() as store,
        Broker.start(RealRuntime(), store, policy=ROCKETMQ_5, store_config=SMALL_STORE) as broker,
    ):
        relay = Relay(broker.address, untouched, NEVER)
        places = (
            f"--{name}={host}:{port}"
            for name, (host, port) in (("broker", relay.address), ("name-server", broker.name_server_address))
        )
        words = ["conform", *places, "--only=POLL-1"]
        try:
            shown, with_bytes = CliRunner().invoke(main, words), CliRunner().invoke(main, [*words, "--hex"])
        finally:
            relay.close()
    assert shown.exit_code == with_bytes.exit_code == 1
    assert "this broker does not long-poll; 1 of 1 clauses failed" in shown.output
    assert "1 more differ in the same way: poll-holds-15000" in shown.output
    assert "7b22636f" not in shown.output
    assert "7b22636f" in with_bytes.output
