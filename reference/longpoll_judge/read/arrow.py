"""The parts of pyarrow that type checkers cannot see into: it makes `compute` while it is imported.

Leaves out everything else of pyarrow, which is imported by its own name.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

compute: Final[Any] = importlib.import_module("pyarrow.compute")
json: Final[Any] = importlib.import_module("pyarrow.json")
parquet: Final[Any] = importlib.import_module("pyarrow.parquet")
filesystems: Final[Any] = importlib.import_module("pyarrow.fs")
