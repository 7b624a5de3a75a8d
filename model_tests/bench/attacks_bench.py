"""What attacks cost an unrelated client and the broker's memory, with the broker's limits and without them.

    python -m model_tests.bench.attacks_bench [--members 2000] [--attack members] [--json]

Each attack runs against a new `longpoll serve` process, once with limits and once without. Meanwhile an unrelated
client, also a process, sends messages and pulls each one. The bench measures its times from send to answer of the pull,
the broker's processor time, and the growth of its peak memory. Without limits, the settings of `docs/safety.md` are out
of reach and every member is notified of every change at once.

Exits with 1 if the client was not served with limits, or waited longer than half a second beyond the machine's own
delays.
"""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import msgspec
import trustme
from model_tests.bench import bystander, leaving
from model_tests.bench.attacks import ATTACKS, Attack
from model_tests.bench.served import Served, parser_of, print_json, serving
from rich.console import Console
from rich.table import Table

TOLD_AT_ONCE: Final = (
    "from longpoll_broker.rocketmq.admin import client_processor; client_processor.NOTICES_MAX = 1 << 60; "
)
FAR: Final = 1 << 40
WITHOUT: Final = f"unfinishedBytesMax={FAR}\nunsentBytesMax={FAR}\noutputBytesMax={FAR}\n"
WORST_MS_MAX: Final = 500
CALM_S: Final = 4.0
"""How long the bystander goes on after an attack is over."""


class Result(msgspec.Struct):
    """The result of one attack."""

    attack: str
    limits: bool
    round_trips: int
    p50_ms: float
    p99_ms: float
    worst_ms: float
    own_p99_ms: float
    own_worst_ms: float
    """The same without the time for which threads of bystander and broker waited for a processor."""
    processor_s: float
    memory_mib: float
    """Growth of the most memory that the process has had."""


# -- measuring ---------------------------------------------------------------------------------------------------------


@contextmanager
def attacked(directory: Path, attack: Attack, *, limits: bool) -> Iterator[Served]:
    """A broker process with the settings of the attack."""
    options = ["--policy", attack.policy]
    if attack.speaks_tls:
        issued = trustme.CA().issue_cert("localhost")
        issued.private_key_and_cert_chain_pem.write_to_path(str(directory / "server.pem"))
        options += ["--tls-certificate", str(directory / "server.pem"), "--tls-key", str(directory / "server.pem")]
    settings, before = attack.settings + ("" if limits else WITHOUT), "" if limits else TOLD_AT_ONCE
    with serving(directory / "store", options, settings=settings, before=before) as served:
        yield served


def measured(name: str, count: int, *, limits: bool) -> Result:
    """One attack, one way."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        served = stack.enter_context(attacked(directory, ATTACKS[name], limits=limits))
        attack = ATTACKS[name].prepare(served, count, stack)
        memory_kib, processor_s = served.most_memory_kib(), served.processor_s()
        command = bystander.command(served.address, served.process.pid)
        out = stack.enter_context((directory / "times").open("w+"))
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, text=True) as standing:
            assert standing.stdin is not None
            try:
                while out.tell() < 1_000 and standing.poll() is None:
                    bystander.PAUSE.wait(0.01)
                    out.seek(0, os.SEEK_END)
                attack()
                bystander.PAUSE.wait(CALM_S)
            finally:
                standing.stdin.close()
        out.seek(0)
        times = bystander.Times.of(out.read())
        return Result(
            name,
            limits,
            times.count,
            times.clock.p50_ms,
            times.clock.p99_ms,
            times.clock.worst_ms,
            times.own.p99_ms,
            times.own.worst_ms,
            served.processor_s() - processor_s,
            (served.most_memory_kib() - memory_kib) / 1024,
        )


def show(results: Sequence[Result]) -> None:
    """A row for each attack and way."""
    table = Table(
        "attack", "limits", "round trips", "p50 ms", "p99 ms", "worst ms", "own p99", "own worst", "processor s"
    )
    table.add_column("memory MiB")
    for each in results:
        table.add_row(
            each.attack,
            "with" if each.limits else "without",
            str(each.round_trips),
            f"{each.p50_ms:.2f}",
            f"{each.p99_ms:.1f}",
            f"{each.worst_ms:.0f}",
            f"{each.own_p99_ms:.1f}",
            f"{each.own_worst_ms:.0f}",
            f"{each.processor_s:.2f}",
            f"{each.memory_mib:.0f}",
        )
    Console(width=130).print(table)


def main() -> int:
    """Measure, and say it."""
    parser = parser_of(__doc__)
    parser.add_argument("--members", type=int, default=2_000)
    parser.add_argument("--attack", choices=ATTACKS, help="one attack instead of all")
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    names = [options.attack] if options.attack else list(ATTACKS)
    results = [
        measured(name, options.members, limits=limits)
        for name in names
        for limits in (False, True)
        if limits or ATTACKS[name].has_limit
    ]
    if options.json:
        print_json(results)
    else:
        show(results)
    return int(any(each.limits and each.own_worst_ms > WORST_MS_MAX for each in results))


if __name__ == "__main__":
    leaving.run(main)
