"""The examples of docs/wire.md run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from longpoll_broker.broker import Broker
from longpoll_runtime.real import RealRuntime

PAGE = Path(__file__).parents[2] / "docs" / "wire.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_each_example_runs(number: int, tmp_path: Path) -> None:
    assert "assert" in EXAMPLES[number]
    with Broker.start(RealRuntime(), str(tmp_path / "store")) as broker:
        address = "{}:{}".format(*broker.name_server_address)
        exec(compile(EXAMPLES[number], str(PAGE), "exec"), {"name_server": address})  # noqa: S102 - the page's own code
