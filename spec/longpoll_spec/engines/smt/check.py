"""One question to z3, whose answer is never Ctrl-C in disguise.

While z3 thinks, SIGINT is its own: it gives up the question, answers `unknown`, and Python never hears of the signal.
Leaves out which question is put to z3, and what becomes of the answer.
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
