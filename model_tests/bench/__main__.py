"""`make bench PART=...`: run the benchmarks of one part, or of all parts, each script in its own process.

The exit code is the largest exit code of the scripts.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from model_tests.bench import leaving

ROOT: Final = Path(__file__).parents[2]
PARTS: Final = {
    "explore": ("explore_bench",),
    "broker": ("broker_bench",),
    "judge": ("judge_bench",),
    "polling": ("polling_bench",),
    "oracle": ("oracle_bench",),
    "client": ("client_bench",),
    "services": ("services_bench",),
}


def main(arguments: Sequence[str]) -> int:
    parts = list(arguments) or ["all"]
    unknown = [part for part in parts if part not in PARTS and part != "all"]
    if unknown:
        sys.stderr.write(f"unknown part {unknown[0]!r}; write {', '.join(PARTS)} or all\n")
        return 2
    chosen = PARTS if "all" in parts else parts
    worst = 0
    for script in (script for part in chosen for script in PARTS[part]):
        sys.stdout.write(f"== {script}\n")
        sys.stdout.flush()
        command = (sys.executable, "-m", f"model_tests.bench.{script}")
        worst = max(worst, _exit_code(command))
    return worst


def _exit_code(command: Sequence[str]) -> int:
    with subprocess.Popen(command, cwd=ROOT) as script:
        try:
            return abs(script.wait())
        except KeyboardInterrupt:
            script.terminate()
            script.wait()
            raise


if __name__ == "__main__":
    leaving.run(lambda: main(sys.argv[1:]))
