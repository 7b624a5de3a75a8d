"""Byteman rules that log a line with the time at each gate, without stopping threads.

| word of a line | what it is                                                              |
|----------------|-------------------------------------------------------------------------|
| 1              | the gate's name                                                         |
| 2              | the thread's number, and `d` or `s` after it for dispatcher or scanner  |
| 3              | `System.nanoTime`, which on Linux is the monotonic clock of the machine |
| 4, 5, 6        | topic, queue, opaque of the pull; `-` if unknown there                  |
| 7              | whether the pull may still be held: `true`, `false`, or `-`             |
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Final

from longpoll_spec.render.java_breakpoints import Breakpoint, breakpoints_of

DELAYED_MS_MAX: Final = 8
"""The longest random delay at a gate: two pauses between the sends of a queue."""
_PRIME: Final = 10_007
FILE_PROPERTY: Final = "longpoll.steps"
TRACED: Final = ("dispatch", "notify", "taken", "each", "keep", "done", "read", "hold", "held", "served")
OPTIONS: Final = ("-Dorg.jboss.byteman.compile.to.bytecode",)
"""Rules are compiled: an interpreted one costs several times as much."""
_BEGIN: Final = f"""RULE begin
CLASS org.apache.rocketmq.broker.BrokerStartup
METHOD main
AT ENTRY
IF TRUE
DO openTrace("steps", System.getProperty("{FILE_PROPERTY}"))
ENDRULE
"""
_THREAD: Final = (
    'Thread.currentThread().getId() + (Thread.currentThread().getName().endsWith("ReputMessageService") ? "d" : '
    '(Thread.currentThread().getName().endsWith("PullRequestHoldService") ? "s" : ""))'
)


def tracing_of(version: str, *, delayed_percent: int = 0, seed: int = 0) -> str:
    """The script for a version. `delayed_percent` of the arrivals at a gate are delayed, drawn from the seed."""
    gates = {gate.name: gate for gate in breakpoints_of(version)}
    return _BEGIN + "".join(_rules((gates[name] for name in TRACED), delayed_percent, seed))


def _delay(gate: Breakpoint, percent: int, seed: int) -> tuple[str, str]:
    """The counter of a gate's arrivals, and the delay of the n-th, determined by gate, n and seed."""
    if not percent:
        return "", ""
    start = zlib.crc32(f"{gate.name} {seed}".encode()) % _PRIME
    drawn = f"((number % {_PRIME}) * 7919 + {start}) % {_PRIME}"
    count = f'number:int = incrementCounter("{gate.name}");\n     drawn:int = {drawn};\n     '
    return count, f"; delay(drawn % 100 < {percent} ? 1 + drawn % {DELAYED_MS_MAX} : 0)"


def _rules(gates: Iterable[Breakpoint], percent: int, seed: int) -> Iterable[str]:
    for gate in gates:
        count, delay = _delay(gate, percent, seed)
        told = [gate.told.get(name, '"-"') for name in ("topic", "queue", "request", "suspends")]
        words = ' + " " + '.join([f'"{gate.name}"', _THREAD, "at", *told])
        held = (
            f"held:org.apache.rocketmq.broker.longpolling.PullRequest = {gate.request};\n     " if gate.request else ""
        )
        yield (
            f"RULE {gate.name}\nCLASS {gate.class_name}\nMETHOD {gate.method}\n{gate.place}\n"
            f'BIND {held}{count}at:long = System.nanoTime()\nIF TRUE\nDO traceln("steps", {words}){delay}\nENDRULE\n'
        )
