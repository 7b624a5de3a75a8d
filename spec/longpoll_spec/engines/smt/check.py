"""One call of z3, with Ctrl-C reported as Ctrl-C.

During the call z3 handles SIGINT itself: it aborts, answers `unknown`, and Python does not see the signal.
"""

from __future__ import annotations

from typing import Any, Final

INTERRUPTED: Final = "interrupted from keyboard"
"""z3's reason for an answer that Ctrl-C cut short (`Z3_solver_get_reason_unknown`)."""


def check(solver: Any) -> str:
    """`sat`, `unsat` or `unknown`; raises KeyboardInterrupt when it is unknown because of Ctrl-C."""
    answer = str(solver.check())
    if answer == "unknown" and solver.reason_unknown() == INTERRUPTED:
        raise KeyboardInterrupt
    return answer
