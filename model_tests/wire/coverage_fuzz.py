"""A coverage-guided fuzzer of all parsers of a peer's bytes: frames, headers, fields, bodies, expressions.

    python model_tests/wire/coverage_fuzz.py CORPUS_DIRECTORY [-runs=N ...]

Options of libFuzzer follow the corpus. The fuzzer ends at the first exception that is not one of the protocol's errors,
prints the input, and exits with a code other than 0. With `planted` as the first argument the protocol's errors count
too, so the fuzzer must find one. `model_tests/service/test_fuzz.py` fuzzes a whole broker.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Final

# This package is not one of the project's dependencies, so it and its types may be missing.
atheris = importlib.import_module("atheris")

with atheris.instrument_imports(include=["longpoll_protocol", "longpoll_broker.shared", "longpoll_broker.hold"]):
    from model_tests.support.broker.fuzzing import SEEDS

    from longpoll_broker.shared.filters import ExpressionError, filter_of
    from longpoll_protocol import bodies, headers
    from longpoll_protocol.errors import HeaderError, ProtocolError
    from longpoll_protocol.frames import Command, Connection, Serialisation, encode
    from longpoll_protocol.message import decode_batch
    from longpoll_protocol.properties import FORM_5, read_properties, write_properties

HEADERS: Final = [
    kind for kind in vars(headers).values() if isinstance(kind, type) and issubclass(kind, headers.Header)
]
BODIES: Final = [kind for kind in vars(bodies).values() if isinstance(kind, type) and issubclass(kind, bodies.Body)]


def read_command(command: Command, covered: tuple[type[Exception], ...]) -> None:
    fields = command.ext_fields or {}
    for kind in HEADERS:
        try:
            kind.decode(fields).encode()
        except covered:
            continue
    for body in BODIES:
        try:
            body.decode(command.body).encode()
        except covered:
            continue
    refused: tuple[type[Exception], ...] = (ExpressionError, *covered)
    for text in fields.values():
        write_properties(read_properties(text), FORM_5)
        for expression_type in (None, "SQL92"):
            try:
                filter_of(text, expression_type)
            except refused:
                continue
    try:
        decode_batch(command.body)
        encode(command)
    except covered:
        return


def read_stream(content: bytes, covered: tuple[type[Exception], ...]) -> None:
    connection = Connection()
    try:
        for piece in (content[: len(content) // 2], content[len(content) // 2 :]):
            connection.receive_data(piece)
            while isinstance(event := connection.next_event(), Command):
                read_command(event, covered)
    except covered:
        return


def main(arguments: list[str]) -> None:
    planted = arguments[0] == "planted"
    corpus, *options = arguments[planted:]
    for number, (code, fields, body) in enumerate(SEEDS):
        for kind in Serialisation:
            command = Command(code, number, ext_fields=fields, body=body, serialisation=kind)
            Path(corpus, f"seed-{number}-{kind.name}").write_bytes(b"".join(encode(command)))
    covered: tuple[type[Exception], ...] = () if planted else (ProtocolError, HeaderError)
    atheris.Setup([sys.argv[0], corpus, *options], lambda content: read_stream(content, covered))
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
