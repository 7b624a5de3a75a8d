"""The pages of the protocol are those that the classes make, and would be noticed if they were not."""

from __future__ import annotations

from pathlib import Path

import pytest

from longpoll_broker.testing import protocol_pages
from longpoll_protocol.codes import RequestCode

DIRECTORY = Path(__file__).parents[2] / "docs" / "protocol"


def stale(directory: Path) -> list[str]:
    """The files that are missing, too many, or not as the classes make them."""
    texts = protocol_pages.files()
    names = {path.name for path in directory.glob("*")}
    return sorted(
        name
        for name in names | set(texts)
        if name not in texts or name not in names or (directory / name).read_text(encoding="utf-8") != texts[name]
    )


def test_every_page_is_fresh() -> None:
    """Otherwise: `python -m longpoll_broker.testing.protocol_pages docs/protocol`."""
    assert stale(DIRECTORY) == []


def test_planted_stale_pages_are_noticed(tmp_path: Path) -> None:
    """One that is changed, one that is gone and one too many, each by its name."""
    protocol_pages.write(tmp_path)
    assert stale(tmp_path) == []
    (tmp_path / "011-pull-message.md").write_text("old", encoding="utf-8")
    (tmp_path / "034-heart-beat.md").unlink()
    (tmp_path / "999-gone.md").write_text("gone", encoding="utf-8")
    assert stale(tmp_path) == ["011-pull-message.md", "034-heart-beat.md", "999-gone.md"]
    protocol_pages.write(tmp_path)
    assert stale(tmp_path) == []


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (RequestCode.PULL_MESSAGE, "`suspendTimeoutMillis` | int64 | may be left out | With SUSPEND"),
        (RequestCode.PULL_MESSAGE, "`nextBeginOffset`"),
        (RequestCode.SEND_MESSAGE_V2, "`e` (queue_id) | int32 | required | Negative"),
        (RequestCode.HEART_BEAT, "list of `ConsumerData`"),
        (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, "Sent to clients by the broker"),
        (RequestCode.REGISTER_BROKER, "Served by the name server"),
    ],
)
def test_a_page_tells_what_its_classes_say(code: RequestCode, words: str) -> None:
    """Types, defaults and the texts below the fields, of requests and replies."""
    assert words in protocol_pages.files()[protocol_pages.file_name(code)]
