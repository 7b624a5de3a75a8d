"""The snippets of docs/kit.md run and give the results on the page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from model_tests.bench import services_plot
from model_tests.kit.services import Feed, InMemory
from model_tests.kit.test_kit import machine as machine_of

import longpoll
from longpoll_kit.errors import HINTS
from longpoll_kit.model import Allowances

PAGE = (Path(__file__).parents[2] / "docs" / "kit.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```python (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))
FEW = settings(max_examples=1, stateful_step_count=2, database=None)
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def run(directory: Path, service: str) -> subprocess.CompletedProcess[str]:
    (directory / "service.py").write_text(service)
    (directory / "test_service.py").write_text(FILES["test_service.py"])
    (directory / "conftest.py").write_text(
        "from hypothesis import Phase, settings\nimport longpoll\nfrom longpoll_kit.run import MachineTestCase\n"
        # The limits are large, because a busy host is not a fault of the service.
        "longpoll.LongPollMachine.wake_ms = longpoll.LongPollMachine.late_ms = 3_000\n"
        "MachineTestCase.settings = settings("
        "max_examples=10, stateful_step_count=15, database=None, phases=(Phase.generate,))\n"
    )
    call = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", "-rP", str(directory)]
    return subprocess.run(call, cwd=directory, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("is_broken", [pytest.param(False, marks=pytest.mark.long), True])
def test_the_test_on_the_page_has_the_shown_results(tmp_path: Path, *, is_broken: bool) -> None:
    right = "            self.changed.wait_for(lambda: self.queues[queue], timeout_s)\n"
    wrong = "            if not self.queues[queue]:\n                self.changed.wait(timeout_s)\n"
    assert right in FILES["service.py"]
    done = run(tmp_path, FILES["service.py"].replace(right, wrong) if is_broken else FILES["service.py"])

    assert done.returncode == is_broken, done.stdout
    assert ("AssertionError: invalid: not_early" in done.stdout) == is_broken
    assert ("valid\nexamples: 10;" in done.stdout) != is_broken


def test_the_other_snippets_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    for snippet in SNIPPETS:
        exec(compile(snippet, "docs/kit.md", "exec"), names)  # noqa: S102 - our own page
    told = {name: value.replace("_", "") for name, value in re.findall(r"    (\w+_ms) = .*; (\S.*)\n", SNIPPETS[-1])}
    machine = longpoll.LongPollMachine

    report, found = names["judged"](machine_of(lambda: InMemory(Feed())), FEW, tmp_path / "history")
    assert report.verdict != "invalid"
    assert (found.verdict != "invalid", found.requests > 0) == (True, True)
    assert capsys.readouterr().out == "valid []\n"
    assert names["Patient"].TestCase.settings.max_examples == 100
    assert told == {name: str(getattr(machine, name)) for name in told}
    own = re.findall(r"^    (burst|body_max|may_answer_early) = .*; (\S+)$", SNIPPETS[-1], re.MULTILINE)
    assert dict(own) == {name: str(getattr(machine, name)) for name in ("burst", "body_max", "may_answer_early")}
    assert set(told) == {name for name in vars(machine) if name.endswith("_ms")}
    assert Allowances() == Allowances(machine.wake_ms, machine.late_ms, machine.early_ms, machine.visible_ms)


def test_the_page_describes_each_property() -> None:
    section = PAGE.partition("## Properties\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == set(HINTS)


def test_the_picture_of_real_servers_shows_the_table() -> None:
    page = services_plot.PAGE.read_text("utf-8")
    lines = services_plot.of_table(page)

    # Two of the lines are the table's header row and separator.
    assert len(lines) == page.partition("## What")[0].count("\n| ") - 2
    assert services_plot.DRAWN.read_text("utf-8") == services_plot.drawn(lines)
    assert services_plot.drawn(lines).count("<circle") == 2 * len(lines) + 2
    assert [round(services_plot.x(each)) for each in (0.0, 0.1, 10, 1_000)] == [190, 190, 470, 750]
