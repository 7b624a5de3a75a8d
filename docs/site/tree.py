"""Collects the pages that Sphinx reads: pages of the repository, and pages that are generated from the program.

A link that leaves `docs` is changed to the page's path in the website, or to a copy of the linked file. `build` runs
Sphinx.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
from collections.abc import Collection, Iterator
from html import escape
from pathlib import Path
from types import ModuleType
from typing import Final

from docs.site import clauses, commands, slides, start
from docs.site.chinese import CHINESE
from docs.site.sections import API, FROM_OUTSIDE, GENERATED, SECTIONS, SUBJECTS, Section
from model_tests.mutants import patches
from model_tests.support.broker import protocol_page

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
OWN: Final = DOCS / "site"
_BROKEN: Final = re.compile(r"(?<=[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef”])\n(?=[\u4e00-\u9fff“《A-Za-z\[]|`(?!``))")
"""A line break between Chinese words. The break before a list, a heading or a block does not match."""
_FENCED: Final = re.compile(r"^(```+)(\w*)[^\n]*\n.*?^\1$", re.MULTILINE | re.DOTALL)
PICTURED: Final = DOCS / "findings.md"
"""The page with a drawing of each run below the command that explains it."""
EXPLAINED: Final = re.compile(r"^longpoll explain (\S+)$", re.MULTILINE)
_DRAWN: Final = re.compile(r"^!\[([^\]\n]*)\]\(([^)\s]+\.svg)\)$", re.MULTILINE)
"""Matches a line that contains only a link to a drawing of this project."""
_LINK: Final = re.compile(r"(?<!\\)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")


SPLIT: Final = ("spec.md", "findings.md")
"""Pages that are too long to scroll, so the website has a separate page for each of their sections."""
_HEADING: Final = re.compile(r"^#{2,3} (.*)$", re.MULTILINE)


class TreeError(Exception):
    """A page has no path in the website, or links to a missing file; the text names the page."""


def generated() -> dict[str, str]:
    """Return a map from path to text of the pages that are generated from code and data."""
    return {"protocol.md": protocol_page.page(), "zoo.md": patches.page()}


def places() -> dict[Path, str]:
    """Map every page, including generated ones, to its path in the website."""
    found = {DOCS / place: place for place in GENERATED}
    found |= {path: path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md") if OWN not in path.parents}
    return found | {ROOT / name: place for name, place in FROM_OUTSIDE.items()}


def pages_of(target: Path) -> dict[str, str]:
    """Map the path of every page to its text, and copy linked files into the folder. Raises TreeError, DiagramError."""
    known = places()
    check_places(known.values())
    check_subjects()
    texts = {path: text for place, text in generated().items() for path in [DOCS / place]}
    made = {
        place: _page(path, texts.get(path) or path.read_text("utf-8"), place, known, target)
        for path, place in known.items()
    }
    made |= {f"commands/{name}": text for name, text in commands.pages().items()}
    made |= {"slides.md": slides.page(), "clauses.md": clauses.page()} | dict(_api()) | start.pages()
    made |= {f"{section.name}.md": _section_page(section, made) for section in SECTIONS}
    made |= dict(_switched(made))
    made["lecturer.md"] = _with_link(made["lecturer.md"], "[The slides](slides.md)")
    made |= {place: text + _below(place, made) for place, text in made.items() if place.endswith("/README.md")}
    check_places(made)
    made |= {place: f"---\nhide-toc: true\n---\n\n{made[place]}" for place in made if place.startswith("lessons/")}
    for place in SPLIT:
        made = split(made, place)
    return made


def split(made: dict[str, str], place: str) -> dict[str, str]:
    """Return the pages with one page split into a page for each of its headings. Links to a heading are adapted."""
    text, folder = made[place], place.removesuffix(".md")
    fenced = [block.span() for block in _FENCED.finditer(text)]
    heads = [
        found for found in _HEADING.finditer(text) if not any(start <= found.start() < end for start, end in fenced)
    ]
    ends = [*(found.start() for found in heads[1:]), len(text)]
    parts = {_slug(head[1]): (head[1], text[head.end() : end]) for head, end in zip(heads, ends, strict=True)}

    def follow(page: str, at: str) -> str:
        """Return the text of a page at the path `at`, with its links to headings of the split page adapted."""
        up = os.path.relpath(".", Path(at).parent)
        named = re.escape(os.path.normpath(f"{up}/{place}"))
        pattern = (
            rf"\]\((?:{named})?#([^)\s]+)\)"
            if at == place or at.startswith(f"{folder}/")
            else rf"\]\({named}#([^)\s]+)\)"
        )
        return re.sub(
            pattern,
            lambda found: f"]({os.path.normpath(f'{up}/{folder}/{found[1]}.md')})" if found[1] in parts else found[0],
            page,
        )

    listed = [f"- [{title}]({folder}/{slug}.md)" for slug, (title, _) in parts.items()]
    tree = ["```{toctree}", ":hidden:", "", *(f"{folder}/{slug}" for slug in parts), "```"]
    pages = {at: follow(page, at) for at, page in made.items() if at != place}
    pages[place] = follow("\n".join([text[: heads[0].start()].rstrip(), "", *listed, "", *tree, ""]), place)
    for slug, (title, body) in parts.items():
        at = f"{folder}/{slug}.md"
        inside = re.sub(r"(?<!\\)\]\((?!\w+:|#|/)", "](../", body)
        pages[at] = follow(f"# {title}\n{inside}", at)
    return pages


def _slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def assemble(target: Path) -> None:
    """Write all pages into an empty folder; raises TreeError and DiagramError."""
    shutil.rmtree(target, ignore_errors=True)
    for place, text in pages_of(target).items():
        path = target / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    shutil.copy(OWN / "conf.py", target / "conf.py")
    shutil.copytree(OWN / "static", target / "static")
    start.write_extras(target / "extra")
    slides.write(target / "extra")


def _page(path: Path, text: str, place: str, known: dict[Path, str], target: Path) -> str:
    parts, at = [], 0
    if path.parent == CHINESE:
        text = unbroken(text)
    for block in _FENCED.finditer(text):
        parts.append(linked(text[at : block.start()], path, place, known, target))
        parts.append(_block(block))
        if path == PICTURED:
            parts += [f"\n\n```{{raw}} html\n{start.picture(token)}\n```\n" for token in EXPLAINED.findall(block[0])]
        at = block.end()
    return "".join([*parts, linked(text[at:], path, place, known, target)])


def unbroken(text: str) -> str:
    """Return Chinese prose with each paragraph on one line, because browsers show a line break as a space."""
    parts, at = [], 0
    for block in _FENCED.finditer(text):
        parts += [_BROKEN.sub("", text[at : block.start()]), block[0]]
        at = block.end()
    return "".join([*parts, _BROKEN.sub("", text[at:])])


def _block(block: re.Match[str]) -> str:
    if block[2] != "mermaid":
        return block[0]
    return block[0].replace("```mermaid", "```text", 1)


def linked(text: str, path: Path, place: str, known: dict[Path, str], target: Path) -> str:
    """Return prose with links that are relative to the page's path. Text between backticks stays as it is.

    A drawing of this project becomes part of the page, so that it can use the page's dark mode.
    """
    text = _DRAWN.sub(lambda found: _inline(found, path), text)
    return _LINK.sub(lambda found: _link(found, path, place, known, target), text)


def _inline(found: re.Match[str], path: Path) -> str:
    picture = path.parent / found[2]
    if not picture.is_file():
        raise TreeError(f"{path.relative_to(ROOT)}: no picture {found[2]}")
    svg = picture.read_text("utf-8").strip().replace('role="img"', f'role="img" aria-label="{escape(found[1])}"')
    return f"```{{raw}} html\n<figure>{svg}</figure>\n```"


def _link(found: re.Match[str], path: Path, place: str, known: dict[Path, str], target: Path) -> str:
    meant = Path(os.path.normpath(path.parent / found[1]))
    anchor = found[2] or ""
    if meant.is_dir():
        meant = meant / "README.md" if (meant / "README.md") in known else meant
    if meant in known:
        return f"]({os.path.relpath(known[meant], Path(place).parent)}{anchor})"
    if not meant.exists():
        raise TreeError(f"{path.relative_to(ROOT)}: no file {found[1]}")
    copied = _copied(meant, target)
    return f"]({os.path.relpath(copied, Path(place).parent)})"


def _copied(meant: Path, target: Path) -> str:
    """Copy a linked file that is not a page, or list a folder's files; returns the path of the copy."""
    inside = meant.relative_to(ROOT).as_posix()
    place = f"files/{inside}.txt"
    copy = target / place
    copy.parent.mkdir(parents=True, exist_ok=True)
    if meant.is_dir():
        copy.write_text("".join(f"{each.relative_to(ROOT)}\n" for each in sorted(meant.rglob("*.*")) if each.is_file()))
    else:
        shutil.copyfile(meant, copy)
    return place


