"""All snippets of `docs/client.md` run in their order against one broker."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from model_tests.support.broker.brokers import SMALL_STORE, wait_until

import longpoll_client
from longpoll_broker.broker import Broker
from longpoll_runtime.real import RealRuntime

PAGE = Path(__file__).parents[2] / "docs" / "client.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
OUTPUT = re.findall(r"```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
NUMBER = re.compile(r"[\dA-F]*\d[\dA-F]*")
ELSEWHERE = {
    "AllocateMachineRoomNearby",
    "AllocateMessageQueue",
    "AveragelyByCircle",
    "ByMachineRoom",
    "ConsistentHash",
}
"""Names that `docs/client.md` uses and `longpoll_client` lacks: Java's, Python's, and names of other packages."""
ELSEWHERE |= {"ConnectionError", "TimeoutError"}
ELSEWHERE |= {"OpenTelemetry"}  # The name is in `longpoll_client.otel`, which needs an extra.


def test_every_snippet_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The output is as on the page: the listener gets the messages of its tags, and other consumers get the others."""
    printed = ""

    def wait_until_consumed() -> None:
        """Wait until the listener has consumed the messages, in place of the reader's own program."""

        def has_come() -> bool:
            nonlocal printed
            printed += capsys.readouterr().out
            return "b'hello'" in printed and "b'two'" in printed

        wait_until(has_come)

    with Broker.start(RealRuntime(), str(tmp_path / "store"), store_config=SMALL_STORE) as broker:
        name_server = "{}:{}".format(*broker.name_server_address)
        for snippet in SNIPPETS:
            code = compile(snippet.replace("127.0.0.1:9876", name_server), str(PAGE), "exec")
            exec(code, {"wait_until_consumed": wait_until_consumed})  # noqa: S102 - our own page
    printed += capsys.readouterr().out
    assert len(SNIPPETS) == 9
    assert "ANYBODY THERE?" in printed
    assert "sends=1, failures=0" in printed
    assert "COMMIT" in printed
    assert "['Greetings', 'Orders', 'Questions', 'Sold']" in printed
    assert "members=()" in printed
    lines = {NUMBER.sub("0", line) for line in printed.splitlines()}
    assert [line for block in OUTPUT for line in block.splitlines() if NUMBER.sub("0", line) not in lines] == []


def test_every_name_of_the_page_is_one_of_the_package() -> None:
    text = re.sub(r"```.*?```", "", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    names = set(re.findall(r"`([A-Z][a-z]+[A-Z]\w*|\w+Error)\b", text))
    assert {"LongpollError", "ConsumerConfig", "NoRouteError"} <= names
    assert names - set(longpoll_client.__all__) == ELSEWHERE
