"""Makes the table of docs/polling.md from the file with the results of the measurement.

    python -m model_tests.bench.polling_bench --messages 100 --write docs/figures/polling.json
    python -m docs.site.figures

The second command prints the table. A test checks that the page has the printed table.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from longpoll_spec.errors import UserError

MEASURED: Final = Path(__file__).parents[1] / "figures" / "polling.json"
COLUMNS: Final = {
    "median ms": "latency_ms_median",
    "p99 ms": "latency_ms_p99",
    "pulls/s": "pulls_per_s",
    "broker CPU %": "cpu_percent",
    "idle pulls/s": "idle_pulls_per_s",
    "idle CPU %": "idle_cpu_percent",
}


def measured(path: Path = MEASURED) -> dict[str, Any]:
    """Return the results of the measurement; raises UserError if the file is not a file of the measurement."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        assert all({"way", "latencies_ms", *COLUMNS.values()} <= set(each) for each in found["results"])
        assert found["results"]
    except (OSError, msgspec.DecodeError, KeyError, TypeError, AssertionError) as error:
        raise UserError(f"{path}: no figures of polling_bench; write it anew with --write ({error})") from None
    return found


def table(found: dict[str, Any]) -> str:
    """Return the table of the page, as Markdown."""
    rows = [f"| way | {' | '.join(COLUMNS)} |", f"| --- |{' --: |' * len(COLUMNS)}"]
    rows += [
        f"| {each['way']} | {' | '.join(f'{each[key]:.1f}' for key in COLUMNS.values())} |" for each in found["results"]
    ]
    return "\n".join(rows) + "\n"


def machine(found: dict[str, Any]) -> str:
    """Return the command and the machine of the measurement, as a sentence of the page."""
    about = found["machine"]
    return (
        f"Measured by `{found['command']}` on {about['cores']} cores of an {about['processor']} processor with "
        f"{about['memory']}, Python {about['python']}, with a load of {about['load before']} by other work."
    )


def main() -> None:
    """Print the table."""
    try:
        found = measured()
    except UserError as error:
        sys.exit(str(error))
    sys.stdout.write(f"{table(found)}\n{machine(found)}\n")


if __name__ == "__main__":
    main()
