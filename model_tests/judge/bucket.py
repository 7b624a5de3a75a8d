"""An S3 service (moto) on this machine with one bucket."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from longpoll_judge.read.schema import filesystems

KEYS: Final = {
    "AWS_ACCESS_KEY_ID": "k",
    "AWS_SECRET_ACCESS_KEY": "s",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
ADDRESS: Final = re.compile(r"http://(127\.0\.0\.1:\d+)")


@contextmanager
def s3_bucket() -> Iterator[str]:
    if importlib.util.find_spec("moto") is None:
        pytest.skip("S3 IS NOT TRIED: pip install --requirement requirements/s3.lock")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():
            patch.setenv(name, value)
        words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as server:
            try:
                assert server.stderr is not None
                found = next(match for match in map(ADDRESS.search, server.stderr) if match)
                made = filesystems.S3FileSystem(
                    endpoint_override=found[1], scheme="http", allow_bucket_creation=True, region="us-east-1"
                )
                made.create_dir("histories")
                yield f"?endpoint_override={found[1]}&scheme=http"
            finally:
                server.kill()


def put(directory: Path, name: str, query: str) -> str:
    uri = f"s3a://histories/{name}{query}"
    system, _path = filesystems.FileSystem.from_uri(uri.replace("s3a", "s3", 1))
    for file in directory.iterdir():
        with system.open_output_stream(f"histories/{name}/{file.name}") as sink:
            sink.write(file.read_bytes())
    return uri
