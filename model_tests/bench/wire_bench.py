"""The speed of the wire format alone: commands decoded and encoded a second, one thread, no sockets.

    python -m model_tests.bench.wire_bench [--rounds 7] [--json]

Each figure is the best of several rounds, because other work only makes a round slower. The budget is 3 us to decode
one send. The broker around it: `make bench PART=broker`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns

import msgspec
from model_tests.bench import leaving

from longpoll_protocol.codes import RequestCode
from longpoll_protocol.fast import TypedConnection, encode_send_head
from longpoll_protocol.frames import NEED_DATA, Command, Connection, Serialisation, encode_reply_head
from longpoll_protocol.headers import (
    Header,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from longpoll_protocol.properties import encode_properties

BATCH = 64
"""Commands of one received chunk: what a client with 64 in flight sends."""
REPEATS = 400
BUDGET_US = {"decode a send, JSON": 3.0}


def send_request(kind: Serialisation) -> Command:
    """A send as Java clients make it, with 128 bytes of body."""
    properties = {"UNIQ_KEY": "7F00000100002A9F000000000001E240", "WAIT": "true", "TAGS": "TagA"}
    header = SendMessageRequestHeaderV2(
        producer_group="bench-producer",
        topic="BenchTopic",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=3,
        sys_flag=0,
        born_timestamp=1_700_000_000_000,
        flag=0,
        properties=encode_properties(properties),
        reconsume_times=0,
    )
    return Command(RequestCode.SEND_MESSAGE_V2.value, 12_345, 0, header.encode(), bytes(128), None, "JAVA", 401, kind)


def pull_request(kind: Serialisation) -> Command:
    """A pull as Java clients make it."""
    header = PullMessageRequestHeader(
        consumer_group="bench-consumer",
        topic="BenchTopic",
        queue_id=3,
        queue_offset=123_456,
        max_msg_nums=32,
        sys_flag=3,
        commit_offset=123_400,
        suspend_timeout_millis=15_000,
        sub_version=1_700_000_000_000,
    )
    return Command(RequestCode.PULL_MESSAGE.value, 12_345, 0, header.encode(), b"", None, "JAVA", 401, kind)


def decoding(command: Command) -> Callable[[], None]:
    """Receive a chunk of commands and take each."""
    connection = Connection()
    return _receiving(connection, command, lambda: None)


def reading_a_burst(command: Command) -> Callable[[], None]:
    """Receive a chunk of sends and take the first, then those behind it, as a broker does."""
    connection = TypedConnection()
    return _receiving(connection, command, connection.next_sends)


def _receiving(connection: Connection, command: Command, then: Callable[[], object]) -> Callable[[], None]:
    """Receive a chunk of one command many times over; `then` comes after each event."""
    chunk = b"".join(connection.send(command)) * BATCH

    def run() -> None:
        connection.receive_data(chunk)
        while connection.next_event() is not NEED_DATA:
            then()

    return run


def repeating(action: Callable[[], object]) -> Callable[[], None]:
    """The action, as often as a chunk has commands."""

    def run() -> None:
        for _number in range(BATCH):
            action()

    return run


def answer(request: Command, header: Header, body_size: int) -> bytes:
    """The bytes before the body of an answer."""
    return encode_reply_head(request, 0, ext_fields=header.encode(), body_size=body_size)


def cases() -> dict[str, Callable[[], None]]:
    """The measured operations; each call does `BATCH` of one."""
    found: dict[str, Callable[[], None]] = {}
    for kind in Serialisation:
        send, pull = send_request(kind), pull_request(kind)
        sent = SendMessageResponseHeader(msg_id="7F00000100002A9F000000000001E240", queue_id=3, queue_offset=123_456)
        pulled = PullMessageResponseHeader(
            suggest_which_broker_id=0, next_begin_offset=123_488, min_offset=0, max_offset=200_000
        )
        found |= {
            f"decode a send, {kind.name}": decoding(send),
            f"decode a pull, {kind.name}": decoding(pull),
            f"encode a send's answer, {kind.name}": repeating(partial(answer, send, sent, 0)),
            f"encode a pull's answer, {kind.name}": repeating(partial(answer, pull, pulled, 8000)),
        }
    found["read a send in a burst, JSON"] = reading_a_burst(send_request(Serialisation.JSON))
    place = (b"7F00000100002A9F", 123_456_789, 123_456)
    found["encode a burst's answer, JSON"] = repeating(partial(encode_send_head, 12_345, 1, 3, *place))
    send_fields, pull_fields = send_request(Serialisation.JSON).ext_fields, pull_request(Serialisation.JSON).ext_fields
    found["type a send's header"] = repeating(lambda: SendMessageRequestHeaderV2.decode(send_fields))
    found["type a pull's header"] = repeating(lambda: PullMessageRequestHeader.decode(pull_fields))
    return found


def measure(action: Callable[[], None], rounds: int) -> float:
    """Microseconds of one command, the best of some rounds."""
    best = float("inf")
    for _round in range(rounds):
        begin_ns = perf_counter_ns()
        for _repeat in range(REPEATS):
            action()
        best = min(best, (perf_counter_ns() - begin_ns) / (REPEATS * BATCH * 1000))
    return best


def main() -> None:
    """Print every figure; exit 1 when one is over its budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="rounds of which the best counts")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    figures = {name: round(measure(action, options.rounds), 3) for name, action in cases().items()}
    if options.json:
        sys.stdout.write(msgspec.json.encode(figures).decode() + "\n")
    else:
        for name, microseconds in figures.items():
            budget = f"  (budget {BUDGET_US[name]:g} us)" if name in BUDGET_US else ""
            sys.stdout.write(f"{name:38} {microseconds:7.2f} us {1e6 / microseconds:12,.0f} /s{budget}\n")
    if any(figures[name] > budget for name, budget in BUDGET_US.items()):
        sys.exit(1)


if __name__ == "__main__":
    leaving.run(main)
