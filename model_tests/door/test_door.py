"""`import longpoll` has types, is fast and leaves nothing behind; every exception survives pickle and copy."""

from __future__ import annotations

import builtins
import copy
import errno
import importlib
import inspect
import json
import pickle
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import Mock

import pytest
from model_tests.support.broker.brokers import SMALL_STORE, wait_until
from model_tests.support.broker.raw_client import RawClient

import longpoll
from longpoll.options.values import address_of
from longpoll_broker.io.processors import RpcHook
from longpoll_client import errors
from longpoll_protocol.codes import RequestCode, ResponseCode

PAGE = Path(__file__).parents[2] / "docs" / "embedding.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
HEAVY = ("numpy", "z3", "pyspark", "pyarrow", "hypothesis", "pytest", "msgspec", "click", "longpoll_broker", "socket")


def left() -> tuple[int, int, list[str]]:
    stores = sorted(path.name for path in Path(tempfile.gettempdir()).glob("longpoll-store-*"))
    return threading.active_count(), len(list(Path("/proc/self/fd").iterdir())), stores


@pytest.fixture(autouse=True)
def own_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_snippets_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    for snippet in SNIPPETS:
        exec(compile(snippet, str(PAGE), "exec"), {})  # noqa: S102 - our own page
    printed = capsys.readouterr().out

    assert len(SNIPPETS) == 3
    assert "stored at 0 by 127.0.0.1:" in printed
    assert "unknown []" in printed
    assert "violated after" in printed
    assert "PullRequestHoldService" in printed


def test_exactly_the_public_names_exist() -> None:
    assert set(longpoll.__all__) <= set(dir(longpoll))
    assert all(getattr(longpoll, name) is not None for name in longpoll.__all__)
    assert issubclass(longpoll.UserError, longpoll.LongpollError)


def test_a_misspelt_name_is_an_error_for_type_checkers_and_when_it_runs() -> None:
    """If mypy did not report the misspelt name, it would report the `type: ignore` as unused."""
    with pytest.raises(AttributeError, match="'longpoll' has no attribute 'Brokr'"):
        longpoll.Brokr()  # type: ignore[attr-defined] # misspelt on purpose
    with pytest.raises(ImportError, match="cannot import name 'Prducer'"):
        from longpoll_client import Prducer  # type: ignore[attr-defined] # noqa: F401, PLC0415 - misspelt on purpose


def test_the_import_loads_no_heavy_package() -> None:
    script = "import sys, longpoll{}; print([name for name in {!r} if name in sys.modules])"
    for planted, found in (("", []), ("; longpoll.Broker", ["msgspec", "longpoll_broker", "socket"])):
        made = script.format(planted, HEAVY)
        done = subprocess.run([sys.executable, "-c", made], capture_output=True, text=True, check=True, timeout=60)
        assert done.stdout.strip() == str(found)


def test_a_closed_broker_leaves_nothing_behind() -> None:
    """Before the close the sent messages can be read. After any number of closes nothing of the broker remains."""
    with longpoll.Broker(store_config=SMALL_STORE):
        pass  # The first server opens descriptors that the process keeps, so they are counted only afterwards.
    before, hook = left(), Mock(RpcHook)
    with longpoll.Broker(store_config=SMALL_STORE, hooks=[hook]) as broker:
        with longpoll.Producer(broker.name_server) as producer:
            assert producer.send("T", b"hello").queue_offset == 0
        assert left() > before
    broker.close()
    sent = [call.args for call in hook.before_request.call_args_list]
    assert RequestCode.SEND_MESSAGE_V2 in [request.code for _peer, request in sent]
    assert len(hook.after_response.call_args_list) == len(sent)

    wait_until(lambda: left() == before)
    assert broker.record_trouble == ""


