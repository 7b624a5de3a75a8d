"""The options that every consumer has, as its user gives them and as its member reads them."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Required, TypedDict, Unpack

from attrs import frozen

from longpoll_client.checks import Addresses, Topics, name_servers_text, runtime_of, wanted_of
from longpoll_client.consume.own_queues import OnQueues, OnShare, on_share
from longpoll_client.settings import ConsumerConfig, MemberConfig, StartAt, member_config
from longpoll_protocol.signature import Credentials
from longpoll_runtime import Runtime


class ConsumerOptions(TypedDict, total=False):
    """Options of every consumer."""

    group: Required[str]
    """The consumer group."""
    topics: Topics
    """A topic, several, or a mapping of topic to tags ("red || blue") or `Sql`."""
    start_at: StartAt
    """Where a new group starts: "first" (default), "last", "stored" (the broker decides) or a datetime."""
    config: ConsumerConfig
    """Everything else."""
    on_assigned: OnQueues
    """Gets queues that this member was given, one or more at a time. It must not wait."""
    on_revoked: OnQueues
    """Gets queues that this member gave up, likewise."""
    tls: ssl.SSLContext | None
    """How to connect over TLS. Default: plain connections."""
    credentials: Credentials | None
    """The account, for a broker with access control."""
    runtime: Runtime
    """For tests."""


@frozen
class MemberOptions:
    """The options of one consumer, checked."""

    name_server: str
    config: MemberConfig
    wanted: Mapping[str, str]
    """Expressions by topic."""
    on_share: OnShare | None
    credentials: Credentials | None
    runtime: Runtime


def options_of(name_server: Addresses, **options: Unpack[ConsumerOptions]) -> MemberOptions:
    """Check the options of a consumer; raises ConfigError, and TypeError for an unknown one."""
    unknown = options.keys() - ConsumerOptions.__annotations__.keys()
    if unknown or "group" not in options:
        raise TypeError(f"unknown option {min(unknown)}" if unknown else "missing option group")
    return MemberOptions(
        name_servers_text(name_server),
        member_config(options["group"], options.get("start_at", "first"), options.get("config")),
        wanted_of(options.get("topics", ())),
        on_share(options.get("on_assigned"), options.get("on_revoked")),
        options.get("credentials"),
        runtime_of(options.get("runtime"), options.get("tls")),
    )
