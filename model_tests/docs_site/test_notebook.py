"""The notebook runs from its first cell to its last and shows the finding; a failing cell is noticed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[2]
NOTEBOOK: Final = ROOT / "docs" / "notebook" / "lost-wakeup.ipynb"
EXECUTE: Final = "from nbclient.cli import main; main()"


def read(path: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["cells"]
    return cells


def executed(notebook: Path, output: Path) -> subprocess.CompletedProcess[str]:
    if importlib.util.find_spec("nbclient") is None:
        pytest.skip("NO NOTEBOOK: nbclient is not installed, see requirements/notebook.lock")
    words = [sys.executable, "-c", EXECUTE, str(notebook), f"--output={output}", "--kernel_name=python3"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)


def told(cell: dict[str, Any]) -> str:
    parts = [output.get("text", "") for output in cell["outputs"]]
    parts += [text for output in cell["outputs"] for text in output.get("data", {}).values()]
    return "".join("".join(part) for part in parts)


def test_the_notebook_is_stored_without_outputs_and_compiles() -> None:
    """The notebook is stored without outputs, so that a diff shows only changes of its source."""
    cells = [cell for cell in read(NOTEBOOK) if cell["cell_type"] == "code"]

    assert len(cells) >= 6
    for cell in cells:
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
        compile("".join(cell["source"]), str(NOTEBOOK), "exec")


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_notebook_shows_the_finding(tmp_path: Path) -> None:
    ran = executed(NOTEBOOK, tmp_path / "seen.ipynb")
    assert ran.returncode == 0, ran.stderr[-3000:]
    shown = [told(cell) for cell in read(tmp_path / "seen.ipynb") if cell["cell_type"] == "code"]

    assert "'request_received': 41" in shown[1]
    assert shown[2].startswith("[('3-1732', 547, 20")
    assert "invalid\n" in shown[5]
    assert "pull.wake.prompt" in shown[5]
    assert shown[4].startswith("{'50 %': ")
    assert 'class="lp-lanes"' in shown[6]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_failing_cell_is_noticed(tmp_path: Path) -> None:
    planted = json.loads(NOTEBOOK.read_text("utf-8"))
    planted["cells"] = [{**read(NOTEBOOK)[1], "source": "assert 'planted' == ''"}]
    path = tmp_path / "planted.ipynb"
    path.write_text(json.dumps(planted))

    assert executed(path, tmp_path / "seen.ipynb").returncode != 0


def test_the_container_has_the_python_and_the_target() -> None:
    """The container's image has a supported Python, and its set-up target exists."""
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text("utf-8"))
    least = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["requires-python"]
    version = tuple(map(int, container["image"].partition(":")[2].partition("-")[0].split(".")))

    assert version >= tuple(map(int, least.removeprefix(">=").split(".")))
    assert container["postCreateCommand"] == "make setup"
    assert "\nsetup: " in (ROOT / "Makefile").read_text("utf-8")
