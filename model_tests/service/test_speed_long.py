"""A long run needs constant memory.

The broker is a separate process, `longpoll serve`, so that the load does not share its interpreter.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from model_tests.bench.broker_sides import Side, ours
from model_tests.support.broker.harness.throughput import fill, pulls
from model_tests.support.broker.harness.workers import private_bytes

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

MESSAGES: Final = 3_600_000
PARTS: Final = 20
"""The number of parts of the run. After the last part, memory may exceed that after the first part by 5 %."""
GROWTH_MAX: Final = 1.10


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Side]:
    with ours("ours", tmp_path / "store") as started:
        yield started


def test_memory_does_not_grow_with_the_messages(side: Side) -> None:
    part = MESSAGES // PARTS
    used: list[int] = []
    for number in range(PARTS):
        topic = f"MANY-{number}"
        stored = fill(side.address, topic, part)
        pulls(side.address, topic, stored, 8, seconds=part / 400_000, warm_s=0.0)
        used.append(private_bytes(side.process_id))
    assert used[-1] <= GROWTH_MAX * used[0], [size // 1024 for size in used]
    assert used[0] + 16 * MESSAGES > GROWTH_MAX * used[0]
