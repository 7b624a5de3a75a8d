"""The built site, and a browser that opens it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from model_tests.docs_site.built import built_site
from model_tests.support.browser import Browser, open_browser


@pytest.fixture(scope="session")
def site() -> Path:
    return built_site()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened
