"""`longpoll send` and `consume`: a client of any RocketMQ broker (`longpoll_client`)."""

from __future__ import annotations

import base64
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import click
from attrs import define
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from longpoll.exit_codes import printable, until_signalled
from longpoll.options.server import Server, server_options
from longpoll.options.values import Amount, Whole
from longpoll.output import Exit, emit_json, err, fail, json_option, out, progress_bar, say, user_mistakes
from longpoll_client import ConsumerConfig, Producer, PullConsumer, ReceivedMessage, SendResult, Sql, StartAt
from longpoll_client.errors import ClientError
from longpoll_spec.errors import ConfigError

POLL_S: Final = 0.25
"""Seconds that `consume` waits in one poll before it checks --wait again."""


@contextmanager
def stoppable() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C or SIGTERM sets, so that the command can finish the current message.

    A second signal ends the command at once. An error of the client prints one line and exits with 2.
    """
    stopped = threading.Event()

    def stop() -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()

    try:
        with until_signalled(stop):
            yield stopped
    except ClientError as error:
        fail(str(error))
    except BrokenPipeError:
        # The reader of our output has closed the pipe. Without this line, Python would report the closed pipe again
        # when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def counted_bar() -> Progress:
    """A progress bar on stderr with a count and a speed."""
    described, speed = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[speed]}")
    return progress_bar(described, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), speed)


# ---------------------------------------------------------------- send


def read_properties(pairs: tuple[str, ...]) -> dict[str, str]:
    """Parse NAME=VALUE pairs; raises ConfigError."""
    properties = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise ConfigError(f"--property {pair!r} is not NAME=VALUE; write, for example: --property lang=en")
        properties[name] = value
    return properties


def read_body(body: str | None) -> bytes:
    """The body to send, read from standard input if it is "-" or None."""
    if body is None and sys.stdin.isatty():
        raise ConfigError("BODY is missing; write it after the topic, or write - to read standard input")
    return sys.stdin.buffer.read() if body in {None, "-"} else os.fsencode(str(body))


def result_fields(result: SendResult) -> dict[str, Any]:
    """Return a sent message as a JSON object."""
    return {
        "msg_id": result.msg_id,
        "broker_msg_id": result.broker_msg_id,
        "broker": result.queue.broker_name,
        "queue": result.queue.queue_id,
        "queue_offset": result.queue_offset,
        "code": result.code,
    }


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("topic")
@click.argument("body", required=False)
@click.option("--tag", help="The message's tag.")
@click.option("--key", help="The message's keys, separated by spaces.")
@click.option("--property", "pairs", multiple=True, metavar="NAME=VALUE", help="Add a user property; repeatable.")
@click.option("--queue", "queue_id", type=Whole(min=0), help="Send to this queue only. Default: all queues in turn.")
@click.option("--count", type=Whole(min=1), default=1, show_default=True, help="How many times to send it.")
@click.option("--rate", type=Amount(above_zero=True), help="Maximum messages per second. Default: no limit.")
@click.option("--group", default="longpoll-producer", show_default=True, help="The producer group.")
@json_option
@user_mistakes
@server_options
def send(
    *,
    topic: str,
    body: str | None,
    tag: str | None,
    key: str | None,
    pairs: tuple[str, ...],
    queue_id: int | None,
    count: int,
    rate: float | None,
    group: str,
    server: Server,
    as_json: bool,
) -> None:
    """Send BODY, or standard input, to TOPIC.

    A broker and its name server must be running: see `longpoll serve`. The broker creates a missing topic, unless
    its configuration forbids that.

    \b
    Examples:
      longpoll serve --store /tmp/store      run this in another terminal
      longpoll send Greetings hello --tag red --key k1
      echo hello | longpoll send Greetings -
      longpoll send Greetings hello --count 1000 --rate 200 --property lang=en

    Exit codes: 0 sent, 2 a mistake or an error from the broker, 3 stopped by Ctrl-C before the end.
    """
    content, properties = read_body(body), read_properties(pairs)
    run = SendRun(topic, count)
    with (
        stoppable() as stopped,
        Producer(server.name_server, group=group, credentials=server.credentials, runtime=server.runtime) as producer,
    ):
        send_one = partial(producer.send, topic, content, tag=tag, keys=key, properties=properties, queue_id=queue_id)
        with counted_bar() as bar:
            task = bar.add_task(f"sending to {topic}", total=count, speed="")
            for number in range(count):
                if stopped.wait(run.pause_s(number, rate)):
                    break
                run.note(send_one())
                bar.update(task, completed=number + 1, speed=f"{run.per_second:,.0f}/s")
    run.tell(as_json=as_json)
    if run.sent < count:
        sys.exit(Exit.UNKNOWN)


@define
class SendRun:
    """The progress of a `send`. Invariant: `first` and `last` are set once `sent` is above 0."""

    topic: str
    count: int
    sent: int = 0
    first: SendResult | None = None
    last: SendResult | None = None
    began_s: float = 0.0
    ended_s: float = 0.0

    @property
    def per_second(self) -> float:
        """Messages per second since the start."""
        return self.sent / max(self.ended_s - self.began_s, 1e-9)

    def pause_s(self, number: int, rate: float | None) -> float:
        """Seconds until the message with this number is due."""
        now_s = time.monotonic()
        if number == 0:
            self.began_s = now_s
        return 0.0 if rate is None else max(0.0, self.began_s + number / rate - now_s)

    def note(self, result: SendResult) -> None:
        """Count one sent message."""
        self.first = self.first or result
        self.last = result
        self.sent += 1
        self.ended_s = time.monotonic()

    def tell(self, *, as_json: bool) -> None:
        """Print how many messages were sent and how fast, with the first and the last result."""
        seconds = round(self.ended_s - self.began_s, 3) if self.sent else 0.0
        first, last = (result_fields(result) if result else None for result in (self.first, self.last))
        if as_json:
            emit_json(
                {
                    "topic": self.topic,
                    "sent": self.sent,
                    "wanted": self.count,
                    "seconds": seconds,
                    "first": first,
                    "last": last,
                }
            )
        elif self.last is None:
            out.print("nothing was sent")
        else:
            place = f"{self.last.queue.broker_name} queue {self.last.queue.queue_id} offset {self.last.queue_offset}"
            what = "1 message" if self.sent == 1 else f"{self.sent:,} of {self.count:,} messages in {seconds:g} s"
            out.print(
                f"sent {what} to {self.topic}; the last: {place} id {self.last.msg_id}", markup=False, soft_wrap=True
            )


# ---------------------------------------------------------------- consume


def read_start(text: str | None) -> StartAt:
    """Parse the value of --from; raises ConfigError."""
    if text is None:
        return "stored"
    if text == "first":
        return "first"
    if text == "last":
        return "last"
    if text.isascii() and text.isdigit() and len(text) < 14:
        return datetime.fromtimestamp(int(text) / 1000, UTC)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"--from cannot be {text!r}; write first, last, ms since 1970, or a time such as 2026-01-31T12:00:00Z"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def message_fields(message: ReceivedMessage) -> dict[str, Any]:
    """Return a message as a JSON object with RocketMQ's field names, and `text` if the body is UTF-8."""
    fields: dict[str, Any] = {
        "msgId": message.msg_id,
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "physicalOffset": message.physical_offset,
        "tags": message.tag,
        "keys": " ".join(message.keys) or None,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "bornTimestamp": message.born_ms,
        "bornHost": message.born_host,
        "storeTimestamp": message.store_ms,
        "storeHost": message.store_host,
        "reconsumeTimes": message.reconsume_times,
        "properties": message.properties,
        "bodyLength": len(message.body),
        "body": base64.b64encode(message.body).decode(),
    }
    try:
        return fields | {"text": message.body.decode()}
    except UnicodeDecodeError:
        return fields


