"""A server that answers every frame with the same frame, which shows the harness's own limit.

Each connection has its own process, so that the harness is always slower than the server.
"""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from model_tests.support.broker.harness.frames import HEAD, RECEIVE_SIZE, framed

from longpoll_runtime import Address

BODY_SIZE: Final = 32 * 250
"""The size in bytes of the records in a full pull's answer."""
SENT: Final = framed(
    b'{"code":0,"extFields":{"queueId":"0","TRACE_ON":"true","MSG_REGION":"DefaultRegion",'
    b'"msgId":"7F00000100002A9F0000000000000000","queueOffset":"123456"},"flag":1,"language":"JAVA",'
    b'"opaque":1000000000,"serializeTypeCurrentRPC":"JSON","version":401}'
)
"""The constant answer to a send."""
_PULLED_HEADER: Final = (
    b'{"code":0,"extFields":{"suggestWhichBrokerId":"0","nextBeginOffset":"123456","maxOffset":"200000",'
    b'"minOffset":"0"},"flag":1,"language":"JAVA","opaque":1000000000,"remark":"FOUND",'
    b'"serializeTypeCurrentRPC":"JSON","version":401}'
)
PULLED: Final = HEAD.pack(4 + len(_PULLED_HEADER) + BODY_SIZE, len(_PULLED_HEADER)) + _PULLED_HEADER + bytes(BODY_SIZE)
"""The constant answer to a pull."""


def _serve(listening: socket.socket, answer: bytes) -> None:
    connection, _peer = listening.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    rest = b""
    with connection, suppress(ConnectionError):
        while received := connection.recv(RECEIVE_SIZE):
            buffer = rest + received if rest else received
            at = count = 0
            while at + 4 <= len(buffer) and (stop := at + 4 + HEAD.unpack_from(buffer, at)[0]) <= len(buffer):
                at, count = stop, count + 1
            rest = buffer[at:]
            connection.sendall(answer * count)


@contextmanager
def trivial_server(answer: bytes, connection_count: int) -> Iterator[Address]:
    """Serve `connection_count` connections until the end of the block."""
    context = multiprocessing.get_context("spawn")
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        processes = [
            context.Process(target=_serve, args=(listening, answer), daemon=True) for _ in range(connection_count)
        ]
        for process in processes:
            process.start()
        try:
            yield listening.getsockname()
        finally:
            for process in processes:
                process.kill()
                process.join()
