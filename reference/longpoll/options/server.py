"""The options shared by all client commands: name server, account and TLS files."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from ssl import SSLContext
from typing import Any, Final

import click
from attrs import frozen

from longpoll.options.values import FilledPath
from longpoll_protocol.signature import Credentials
from longpoll_runtime.real import RealRuntime, client_context
from longpoll_spec.errors import ConfigError

Command = Callable[..., None]
PATH: Final = FilledPath()
ACCESS_KEY: Final = "LONGPOLL_ACCESS_KEY"
SECRET_KEY: Final = "LONGPOLL_SECRET_KEY"  # noqa: S105 - the name of a variable


@frozen
class Server:
    """A name server's address, with the runtime and the account for connections to it and its brokers."""

    runtime: RealRuntime
    name_server: str
    credentials: Credentials | None


def server_options(command: Command) -> Command:
    """Add `--name-server` and the related options to a command, which gets them as one `server`."""

    @click.option(
        "--name-server",
        default="127.0.0.1:9876",
        show_default=True,
        metavar="HOST:PORT",
        help="Address of the name server, which must be running.",
    )
    @click.option(
        "--access-key", envvar=ACCESS_KEY, help=f"Access key, if the broker needs one. Default: ${ACCESS_KEY}."
    )
    @click.option("--secret-key", envvar=SECRET_KEY, help=f"Its secret key. Default: ${SECRET_KEY}, which is safer.")
    @click.option("--tls-authority", type=PATH, help="Use TLS, and trust the certificates in this PEM file.")
    @click.option("--tls-certificate", type=PATH, help="Client certificate (PEM); needs --tls-authority.")
    @click.option("--tls-key", type=PATH, help="Private key (PEM) of the client certificate.")
    @wraps(command)
    def wrapped(
        *,
        name_server: str,
        access_key: str | None,
        secret_key: str | None,
        tls_authority: Path | None,
        tls_certificate: Path | None,
        tls_key: Path | None,
        **options: Any,
    ) -> None:
        tls = make_client_tls(tls_authority, tls_certificate, tls_key)
        command(server=make_server(name_server, access_key, secret_key, tls), **options)

    return wrapped


def make_client_tls(authority: Path | None, certificate: Path | None, key: Path | None) -> SSLContext | None:
    """The TLS context of a client; None without TLS. Raises ConfigError."""
    if (certificate is None) != (key is None):
        raise ConfigError("--tls-certificate and --tls-key belong together; use both or neither")
    if authority is None:
        if certificate is not None:
            raise ConfigError("--tls-certificate has no effect without TLS; add --tls-authority")
        return None
    shown = () if certificate is None or key is None else (str(certificate), str(key))
    return client_context(str(authority), *shown)


def make_server(name_server: str, access_key: str | None, secret_key: str | None, tls: SSLContext | None) -> Server:
    """Build the server from the options; raises ConfigError."""
    return Server(RealRuntime(client_tls=tls), name_server, account_of(access_key, secret_key))


def account_of(access_key: str | None, secret_key: str | None) -> Credentials | None:
    """The account that signs requests; None without one. Raises ConfigError."""
    if (access_key is None) != (secret_key is None):
        raise ConfigError(
            "--access-key and --secret-key belong together; use both, "
            f"or set the environment variables {ACCESS_KEY} and {SECRET_KEY}"
        )
    return Credentials(access_key, secret_key) if access_key is not None and secret_key is not None else None
