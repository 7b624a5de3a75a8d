"""The wheel in an empty environment, with each extra: its features work, and no other package is installed.

Packages come from pip's configured index. If the index does not answer, the tests are skipped.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.long, pytest.mark.xdist_group("wheel")]
SIZE_MAX_MB: Final = {"": 60}
"""Extra -> the maximum installed size, with longpoll itself and without pip."""
BROKER: Final = """
import longpoll
with longpoll.Broker() as broker, longpoll.Producer(broker.name_server) as producer:
    assert producer.send("T", b"hello").queue_offset == 0
assert longpoll.check("strict", properties=["answered_once"]).verdicts[0].verdict == "holds"
"""
COMMANDS: Final = """
from click.testing import CliRunner
from longpoll.cli import COMMANDS, main
from longpoll.extras import COMMANDS as WITH_EXTRA
for name in COMMANDS.keys() - WITH_EXTRA.keys():
    done = CliRunner().invoke(main, [name, "--help"])
    assert done.exit_code == 0, (name, done.output)
import sys, tempfile
with tempfile.TemporaryDirectory() as directory:
    assert CliRunner().invoke(main, ["dojo", "--starter", "python", directory]).exit_code == 0
    for name, code in (("right", 0), ("lost_wakeup", 1)):
        words = ["dojo", "--moves", "2", "--interleaved", "2", sys.executable, f"{directory}/{name}.py"]
        assert CliRunner().invoke(main, words).exit_code == code, name
assert CliRunner().invoke(main, ["check", "--bounds", "tiny", "--requests", "1", "--engine", "python"]).exit_code == 0
"""
LAW: Final = """
import longpoll
assert longpoll.prove("strict", requests=1, properties=["answered_once"]).whole == "proved"
assert longpoll.check("strict", engine="packed", properties=["answered_once"]).verdicts[0].verdict == "holds"
"""
JUDGE: Final = """
import tempfile, longpoll
with tempfile.TemporaryDirectory() as directory:
    with longpoll.Broker(record=directory) as broker:
        with longpoll.Producer(broker.name_server) as producer:
            producer.send("T", b"hello")
    assert longpoll.judge(directory).verdict == "unknown"
"""
SPARK: Final = """
import tempfile, longpoll
with tempfile.TemporaryDirectory() as directory:
    with longpoll.Broker(record=directory) as broker:
        with longpoll.Producer(broker.name_server) as producer:
            producer.send("T", b"hello")
    found = longpoll.judge(directory, engine="spark")
    assert (found.verdict, found.engine) == ("unknown", "spark"), found
    assert found.events == longpoll.judge(directory, engine="local").events
"""
TESTING: Final = """
from longpoll_kit import LongPollSubject, run
assert run and LongPollSubject
"""


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    words = ["-m", "build", "--wheel", "--no-isolation", "--outdir", str(directory), str(ROOT)]
    subprocess.run([sys.executable, *words], capture_output=True, check=True, timeout=300)
    (made,) = directory.glob("*.whl")
    return made


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that installs the wheel with an extra into a new environment and returns its interpreter."""

    def install(extra: str) -> Path:
        venv.create(tmp_path / "environment", with_pip=True)
        python = tmp_path / "environment" / "bin" / "python"
        wanted = f"{wheel}[{extra}]" if extra else str(wheel)
        done = subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wanted],
            capture_output=True, text=True, check=False, timeout=900,
        )  # fmt: skip
        if "Could not find a version" in done.stderr and "from versions: none" in done.stderr:
            pytest.skip("no package index answers")
        assert done.returncode == 0, done.stderr
        return python

    return install


def size_mb(python: Path) -> float:
    """Return the installed size without pip and the files of venv."""
    (site,) = (python.parents[1] / "lib").glob("python3*/site-packages")
    kept = [path for path in site.iterdir() if path.name.split("-")[0] not in {"pip", "setuptools", "pkg_resources"}]
    files = (file for path in kept for file in (path.rglob("*") if path.is_dir() else [path]))
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


def tried(python: Path, script: str, directory: Path, path: str = "") -> None:
    done = subprocess.run(
        [python, "-c", script], cwd=directory, env={"PATH": f"{python.parent}{path}"}, capture_output=True, text=True,
        check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("extra", "script"),
    [("", BROKER), ("spec", LAW), ("judge", JUDGE), ("testing", TESTING)],
    ids=lambda text: text[:8],
)
def test_each_extra_installs_working_features(
    extra: str, script: str, installed: Callable[[str], Path], tmp_path: Path
) -> None:
    python = installed(extra)
    tried(python, script, tmp_path)

    assert extra not in SIZE_MAX_MB or size_mb(python) <= SIZE_MAX_MB[extra]


def lowest(pyproject: str) -> list[str]:
    """Return a requirement for the lowest declared version of each dependency, with any patch level."""
    declared = tomllib.loads(pyproject)["project"]["dependencies"]
    assert all(">=" in each for each in declared)
    return [each.replace(">=", "==") + ".*" for each in declared]


def test_the_lowest_declared_versions_work(installed: Callable[[str], Path], tmp_path: Path) -> None:
    python = installed("")

    def install(*wanted: str) -> None:
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", *wanted], check=True, capture_output=True, timeout=600
        )

    install(*lowest((ROOT / "pyproject.toml").read_text()))
    tried(python, BROKER, tmp_path)
    tried(python, COMMANDS, tmp_path)
    install("attrs==21.2")
    with pytest.raises(AssertionError, match="attrs"):
        tried(python, COMMANDS, tmp_path)


@pytest.mark.xdist_group("spark")
def test_spark_judges_with_an_installed_java(installed: Callable[[str], Path], tmp_path: Path) -> None:
    """The result equals the local engine's; Spark's launcher is a shell script, so it gets the system's PATH."""
    java = shutil.which("java")
    if java is None:
        pytest.skip("no Java on the PATH, which the extra spark asks for")
    tried(installed("spark"), SPARK, tmp_path, f":{Path(java).parent}:/usr/bin:/bin")
