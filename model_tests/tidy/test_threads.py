"""Every thread of the broker and of the commands is started where it is watched (`longpoll_runtime.threads.spawn`)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from model_tests.service.test_threads_end_loudly import THREADS

ROOT = Path(__file__).parents[2]
STARTERS = {"Thread", "Timer", "start_new_thread", "ThreadPoolExecutor", "ThreadingHTTPServer", "start_http_server"}
HOMES = {"threading", "_thread", "concurrent.futures", "http.server", "prometheus_client"}
ALLOWED = {
    "longpoll_runtime/threads.py": "the one place",
    "longpoll_judge/run/sweep.py": "a pool hands what is raised to whoever asks for the result",
    "longpoll_judge/run/local.py": "the same",
    "longpoll_judge/read/tail.py": "the same",
    "longpoll_conform/capabilities.py": "the same",
    "longpoll_conform/suite.py": "the same",
    "longpoll_conform/record.py": "the same",
    "longpoll_runtime/stalls.py": "a control thread that only looks whether the machine stands still",
    "longpoll/verification/real_client.py": "ends a child process that hangs, and nothing else",
    "longpoll/verification/real_client_child.py": "ends its process when its parent has ended",
    "longpoll/commands/serve.py": "metrics: a library's server, whose end costs no client anything",
    "longpoll/shown/following/metrics.py": "the same",
}
"""Who else starts threads, and why nobody is left waiting when they end."""
PLANTS = (
    "import threading\nthreading.Thread(target=print).start()",
    "from threading import Timer\nTimer(1, print)",
    "from concurrent.futures import ThreadPoolExecutor\nThreadPoolExecutor(1)",
    "import threading\nclass Own(threading.Thread):\n    pass",
)


def started_in(text: str) -> list[int]:
    """The lines of a text that start a thread by themselves."""
    tree = ast.parse(text)
    imported = {
        name.asname or name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in HOMES
        for name in node.names
    }
    made = (called for node in ast.walk(tree) for called in _made_of(node))
    return [called.lineno for called in made if _starts(called, imported)]


def _made_of(node: ast.AST) -> list[ast.expr]:
    """What a call calls, or a class is made of."""
    if isinstance(node, ast.ClassDef):
        return node.bases
    return [node.func] if isinstance(node, ast.Call) else []


def _starts(called: ast.expr, imported: set[str]) -> bool:
    if isinstance(called, ast.Attribute):
        return called.attr in STARTERS and ast.unparse(called.value) in HOMES
    return isinstance(called, ast.Name) and called.id in STARTERS & imported


def test_threads_are_started_in_one_place() -> None:
    """Anywhere else one could end unheard; test harnesses are let be."""
    paths = [path for path in (ROOT / "reference").rglob("*.py") if "/testing/" not in path.as_posix()]
    found = {path.relative_to(ROOT / "reference").as_posix() for path in paths if started_in(path.read_text("utf-8"))}
    assert found == set(ALLOWED)


SPAWNED = re.compile(r"""(?:\.spawn\(\s*f?|^    NAME = )["']([a-z-]+)""", re.MULTILINE)
"""A thread's name where it is started, or that of a `ServiceThread`."""
SERVERS = ("longpoll_broker", "longpoll_observe", "longpoll_recorder")
"""What runs in the processes of `longpoll serve` and `longpoll observe`."""


def test_every_thread_of_the_broker_is_seen_to_end_its_process() -> None:
    """The names that are spawned outside the client are those that are tried."""
    reference = ROOT / "reference"
    paths = [path for name in SERVERS for path in (reference / name).rglob("*.py")]
    names = set()
    for path in (path for path in paths if "/testing/" not in path.as_posix()):
        names |= set(SPAWNED.findall(path.read_text("utf-8")))
    tried = {re.sub(r"\d+$", "", name) for name in THREADS}
    # An I/O loop is given its name.
    assert names == tried - {"io-"}
