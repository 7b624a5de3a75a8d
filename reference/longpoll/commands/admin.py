"""`longpoll topics`, `longpoll groups` and `longpoll offsets`: show and change them at any RocketMQ broker.

The requests are in `longpoll_client.admin`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import click
from rich.text import Text

from longpoll.commands.client import read_start
from longpoll.options.numbers import Whole
from longpoll.options.server import Server, server_options
from longpoll.output import cell_of, emit_json, fail, json_option, out, table, user_mistakes
from longpoll_client import Admin
from longpoll_client.admin import GroupInfo, OffsetInfo, TopicInfo
from longpoll_client.errors import ClientError
from longpoll_protocol.codes import Permission
from longpoll_spec.errors import ConfigError

QUEUE_COUNT_MAX: Final = 1024
"""Most queues that our broker creates for a topic."""
PERMISSIONS: Final = {"rw": Permission.READ | Permission.WRITE, "r": Permission.READ, "w": Permission.WRITE}


@contextmanager
def asking(server: Server) -> Iterator[Admin]:
    """An admin client; an unreachable server or a rejected request prints one line and exits with 2."""
    try:
        with Admin(server.name_server, credentials=server.credentials, runtime=server.runtime) as admin:
            yield admin
    except ClientError as error:
        fail(str(error))


def topic_fields(topic: TopicInfo) -> dict[str, Any]:
    """One topic as JSON."""
    return {
        "topic": topic.name,
        "brokers": list(topic.brokers),
        "permission": topic.permission,
        "read_queues": len(topic.readable),
        "write_queues": len(topic.writable),
    }


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name", required=False)
@click.option("--create", is_flag=True, help="Create the topic NAME, or change it if it exists.")
@click.option("--delete", is_flag=True, help="Delete the topic NAME and its queues.")
@click.option(
    "--queues",
    type=Whole(1, QUEUE_COUNT_MAX),
    default=8,
    show_default=True,
    help="Queues on each broker, for --create.",
)
@click.option(
    "--permission", type=click.Choice(list(PERMISSIONS)), default="rw", show_default=True, help="Read, write or both."
)
@click.option("--all", "with_system", is_flag=True, help="Also list system, retry and dead-letter topics.")
@json_option
@user_mistakes
@server_options
def topics(
    *,
    name: str | None,
    create: bool,
    delete: bool,
    queues: int,
    permission: str,
    with_system: bool,
    server: Server,
    as_json: bool,
) -> None:
    """List all topics, or show, create, change or delete the topic NAME.

    A broker and its name server must be running: see `longpoll serve`.

    \b
    Examples:
      longpoll topics Greetings --create --queues 4
      longpoll topics
      longpoll topics Greetings --create --permission r
      longpoll topics Greetings --delete
    """
    if create and delete:
        raise ConfigError("--create and --delete cannot be used together; choose one")
    if (create or delete) and name is None:
        raise ConfigError("the topic name is missing; write, for example: longpoll topics NAME --create")
    with asking(server) as admin:
        if delete and name is not None:
            admin.delete_topic(name)
            _tell_done({"topic": name, "deleted": True}, f"deleted topic {name}", as_json=as_json)
            return
        if create and name is not None:
            admin.create_topic(name, queues, PERMISSIONS[permission])
            brokers = sorted(admin.masters())
            done = {"topic": name, "created": True, "brokers": brokers, "queues": queues, "permission": permission}
            _tell_done(done, f"created topic {name} with {queues} queues on {', '.join(brokers)}", as_json=as_json)
            return
        names = admin.topic_names(with_system=with_system) if name is None else [name]
        found = [topic_fields(admin.topic(each)) for each in names]
    if as_json:
        emit_json({"topics": found})
        return
    columns = ("topic", "brokers", "permission", "read queues", "write queues")
    table("Topics", columns, [[_cell(value) for value in topic.values()] for topic in found])


def _cell(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def _tell_done(fields: dict[str, Any], text: str, *, as_json: bool) -> None:
    if as_json:
        emit_json(fields)
    else:
        out.print(text)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@json_option
@user_mistakes
@server_options
def groups(*, server: Server, as_json: bool) -> None:
    """List the consumer groups and their connected members.

    A broker and its name server must be running: see `longpoll serve`.

    \b
    Examples:
      longpoll groups
      longpoll groups --json --name-server 127.0.0.1:9876
    """
    with asking(server) as admin:
        found = admin.groups()
    if as_json:
        emit_json({"groups": [_group_fields(group) for group in found]})
        return
    rows = [
        (group.name, ", ".join(group.brokers), len(group.members), Text("\n").join(map(cell_of, group.members)))
        for group in found
    ]
    table("Consumer groups", ("group", "brokers", "members", "client ids"), rows)


def _group_fields(group: GroupInfo) -> dict[str, Any]:
    return {"group": group.name, "brokers": list(group.brokers), "members": list(group.members)}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--group", required=True, help="The consumer group.")
@click.option("--topic", "named", multiple=True, help="Only this topic; repeatable. Default: all topics.")
@click.option(
    "--set",
    "start",
    metavar="first|last|TIMESTAMP",
    help="Move the group to this offset in each queue. Needs --topic; stop the group's members first. "
    "TIMESTAMP is in ms since 1970 or like 2026-01-31T12:00:00Z.",
)
@json_option
@user_mistakes
@server_options
def offsets(*, group: str, named: tuple[str, ...], start: str | None, server: Server, as_json: bool) -> None:
    """Show the stored offset and the lag of a group in each queue, or set its offsets.

    For a queue that the group has never read, RocketMQ returns offset 0 while the queue still has its first message.
    A broker and its name server must be running: see `longpoll serve`.

    \b
    Examples:
      longpoll offsets --group G
      longpoll offsets --group G --topic Greetings --set first
      longpoll offsets --group G --topic Greetings --set 2026-01-31T12:00:00Z
    """
    if start is not None and not named:
        raise ConfigError("--set needs a topic; name each topic to change with --topic")
    start_at = read_start(start, "--set")
    with asking(server) as admin:
        if start_at != "stored":
            _check_idle(admin, group)
            for topic in named:
                for queue in admin.topic(topic).readable:
                    admin.set_offset(group, queue, start_at)
        found = admin.offsets(group, named or admin.topic_names())
    if as_json:
        emit_json(
            {"group": group, "lag": sum(row.lag for row in found), "queues": [_offset_fields(row) for row in found]}
        )
        return
    columns = ("topic", "broker", "queue", "first", "end", "stored", "lag")
    rows = [["-" if value is None else value for value in _offset_fields(row).values()] for row in found]
    table(f"Offsets of group {group}", columns, rows)


def _check_idle(admin: Admin, group: str) -> None:
    """Raise ConfigError if the group has members: they would overwrite the new offsets with their own."""
    members = [member for known in admin.groups() if known.name == group for member in known.members]
    if members:
        raise ConfigError(
            f"group {group} has {len(members)} members, which would overwrite the new offsets; stop them first"
        )


def _offset_fields(row: OffsetInfo) -> dict[str, Any]:
    return {
        "topic": row.queue.topic,
        "broker": row.queue.broker_name,
        "queue": row.queue.queue_id,
        "first": row.first,
        "end": row.end,
        "stored": row.stored,
        "lag": row.lag,
    }
