"""A bench as the whole of its process: SIGTERM, like Ctrl-C, leaves through every `with`, so that nothing stays behind.

Without this SIGTERM ends a process where it is: temporary stores stay, and brokers that it has started go on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final, NoReturn

from longpoll.exit_codes import interrupted_by_sigterm

STOPPED: Final = 130
"""The exit code of one that was stopped, as a shell has it."""


def run(main: Callable[[], int | None]) -> NoReturn:
    """Run a bench and leave with its exit code, or with STOPPED."""
    try:
        with interrupted_by_sigterm():
            code = main()
    except KeyboardInterrupt:
        sys.stderr.write("stopped before everything was measured; what was made for it is removed\n")
        code = STOPPED
    sys.exit(code)