def test_a_name_server_stands_alone() -> None:
    """The name server knows no topic until a broker registers, and forgets the topic when the broker disconnects."""
    with longpoll.NameServer():
        pass  # Descriptors that a process opens once stay open.
    before = left()
    with longpoll.NameServer() as server:
        with RawClient(address_of(server.address)) as client, RawClient(address_of(server.address)) as broker:
            question = RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}
            assert client.call(*question).code == ResponseCode.TOPIC_NOT_EXIST
            fields = {"brokerName": "b", "brokerAddr": "127.0.0.1:1", "clusterName": "C", "brokerId": "0"}
            topics = {"T": {"topicName": "T", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}}
            table = {"topicConfigSerializeWrapper": {"topicConfigTable": topics, "dataVersion": {"counter": 1}}}
            registered = broker.call(
                RequestCode.REGISTER_BROKER, fields | {"haServerAddr": ""}, json.dumps(table).encode()
            )
            assert registered.code == ResponseCode.SUCCESS
            assert client.call(*question).code == ResponseCode.SUCCESS
            assert json.loads(bytes(client.call(RequestCode.GET_BROKER_CLUSTER_INFO).body))["clusterAddrTable"] == {
                "C": ["b"]
            }
            broker.close()
            wait_until(lambda: client.call(*question).code == ResponseCode.TOPIC_NOT_EXIST)
        with pytest.raises(longpoll.UserError, match="cannot listen"):
            longpoll.NameServer(port=int(server.address.rpartition(":")[2]))
    server.close()
    wait_until(lambda: left() == before)


def test_a_store_of_the_user_is_kept(tmp_path: Path) -> None:
    for offset in range(2):
        with (
            longpoll.Broker(tmp_path / "store", policy="rocketmq-4.9", store_config=SMALL_STORE) as broker,
            longpoll.Producer(broker.name_server) as producer,
        ):
            assert producer.send("T", b"hello", queue_id=0).queue_offset == offset


def test_a_failed_start_leaves_nothing_behind(tmp_path: Path) -> None:
    with longpoll.Broker(tmp_path / "store", store_config=SMALL_STORE) as broker:
        before = left()
        port = int(broker.address.rpartition(":")[2])
        for wrong, said in (
            (partial(longpoll.Broker, port=port), "cannot listen on 127.0.0.1"),
            (partial(longpoll.Broker, policy="stirct"), "unknown policy 'stirct'"),
            (partial(longpoll.Broker, tmp_path / "store"), "in use"),
        ):
            with pytest.raises(longpoll.UserError, match=said):
                wrong(store_config=SMALL_STORE)
            assert left() == before


