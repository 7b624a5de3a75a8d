"""The page of the protocol is that which the classes make, and would be noticed if it were not."""

from __future__ import annotations

from functools import cache

import pytest

from longpoll_broker.testing import protocol_page
from longpoll_broker.testing.protocol_page import anchor, contents, heading, section_text
from longpoll_protocol.codes import RequestCode, ResponseCode

page = cache(protocol_page.page)
sections = cache(protocol_page.sections)


def section_of(code: RequestCode, text: str) -> str:
    """What a page says of one code."""
    return text.partition(f"\n## {heading(code)}\n")[2].partition("\n## ")[0]


def test_every_code_is_listed_and_told() -> None:
    """In the table at the top, with a link to its section; a code that is left out changes the page."""
    found, text = sections(), page()

    assert len(found) > 35
    for section in found:
        assert f"](#{anchor(section.code)})" in contents(found)
        assert section_text(section).rstrip().endswith(section_of(section.code, text).strip())
        assert section_of(section.code, text).strip()
    assert all(f"| {code.value} | `{code.name}` |" in text for code in ResponseCode)
    assert section_of(RequestCode.PULL_MESSAGE, contents(found)) == ""


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
def test_a_section_tells_what_its_classes_say(code: RequestCode, words: str) -> None:
    """Types, defaults and the texts below the fields, of requests and replies."""
    assert words in section_of(code, page())
