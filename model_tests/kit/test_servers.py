"""`longpoll kit` with each real server: a correct server is valid, and a killed server is reported in one sentence."""

from __future__ import annotations

import gc
import json
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner
from model_tests.support.real_servers import KINDS, Server, running

from longpoll.commands.kit import kit
from longpoll_kit.machine import LongPollMachine
from longpoll_kit.subjects import subject_for
from longpoll_kit.subjects.on_nats import CancelledPullError

pytestmark = pytest.mark.peers
PATIENT: Final = ("--wake-ms", "5000", "--late-ms", "5000")
"""Limits so large that a busy machine does not change the verdict."""
FINDINGS: Final = {"beanstalkd": {"given_again"}}
"""Server -> the properties that it sometimes violates, by docs/services.md."""
DIES_AT: Final = 30
"""The server is killed before this publish."""


def server_of(name: str, directory: Path) -> Iterator[Server]:
    if not KINDS[name].is_here:
        pytest.skip(f"{name} is not here; install {KINDS[name].where}")
    with running(name, directory) as server:
        yield server


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    yield from server_of(request.param, tmp_path)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        # Each run mostly waits, so the runs are distributed among the workers.
        pytest.param(name, mode, marks=pytest.mark.xdist_group(f"kit {name} {mode}"))
        for name, kind in KINDS.items()
        for mode in kind.modes
        if name != "moto"
    ],
)
def test_a_real_server_is_valid(name: str, mode: str, tmp_path: Path) -> None:
    """The run has the extreme cases, some random steps and 40 concurrent polls, which are enough to test a subject."""
    for server in server_of(name, tmp_path):
        words = [server.url, *(["--mode", mode] if mode else []), "--for", "40", "--polls", "40", "--json", *PATIENT]
        done = CliRunner().invoke(kit, words)

        report = json.loads(done.stdout)
        if report.get("property") not in FINDINGS.get(name, ()):
            assert (report["verdict"], done.exit_code) == ("valid", 0), done.output


def test_a_cancelled_nats_pull_claims_no_empty_answer(tmp_path: Path) -> None:
    """The server may have sent a message that the client dropped, so an empty answer would be a guess."""
    for server in server_of("nats", tmp_path):
        with closing(subject_for(server.url)()) as subject:
            handle = subject.start_poll("cancelled", None, 60_000)
            subject.cancel(handle)

            with pytest.raises(CancelledPullError):
                subject.finish_poll(handle)


def test_the_verdict_on_a_killed_server_is_unknown(server: Server) -> None:
    made, left = subject_for(server.url), [DIES_AT]

    def subject() -> Any:
        made_now = made()
        publish = made_now.publish

        def publishes(queue: str, body: bytes) -> None:
            left[0] -= 1
            if left[0] == 0:
                server.stop(signal.SIGKILL)
            publish(queue, body)

        vars(made_now)["publish"] = publishes
        return made_now

    machine: Any = type("Machine", (LongPollMachine,), {"subject": staticmethod(subject), "silence_ms": 0})
    report = machine.exercise(seconds=60)

    assert (report.verdict, report.property) == ("unknown", ""), report
    assert "the service refused requests or was gone in step " in report.why
    del machine
    gc.collect()  # An unclosed socket gives its warning now, in the test of its server.
