"""A broker and its name server as processes that can be stopped, killed and restarted, each behind a proxy.

Every run of the broker has a separate recording proxy. A broker that stops in order answers its held pulls early, and
only the end of the record shows that this is no violation. The next run's proxy starts before the stop, so the record
has no gap and lost messages are violations. The judge does not compare commits at one proxy with answers at another
proxy, so the test itself queries an offset that was committed just before the stop. After a kill the proxy observes
nothing until the broker runs again, because the broker may forget the offsets of the last seconds.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from model_tests.conformance.java_broker import configure, free_port, listens
from model_tests.support.broker.raw_client import RawClient, send_fields

from longpoll_java.broker import JVM
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_runtime.services import Closeable

END_S: Final = 60.0
READY_S: Final = 180.0
"""Time limit for a start in seconds, because many processes start at once."""
PLACE: Final = {"consumerGroup": "TOOLS_CONSUMER", "topic": "kept_over_stops", "queueId": "0"}
"""A group and a queue for an offset that must survive an orderly stop; no client uses this group."""
LONGPOLL: Final = str(Path(sys.executable).with_name("longpoll"))


class Process:
    """A process of ours that is ended by its process id."""

    def __init__(self, command: Sequence[str], output: Path, *, is_telling: bool) -> None:
        """`is_telling`: whether `ready` reads its first line of output."""
        with output.open("ab") as kept:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if is_telling else kept,
                stderr=kept,
                text=True,
            )
        self._output = output

    def ready(self) -> dict[str, object]:
        """Return the first line of the process's output, as JSON."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"{self._output.name} ended: {self._output.read_text(errors='replace')[-1000:]}"
        found: dict[str, object] = json.loads(line)
        return found

    def wait_listening(self, port: int) -> None:
        def is_there() -> bool:
            said = self._output.read_text(errors="replace")[-1000:]
            assert self._process.poll() is None, f"{self._output.name} ended with {self._process.returncode}: {said}"
            return listens(port)

        pause, deadline_s = threading.Event(), time.monotonic() + READY_S
        while not is_there():
            assert time.monotonic() < deadline_s, f"{self._output.name} does not listen on {port} after {READY_S:g} s"
            pause.wait(0.05)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End the process with a signal or kill it; returns its exit code."""
        if self._process.poll() is None:
            self._process.send_signal(number)
        try:
            return self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            if self._process.stdout is not None:
                self._process.stdout.close()


class Server(ABC):
    """A broker with its name server, at the addresses that clients would use without proxy and relay."""

    address: tuple[str, int]
    name_server: tuple[str, int]
    _broker: Process | None = None

    @abstractmethod
    def start(self) -> None:
        """Start the broker, and the name server if it does not run, and wait until they listen."""

    def stop(self, number: signal.Signals) -> None:
        if self._broker is not None:
            self._broker.end(number)
            self._broker = None

    def close(self) -> None:
        self.stop(signal.SIGTERM)


class OurServer(Server):
    """`longpoll serve`, which is broker and name server; `home` is an existing folder."""

    def __init__(self, home: Path) -> None:
        self.address = ("127.0.0.1", free_port(()))
        self.name_server = ("127.0.0.1", free_port(()))
        self._home = home

    def start(self) -> None:
        listen, names = ("{}:{}".format(*address) for address in (self.address, self.name_server))
        store = str(self._home / "store")
        command = [LONGPOLL, "serve", "--store", store, "--listen", listen, "--name-server", names, "--json"]
        self._broker = Process(command, self._home / "serve.out", is_telling=True)
        self._broker.ready()


class JavaServer(Server):
    """A Java broker and a Java name server in two processes."""

    def __init__(self, home: Path, class_path: str) -> None:
        self.address = ("127.0.0.1", free_port((-2, 1)))
        self.name_server = ("127.0.0.1", free_port(()))
        self._home = home
        self._java = ("java", *JVM, f"-Drocketmq.home.dir={home}", f"-Duser.home={home}", "-cp", class_path)
        self._names: Process | None = None
        configure(home, self.address[1], self.name_server[1], "mappedFileSizeCommitLog=16777216")

    def start(self) -> None:
        if self._names is None:
            self._names = self._started("namesrv.NamesrvStartup", "namesrv.conf", self.name_server[1])
        self._broker = self._started("broker.BrokerStartup", "broker.conf", self.address[1])

    def close(self) -> None:
        super().close()
        if self._names is not None:
            self._names.end()

    def _started(self, main: str, conf: str, port: int) -> Process:
        command = [*self._java, f"org.apache.rocketmq.{main}", "-c", str(self._home / conf)]
        process = Process(command, self._home / f"{main}.out", is_telling=False)
        process.wait_listening(port)
        return process


class Observed(Closeable):
    """A server behind `longpoll observe`; `address` is the proxy's, which changes with each run."""

    def __init__(self, server: Server, home: Path) -> None:
        self.server = server
        self.histories: list[Path] = []
        self.address = server.address
        self._home = home
        self._proxy: Process | None = None
        self._offset_kept: int | None = None
        """The offset committed before the orderly stop; None if there was no orderly stop."""

    def start(self) -> None:
        """Start the broker, the name server and the proxy if they do not run."""
        self.server.start()
        if self._offset_kept is not None:
            with closing(RawClient(self.server.address)) as client:
                answer = client.call(RequestCode.QUERY_CONSUMER_OFFSET, PLACE)
                told = (answer.ext_fields or {}).get("offset")
                end = client.call(RequestCode.GET_MAX_OFFSET, PLACE)
                # Our broker sets an offset back to the end of a queue that has lost messages.
                lowered = min(self._offset_kept, int((end.ext_fields or {}).get("offset", 0)))
                kept = {str(self._offset_kept), str(lowered)}
                assert told in kept, f"offset {self._offset_kept} is {told} after a stop"
        if self._proxy is None:
            self._proxy = self._new_proxy()

    def stop(self) -> None:
        """Start the next proxy, commit an offset, and stop the broker in order. The old proxy ends after the broker."""
        ending, self._proxy = self._proxy, self._new_proxy()
        with closing(RawClient(self.server.address)) as client:
            # The test sends one more message, because a broker may lower an offset beyond its queue's end.
            answer = client.call(RequestCode.SEND_MESSAGE_V2, send_fields(PLACE["topic"]), b"x")
            assert answer.code == ResponseCode.SUCCESS, f"a send is refused: {answer.code} {answer.remark}"
            self._offset_kept = int((answer.ext_fields or {})["queueOffset"]) + 1
            fields = {**PLACE, "commitOffset": str(self._offset_kept)}
            answer = client.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        assert answer.code == ResponseCode.SUCCESS, f"a commit is refused: {answer.code} {answer.remark}"
        self.server.stop(signal.SIGTERM)
        self._end(ending)

    def kill(self) -> None:
        """Kill the broker; its proxy ends afterwards."""
        self._offset_kept = None
        self.server.stop(signal.SIGKILL)
        self._end_proxy()

    def close(self) -> None:
        self.server.close()
        self._end_proxy()

    def _new_proxy(self) -> Process:
        self.histories.append(self._home / f"history-{len(self.histories)}")
        proxy = Process(
            [LONGPOLL, "observe", "--listen", "127.0.0.1:0", "--broker", "{}:{}".format(*self.server.address),
             "--record", str(self.histories[-1]), "--json"],
            self._home / "observe.out",
            is_telling=True,
        )  # fmt: skip
        brokers = proxy.ready()["brokers"]
        assert isinstance(brokers, dict)
        (door,) = brokers.values()
        host, port = str(door).rsplit(":", 1)
        self.address = host, int(port)
        return proxy

    def _end_proxy(self) -> None:
        proxy, self._proxy = self._proxy, None
        self._end(proxy)

    def _end(self, proxy: Process | None) -> None:
        if proxy is not None:
            code = proxy.end()
            assert code == 0, f"the proxy ended with {code}: {(self._home / 'observe.out').read_text()[-1000:]}"


def judged(histories: Sequence[Path], late_ms: float, home: Path) -> dict[str, object]:
    """Return the JSON of `longpoll judge` for all histories of the proxies together."""
    command = [LONGPOLL, "judge", *map(str, histories), "--engine", "local", "--json"]
    command += ["--wake-ms", str(late_ms), "--late-ms", str(late_ms)]
    begun_s = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    (home / "judged.json").write_text(done.stdout)
    with suppress(json.JSONDecodeError):
        found: dict[str, object] = json.loads(done.stdout)
        found["judged_s"] = time.monotonic() - begun_s
        return found
    raise AssertionError(f"the judge ended with {done.returncode}: {done.stderr[-1000:]}")
