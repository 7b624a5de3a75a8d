"""Ships the judge's code with a job. A worker needs Python, PySpark, numpy and pyarrow, but not our packages.

A shipped function carries an archive of the judge's packages, with `attrs` and `msgspec`, and the pickled function. A
worker unpacks the archive once, into Spark's directory for files, which the application removes at its end. The archive
comes first on the import path, so an installed version of the packages does not matter. The shipping works on any
cluster, and through Spark Connect.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import io
import zipfile
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import pyarrow as pa
from pyspark import cloudpickle

PACKAGES: Final = ("longpoll_judge", "longpoll_protocol", "longpoll_spec", "attr", "attrs", "msgspec")
"""The packages that a worker imports; a test checks that the list is complete."""
LEFT_OUT: Final = ("__pycache__", "show")
"""Directories of the packages that a worker does not need."""
Batches = Iterable[pa.RecordBatch]
Work = Callable[[Batches], Iterator[pa.RecordBatch]]
Function = TypeVar("Function", bound=Callable[[Any], Any])


@cache
def archive() -> bytes:
    """Returns the packages as a zip file whose bytes depend only on the files in it."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in PACKAGES:
            spec = importlib.util.find_spec(name)
            assert spec is not None, "the judge imports it"
            assert spec.origin is not None, "each is a package"
            root = Path(spec.origin).parent
            for file in sorted(path for path in root.rglob("*") if path.is_file()):
                within = file.relative_to(root.parent)
                if not set(LEFT_OUT) & set(within.parts):
                    packed.writestr(zipfile.ZipInfo(str(within)), file.read_bytes(), zipfile.ZIP_DEFLATED)
    return sink.getvalue()


def travelling(work: Function) -> Function:
    """Returns the same function in a form that runs on workers without our packages."""
    content = archive()
    digest = hashlib.sha256(content).hexdigest()[:16]
    # The workers do not have this module either, so its functions are pickled by value and not by name.
    module = importlib.import_module(__name__)
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    pickled = cloudpickle.dumps(work)  # type: ignore[no-untyped-call]
    return cast("Function", _arrive_with(content, digest, pickled))


def _arrive_with(content: bytes, digest: str, pickled: bytes) -> Callable[[Any], Any]:
    def arrive(given: Any) -> Any:
        import io  # noqa: PLC0415 - on the worker there are no globals of ours
        import os  # noqa: PLC0415 - the same
        import pickle  # noqa: PLC0415 - the same; the driver's own bytes
        import sys  # noqa: PLC0415 - the same
        import tempfile  # noqa: PLC0415 - the same
        import zipfile  # noqa: PLC0415 - the same

        from pyspark import SparkFiles  # noqa: PLC0415 - the same

        root = SparkFiles.getRootDirectory()
        target = os.path.join(root, f"longpoll-{digest}")  # noqa: PTH118 - the same
        if target not in sys.path:
            if not os.path.isdir(target):  # noqa: PTH112 - the same
                # Several processes of one host may unpack at the same time, so each of them unpacks into its own
                # directory, and the first directory is kept.
                own = tempfile.mkdtemp(dir=root)
                zipfile.ZipFile(io.BytesIO(content)).extractall(own)
                try:
                    os.rename(own, target)  # noqa: PTH104 - the same
                except OSError:
                    if not os.path.isdir(target):  # noqa: PTH112 - the same
                        raise
            for name in [name for name in sys.modules if name.partition(".")[0].startswith("longpoll_")]:
                # Drop modules that come from the worker's own installation or from another driver.
                del sys.modules[name]
            sys.path.insert(0, target)
        return pickle.loads(pickled)(given)  # noqa: S301 - the driver's own bytes

    return arrive
