"""Every command of a page is typed by some test: here, or by the page's own; one that is not is named, with the reason.

Each page's commands are run in their order, by themselves in a directory of their own, and end as they should. Lessons
have `test_lessons`, the pages of the law `test_law_docs`, that of the engines `test_engines_docs`; those also look at
what is printed. Chinese lessons have the English ones' blocks (`test_chinese`).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from _pytest.mark import ParameterSet
from model_tests.conformance.java_broker import why_missing
from model_tests.docs import test_law_docs, test_lessons
from model_tests.docs.typed import LOST, ROOT, NotTypedError, Reader, lines, unread
from model_tests.spec import test_engines_docs

PAGES: Final = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md")])
OF_THE_PROJECT: Final = "of the project's own upkeep: the checks run it, or do what it does"
MEASURES: Final = "measures for minutes; `model_tests/service/test_broker_bench.py` and others like it measure little"
ELSEWHERE: Final = "needs what no test may ask for"
BY_JAVA: Final = "takes a Java broker; `make test-long` types it where one can be had"
NOT_HERE: Final = {
    r"make (run|test)": OF_THE_PROJECT,
    r"source \.venv/bin/activate": "a test types with that folder on its PATH",
    r"python -m longpoll_spec\.(engines\.manifest|render\.spec).*": OF_THE_PROJECT,
    r"(python -m )?pytest .*": "is a test itself; `model_tests/tidy/test_commands.py` says whether its files are there",
    r"(\w+=\w+ )?make bench .*": MEASURES,
    r"(\w+=\w+ )?python -m model_tests\.bench\..*": MEASURES,
    r"for (core|run) in [\d ]+; .*": MEASURES,
    r"python -m model_tests\.mutants\.code .*": "tries mutants for hours; `model_tests/mutants` has it try a few",
    r"python -m longpoll\.simulated\.beside_law\.reached": "see `model_tests/simulate/test_reached.py`",
    r"for run in \$\(seq 60\); do python first_use\.py .*": "a fault of msgspec's, seen in one of nine runs",
    r"(?:\./|\.venv/bin/)?jupyter execute .*": "`model_tests/docs_site/test_notebook.py` runs the notebook so",
    r"longpoll dojo --moves 6 .* --minutes 5 .*": "takes its five minutes; `model_tests/dojo` looks with seeds",
    r"docker .*": f"{ELSEWHERE}: Docker; what the image runs is `longpoll serve`",
    r"tcpdump .*": f"{ELSEWHERE}: rights on the network",
    r"longpoll observe --capture port\.pcap .*": "as `model_tests/service/test_observe_capture.py`",
    r"longpoll judge history": "needs that capture",
    r"longpoll judge '?s3a?://.*": f"{ELSEWHERE}: a store of objects; `model_tests/judge/test_files.py` has one",
    r"longpoll judge .*--follow.*": "ends with Ctrl-C alone; `model_tests/judge/test_follow.py` follows",
    r"longpoll .* (--on|--inside) java-.*": BY_JAVA,
    r"longpoll (judge steps --engine local|coverage delayed)": BY_JAVA,
    r"longpoll (conform|verify) (?!.*--only).*--broker .*": "asks for a minute, as `model_tests/verification` does",
    r"node model_tests/peers/vectors/node/play\.js (.|\n)*": "`model_tests/peers/test_vectors.py` has it play",
    r"longpoll replay sim1\.eNqb\.\.\.": "stands for what a search prints; `model_tests/simulate` replays such tokens",
    r"longpoll conform .*--only .*": "of a Rust broker, which `model_tests/conformance/test_rust_conform.py` asks so",
}
"""What is typed by no test as it stands -> why, and who does what it does."""
MINE: Final = {
    " TOKEN": f" {LOST}",
}
"""What stands for a thing of the reader's -> what is taken for it."""
ENDS: Final[dict[str, int | tuple[int, ...]]] = {
    r"check --policy rocketmq-4\.9( --bounds tiny)?": 1,
    r"check .*recheck_after_hold=none .*": 1,
    r"check .*queued_by_deadline": 1,
    r"simulate-broker .*--promise .*": 1,
    r"dojo .*lost_wakeup\.py": 1,
    r"oracle .* <(lost|tick)\.jsonl": 1,
    r"oracle (?!.*<).*": 3,
    r"judge .*/observed|judge /tmp/history": (0, 3),
    r"soak .*": (0, 3),
    # What the pull request closes cannot be followed to its end.
    r"replay lp1\.lqxyb2NrZXRtcS00LjmQlAIBAQKsbG9zdF9ieV9ob2xkzhApc3qWAAIEAQgGiskZ0w .*--with-7359": 1,
}
"""A command that finds what it looks for, or can say nothing -> its exit code; every other one ends with 0."""


def bare(line: str) -> str:
    """A command without its remark, its folder and what puts it behind."""
    return re.sub(r"(?<=\s)#.*$", "", line).strip().removesuffix("&").strip().removeprefix(".venv/bin/")


TYPED_BY: Final = {
    "docs/law.md": {line for page, line in test_law_docs._commands() if page == "law.md"},
    "docs/findings.md": {line for page, line in test_law_docs._commands() if page == "findings.md"},
    "docs/engines.md": set(test_engines_docs.COMMANDS),
} | {
    f"docs/lessons/{page.name}": {bare(each.line) for each in test_lessons.commands(page.read_text("utf-8"))}
    for page in test_lessons.PAGES
}
"""A page whose commands its own test types -> these."""
OF_THE_LAW: Final = TYPED_BY["docs/law.md"] | TYPED_BY["docs/findings.md"] | TYPED_BY["docs/engines.md"]
"""They say the same whatever page they stand on."""


