"""`longpoll serve`: runs the broker and its name server in one process until a signal.

The broker is `longpoll_broker.broker`; the keys of `broker.conf` are in `options.broker_conf`.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

import click
from attrs import evolve
from prometheus_client import CollectorRegistry, make_wsgi_app, start_http_server

from longpoll.commands.gone import former_options
from longpoll.exit_codes import printable
from longpoll.options.broker_conf import BrokerPlace, read_broker_conf
from longpoll.options.server import ACCESS_KEY, SECRET_KEY, account_of, make_client_tls
from longpoll.options.specification import knob_option, policy_option
from longpoll.options.values import FilledPath, address_of
from longpoll.output import Exit, begin_recording, emit_json, end_recording, err, fail, say, user_mistakes
from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig, StoreConfig
from longpoll_broker.metrics import BrokerCollector, limit, with_health
from longpoll_runtime import Event
from longpoll_runtime.interpreter import no_collections, rare_collections, short_switch_interval
from longpoll_runtime.log_stream import Format, logging_to
from longpoll_runtime.real import RealRuntime, ServerTls, server_context
from longpoll_spec.errors import ConfigError, UserError
from longpoll_spec.policy import preset, with_knobs

LISTEN = "127.0.0.1:10911"
ADDRESS = "HOST:PORT"
PATH = FilledPath()
LEVELS = ("debug", "info", "warning", "error")


@click.command()
@click.option("--store", "store_directory", type=PATH, help="Store directory. Default: a temporary one.")
@policy_option("The broker's long-polling policy; `longpoll policies` lists them.")
@knob_option("Change one knob of the policy; repeatable.")
@click.option("--listen", metavar=ADDRESS, help=f"The broker's address. Port 0: any free port. Default: {LISTEN}.")
@click.option(
    "--name-server", metavar=ADDRESS, default="127.0.0.1:9876", show_default=True, help="The name server's address."
)
@click.option("--register-at", metavar=ADDRESS, help="Also register at these name servers, separated by semicolons.")
@click.option(
    "--access-key", envvar=ACCESS_KEY, help=f"Access key for the name servers of --register-at. Default: ${ACCESS_KEY}."
)
@click.option("--secret-key", envvar=SECRET_KEY, help=f"Its secret key. Default: ${SECRET_KEY}, which is safer.")
@click.option("--record", type=PATH, help="Record a history into this directory.")
@click.option("--config", "config_file", type=PATH, help="Configuration file in RocketMQ's broker.conf format.")
@click.option("--acl", "acl_file", type=PATH, help="File of accounts in RocketMQ's plain_acl.yml format.")
@click.option("--tls-certificate", type=PATH, help="Server certificate (PEM), which lets clients use TLS.")
@click.option("--tls-key", type=PATH, help="Private key (PEM) of the server certificate.")
@click.option("--tls-required", is_flag=True, help="Reject connections without TLS.")
@click.option(
    "--tls-client-authority",
    type=PATH,
    help="Require certificates of this authority (PEM) from clients, and show the broker's own to name servers.",
)
@click.option("--metrics", metavar=ADDRESS, help="Serve Prometheus metrics and /health over HTTP at this address.")
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Log format."
)
@click.option("--log-level", type=click.Choice(LEVELS), default="warning", show_default=True, help="Lowest log level.")
@former_options("serve")
@click.option("--with-parent", is_flag=True, hidden=True, help="Stop when standard input ends, as the parent exits.")
@click.option("--json", "as_json", is_flag=True, help="Print the ready line as one JSON object.")
@user_mistakes
def serve(
    *,
    store_directory: Path | None,
    policy_name: str,
    knobs: tuple[str, ...],
    listen: str | None,
    name_server: str,
    register_at: str | None,
    access_key: str | None,
    secret_key: str | None,
    record: Path | None,
    config_file: Path | None,
    acl_file: Path | None,
    tls_certificate: Path | None,
    tls_key: Path | None,
    tls_required: bool,
    tls_client_authority: Path | None,
    metrics: str | None,
    log_format: Format,
    log_level: str,
    with_parent: bool,
    as_json: bool,
) -> None:
    """Run the broker and its name server until Ctrl-C or SIGTERM.

    The command prints one line with the addresses when the broker is ready. Send messages from another terminal with
    `longpoll send`.

    Exit codes: 0 stopped, 2 a mistake in the command line, 3 a disk error while writing the store or the history.

    \b
    Examples:
      longpoll serve --store /tmp/store
      longpoll serve --policy rocketmq-4.9 --listen 127.0.0.1:0 --name-server 127.0.0.1:0
      longpoll serve --knob recheck_after_hold=none --record /tmp/history
      longpoll serve --metrics 127.0.0.1:9090 --log-format json --log-level info
      longpoll serve --acl /etc/rocketmq/plain_acl.yml --tls-certificate server.pem --tls-key server.key
      longpoll serve --tls-certificate server.pem --tls-key server.key --tls-required --tls-client-authority ca.pem
    """
    policy = with_knobs(preset(policy_name), knobs)
    broker_config, store_config, place = BrokerConfig(), StoreConfig(), BrokerPlace()
    if config_file is not None:
        broker_config, store_config, place, unknown = read_broker_conf(config_file)
        if unknown:
            err.print(f"longpoll: {config_file}: these keys are ignored: {', '.join(unknown)}")
    if acl_file is not None:
        broker_config = evolve(broker_config, acl_file=str(acl_file.absolute()))
    broker_config = _registering_at(broker_config, register_at)
    account = account_of(access_key, secret_key)
    if account is not None:
        broker_config = evolve(broker_config, access_key=account.access_key, secret_key=account.secret_key)
    server_tls = _server_tls(tls_certificate, tls_key, tls_client_authority, is_required=tls_required)
    # If the name server requires certificates of clients, this broker needs one too when it registers.
    client_tls = tls_client_authority and make_client_tls(tls_client_authority, tls_certificate, tls_key)
    runtime = RealRuntime(server_tls=server_tls, client_tls=client_tls or None)
    stopped = runtime.event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopped.set()

    previous = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with ExitStack() as stack:
            stack.enter_context(logging_to(sys.stderr, log_format, log_level))
            store_directory = store_directory or place.root
            if store_directory is None:
                store_directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="longpoll-store-")))
            place.link(store_directory)
            begin_recording(record)
            directory = str(store_directory.absolute())
            try:
                with no_collections():
                    broker = Broker.start(
                        runtime,
                        directory,
                        policy=policy,
                        config=broker_config,
                        store_config=store_config,
                        listen=address_of(listen or place.listen or LISTEN),
                        name_server=address_of(name_server),
                        record_directory=None if record is None else str(record.absolute()),
                        opens_vip_port=True,
                    )
            except OSError as error:
                raise UserError(f"cannot open the store {directory}: {error}; choose another --store") from None
            stack.enter_context(_stopping(broker, directory))
            stack.enter_context(rare_collections())
            stack.enter_context(short_switch_interval())
            metrics_address = None if metrics is None else _tell_metrics(broker, address_of(metrics), stack)
            _say_ready(broker, directory, metrics_address, as_json=as_json)
            _wait(runtime, stopped, with_parent=with_parent)
        end_recording(record, broker.record_trouble)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def _stopping(broker: Broker, directory: str) -> Iterator[None]:
    """Stop the broker after the block; a disk error prints one sentence and exits with 3."""
    try:
        yield
    finally:
        try:
            broker.stop()
        except OSError as error:
            fail(f"cannot close the store {directory}: {error}; the next start will recover it", Exit.UNKNOWN)


def _registering_at(config: BrokerConfig, name_servers: str | None) -> BrokerConfig:
    """Add the name servers to register at; raises ConfigError."""
    if name_servers is None:
        return config
    for address in filter(None, name_servers.split(";")):
        address_of(address)
    return evolve(config, name_servers=name_servers)


def _wait(runtime: RealRuntime, stopped: Event, *, with_parent: bool) -> None:
    """Wait for a signal, or with `with_parent` until the parent process exits."""
    if with_parent:
        runtime.spawn("parent-watcher", lambda: _await_parents_end(stopped))
    stopped.wait()


def _await_parents_end(stopped: Event) -> None:
    """Wait until the kernel closes standard input because the parent process has exited."""
    # Do not read `sys.stdin`, because a thread that is still reading would hold its lock when the interpreter exits.
    while os.read(0, 1024):
        pass
    stopped.set()


def _server_tls(
    certificate: Path | None, key: Path | None, client_authority: Path | None, *, is_required: bool
) -> ServerTls | None:
    """The TLS settings of the server; None without TLS. Raises ConfigError."""
    if client_authority is not None and not is_required:
        raise ConfigError("--tls-client-authority has no effect on clients without TLS; add --tls-required")
    if certificate is None and key is None:
        if is_required:
            raise ConfigError("--tls-required needs a certificate; add --tls-certificate and --tls-key")
        return None
    if certificate is None or key is None:
        raise ConfigError("--tls-certificate and --tls-key belong together; use both or neither")
    authority = None if client_authority is None else str(client_authority)
    return ServerTls(server_context(str(certificate), str(key), authority), is_required)


def _tell_metrics(broker: Broker, where: tuple[str, int], stack: ExitStack) -> str:
    """Serve the broker's metrics until the stack is closed; returns HOST:PORT. Raises ConfigError."""
    registry = CollectorRegistry()
    registry.register(BrokerCollector(broker))
    host, port = where
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigError(f"cannot serve metrics at {host}:{port}: {error}; choose another address") from None
    limit(server, broker.runtime.monotonic_ns)
    server.set_app(with_health(make_wsgi_app(registry), broker))
    stack.callback(thread.join)
    stack.callback(server.server_close)
    stack.callback(server.shutdown)
    return f"{host}:{server.server_port}"


def _say_ready(broker: Broker, directory: str, metrics: str | None, *, as_json: bool) -> None:
    places = {
        "broker": "{}:{}".format(*broker.address),
        "name-server": "{}:{}".format(*broker.name_server_address),
        "store": directory,
    }
    if metrics is not None:
        places["metrics"] = metrics
    if as_json:
        emit_json({"ready": True, **places})
    else:
        say(printable("ready " + " ".join(f"{name}={place}" for name, place in places.items())))