def print_message(message: ReceivedMessage, *, as_json: bool) -> None:
    """Print one message on one line, without buffering."""
    if as_json:
        emit_json(message_fields(message))
        return
    when = datetime.fromtimestamp(message.store_ms / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]
    body = message.body.decode("utf-8", "backslashreplace")
    tags = f" [{message.tag}]" if message.tag else ""
    # `printable` keeps any body on one line.
    say(printable(f"{when} {message.queue_id}:{message.queue_offset}{tags} {body}"))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("topic")
@click.option("--group", required=True, help="The consumer group, whose members share the queues.")
@click.option("--tag", metavar="EXPR", help='Only messages with these tags, such as "red || blue". Default: all.')
@click.option(
    "--sql",
    metavar="EXPR",
    help="Only messages whose properties match this SQL92 expression; the broker must enable it.",
)
@click.option(
    "--from",
    "start",
    metavar="first|last|TIMESTAMP",
    help="Where a new group starts. TIMESTAMP is in ms since 1970 or like 2026-01-31T12:00:00Z. "
    "Default: the broker decides.",
)
@click.option("--count", type=Whole(min=1), help="Stop after this many messages. Default: never.")
@click.option("--wait", "wait_s", type=Amount(), help="Stop after this many seconds without a message. Default: never.")
@json_option
@user_mistakes
@server_options
def consume(
    *,
    topic: str,
    group: str,
    tag: str | None,
    sql: str | None,
    start: str | None,
    count: int | None,
    wait_s: float | None,
    server: Server,
    as_json: bool,
) -> None:
    """Print the messages of TOPIC as a member of a consumer group, until Ctrl-C, --count or --wait.

    A broker and its name server must be running, and the topic must exist: see `longpoll serve` and `longpoll send`.
    With --json, each message is one JSON object on one line.

    \b
    Examples:
      longpoll consume Greetings --group G --from first
      longpoll consume Greetings --group G --tag "red || blue" --from first --count 10
      longpoll consume Greetings --group G --sql "size BETWEEN 1 AND 9 AND color IS NOT NULL"
      longpoll consume Greetings --group G --from 2026-01-31T12:00:00Z --wait 5 --json

    Exit codes: 0 done, 2 a mistake or an error from the broker, 3 stopped before --count messages came.
    """
    if tag is not None and sql is not None:
        raise ConfigError("--tag and --sql cannot be used together; choose one")
    wanted = Sql(sql) if sql is not None else tag or "*"
    seen = 0
    with (
        stoppable() as stopped,
        PullConsumer(
            server.name_server,
            group=group,
            topics={topic: wanted},
            start_at=read_start(start),
            config=ConsumerConfig(waits_for_topics=False),
            credentials=server.credentials,
            runtime=server.runtime,
        ) as consumer,
        counted_bar() as bar,
    ):
        task = bar.add_task(f"consuming {topic}", total=count, speed="", visible=not out.is_terminal)
        for message in messages(consumer, count, wait_s, stopped):
            print_message(message, as_json=as_json)
            consumer.commit()
            seen += 1
            bar.update(task, completed=seen)
    if not as_json:
        err.print(f"consumed {seen:,} messages of {topic} as {group}")
    if count is not None and seen < count:
        sys.exit(Exit.UNKNOWN)


def messages(
    consumer: PullConsumer, count: int | None, wait_s: float | None, stopped: threading.Event
) -> Iterator[ReceivedMessage]:
    """Yield messages until `count` have come, none came for `wait_s`, or `stopped` is set."""
    seen, last_s = 0, time.monotonic()
    while not stopped.is_set() and (count is None or seen < count):
        found = consumer.poll(POLL_S, 1)
        if found:
            seen += 1
            yield found[0]
            last_s = time.monotonic()
        elif wait_s is not None and time.monotonic() - last_s >= wait_s:
            return
