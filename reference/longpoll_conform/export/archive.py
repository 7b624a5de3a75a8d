"""Write the vectors as self-contained files: JSON lines, the clauses, and a page about both.

A line: see `steps`.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Final

from longpoll_conform.clauses import CAPABILITIES, CLAUSES, Clause
from longpoll_conform.export.steps import shipped
from longpoll_conform.vectors import RECORDED, recorded
from longpoll_spec.errors import OutputError

MARK: Final = "@CAPABILITIES@"
"""The placeholder of the page's table of capabilities."""


def files(version: str) -> Mapping[str, str]:
    """Every file's text by its name; `version` is that of longpoll."""
    page = (resources.files("longpoll_conform") / "export" / "README.md").read_text(encoding="utf-8")
    table = "\n".join(f"| `{name}` | {meaning} |" for name, meaning in CAPABILITIES.items())
    return {
        "README.md": page.replace(MARK, table),
        "VERSION": f"{version}\n",
        "clauses.json": json.dumps([_clause(clause) for clause in CLAUSES], ensure_ascii=False, indent=1) + "\n",
        **{f"rocketmq-{each}.jsonl": _lines(each) for each in RECORDED},
    }


def write(directory: Path, version: str) -> list[Path]:
    """Write the files; returns their paths. Raises OutputError."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        paths = []
        for name, text in files(version).items():
            paths.append(directory / name)
            paths[-1].write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write {directory}: {error.strerror or error}") from error
    return paths


def archive(version: str) -> tuple[str, bytes]:
    """The release archive's name and bytes, which are reproducible."""
    name = f"longpoll-vectors-{version}"
    whole = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=whole, mode="wb", filename="", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for file, text in files(version).items():
            content = text.encode()
            entry = tarfile.TarInfo(f"{name}/{file}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return f"{name}.tar.gz", whole.getvalue()


def _lines(version: str) -> str:
    return "".join(
        json.dumps(shipped(vector), ensure_ascii=False, separators=(",", ":")) + "\n" for vector in recorded(version)
    )


def _clause(clause: Clause) -> dict[str, Any]:
    return {
        "id": clause.id,
        "level": clause.level,
        "sentence": clause.sentence,
        "source": clause.source,
        "vectors": list(clause.vectors),
    }
