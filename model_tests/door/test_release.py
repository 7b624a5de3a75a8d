"""What is released: wheel and sdist say the same, and the image of the broker is made of what this tree has."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Final

import pytest
from model_tests.door.release import ReleaseError, built, check_same, differences

ROOT: Final = Path(__file__).parents[2]


def zipped(path: Path, files: dict[str, str]) -> Path:
    """A file of zip with these in it."""
    with zipfile.ZipFile(path, "w") as file:
        for name, text in files.items():
            file.writestr(name, text)
    return path


def test_wheels_that_differ_are_seen(tmp_path: Path) -> None:
    """By a file's text, one too many and one too few; the order of files is nothing."""
    one = zipped(tmp_path / "one.whl", {"a": "1", "b": "2", "c": "3"})

    assert differences(one, zipped(tmp_path / "same.whl", {"c": "3", "a": "1", "b": "2"})) == []
    assert differences(one, zipped(tmp_path / "other.whl", {"a": "1", "b": "3", "d": "3"})) == ["b", "c", "d"]


@pytest.mark.long
def test_the_sdist_builds_the_wheel_of_the_tree(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".*", "build", "dist", "model_tests", "__pycache__"))
    sdist = built("sdist", tree, tmp_path / "sdist")
    check_same(built("wheel", tree, tmp_path / "whole"), sdist, tmp_path / "scratch")

    (tree / "reference" / "longpoll" / "planted.py").write_text('"""Only in the tree."""\n')
    with pytest.raises(ReleaseError, match=r"builds another wheel than the tree does: .*longpoll/planted\.py"):
        check_same(built("wheel", tree, tmp_path / "more"), sdist, tmp_path / "again")


def docker(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=1200)


@pytest.mark.long
def test_the_image_serves_and_says_that_it_is_well() -> None:
    """Built and run, where Docker is there: its own health check answers, by a user who is not root."""
    if shutil.which("docker") is None or docker("info").returncode:
        pytest.skip("no Docker answers here: the image is built by the workflow")
    name = "longpoll-test"
    assert docker("build", "--quiet", "--tag", name, ".").returncode == 0
    started = docker("run", "--detach", "--rm", name)
    assert started.returncode == 0, started.stderr
    container = started.stdout.strip()
    try:
        with subprocess.Popen(["docker", "logs", "--follow", container], stdout=subprocess.PIPE, text=True) as logs:
            assert logs.stdout is not None
            ready = next((line for line in logs.stdout if line.startswith("ready ")), "")
            logs.terminate()
        assert "broker=0.0.0.0:10911" in ready
        assert docker("exec", container, "longpoll", "topics", "--json").returncode == 0
        assert docker("exec", container, "id", "-u").stdout.strip() == "10911"
    finally:
        docker("stop", container)
