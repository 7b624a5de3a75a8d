"""Java's jars and brokers for tests, or a skip that says why they cannot be had here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from model_tests.conformance.java_broker import VERSIONS, JavaBroker, JavaUnavailableError, resolve, running


def class_path_of(directory: Path, version: str = VERSIONS[0], artifacts: Sequence[str] = ("namesrv", "broker")) -> str:
    """The class path of a version's jars; skips the test where Java or they cannot be had."""
    try:
        return resolve(directory, version, artifacts)
    except JavaUnavailableError as error:
        pytest.skip(f"JAVA NOT TRIED: {error}")


@contextmanager
def java_broker_of(directory: Path, version: str = VERSIONS[0], *, settings: str = "") -> Iterator[JavaBroker]:
    """A fresh name server and broker of a version in a directory; skips the test where Java cannot be had."""
    jars = directory / "jars"
    jars.mkdir()
    with running(class_path_of(jars, version), directory / "home", settings=settings) as broker:
        yield broker
