"""A test runs every command of each page as a reader would type it; exceptions are in one list, each with its reason.

Each page's commands run in order, in a separate directory. A command must exit with its expected exit code and print
what the page shows below a `$` command, except numbers. `test_chinese` checks that Chinese lessons have the blocks of
the English ones. Slow commands run with smaller numbers (`SHORTER`). Our own tests on a page are collected and not run.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from _pytest.mark import ParameterSet
from model_tests.conformance.java_broker import why_missing
from model_tests.docs import test_lessons, test_spec_page
from model_tests.docs.typed import FENCED, ROOT, NotTypedError, Reader, lines, unread
from model_tests.judge.bucket import KEYS, put, s3_bucket
from model_tests.judge.standalone import standalone
from model_tests.spec import test_custom, test_differences

PAGES: Final = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md")])
DOCKER: Final = "needs Docker's daemon; what the image runs is `longpoll serve`, which other pages type"
NOT_TYPED: Final = {
    "docker build --tag longpoll .": DOCKER,
    "docker run --rm --publish 127.0.0.1:10911:10911 --publish 127.0.0.1:9876:9876 "
    "--volume longpoll-store:/store longpoll": DOCKER,
    "docker run --rm --network host --volume longpoll-store:/store longpoll --listen 192.0.2.7:10911 "
    "--name-server 192.0.2.7:9876": DOCKER,
    "longpoll kit redis://127.0.0.1:6379": "needs a Redis server; `model_tests/kit/test_servers.py` starts one",
    "longpoll kit http://127.0.0.1:8080 --service feed.toml": "needs a service; the same test serves one",
    **dict.fromkeys(
        (
            "longpoll observe --listen 127.0.0.1:0 --broker 127.0.0.1:17064 --record /tmp/popped",
            "longpoll judge /tmp/popped --engine local",
            "longpoll judge /tmp/popped --engine local --wake-ms 1500 --late-ms 5000",
        ),
        "needs ten minutes of a Java broker; `model_tests/peers/test_pops_java.py` judges some seconds of one",
    ),
    "java -cp tla2tools.jar tlc2.TLC longpoll_strict": "needs TLC's jar, which is not fetched; "
    "`model_tests/conformance/test_tlc.py` has TLC check the same where there is one",
}
"""Command that no test runs -> the reason. All other commands run."""
JAVA: Final = re.compile(r"longpoll (.* (--on|--inside) java-.*|judge steps --engine local)")
"""Commands that need a Java broker, run by `test_commands_that_need_a_java_broker_run`."""
MINE: Final = {"./my-program": "python3 hold-table/right.py"}
"""Placeholder on a page -> the value that the test uses."""
BUCKET: Final = "bucket/history"
QUERY: Final = "?endpoint_override=127.0.0.1:9000&scheme=http"
MASTER: Final = "spark://host:7077"
"""The address of a Spark cluster on the pages, which the test replaces by the address of its own cluster."""
SENTENCE: Final = re.compile(r"(?<!`)`((?:longpoll|python -m) [^`\n]+)`(?!`)")
GENERATED: Final = ("docs/spec.md", "spec/longpoll_spec/engines/manifest.json")
"""Files that commands of a page write into the reader's copy of the project."""
BENCH: Final = "python -m model_tests.bench."
OF_A_PART: Final = {
    "explore": f"{BENCH}explore_bench --bounds tiny --also - --workers 1",
    "oracle": f"{BENCH}oracle_bench --steps 500",
    "polling": f"{BENCH}polling_bench --messages 3 --idle-s 0.2",
    "broker": f"{BENCH}broker_bench --only idle --without-java --seconds 0.2",
    "services": f"{BENCH}services_bench --seconds 1 --only beanstalkd",
}
"""Part of `make bench` -> its scripts with smaller numbers."""
SETUP: Final = tuple(
    f"make setup EXTRAS={each}"
    for each in ("spec", "judge", "testing", "testing,judge", "spec,judge", "spec,judge,simulation")
)
OFFLINE: Final = "--no-index --no-deps --no-build-isolation"
SHORTER: Final = {
    **{line: line.replace("make", "make --dry-run") for line in SETUP},
    **{
        f"pip install '.[{each}]'": f"pip install --dry-run {OFFLINE} '.[{each}]'"
        for each in ("testing,judge", "spec,judge")
    },
    "pip wheel --no-deps --wheel-dir dist .": f"pip wheel {OFFLINE} --wheel-dir dist .",
    **{f"make bench PART={part}": f"make --dry-run bench PART={part} && {it}" for part, it in OF_A_PART.items()},
    "BENCH_SECONDS=1 make bench PART=broker": f"BENCH_SECONDS=1 {BENCH}broker_bench --rounds 1",
    f"{BENCH}polling_bench --messages 100 --write docs/figures/polling.json": f"{OF_A_PART['polling']} "
    "--write docs/figures/polling.json",
    "longpoll dojo --moves 6 --seed 1 --minutes 5 ./my-program": "longpoll dojo --moves 6 --seed 1 --minutes 0.1 "
    "./my-program",
}
"""Slow command -> the same command with smaller numbers."""
ENDS: Final[dict[str, int | tuple[int, ...]]] = {
    r"check --policy rocketmq-4\.9( --bounds tiny( --property lost_by_keep)?)?( --all)?": 1,
    r"check --policy rocketmq-4\.9 --property no_lost_wakeup --explain": 1,
    r"check --policy rocketmq-5-(pop|notification) --bounds tiny": 1,
    r"check .*(recheck_after_hold=none .*|retry_wakes=no_key)": 1,
    # Properties of whole runs are checked by exploration only, and not proved.
    r"prove --policy strict-(pop|notification)": 4,
    r"check .*queued_by_deadline( --all)?": 1,
    r"support\.simulation .*--promise .*": 1,
    r"conform .*--policy rocketmq-5 --only 'PULL-HOLD-\*'": 1,
    r"conform .*--policy strict --only POLL-3": 1,
    r"dojo .*lost_wakeup\.py": 1,
    r'lesson 1\.2 --check "none before_lock"': 1,
    r"oracle .* <(lost|tick)\.jsonl": 1,
    r"oracle (?!.*<).*": 3,
    r'send Orders "more"': 2,  # This send goes to a slave.
    r"judge .*/observed|judge /tmp/history": (0, 3),
    # Pull request 7359 fixes this run, so the run cannot be followed to its end.
    r"explain lp1\.lqxyb2NrZXRtcS00LjmQlAIBAQKsbG9zdF9ieV9ob2xkzhApc3qWAAIEAQgGiskZ0w .*--with-7359": 1,
}
"""Command that reports a violation or an unknown result -> its exit code. All other commands exit with 0."""

