"""Applies an entry's changes to this process: changed modules are compiled from the changed text.

Call it in a process made for it: earlier imports of the project are dropped, so every module sees the changes. A
process that a test starts reads the unchanged files. What is then tried: `methods`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final

from model_tests.mutants.zoo.entry import Entry

ROOT: Final = Path(__file__).resolve().parents[3]
OURS: Final = ("longpoll", "model_tests")


class DoesNotApplyError(Exception):
    """A change's text does not occur exactly once in its file; the error names the text."""


def texts_of(entry: Entry) -> dict[str, str]:
    """The changed files' texts, by their paths in the checkout; raises DoesNotApplyError."""
    texts: dict[str, str] = {}
    for change in entry.changes:
        text = texts.get(change.file) or (ROOT / change.file).read_text(encoding="utf-8")
        count = text.count(change.before)
        if count != 1:
            raise DoesNotApplyError(f"{entry.id}: {change.before!r} stands {count} times in {change.file}, not once")
        texts[change.file] = text.replace(change.before, change.after)
    return texts


class Changed(SourceFileLoader):
    """Loads a module from a text that is not its file's."""

    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self._text = text

    def get_data(self, path: str) -> bytes:
        """The changed text, wherever the source is asked for."""
        return self._text.encode() if path == self.path else super().get_data(path)

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self._text.encode(), self.path)


class Planter(MetaPathFinder):
    """Finds the modules that are changed. Invariant: `loaded` are the files among them that were imported."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = {str(ROOT / file): text for file, text in texts.items()}
        self.loaded: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a changed module; None for any other."""
        if not fullname.startswith(OURS):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin not in self._texts:
            return None
        self.loaded.add(spec.origin)
        spec.loader = Changed(fullname, spec.origin, self._texts[spec.origin])
        return spec


def plant(entry: Entry | None) -> Planter:
    """Forget the project's modules, and read those that the entry changes from the changed text from now on."""
    planter = Planter({} if entry is None else texts_of(entry))
    for name in [name for name in sys.modules if name.split(".")[0].startswith(OURS)]:
        del sys.modules[name]
    for folder in (".", "spec", "reference"):
        place = str((ROOT / folder).resolve())
        if place not in sys.path:
            sys.path.insert(0, place)
    sys.meta_path.insert(0, planter)
    importlib.invalidate_caches()
    return planter