def here(page: str, text: str) -> list[str]:
    """The commands of a page that are to be typed here, as they stand in it; what asks the law alone, once for all."""
    typed = set(TYPED_BY.get(page.replace("docs/lessons/zh/", "docs/lessons/"), ())) | OF_THE_LAW
    found = [line for line in lines(text) if bare(line) not in typed]
    return [line for line in found if not any(re.fullmatch(each, bare(line)) for each in NOT_HERE)]


def code_of(line: str) -> int | tuple[int, ...]:
    """How a command should end."""
    return next((code for each, code in ENDS.items() if re.fullmatch(f"longpoll (?:{each})", line)), 0)


def type_all(page: str, text: str, directory: Path) -> int:
    """How many commands of a page were typed, in its order; raises NotTypedError at the first that ends otherwise."""
    reader = Reader(directory, MINE)
    reader.prepare(text)
    try:
        for line in here(page, text):
            reader.type(line, code_of)
        reader.leave()
    finally:
        reader.kill()
    return len(here(page, text))


def _cases() -> Iterator[ParameterSet]:
    for path in PAGES:
        page, text = path.relative_to(ROOT).as_posix(), path.read_text("utf-8")
        if here(page, text):
            spark = [pytest.mark.spark] * ("longpoll judge" in text)
            yield pytest.param(page, marks=[pytest.mark.long, pytest.mark.timeout(3600), *spark])


@pytest.mark.parametrize("page", list(_cases()))
def test_a_page_can_be_typed(page: str, tmp_path: Path) -> None:
    """By a reader who follows it from top to bottom in an empty folder."""
    needed = {word for line in here(page, (ROOT / page).read_text("utf-8")) for word in line.split()[:1]}
    lacking = [each for each in needed & {"spin", "gcc", "node"} if shutil.which(each) is None]
    if lacking:
        pytest.skip(f"NOT TYPED: {page} needs {', '.join(lacking)}")
    assert type_all(page, (ROOT / page).read_text("utf-8"), tmp_path) > 0


def with_java(page: str) -> list[str]:
    """The commands of a page that take a Java broker, in order, without those of lessons and of pages before it."""
    before = {bare(line) for path in PAGES[: PAGES.index(ROOT / page)] for line in lines(path.read_text("utf-8"))}
    known = before | set().union(*TYPED_BY.values())
    patterns = [each for each, why in NOT_HERE.items() if why is BY_JAVA]
    found = lines((ROOT / page).read_text("utf-8"))
    return [one for one in found if bare(one) not in known and any(re.fullmatch(each, bare(one)) for each in patterns)]


@pytest.mark.peers
@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", [page for path in PAGES if with_java(page := path.relative_to(ROOT).as_posix())])
def test_what_takes_a_java_broker_can_be_typed(page: str, tmp_path: Path) -> None:
    """A schedule is followed to its end, or shown to be closed; what is recorded inside is judged and counted."""
    why = why_missing()
    if why is not None:
        pytest.skip(f"NOT TYPED: {why}")
    reader, typed = Reader(tmp_path, MINE), with_java(page)
    try:
        for line in typed:
            reader.type(line, code_of)
    finally:
        reader.kill()
    assert typed


def test_every_block_is_read() -> None:
    """A block of a shell begins with a command, so none is passed over; one that does not is seen."""
    found = {path.name: wrong for path in PAGES if (wrong := unread(path.read_text("utf-8")))}

    assert found == {}
    assert unread("```console\nfrobnicate --all\n```\n") == ["frobnicate --all"]


def test_every_exception_is_of_a_command_that_is_there() -> None:
    """And every way to end, and every page with a test of its own has that test's commands."""
    texts = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in PAGES}
    shown = {bare(line) for text in texts.values() for line in lines(text)}

    assert [each for each in NOT_HERE if not any(re.fullmatch(each, line) for line in shown)] == []
    assert [each for each in ENDS if not any(re.fullmatch(f"longpoll (?:{each})", line) for line in shown)] == []
    assert [page for page, typed in TYPED_BY.items() if not typed or here(page, texts[page])] == []
    assert len(shown) > 200


def test_every_reason_names_tests_that_are_there() -> None:
    """A file or a folder."""
    named = {place for why in NOT_HERE.values() for place in re.findall(r"`(model_tests/[^`]*)`", why)}

    assert len(named) > 10
    assert [place for place in sorted(named) if not (ROOT / place).exists()] == []


PLANTED: Final = "# A page\n\n```console\nprintf here\n{}\n```\n"


@pytest.mark.parametrize(
    "line",
    [
        "longpoll check --policy rocketmq-4.9 --bounds tiny --property lost_by_hold",
        "longpoll store verify no-such-store",
        "printf x >no/such/folder",
        "longpoll serve --store /tmp/store --config no-such.conf",
    ],
)
def test_a_planted_command_is_typed_and_seen_to_fail(line: str, tmp_path: Path) -> None:
    """Though each of them could be typed as far as its options go."""
    text = PLANTED.format(line)
    assert here("docs/planted.md", text) == ["printf here", line]

    with pytest.raises(NotTypedError):
        type_all("docs/planted.md", text, tmp_path)


@pytest.mark.parametrize("page", [*TYPED_BY, "docs/lessons/zh/1-lost-by-hold.md"])
def test_a_planted_command_of_a_page_with_its_own_test_is_seen(page: str) -> None:
    """One that the page's own test does not type is to be typed here, and so no page keeps one to itself."""
    text = (ROOT / page).read_text("utf-8")
    assert here(page, f"{text}\n```sh\nlongpoll planted\n```\n") == ["longpoll planted"]