OURS: Final = r"(?:longpoll |python -m model_tests\.)(?:{})"
MEASURES: Final = re.compile(r"(BENCH_SECONDS=\d+ )?(make bench |python -m model_tests\.bench\.)")
"""Commands that measure, and exit with 1 if a limit is missed, which may happen on a busy machine."""


def bare(line: str) -> str:
    """Return a command without its comment, its folder and a trailing `&`."""
    return re.sub(r"(?<=\s)#.*$", "", line).strip().removesuffix("&").strip().removeprefix(".venv/bin/")


TYPED_BY: Final = {
    "docs/model.md": {line for page, line in test_spec_page._commands() if page == "model.md"},
    "docs/findings.md": {line for page, line in test_spec_page._commands() if page == "findings.md"},
    "docs/engines.md": set(test_differences.COMMANDS),
    test_custom.PAGE.relative_to(ROOT).as_posix(): {
        bare(each.line) for each in test_lessons.commands(test_custom.TEXT)
    },
} | {
    f"docs/lessons/{page.name}": {bare(each.line) for each in test_lessons.commands(page.read_text("utf-8"))}
    for page in test_lessons.PAGES
}
"""Page with a test of its own -> the commands that this test runs."""
OF_THE_LAW: Final = TYPED_BY["docs/model.md"] | TYPED_BY["docs/findings.md"] | TYPED_BY["docs/engines.md"]
"""Commands about the specification, which print the same output on each page."""


