"""The pictures and the table of docs/polling.md, drawn from the file of figures that the measurement has written.

    python -m model_tests.bench.polling_bench --messages 100 --write docs/figures/polling.json
    python -m docs.site.figures

writes docs/figures/*.svg and prints the table, which stands on the page as it is printed; a test compares both. Leaves
out measuring.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from longpoll_spec.errors import UserError
from longpoll_spec.render.pictures.plot import Bars, bars, lines, shares

FIGURES: Final = Path(__file__).parents[1] / "figures"
MEASURED: Final = FIGURES / "polling.json"
COLUMNS: Final = {
    "median ms": "latency_ms_median",
    "p99 ms": "latency_ms_p99",
    "pulls/s": "pulls_per_s",
    "broker CPU %": "cpu_percent",
    "idle pulls/s": "idle_pulls_per_s",
    "idle CPU %": "idle_cpu_percent",
}
GROUPS: Final = {
    "latency_ms_median": "From sending to having it, median, ms",
    "idle_pulls_per_s": "Pulls a second while nothing comes",
    "idle_cpu_percent": "The broker's processor time while nothing comes, % of a core",
}


def measured(path: Path = MEASURED) -> dict[str, Any]:
    """What was measured; raises UserError where the file is none of the measurement's."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        assert all({"way", "latencies_ms", *COLUMNS.values()} <= set(each) for each in found["results"])
        assert found["results"]
    except (OSError, msgspec.DecodeError, KeyError, TypeError, AssertionError) as error:
        raise UserError(f"{path}: no figures of polling_bench; write it anew with --write ({error})") from None
    return found


def pictures(found: dict[str, Any]) -> dict[str, str]:
    """Name of a file -> SVG."""
    results = found["results"]
    groups = [
        Bars(head, tuple((str(each["way"]), float(each[key])) for each in results)) for key, head in GROUPS.items()
    ]
    return {
        "polling-latency.svg": lines(
            [shares(each["way"], each["latencies_ms"]) for each in results],
            title="Which part of the messages had come after how many milliseconds, for each way of asking",
            across="ms from the call of send to the consumer's having the message",
            up="messages that had come",
        ),
        "polling-cost.svg": bars(groups, title="Latency, pulls and processor time of each way of asking"),
    }


def table(found: dict[str, Any]) -> str:
    """The table of the page, as Markdown."""
    rows = [f"| way | {' | '.join(COLUMNS)} |", f"| --- |{' --: |' * len(COLUMNS)}"]
    rows += [
        f"| {each['way']} | {' | '.join(f'{each[key]:.1f}' for key in COLUMNS.values())} |" for each in found["results"]
    ]
    return "\n".join(rows) + "\n"


def machine(found: dict[str, Any]) -> str:
    """The command and the machine, as a sentence of the page."""
    about = found["machine"]
    return (
        f"Measured by `{found['command']}` on {about['cores']} cores of an {about['processor']} processor with "
        f"{about['memory']}, Python {about['python']}, with a load of {about['load before']} by other work."
    )


def main() -> None:
    """Write the pictures and print the table."""
    try:
        found = measured()
        for name, picture in pictures(found).items():
            (FIGURES / name).write_text(picture + "\n", encoding="utf-8")
    except UserError as error:
        sys.exit(str(error))
    sys.stdout.write(f"{table(found)}\n{machine(found)}\n")


if __name__ == "__main__":
    main()
