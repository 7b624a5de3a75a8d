"""The commands `longpoll serve`, `send` and `consume` as a user runs them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from model_tests.support.broker.brokers import Brokers
from model_tests.support.broker.commands import StartCommand, commands
from model_tests.support.broker.raw_client import PATIENCE_S, send_message
from model_tests.support.present import present

from longpoll.cli import main
from longpoll.commands.client import read_start
from longpoll.options.broker_conf import BrokerPlace, read_broker_conf
from longpoll.options.values import address_of
from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_client import PullConsumer
from longpoll_protocol.codes import RequestCode
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import ConfigError
from longpoll_spec.history import META_FILE

READY = re.compile(r"ready broker=(\S+):(\d+) name-server=(\S+):(\d+) store=(\S+)")


@pytest.fixture
def serve() -> Iterator[StartCommand]:
    with commands("serve") as start:
        yield start


ANY = ("--listen", "127.0.0.1:0", "--name-server", "127.0.0.1:0")


def test_serve_runs_until_ctrl_c(serve: StartCommand, brokers: Brokers, tmp_path: Path) -> None:
    store, history = tmp_path / "store", tmp_path / "history"
    process = serve(*ANY, "--store", str(store), "--record", str(history))
    assert process.stdout is not None
    ready = present(READY.fullmatch(process.stdout.readline().strip()))
    assert (ready[5], send_message(brokers.connect((ready[1], int(ready[2]))), "T")) == (str(store), 0)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, out, err) == (0, "", f"recorded {history}; next: longpoll judge {history}\n")
    assert not (store / "abort").exists()
    assert (history / META_FILE).exists()


def test_a_usage_error_is_one_line_and_exit_2(tmp_path: Path) -> None:
    bad_conf = tmp_path / "bad.conf"
    bad_conf.write_text("maxMessageSize=many\n")
    file = tmp_path / "file"
    file.write_text("")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        mistakes = (
            (("--listen", f"127.0.0.1:{port}", "--name-server", "127.0.0.1:0"), "choose another address"),
            (("--listen", "here"), "HOST:PORT"),
            (("--policy", "best"), "unknown policy"),
            (("--knob", "luck=more"), "unknown knob"),
            (("--knob", "expiry"), "knob expiry has no value; write expiry=VALUE with one of: scan"),
            (("--config", str(bad_conf)), "maxMessageSize"),
            (("--config", str(tmp_path / "none.conf")), "cannot read"),
            ((*ANY, "--store", str(file)), "--store"),
        )
        for options, text in mistakes:
            done = CliRunner().invoke(main, ["serve", "--store", str(tmp_path / "store"), *options])
            assert (done.exit_code, done.stdout) == (2, ""), done.stderr
            assert text in done.stderr.replace("\n", " ")
            assert "Traceback" not in done.stderr


@pytest.mark.parametrize("option", ["--ha", "--slave-of"])
def test_removed_replication_options_name_their_replacement(option: str) -> None:
    result = CliRunner().invoke(main, ["serve", option, "127.0.0.1:10912"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "brokerRole=SLAVE" in result.stderr


def test_broker_conf_keys_become_settings(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("mappedFileSizeCommitLog=65536\nflushDiskType=SYNC_FLUSH\nlongPollingEnable=false\n! note\n\n")
    broker, store, place, unknown = read_broker_conf(conf)
    assert not broker.property_filter
    assert place == BrokerPlace()
    assert (store.commit_log_file_size, store.flush_disk_sync, broker.long_polling, unknown) == (65536, True, False, [])
    conf.write_text("enablePropertyFilter=true\n")
    assert read_broker_conf(conf)[0].property_filter
    for line in (
        "longPollingEnable=perhaps", "flushDiskType=NOW", "maxMessageSize=-1", "nonsense", "listenPort=70000",
        "listenPort=x", "messageDelayLevel=1s 2", "brokerRole=SYNC_MASTER",
    ):  # fmt: skip
        conf.write_text("brokerName=a\n" + line)
        with pytest.raises(ConfigError, match="line 2"):
            read_broker_conf(conf)


def test_a_broker_conf_names_the_account_that_the_broker_signs_by(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text('innerClientAuthenticationCredentials={"accessKey":"slave","secretKey":"a=b"}\n')
    broker, _store, _place, unknown = read_broker_conf(conf)
    assert (broker.access_key, broker.secret_key, unknown) == ("slave", "a=b", [])
    assert "a=b" not in repr(broker)
    for value in ("{", '{"accessKey":"secret77"}', '["secret77"]', '{"accessKey":1,"secretKey":"secret77"}'):
        conf.write_text(f"innerClientAuthenticationCredentials={value}\n")
        with pytest.raises(ConfigError, match="line 1") as caught:
            read_broker_conf(conf)
        assert "secret77" not in str(caught.value)


def test_a_broker_conf_sets_the_stores_directory(serve: StartCommand, brokers: Brokers, tmp_path: Path) -> None:
    conf, root, log = tmp_path / "broker.conf", tmp_path / "root", tmp_path / "elsewhere" / "log"
    conf.write_text(
        f"# comment\nlistenPort=0\nbrokerIP1=10.1.2.3\nbrokerIP2=127.0.0.1\nmessageDelayLevel=7s 1d\n"
        f"storePathRootDir={root}\nstorePathCommitLog={log}\nstorePathIndex={root}/index\n"
    )
    logs = ("--log-format", "json", "--log-level", "info")
    process = serve("--name-server", "127.0.0.1:0", "--config", str(conf), "--json", *logs)
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    assert (ready["ready"], ready["store"]) == (True, str(root))
    client = brokers.connect(address_of(ready["broker"]))
    assert send_message(client, "T") == 0
    settings = bytes(client.call(RequestCode.GET_BROKER_CONFIG, {}).body).decode().splitlines()
    assert "messageDelayLevel=7s 1d" in settings
    name_server = brokers.connect(address_of(ready["name-server"]))
    route = json.loads(bytes(name_server.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}).body))
    assert route["brokerDatas"][0]["brokerAddrs"]["0"] == f"10.1.2.3:{address_of(ready['broker'])[1]}"
    process.send_signal(signal.SIGTERM)
    _out, err = process.communicate()
    assert process.returncode == 0
    assert "ignored: brokerIP2" in err.replace("\n", " ")
    assert "store_recovered" in [json.loads(line)["event"] for line in err.splitlines() if line.startswith("{")]
    for _start in range(2):
        assert [file.name for file in log.iterdir()] == ["0" * 20]
        assert (root / "commitlog").resolve() == log.resolve()
        read_broker_conf(conf)[2].link(root)


@pytest.mark.parametrize("levels", ["", "1s 5", "1s 4000d", "1s,5s"])
def test_invalid_delay_levels_are_refused_with_their_line(levels: str, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"brokerName=b\nmessageDelayLevel={levels}\n")
    with pytest.raises(ConfigError, match=r"line 2: messageDelayLevel cannot be .*; .*write"):
        read_broker_conf(conf)


def test_a_configured_store_directory_must_not_conflict(tmp_path: Path) -> None:
    (tmp_path / "root" / "commitlog").mkdir(parents=True)
    place = BrokerPlace(directory=tmp_path / "root", commitlog=tmp_path / "log")
    with pytest.raises(ConfigError, match="exists and is not"):
        place.link(tmp_path / "root")
    assert BrokerPlace(commitlog=tmp_path / "a" / "commitlog").root == tmp_path / "a"
    assert BrokerPlace(commitlog=tmp_path / "log").root is None
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be the store's index"):
        BrokerPlace(index=tmp_path / "file").link(tmp_path / "other")


@pytest.fixture
def name_server(tmp_path: Path) -> Iterator[str]:
    with Broker.start(RealRuntime(), str(tmp_path / "store")) as broker:
        yield "{}:{}".format(*broker.name_server_address)


def run(name_server: str, *arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(main, [*arguments, "--name-server", name_server], input=stdin)


def lines(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_sent_message_is_consumed_with_every_field(name_server: str) -> None:
    (sent,) = lines(
        run(name_server, "send", "T", "h\u00e9llo", "--tag", "red", "--key", "k1 k2", "--property", "a=b=c", "--json")
    )
    assert (sent["topic"], sent["sent"], sent["wanted"]) == ("T", 1, 1)
    (found,) = lines(run(name_server, "consume", "T", "--group", "G", "--from", "first", "--count", "1", "--json"))
    assert (found["text"], found["tags"], found["keys"]) == ("h\u00e9llo", "red", "k1 k2")
    assert found["properties"]["a"] == "b=c"
    assert (found["msgId"], found["queueId"], found["queueOffset"]) == (
        sent["first"]["msg_id"],
        sent["first"]["queue"],
        sent["first"]["queue_offset"],
    )
    assert found["bornTimestamp"] <= found["storeTimestamp"] + 1000


def test_messages_from_standard_input_are_consumed_in_two_runs(name_server: str) -> None:
    """A second `consume` of the group continues where the first one stopped."""
    (sent,) = lines(run(name_server, "send", "T", "-", "--count", "30", "--queue", "0", "--json", stdin=b"\xff\x00"))
    assert sent["sent"] == 30
    first = lines(run(name_server, "consume", "T", "--group", "G", "--from", "first", "--count", "10", "--json"))
    rest = lines(run(name_server, "consume", "T", "--group", "G", "--count", "20", "--json"))
    assert [line["queueOffset"] for line in first + rest] == list(range(30))
    assert "text" not in first[0]
    assert first[0]["body"] == "/wA="


def test_consume_filters_by_tags(name_server: str) -> None:
    for tag in ("red", "green", "blue"):
        run(name_server, "send", "T", tag, "--tag", tag, "--queue", "0")
    found = run(name_server, "consume", "T", "--group", "G", "--tag", "red || blue", "--from", "first", "--count", "2")
    assert found.exit_code == 0
    assert [line.split()[-1] for line in found.stdout.splitlines()] == ["red", "blue"]


def test_control_characters_do_not_reach_a_terminal(name_server: str) -> None:
    run(name_server, "send", "T", "-", stdin=b"a\x1b[2J\nb")
    found = run(name_server, "consume", "T", "--group", "G", "--from", "first", "--count", "1")
    assert found.stdout.rstrip().endswith(r"a\x1b[2J\nb")


def test_too_few_messages_are_exit_3(name_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    poll, first = PullConsumer.poll, iter([PATIENCE_S])
    # `consume` waits only a short time for each message after the first one.
    monkeypatch.setattr(PullConsumer, "poll", lambda consumer, wait_s, most: poll(consumer, next(first, wait_s), most))
    run(name_server, "send", "T", "one")
    found = run(name_server, "consume", "T", "--group", "G", "--from", "first", "--count", "2", "--wait", "0.3")
    assert found.exit_code == 3
    assert found.stdout.rstrip().endswith("one")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("send", "../x", "b"), "not allowed"),
        (("send", "T", "b", "--property", "novalue"), "NAME=VALUE"),
        (("send", "T", "b", "--queue", "77"), "no queue 77"),
        (("consume", "Unknown", "--group", "G"), "unknown to the name server"),
        (("consume", "T", "--group", "G", "--from", "yesterday"), "--from"),
        (("consume", "T", "--group", "G", "--tag", "||"), "no tag"),
        (("consume", "T", "--group", "G", "--tag", "a", "--sql", "a = 1"), "together"),
        (("consume", "T", "--group", "x" * 300), "group"),
    ],
)
def test_a_usage_error_of_a_client_command_is_one_line(
    name_server: str, arguments: tuple[str, ...], words: str
) -> None:
    run(name_server, "send", "T", "there")
    result = run(name_server, *arguments)
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_consume_after_a_commit(name_server: str, number: int) -> None:
    """A signal ends `consume` cleanly, and the printed messages are committed, so they are not printed again."""
    run(name_server, "send", "T", "x", "--count", "5", "--queue", "0")
    code = "from longpoll.cli import main; main()"
    arguments = ["consume", "T", "--group", "G", "--from", "first", "--name-server", name_server, "--json"]
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as consuming:
        assert consuming.stdout is not None
        found = [json.loads(consuming.stdout.readline()) for _number in range(5)]
        os.kill(consuming.pid, number)
        _rest, said = consuming.communicate()
    assert consuming.returncode == 0
    assert "Traceback" not in said
    assert [line["queueOffset"] for line in found] == [0, 1, 2, 3, 4]
    assert lines(run(name_server, "consume", "T", "--group", "G", "--wait", "0.3", "--json")) == []


def test_the_start_option_of_consume_is_parsed() -> None:
    assert (read_start(None), read_start("first")) == ("stored", "first")
    assert read_start("1700000000000") == datetime.fromtimestamp(1.7e9, UTC)
    assert read_start("2023-11-14T22:13:20Z") == datetime.fromtimestamp(1.7e9, UTC)
    assert read_start("2023-11-14T23:13:20+01:00") == datetime.fromtimestamp(1.7e9, UTC)
    with pytest.raises(ConfigError):
        read_start("stored")


def test_consume_filters_by_sql(tmp_path: Path) -> None:
    config = BrokerConfig(property_filter=True)
    with Broker.start(RealRuntime(), str(tmp_path / "store"), config=config) as broker:
        names = "{}:{}".format(*broker.name_server_address)
        for size in ("5", "50", "x", "500"):
            run(names, "send", "T", size, "--property", f"size={size}", "--queue", "0")
        asked = ("consume", "T", "--group", "G", "--sql", "size > 10", "--from", "first", "--count", "2", "--json")
        assert [each["text"] for each in lines(run(names, *asked))] == ["50", "500"]
        bad = run(names, "consume", "T", "--group", "G", "--sql", "size >")
        assert bad.exit_code == 2, bad.output
        assert "cannot continue at its end" in " ".join(bad.stderr.split())
    with Broker.start(RealRuntime(), str(tmp_path / "store")) as broker:
        names = "{}:{}".format(*broker.name_server_address)
        refused = run(names, *asked)
        assert refused.exit_code == 2, refused.output
        assert "does not support consumer to filter message by SQL92" in " ".join(refused.stderr.split())