def here(page: str, text: str) -> list[str]:
    """Return the commands of a page that run here, in order; commands about the specification run once."""
    typed = set(TYPED_BY.get(page.replace("docs/lessons/zh/", "docs/lessons/"), ())) | OF_THE_LAW
    found = [line for line in lines(text) if bare(line) not in typed]
    return [line for line in found if bare(line) not in NOT_TYPED and not JAVA.fullmatch(bare(line))]


def code_of(line: str) -> int | tuple[int, ...]:
    if MEASURES.match(line):
        return 0, 1
    return next((code for each, code in ENDS.items() if re.fullmatch(OURS.format(each), line)), 0)


@contextmanager
def elsewhere(page: str, directory: Path) -> Iterator[tuple[dict[str, str], dict[str, str], Callable[[], object]]]:
    """Start the servers that a page needs. Yield replacements, environment variables, and an upload of its history."""
    with ExitStack() as stack:
        instead: dict[str, str] = {}
        environment: dict[str, str] = {}
        upload: Callable[[], object] = dict
        if BUCKET in page:
            query = stack.enter_context(s3_bucket())
            instead |= {
                f"s3://{BUCKET}{QUERY}": f"s3://histories/mine{query}",
                f"s3a://{BUCKET}": f"'s3a://histories/mine{query}'",
            }
            upload = partial(put, directory / "tmp" / "history", "mine", query)
        if MASTER in page:
            (directory / "cluster").mkdir()
            cluster = stack.enter_context(standalone(directory / "cluster", 1))
            instead[MASTER] = cluster.master
            keys = {f"spark.executorEnv.{name}": value for name, value in KEYS.items()}
            settings = "".join(f"{name} {value}\n" for name, value in (cluster.conf() | keys).items())
            (directory / "cluster" / "spark-defaults.conf").write_text(settings)
            environment["SPARK_CONF_DIR"] = str(directory / "cluster")
        yield instead, environment, upload


def masked(text: str) -> str:
    """Return the text with `0` for each number and random name, which differ from run to run."""
    return re.sub(r"\b[\dA-F]*\d[\dA-F]*(\b|(?=m?s\b))|(?<=longpoll-store-)\w+", "0", text)


def type_all(page: str, text: str, directory: Path) -> int:
    """Run the commands of a page in order and return their number; raises NotTypedError if a command fails."""
    typed = here(page, text)
    shown = {each.line: each.shown for each in test_lessons.commands(text)}
    with elsewhere("\n".join(typed), directory) as (instead, environment, upload):
        reader = Reader(directory, MINE | instead, SHORTER, environment)
        reader.prepare(text)
        try:
            for line in typed:
                if BUCKET in line:
                    upload()
                said, expected = reader.type(line, code_of), shown.get(line, ())
                reader.learn("\n".join(expected), said)
                lacking = test_lessons.missing_line(tuple(map(masked, expected)), masked(said))
                if lacking is not None:
                    raise NotTypedError(f"{line}: prints no line {lacking!r}\n{said}")
            reader.leave()
        finally:
            reader.kill()
    return len(typed)


def _cases() -> Iterator[ParameterSet]:
    for path in PAGES:
        page, text = path.relative_to(ROOT).as_posix(), path.read_text("utf-8")
        if here(page, text):
            spark = [pytest.mark.spark] * ("longpoll judge" in text)
            yield pytest.param(page, marks=[pytest.mark.long, pytest.mark.timeout(3600), *spark])


