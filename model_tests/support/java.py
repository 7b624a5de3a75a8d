"""Java's jars and brokers for tests, which are skipped if these are not installed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from model_tests.conformance.java_broker import VERSIONS, JavaBroker, JavaUnavailableError, resolve, running


def class_path_of(directory: Path, version: str = VERSIONS[0], artifacts: Sequence[str] = ("namesrv", "broker")) -> str:
    """Returns the class path of a version's jars; skips the test if Java or the jars are missing."""
    try:
        return resolve(directory, version, artifacts)
    except JavaUnavailableError as error:
        pytest.skip(f"JAVA NOT TRIED: {error}")


@contextmanager
def java_broker_of(directory: Path, version: str = VERSIONS[0], *, settings: str = "") -> Iterator[JavaBroker]:
    """Start a new name server and broker of a version in a directory; skips the test if Java is missing."""
    jars = directory / "jars"
    jars.mkdir()
    with running(class_path_of(jars, version), directory / "home", settings=settings) as broker:
        yield broker
