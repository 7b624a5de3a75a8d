"""Histories by URI: `file://` and S3 are judged like a local directory, and a bad address is an error."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from model_tests.judge.bucket import put, s3_bucket
from model_tests.support.judge.convert import convert

from longpoll.cli import main
from longpoll_judge.errors import HistoryNotFoundError
from longpoll_judge.read import files
from longpoll_judge.read.schema import filesystems
from longpoll_judge.run.pipeline import judge
from longpoll_judge.run.spark.engine import SparkEngine
from longpoll_spec.history import META_FILE, PART_FILES, PART_SUFFIXES


def test_a_file_uri_is_the_path(clean: Path, tmp_path: Path) -> None:
    odd = tmp_path / "a history"
    shutil.copytree(clean, odd)

    assert files.absolute(odd.as_uri()) == str(odd)
    assert judge([odd.as_uri()], engine="local").requests == judge([clean], engine="local").requests


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("s3://key:secret@bucket/history", "do not put a password into the address"),
        ("s3://bucket/history?secret_key=x", "do not put a password into the address"),
        ("nowhere://bucket/history", "nowhere://bucket/history cannot be opened"),
        ("s3://", "not a directory"),
        ("file:///nowhere/at/all", "not a directory"),
    ],
)
def test_an_invalid_address_is_reported_without_its_secret(uri: str, said: str) -> None:
    done = CliRunner().invoke(main, ["judge", uri, "--engine", "local"])

    assert done.exit_code == 2
    assert said in " ".join(done.output.split())
    assert not re.search("key:secret|secret_key", done.output)


def test_a_file_name_has_no_uri_options() -> None:
    uri = files.beside("s3://bucket/deep/history?scheme=http", "part-00000.parquet")

    assert uri == "s3://bucket/deep/history/part-00000.parquet?scheme=http"
    assert files.name_of(uri) == "part-00000.parquet"
    assert files.absolute("s3a://bucket/history/") == "s3a://bucket/history"


@pytest.mark.parametrize("has_history_within", [False, True])
def test_parts_in_subdirectories_are_found_by_uri(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_history_within: bool
) -> None:
    """The URI of a partitioned table's first file opens the table. A history inside another one is not read."""
    served = filesystems.SubTreeFileSystem(str(tmp_path), filesystems.LocalFileSystem())
    monkeypatch.setattr(files, "_file_system", lambda _root, _shown: (served, ""))
    for name in ("history/_tool/part-0.parquet", "history/day=1/queue=2/0.parquet", "history/day=2/0.parquet"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(b"")
    if has_history_within:
        (tmp_path / "history" / "day=1" / META_FILE).write_bytes(b"{}")
    found = files.first_within("s3://bucket/history?scheme=http", PART_SUFFIXES, META_FILE)

    expected = "day=2" if has_history_within else "day=1/queue=2"
    assert found == f"s3://bucket/history/{expected}/0.parquet?scheme=http"
    assert files.first_within("s3://bucket/history/day=2", PART_SUFFIXES, META_FILE) is None


def test_a_byte_order_mark_is_skipped(clean: Path, tmp_path: Path) -> None:
    """Some shells write a byte order mark before UTF-8 text. A byte order mark elsewhere in the file is damage."""
    marked = Path(shutil.copytree(clean, tmp_path / "marked"))
    part = min(marked.glob("*.ndjson"))
    for path in (part, marked / META_FILE):
        path.write_bytes(files.BOM + path.read_bytes())
    here, found = judge([clean], engine="local"), judge([marked], engine="local")
    assert (found.verdict, found.events, found.gaps) == (here.verdict, here.events, [])

    part.write_bytes(part.read_bytes().replace(b"\n", b"\n" + files.BOM, 1))
    found = judge([marked], engine="local")
    assert (found.verdict, found.events) == ("unknown", here.events - 1)


def test_an_unreadable_directory_is_damage(clean: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = Path(shutil.copytree(clean, tmp_path / "history"))
    closed = history / "closed"
    closed.mkdir()
    assert judge([history], engine="local").verdict == "valid"
    listed = os.scandir

    def scan(path: str) -> Any:
        if Path(path) == closed:
            raise PermissionError(13, "Permission denied", path)
        return listed(path)

    monkeypatch.setattr(os, "scandir", scan)
    found = judge([history], engine="local")
    assert found.verdict == "unknown"
    assert any(str(closed) in str(gap) and "cannot be accessed" in str(gap) for gap in found.gaps)


# -- a service that speaks S3 ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_bucket() as query:
        yield query


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("kind", ["ndjson", "parquet"])
def test_a_history_in_s3_is_judged_like_a_local_one(
    kind: str, clean: Path, bucket: str, spark_engine: SparkEngine, tmp_path: Path
) -> None:
    directory = clean
    if kind == "parquet":
        directory = tmp_path / "columns"
        convert(clean, directory, into="parquet")
    uri = put(directory, f"good-{kind}", bucket)
    here = judge([directory], engine="local")
    found = [judge([uri], engine="local"), judge([uri], session=spark_engine.session)]

    assert [(each.verdict, each.requests, each.latency) for each in found] == [
        (here.verdict, here.requests, here.latency)
    ] * 2

    damaged = tmp_path / "damaged"
    shutil.copytree(directory, damaged)
    part = min(damaged.glob(PART_FILES))
    part.write_bytes(part.read_bytes()[: part.stat().st_size // 2])
    gaps = judge([put(damaged, f"damaged-{kind}", bucket)], engine="local").gaps
    assert any(gap["where"].startswith(f"s3a://histories/damaged-{kind}/part-") for gap in gaps), gaps
    with pytest.raises(HistoryNotFoundError, match="not a directory"):
        judge([f"s3a://histories/nothing{bucket}"], engine="local")