def test_a_recorded_history_can_be_judged(tmp_path: Path) -> None:
    """A held pull that is answered in time gives a valid history, recorded inside the broker and by the proxy."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    with (
        longpoll.Broker(store_config=SMALL_STORE, record=inside) as broker,
        longpoll.observe(record=outside, name_server=broker.name_server) as observer,
    ):
        assert observer.name_server_address is not None
        served = "{}:{}".format(*observer.name_server_address)
        with longpoll.Producer(served) as producer:
            producer.send("T", b"first")
        with longpoll.PullConsumer(served, group="group", topics="T") as consumer:
            assert [message.body for message in consumer.poll(timeout_s=30)] == [b"first"]

    assert longpoll.judge(inside).verdict == "valid"
    assert longpoll.judge(outside).verdict in {"valid", "unknown"}


def test_the_specification_can_be_checked() -> None:
    found = longpoll.check("strict", properties=["answered_once", "no_lost_wakeup"])
    broken = longpoll.check("strict+recheck_after_hold=none", properties=["no_lost_wakeup"])
    assert broken.verdicts[0].verdict == "violated"

    assert {verdict.verdict for verdict in found.verdicts} == {"holds"}
    assert longpoll.prove("strict", requests=1, properties=["answered_once"]).whole == "proved"
    for wrong in (
        lambda: longpoll.check("stirct"),
        lambda: longpoll.check(properties=["nope"]),
        lambda: longpoll.check(bounds="huge"),
        lambda: longpoll.prove(properties=["nope"]),
        lambda: longpoll.explain("lp1.nonsense"),
        lambda: longpoll.judge("/nowhere/at/all"),
        lambda: longpoll.observe(record="/nowhere/at/all"),
    ):
        with pytest.raises(longpoll.UserError):
            wrong()


ROOT: Final = Path(__file__).parents[2]
CLASS: Final = re.compile(r"^class (\w+)\(([\w\s,.]+)\)", re.MULTILINE)
TEXT: Final = "what is wrong: do this"
VALUES: Final = {"str": TEXT, "str | None": TEXT, "int": 14, "bool": False, "float | None": 5.0}
CHOICES: Final = {"prop": "HINTS", "kind": "PROMISES"}
"""Parameter of an exception -> the table of its permitted values."""


def exception_classes() -> list[type[BaseException]]:
    """Return the exception classes at the top level of all modules; modules without one are not imported."""
    known = {name for name, value in vars(builtins).items() if _is_exception(value)}
    sources = {
        ".".join(path.relative_to(top).with_suffix("").parts): CLASS.findall(path.read_text(encoding="utf-8"))
        for top in (ROOT / "reference", ROOT / "spec")
        for path in top.rglob("*.py")
    }
    found: set[tuple[str, str]] = set()
    while True:
        new = {
            (module, name)
            for module, classes in sources.items()
            for name, bases in classes
            if known & {base.strip().rpartition(".")[2] for base in bases.split(",")}
        }
        if new == found:
            break
        found = new
        known |= {name for _module, name in new}
    made = [getattr(importlib.import_module(module), name) for module, name in sorted(found)]
    return [each for each in made if _is_exception(each)]


def _is_exception(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, BaseException)


def examples(kind: type[BaseException]) -> Iterator[BaseException]:
    """Yield errors of this class with arguments that its `__init__` accepts."""
    if "__init__" not in {name for each in kind.__mro__ if each.__module__ != "builtins" for name in vars(each)}:
        yield kind(TEXT)
        if issubclass(kind, OSError):
            yield kind(errno.ENOSPC, TEXT, "a file")
        return
    named: dict[str, Any] = {}
    annotations = vars(kind)["__init__"].__annotations__
    for parameter in inspect.signature(kind).parameters.values():
        annotation = annotations[parameter.name]
        table = CHOICES.get(parameter.name)
        choices = vars(importlib.import_module(kind.__module__))[table] if table else None
        named[parameter.name] = (
            next(iter(choices)) if choices else VALUES[getattr(annotation, "__name__", str(annotation))]
        )
    yield kind(**named)


def said(error: BaseException) -> tuple[object, ...]:
    return type(error), str(error), repr(error), error.args, vars(error), getattr(error, "filename", None)


def test_every_exception_survives_copy_and_pickle() -> None:
    """Type, text, arguments, fields and notes of an error survive the transfer between processes."""
    classes = exception_classes()

    assert len(classes) > 90
    assert {errors.RefusedError, longpoll.LongpollError} <= set(classes)
    for kind in classes:
        for error in examples(kind):
            error.add_note("seen by a test")
            for again in (
                copy.copy(error),
                copy.deepcopy(error),
                *(pickle.loads(pickle.dumps(error, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)),  # noqa: S301 - our own bytes
            ):
                assert said(again) == said(error)
                assert again is not error


def test_an_exception_class_of_a_user_survives_too() -> None:
    """A user's error class survives copy and pickle, whatever its `__init__` takes."""
    error = OwnError(1, why="late")

    assert said(pickle.loads(pickle.dumps(error))) == said(error)  # noqa: S301 - our own bytes


class OwnError(errors.UnreachableError):
    def __init__(self, number: int, *, why: str) -> None:
        super().__init__(f"{number}: {why}")
        self.number = number


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (errors.UnreachableError, ConnectionError),
        (errors.ConnectionLostError, ConnectionError),
        (errors.AnswerTimeoutError, TimeoutError),
        (errors.ReplyTimeoutError, TimeoutError),
    ],
)
def test_errors_are_also_pythons_own_classes(kind: type[errors.ClientError], base: type[OSError]) -> None:
    """`except ConnectionError` and `except TimeoutError` catch the errors, which have no errno."""
    error = kind(TEXT)

    assert isinstance(error, base)
    assert (str(error), error.errno, error.retriable) == (TEXT, None, True)


def test_some_errors_are_worth_a_retry() -> None:
    codes = [code for code in ResponseCode if errors.RefusedError("PULL", code, None).retriable]

    assert codes == sorted(errors.RETRIED_CODES)
    assert ResponseCode.SYSTEM_BUSY in codes
    assert ResponseCode.MESSAGE_ILLEGAL not in codes
    assert not errors.RefusedError("PULL", 9999, None).retriable
    assert "pass a name server's address" in str(errors.RefusedError("GET_ROUTE", 3, " not supported"))
    assert errors.NoRouteError(TEXT).retriable
    for kind in (errors.LifecycleError, errors.NotOursError, errors.ClientError, longpoll.UserError):
        assert not kind(TEXT).retriable
