"""The type of options and arguments that name a file or directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


class FilledPath(click.Path):
    """A path. An empty one, from an unset variable for example, is an error: it would mean the current directory."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path; a usage error when it is empty."""
        if not str(value):
            self.fail("the path is empty; name a file or directory", param, ctx)
        return super().convert(value, param, ctx)