def _api() -> Iterator[tuple[str, str]]:
    """Return the pages of the public names, which Sphinx fills from the docstrings. One page describes each object."""
    lines = ["# Python API", "", "| module | content |", "| --- | --- |"]
    lines += [f"| [`{name}`]({name}.md) | {said} |" for name, said in API.items()]
    yield "api/index.md", "\n".join([*lines, "", "```{toctree}", ":hidden:", "", *API, "```", ""])
    told: dict[int, str] = {}
    for name in API:
        yield f"api/{name}.md", "\n".join(_module(name, told) if name not in SUBJECTS else _by_subject(name, told))


def _module(name: str, told: dict[int, str]) -> Iterator[str]:
    """Return the page of one module; `told` maps objects to the earlier pages that describe them."""
    module = importlib.import_module(name)
    things = {each: getattr(module, each) for each in _public(module) if not each.startswith("__")}
    own = [each for each, thing in things.items() if id(thing) not in told]
    others = [f"[`{each}`]({told[id(thing)]}.md)" for each, thing in things.items() if id(thing) in told]
    yield from (f"# `{name}`", "")
    if others:
        yield from (f"Described elsewhere: {', '.join(others)}.", "")
    options = [f"   :members: {', '.join(own)}", "   :imported-members:", "   :show-inheritance:"] if own else []
    yield from ("```{eval-rst}", f".. automodule:: {name}", *options, "```", "")
    told.update((id(things[each]), name) for each in own)


