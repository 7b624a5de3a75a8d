"""A simulated history that the judge's tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from model_tests.support.judge.generate import Load, simulate, simulated_meta
from model_tests.support.judge.recording import write


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("clean") / "history"
    write(directory, simulate(Load(events=2_000, timeout_ms=60)), simulated_meta(), events_per_part=500)
    return directory
