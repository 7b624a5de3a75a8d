"""The proxy's intervals hold the true moments, which a broker and a client on the same clock tell."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from model_tests.service.true_moments import Comparison, Load, compare, run_load, truthful_broker

from longpoll_observe import Observer, tap
from longpoll_runtime.real import RealRuntime

STALLS_S = (0.003, 0.03, 0.2, 2.0)
"""How long the proxy's whole process stands still."""
COMMAND = (sys.executable, "-c", "from longpoll.cli import main; main()")
QUICK = {
    "bursts": (Load(3_000), 2_000, 0, True),
    "large": (Load(60, bursts=(1, 3, 20)), 2_000, 10, True),
    "kept small pieces": (Load(150, bursts=(3, 10)), 300, 0, False),
}
"""By name: what the client does, the size of most answers, one of how many has 3 MB, and whether small ones leave."""
THOROUGH = {
    "one by one": (Load(1_000, bursts=(1,), connections=4), 300, 0, True),
    "bursts": (Load(400_000), 2_000, 0, True),
    "always busy": (Load(400_000, bursts=(5_000,), connections=1, pauses=False), 2_000, 0, True),
    "20 KB each": (Load(200_000, pauses=False), 20_000, 0, True),
    "large": (Load(4_000, bursts=(1, 3, 20)), 2_000, 10, True),
    "always busy with large ones": (Load(1_000, bursts=(500,), connections=2, pauses=False), 2_000, 2, True),
    "kept small pieces": (Load(20_000, bursts=(1, 3, 10)), 300, 0, False),
}
"""Over a million events, some 100 s of it."""
Case = tuple[Load, int, int, bool]


def told_and_true(directory: Path, case: Case, seed: int) -> Comparison:
    """Run a case through a proxy in this process, whose thread stands still now and then."""
    load, size, large_one_in, nodelay = case
    log, history = directory / "log", directory / "history"
    never = threading.Event()

    def stall() -> None:
        never.wait(0.02)

    with (
        truthful_broker(log, seed=seed, small_size_max=size, large_one_in=large_one_in, nodelay=nodelay) as address,
        Observer.start(RealRuntime(), brokers=[address], record_directory=str(history)) as proxy,
    ):
        (door,) = proxy.doors.values()
        for _ in range(3):
            proxy.loop.untold.add(stall)
        begun_ns = run_load(door, load, seed)
    return compare(history, log, begun_ns)


@pytest.mark.parametrize("name", QUICK)
def test_every_event_happened_within_its_interval(name: str, tmp_path: Path) -> None:
    seen = told_and_true(tmp_path, QUICK[name], seed=1)
    assert seen.answers == seen.requests >= QUICK[name][0].events
    assert (seen.answers_outside, seen.requests_outside) == (0, 0), str(seen)


def test_the_moment_of_reading_is_not_the_moment_of_sending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that took it for that is caught by the same comparison."""
    tell = tap.ConnectionTap.answered
    monkeypatch.setattr(
        tap.ConnectionTap,
        "answered",
        lambda self, content, _after_ns, before_ns: tell(self, content, before_ns, before_ns),
    )
    assert told_and_true(tmp_path, QUICK["bursts"], seed=1).answers_outside > 0


@contextmanager
def stalled(process: subprocess.Popen[str], seed: int) -> Iterator[None]:
    """Stop a process now and then, and let it go on."""
    chance, over = random.Random(seed), threading.Event()

    def work() -> None:
        while not over.wait(chance.choice((0.05, 0.3, 1.0))):
            os.kill(process.pid, signal.SIGSTOP)
            over.wait(chance.choices(STALLS_S, (10, 10, 10, 1))[0])
            os.kill(process.pid, signal.SIGCONT)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.long
@pytest.mark.parametrize("stalls", [False, True], ids=["undisturbed", "stalled"])
@pytest.mark.parametrize("name", THOROUGH)
def test_a_million_intervals_hold(name: str, stalls: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load, size, large_one_in, nodelay = THOROUGH[name]
    log, history = tmp_path / "log", tmp_path / "history"
    with truthful_broker(log, seed=2, small_size_max=size, large_one_in=large_one_in, nodelay=nodelay) as address:
        broker = "{}:{}".format(*address)
        words = ("observe", "--listen", "127.0.0.1:0", "--broker", broker, "--record", str(history))
        with subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, text=True) as proxy:
            assert proxy.stdout is not None
            port = int(proxy.stdout.readline().split()[1].rsplit(":", 1)[1])
            try:
                if stalls:
                    with stalled(proxy, 3):
                        begun_ns = run_load(("127.0.0.1", port), load, 4)
                else:
                    begun_ns = run_load(("127.0.0.1", port), load, 4)
            finally:
                proxy.send_signal(signal.SIGTERM)
            assert proxy.wait(60) == 0
    seen = compare(history, log, begun_ns)
    with capsys.disabled():
        sys.stdout.write(f"\n{name}{', stalled' if stalls else ''}: {seen}\n")
    assert seen.answers == seen.requests >= load.events
    assert (seen.answers_outside, seen.requests_outside) == (0, 0), str(seen)
