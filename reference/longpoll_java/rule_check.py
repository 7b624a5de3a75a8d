"""Check that rules fit the jars, with Byteman's own checker, before a broker is started.

The agent silently skips a rule that it cannot parse, or whose class or method does not exist; a replay would then wait
for a thread in vain. Published jars are not checked here, because tests check the rules against them.

Source: `org.jboss.byteman.check.TestScript` of Byteman 4.0.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

from longpoll_java.errors import JavaUnavailableError
from longpoll_java.jars import Jars

CHECK_S: Final = 120.0
COMPLAINT: Final = re.compile(r'^(?:ERROR|WARNING) : (.*rule "([^"]*)".*)$', re.MULTILINE)
CLEAN: Final = "TestScript: no errors"


def refused_rule(jars: Jars, script: Path) -> str:
    """The name of the first rule of a script that does not fit the jars; empty if all fit.

    Raises JavaUnavailableError if the checker's output is unclear.
    """
    command = ["java", "-cp", f"{jars.byteman}:{jars.class_path}", "org.jboss.byteman.check.TestScript", str(script)]
    try:
        done = subprocess.run(  # noqa: S603 - Java, with our own file
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=CHECK_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise JavaUnavailableError(f"Byteman did not check its rules within {CHECK_S:g} s") from None
    except OSError as error:
        raise JavaUnavailableError(f"cannot run java: {error.strerror}; install a JDK") from error
    said = done.stdout + done.stderr
    if complaint := COMPLAINT.search(said):
        return complaint[2]
    if CLEAN not in said:
        raise JavaUnavailableError(f"Byteman's checker gave no result: {' '.join(said.split())[-300:]}")
    return ""
