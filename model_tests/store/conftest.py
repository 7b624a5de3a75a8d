"""The recorded store of the Java broker, unpacked for each test; stores that a test leaves open are closed."""

from __future__ import annotations

import json
import lzma
import pathlib
import tarfile
from collections.abc import Iterator
from typing import Any

import pytest

from longpoll_broker.config import StoreConfig
from longpoll_broker.store.message_store import MessageStore

GOLDEN = pathlib.Path(__file__).parent / "golden"


@pytest.fixture(autouse=True)
def _abandoned() -> Iterator[None]:
    """Close every store that a test leaves open, also when the test fails, without a clean stop."""
    opened: list[MessageStore] = []
    init = MessageStore.__init__

    def noted(store: MessageStore, *arguments: Any) -> None:
        init(store, *arguments)
        opened.append(store)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MessageStore, "__init__", noted)
        yield
    for store in opened:
        store.abandon()


@pytest.fixture
def java_store(tmp_path: pathlib.Path) -> pathlib.Path:
    with tarfile.open(GOLDEN / "store-4.9.7-clean.tar.xz") as archive:
        archive.extractall(tmp_path / "java", filter="data")
    return tmp_path / "java" / "store"


@pytest.fixture(scope="session")
def java_expected() -> dict[str, Any]:
    expected: dict[str, Any] = json.loads(lzma.decompress((GOLDEN / "store-4.9.7-clean.expected.json.xz").read_bytes()))
    return expected


@pytest.fixture
def java_config() -> StoreConfig:
    """The file sizes of the recorded store, and a read limit that is large enough for all its messages."""
    return StoreConfig(
        commit_log_file_size=65_536,
        consume_queue_file_size=2_000,
        index_slot_count=400,
        index_entry_count=1_000,
        message_size_max=65_536,
    )