def _by_subject(name: str, told: dict[int, str]) -> Iterator[str]:
    module = importlib.import_module(name)
    yield from (f"# `{name}`", "", API[name], "")
    for subject, names in SUBJECTS[name].items():
        yield from (f"## {subject}", "", "```{eval-rst}", f".. currentmodule:: {name}", "")
        for each in names:
            thing = getattr(module, each)
            told[id(thing)] = name
            kind = "exception" if isinstance(thing, type) and issubclass(thing, Exception) else "class"
            yield f".. auto{kind if isinstance(thing, type) else 'function'}:: {each}"
            if isinstance(thing, type):
                yield from ("   :members:", "   :show-inheritance:")
            yield ""
        yield from ("```", "")


def _public(module: ModuleType) -> list[str]:
    """Return the public names of a module: its `__all__`, or its own names without an underscore."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    made = [name for name, thing in vars(module).items() if getattr(thing, "__module__", "") == module.__name__]
    return [name for name in made if not name.startswith("_")]


def title_of(text: str) -> str:
    """Return a page's first heading."""
    found = re.search(r"^# +(.*)$", text, re.MULTILINE)
    if found is None:
        raise TreeError(f"a page without a heading: {text[:60]!r}")
    return found[1]


def _section_page(section: Section, made: dict[str, str]) -> str:
    lines = [f"# {section.title}", "", section.words, ""]
    for page in section.pages:
        if f"{page}.md" not in made:
            raise TreeError(f"no page {page} for {section.title}")
        lines.append(f"- [{title_of(made[f'{page}.md'])}]({page}.md): {first_sentence(made[f'{page}.md'])}")
    return "\n".join([*lines, "", "```{toctree}", ":hidden:", "", *section.pages, "```", ""])


def first_sentence(text: str) -> str:
    """Return the first sentence of a page below its heading, as plain text."""
    prose = (part for part in text.split("\n\n")[1:] if re.match(r"[`\w\u4e00-\u9fff]", part) and "```" not in part)
    first = re.split(r"(?<=[.。])(?=\s|[\u4e00-\u9fff])|:\s*$", " ".join(next(prose, "").split()))[0]
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", first).rstrip(":")


def _below(place: str, made: dict[str, str]) -> str:
    """Return a hidden list (toctree) of the other pages in a folder, for the folder's own page `place`."""
    folder = place.removesuffix("README.md")
    doors = {Path(each).parent for each in made if Path(each).name == "README.md" and each != place}
    inside = [each for each in made if each.startswith(folder) and each != place]
    # The page of an inner folder lists the pages in that folder.
    others = sorted(
        (each.removesuffix(".md") for each in inside if doors.isdisjoint(_inside(Path(each), Path(folder)))),
        key=_by_number,
    )
    if not others:
        return ""
    return "\n".join(["", "```{toctree}", ":hidden:", "", *(each.removeprefix(folder) for each in others), "```", ""])


def _by_number(name: str) -> list[tuple[int, str]]:
    """Return a sort key by which lesson 2 precedes lesson 10."""
    return [(int(part or -1), word) for word, part in re.findall(r"(\D*)(\d*)", name)]


def _inside(page: Path, folder: Path) -> set[Path]:
    return set(page.parents) - {folder, *folder.parents}


def _switched(made: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each page that exists in both languages, with a link to the other language below its heading."""
    for place, text in made.items():
        folder, _, name = place.rpartition("/")
        other = f"{folder}/zh/{name}"
        if folder and other in made:
            yield place, _with_link(text, f"[中文 (Chinese)](zh/{name})")
            yield other, _with_link(made[other], f"[English](../{name})")


def _with_link(text: str, link: str) -> str:
    head, _, rest = text.partition("\n")
    return f"{head}\n\n{link}\n{rest}"


def check_subjects() -> None:
    """Check that each public name of a module has one subject; raises TreeError with the differing names."""
    for name, subjects in SUBJECTS.items():
        public = {each for each in _public(importlib.import_module(name)) if not each.startswith("__")}
        differing = public ^ {each for names in subjects.values() for each in names}
        if differing:
            raise TreeError(f"docs/site/sections.py and {name}.__all__ differ: {', '.join(sorted(differing))}")


def check_places(made: Collection[str]) -> None:
    """Check that a section, or the README of a page's folder, lists each page; raises TreeError otherwise."""
    listed = (
        {page for section in SECTIONS for page in section.pages} | {section.name for section in SECTIONS} | {"index"}
    )
    doors = {Path(page).parent for page in listed if Path(page).name in {"README", "index"}} - {Path()}
    lost = [
        place for place in made if place.removesuffix(".md") not in listed and doors.isdisjoint(Path(place).parents)
    ]
    if lost:
        raise TreeError(f"no place in docs/site/sections.py for {', '.join(sorted(lost))}")
