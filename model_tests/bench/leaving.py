"""Runs a bench as a process in which SIGTERM, like Ctrl-C, leaves every `with` block.

By default SIGTERM ends a process at once, so its temporary stores and its brokers would remain.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final, NoReturn

from longpoll.exit_codes import interrupted_by_sigterm

STOPPED: Final = 130


def run(main: Callable[[], int | None]) -> NoReturn:
    try:
        with interrupted_by_sigterm():
            code = main()
    except KeyboardInterrupt:
        sys.stderr.write("stopped before everything was measured; what was made for it is removed\n")
        code = STOPPED
    sys.exit(code)
