"""The client keeps no memory of 3,600,000 messages that it sent and consumed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest
from model_tests.support.broker.client_scenarios import member_options, new_topic, wait_for
from model_tests.support.broker.harness.workers import private_bytes

from longpoll_client import OutgoingMessage, Producer, PushConsumer, ReceivedMessage, Retry
from longpoll_client.settings import MemberConfig
from longpoll_runtime.real import RealRuntime

RUNTIME: Final = RealRuntime()
MESSAGES: Final = 3_600_000
PARTS: Final = 20
"""The test measures memory after each part, and compares it with the first part (5 % of the messages)."""
BATCH: Final = [OutgoingMessage(b"x" * 16, tag="t")] * 500
GROWTH_MAX: Final = 1.10
END_S: Final = 20.0


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """Yield the name server of `longpoll serve`, a separate process whose memory does not count here."""
    any_port = "127.0.0.1:0"
    command = (sys.executable, "-m", "longpoll", "serve", "--json", "--listen", any_port, "--name-server", any_port)
    with subprocess.Popen((*command, "--store", str(directory)), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["name-server"]
        finally:
            process.terminate()
            process.wait(END_S)


def used_after_each_part(directory: Path, messages: int) -> list[int]:
    """Return memory of this process without mapped files, in bytes, after each part of the messages."""
    used: list[int] = []
    count = 0
    lock = threading.Lock()

    def listen(batch: Sequence[ReceivedMessage]) -> Retry | None:
        nonlocal count
        with lock:
            count += len(batch)
        return None

    # Only few messages may wait, because the number of waiting ones depends on timing.
    config = MemberConfig(
        group="G", start_at="first", consume_count_max=100, thread_count=2, cached_count_max=100, batch_count_max=100
    )
    with ExitStack() as stack:
        name_server = stack.enter_context(served(directory))
        topic = stack.enter_context(new_topic(name_server))
        producer = stack.enter_context(Producer(name_server))
        stack.enter_context(PushConsumer(name_server, topics=topic, listener=listen, **member_options(config)))
        for part in range(1, PARTS + 1):
            for _batch in range(messages // PARTS // len(BATCH)):
                producer.send_batch(topic, BATCH)
            wait_for(lambda part=part: count >= part * messages // PARTS, f"part {part}")  # type: ignore[misc] # bound at once
            used.append(private_bytes(os.getpid()))
    assert count == messages
    return used


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_the_clients_memory_does_not_grow_with_the_number_of_messages(tmp_path: Path) -> None:
    """After all messages the memory without mapped files is within 10 % of its value after a twentieth of them."""
    command = (sys.executable, "-m", __name__, str(tmp_path / "store"), str(MESSAGES))
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1_700)
    assert done.returncode == 0, done.stderr
    used = json.loads(done.stdout)
    print(f"memory after each part, KiB: {[size // 1024 for size in used]}")  # noqa: T201 - the figure that it is run for
    assert len(used) == PARTS
    assert used[-1] <= GROWTH_MAX * used[0]
    assert used[0] + 16 * MESSAGES > GROWTH_MAX * used[0]


if __name__ == "__main__":
    print(json.dumps(used_after_each_part(Path(sys.argv[1]), int(sys.argv[2]))))  # noqa: T201 - what the test reads
