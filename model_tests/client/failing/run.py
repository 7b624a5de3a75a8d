"""Plays several schedules at once, each with separate servers, proxies and relays, and prints the results.

A schedule mostly waits, so eight of them take hardly longer than one. To repeat one by hand:

    python -m model_tests.client.failing.run --seed 7 --seconds 180
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from model_tests.client.failing.play import Plan, Played, Setting, draw, play
from model_tests.client.failing.servers import OurServer

LENGTH_S: Final = 180.0
OUR_LATE_MS: Final = 3_000.0
"""Our broker wakes and expires pulls at once; the machine has some forty processes for each processor meanwhile."""
JAVA_LATE_MS: Final = 9_000.0
"""Java's does both at a scan every 5 s when a race has lost a wakeup."""


def at_once(plans: Sequence[Plan], setting: Callable[[Plan, Path], Setting], directory: Path) -> list[Played]:
    """Play all of them at the same time, each in a separate folder."""

    def one(plan: Plan) -> Played:
        home = directory / f"seed-{plan.seed}"
        home.mkdir()
        return play(plan, setting(plan, home))

    with ThreadPoolExecutor(len(plans)) as pool:
        return list(pool.map(one, plans))


def ours(plan: Plan, home: Path) -> Setting:
    """With our broker and members of the Python client; every other one is orderly."""
    return Setting(OurServer(home), home, None, plan.seed % 2 == 1, OUR_LATE_MS)


def said(played: Played) -> str:
    """One schedule in a few lines."""
    report = played.report
    return (
        f"seed {played.plan.seed}: {len(played.plan.events)} events, {report.acknowledged} acknowledged, "
        f"{len(report.lost)} lost, {len(report.stuck)} stuck, sent again {dict(report.again_sent)}, "
        f"given again {dict(report.again_given)}, {len(report.out_of_order)} out of order, "
        f"back after {report.back_s:.1f} s, failures {played.errors}; "
        f"{played.events} events {played.verdict} {played.why}"
    )


def main() -> None:
    """Play one schedule, or several."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=LENGTH_S)
    parser.add_argument("--pace", type=float, default=1.0)
    asked = parser.parse_args()
    logging.getLogger("longpoll_client").setLevel(logging.ERROR)
    directory = Path(tempfile.mkdtemp(prefix="failing-"))
    plans = [draw(asked.seed + number, asked.seconds, asked.pace) for number in range(asked.count)]
    sys.stdout.write(f"{directory}\n")
    for played in at_once(plans, ours, directory):
        sys.stdout.write("\n".join([said(played), *played.faults()]) + "\n")


if __name__ == "__main__":
    main()
