"""Whether rules fit jars, asked of Byteman's own checker before a broker is started.

The agent says nothing of a rule that it cannot parse, nor of one whose class or method is not there: it passes it
over, and a thread would be waited for that never comes. Published jars are not asked: the rules are held against those
by tests.

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
    """The name of the first rule of a script that does not fit the jars; an empty text where all do.

    Raises JavaUnavailableError where the checker says neither.
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
