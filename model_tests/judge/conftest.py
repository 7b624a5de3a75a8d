"""Shared by the judge's tests: simulated histories, and one Spark session for the whole run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from longpoll_judge.generate import Load, simulate, simulated_meta, write
from longpoll_judge.spark import SparkEngine, open_engine


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A valid history of about 4,000 events."""
    directory = tmp_path_factory.mktemp("clean") / "history"
    write(directory, simulate(Load(events=4_000, timeout_ms=60)), simulated_meta(), events_per_part=1_000)
    return directory


@pytest.fixture(scope="session")
def spark_engine() -> Iterator[SparkEngine]:
    """The one Spark session; tests that use it belong to the xdist group `spark`."""
    with open_engine("local[2]") as engine:
        yield engine