@pytest.mark.parametrize("page", list(_cases()))
def test_the_commands_of_a_page_run(page: str, tmp_path: Path) -> None:
    needed = {word for line in here(page, (ROOT / page).read_text("utf-8")) for word in line.split()[:1]}
    lacking = [each for each in needed & {"spin", "gcc", "node"} if shutil.which(each) is None]
    if lacking:
        pytest.skip(f"NOT TYPED: {page} needs {', '.join(lacking)}")
    assert type_all(page, (ROOT / page).read_text("utf-8"), tmp_path) > 0
    # The generated text equals the stored file.
    assert [each for each in GENERATED if (tmp_path / each).read_bytes() != (ROOT / each).read_bytes()] == []


def in_sentences(text: str) -> list[str]:
    found = SENTENCE.findall(FENCED.sub("", text))
    return [each for each in dict.fromkeys(found) if len(each.split()) > 2]


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", [page for page in test_lessons.PAGES if in_sentences(page.read_text("utf-8"))])
def test_commands_in_sentences_of_a_lesson_run(page: Path, tmp_path: Path) -> None:
    reader = Reader(tmp_path, MINE)
    for line in in_sentences(page.read_text("utf-8")):
        reader.type(line, code_of)
    assert reader.running == []


def with_java(page: str) -> list[str]:
    """Return a page's commands that need a Java broker, in order, except those that also stand on an earlier page."""
    before = {bare(line) for path in PAGES[: PAGES.index(ROOT / page)] for line in lines(path.read_text("utf-8"))}
    known = before | set().union(*TYPED_BY.values())
    found = lines((ROOT / page).read_text("utf-8"))
    return [one for one in found if bare(one) not in known and JAVA.fullmatch(bare(one))]


@pytest.mark.peers
@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", [page for path in PAGES if with_java(page := path.relative_to(ROOT).as_posix())])
def test_commands_that_need_a_java_broker_run(page: str, tmp_path: Path) -> None:
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
    """Each shell block begins with a command, and no other block contains commands, so no command is skipped."""
    found = {path.name: wrong for path in PAGES if (wrong := unread(path.read_text("utf-8")))}

    assert found == {}
    assert unread("```console\nfrobnicate --all\n```\n") == ["frobnicate --all"]
    assert unread("```text\n$ longpoll check\nholds\n```\n") == ["longpoll check"]
    assert unread("So:\n\n    make bench PART=oracle\n    and wait\n") == ["make bench PART=oracle"]


def stale(shown: set[str]) -> list[str]:
    """Return the entries in this module's tables whose command is on no page, or belongs to a page's own test."""
    own = set().union(*TYPED_BY.values())
    return [
        *(each for each in (*NOT_TYPED, *SHORTER) if each not in shown - own),
        *(each for each in MINE if not any(each in line for line in shown)),
        *(each for each in ENDS if not any(re.fullmatch(OURS.format(each), line) for line in shown)),
    ]


def test_no_exception_in_the_list_is_stale() -> None:
    texts = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in PAGES}
    shown = {bare(line) for text in texts.values() for line in lines(text)}

    assert stale(shown) == []
    assert stale(shown - {"docker build --tag longpoll .", "make bench PART=oracle"}) == [
        "docker build --tag longpoll .",
        "make bench PART=oracle",
    ]
    assert [page for page, typed in TYPED_BY.items() if not typed] == []
    assert len(shown) > 200
    assert in_sentences("See `longpoll lesson 1` and `longpoll lesson`.") == ["longpoll lesson 1"]


PLANTED: Final = "# A page\n\n```console\nprintf here\n{}\n```\n"


@pytest.mark.parametrize(
    "line",
    [
        "longpoll store verify no-such-store",
        "$ longpoll policies strict\nnot printed",
        "longpoll judge no-such-history --engine local --follow",
        "longpoll explain lp1.eNqb...",
        "pytest model_tests/docs/test_no_such.py",
    ],
)
def test_a_wrong_command_is_reported(line: str, tmp_path: Path) -> None:
    text = PLANTED.format(line)
    assert here("docs/planted.md", text) == ["printf here", line.partition("\n")[0].removeprefix("$ ")]

    with pytest.raises(NotTypedError):
        type_all("docs/planted.md", text, tmp_path)
