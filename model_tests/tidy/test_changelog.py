"""`CHANGELOG.md` is what `make changelog` makes of the fragments."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from model_tests.tidy.changelog import MADE, FragmentError, changelog, entries, version_of

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "changelog.d"


def fragments(folder: Path, **texts: str) -> Path:
    """A folder with these fragments; `a_change` is `a.change.md`."""
    folder.mkdir(parents=True)
    for name, text in texts.items():
        (folder / f"{name.replace('_', '.')}.md").write_text(text)
    return folder


def test_the_changelog_is_up_to_date() -> None:
    """Otherwise: `make changelog`."""
    assert (ROOT / "CHANGELOG.md").read_text("utf-8") == changelog(FOLDER, version_of(ROOT)), "run `make changelog`"


def test_every_fragment_is_in_it() -> None:
    """Each line of each, once, under its kind."""
    text, found = changelog(FOLDER, version_of(ROOT)), entries(FOLDER)

    assert len(list(FOLDER.glob("*.*.md"))) > 100
    assert all(text.count(f"\n- {entry}\n") == 1 for kind in found.values() for entry in kind)
    assert text.index("### Changed") < text.index(f"- {found['change'][0]}") < text.index("### Mended")


def test_a_release_keeps_its_fragments(tmp_path: Path) -> None:
    """In a folder of its version, below those that are not yet released; the newest first, by number."""
    folder = fragments(tmp_path / "d", b_change="Two.", a_change="One.\nAnd more.", a_fix="Mended it.")
    fragments(folder / "0.9.0", old_fix="Old.")
    fragments(folder / "0.10.0", new_change="New.")

    assert changelog(folder, "0.11.0") == (
        f"# Changelog\n\n{MADE}\n\n## 0.11.0, not yet released\n\n### Changed\n\n- One.\n- And more.\n- Two.\n\n"
        "### Mended\n\n- Mended it.\n\n## 0.10.0\n\n### Changed\n\n- New.\n\n## 0.9.0\n\n### Mended\n\n- Old.\n"
    )
    assert "\n## Not yet released\n" in changelog(folder, "0.10.0")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a_news", "One.", "a.news.md is no NAME.change.md"),
        ("a", "One.", "a.md is no NAME.change.md"),
        ("a_fix", "\n", "a.fix.md is no NAME.change.md"),
        ("a_change", "One", "a.change.md: no sentence ends in 'One'"),
    ],
)
def test_a_planted_fragment_that_is_none_is_named(tmp_path: Path, name: str, text: str, said: str) -> None:
    """A wrong ending, an empty one, and half a sentence."""
    with pytest.raises(FragmentError, match=said):
        changelog(fragments(tmp_path / "d", **{name: text}), "0.1.0")


def test_a_fragment_that_nobody_collected_is_seen(tmp_path: Path) -> None:
    """One more changes the file."""
    folder = fragments(tmp_path / "d", a_fix="One.")
    before = changelog(folder, "0.1.0")
    (folder / "b.fix.md").write_text("Two.")

    assert changelog(folder, "0.1.0") != before
    (folder / "odd").mkdir()
    with pytest.raises(FragmentError, match="odd is no folder of a version"):
        changelog(folder, "0.1.0")
