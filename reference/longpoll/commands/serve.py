"""`longpoll serve`: the broker and its name server in one process, until a signal ends it.

Leaves out what a broker does (`longpoll_broker.broker`) and the keys of `broker.conf` (`options.broker_conf`).
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

from longpoll.addresses import address_of
from longpoll.guard import printable
from longpoll.options.broker_conf import BrokerPlace, read_broker_conf
from longpoll.options.law import knob_option, policy_option
from longpoll.options.server import ACCESS_KEY, SECRET_KEY, account_of
from longpoll.output import Exit, emit_json, err, fail, say, user_mistakes
from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig, StoreConfig
from longpoll_broker.metrics import BrokerCollector, with_health
from longpoll_runtime import Event
from longpoll_runtime.collector import no_collections, rare_collections
from longpoll_runtime.logs import Format, logging_to
from longpoll_runtime.real import RealRuntime
from longpoll_runtime.tls import ServerTls, server_context
from longpoll_runtime.turns import short_turns
from longpoll_spec.errors import ConfigError, UserError
from longpoll_spec.policy import preset, with_knobs

LISTEN = "127.0.0.1:10911"


@click.command()
@click.option(
    "--store", "store_directory", type=click.Path(path_type=Path), help="Store directory; none: a temporary one."
)
@policy_option("See `longpoll policies`.")
@knob_option("Set one knob of the policy; repeatable.")
@click.option("--listen", show_default=LISTEN, help="Address of the broker; port 0 picks one.")
@click.option("--name-server", default="127.0.0.1:9876", show_default=True, help="Address of the name server.")
@click.option("--ha", metavar="HOST:PORT", help="Slaves may connect there; whoever does is shown all of the log.")
@click.option("--slave-of", metavar="HOST:PORT", help="Be a slave of the master that serves requests there.")
@click.option("--register-at", metavar="HOST:PORT", help="Register at this name server too; several with semicolons.")
@click.option("--access-key", envvar=ACCESS_KEY, help=f"Sign what master and name servers are asked; or {ACCESS_KEY}.")
@click.option("--secret-key", envvar=SECRET_KEY, help=f"The secret of that account; better {SECRET_KEY}.")
@click.option("--record", type=click.Path(path_type=Path), help="Write a history into this directory.")
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="A file of RocketMQ's broker.conf keys.")
@click.option("--acl", "acl_file", type=click.Path(path_type=Path), help="Accounts, as RocketMQ's plain_acl.yml.")
@click.option("--tls-certificate", type=click.Path(path_type=Path), help="PEM certificate: clients may then use TLS.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="PEM key of the certificate.")
@click.option("--tls-required", is_flag=True, help="Refuse plain connections.")
@click.option("--tls-client-authority", type=click.Path(path_type=Path), help="PEM: who signs clients' certificates.")
@click.option("--metrics", metavar="HOST:PORT", help="Tell Prometheus metrics there, and /health, over HTTP.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="warning", show_default=True
)
@click.option("--plain", is_flag=True, help="Serve with the plain services only: the same bytes, slower.")
@click.option("--with-parent", is_flag=True, hidden=True, help="Stop when standard input ends, with who holds it.")
@click.option("--json", "as_json", is_flag=True, help="The ready line as one JSON object.")
@user_mistakes
def serve(
    *,
    store_directory: Path | None,
    policy_name: str,
    knobs: tuple[str, ...],
    listen: str | None,
    name_server: str,
    ha: str | None,
    slave_of: str | None,
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
    plain: bool,
    with_parent: bool,
    as_json: bool,
) -> None:
    """Run the broker and its name server until Ctrl-C or SIGTERM.

    Exit code 0, or 3 when the disk did not take all of the history that --record asked for, or of the store.

    \b
    Examples:
      longpoll serve --store /tmp/store
      longpoll serve --policy rocketmq-4.9 --listen 127.0.0.1:0 --name-server 127.0.0.1:0
      longpoll serve --knob recheck_after_hold=none --record /tmp/history
      longpoll serve --ha 127.0.0.1:10912
      longpoll serve --listen 127.0.0.1:0 --name-server 127.0.0.1:0 --slave-of 127.0.0.1:10911
      longpoll serve --metrics 127.0.0.1:9090 --log-format json --log-level info
      longpoll serve --acl /etc/rocketmq/plain_acl.yml --tls-certificate server.pem --tls-key server.key
      longpoll serve --tls-certificate server.pem --tls-key server.key --tls-required --tls-client-authority ca.pem
    """
    policy = with_knobs(preset(policy_name), knobs)
    broker_config, store_config, place = BrokerConfig(), StoreConfig(), BrokerPlace()
    if config_file is not None:
        broker_config, store_config, place, unknown = read_broker_conf(config_file)
        if unknown:
            err.print(f"longpoll: {config_file}: these keys are not used: {', '.join(unknown)}")
    if acl_file is not None:
        broker_config = evolve(broker_config, acl_file=str(acl_file.absolute()))
    broker_config = _among_others(broker_config, slave_of, register_at)
    account = account_of(access_key, secret_key)
    if account is not None:
        broker_config = evolve(broker_config, access_key=account.access_key, secret_key=account.secret_key)
    server_tls = _server_tls(tls_certificate, tls_key, tls_client_authority, is_required=tls_required)
    runtime = RealRuntime(server_tls=server_tls)
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
                        ha=None if ha is None else address_of(ha),
                        record_directory=None if record is None else str(record.absolute()),
                        is_fast=not plain,
                    )
            except OSError as error:
                raise UserError(f"cannot open the store {directory}: {error}; name another --store") from None
            stack.enter_context(_stopping(broker, directory))
            stack.enter_context(rare_collections())
            stack.enter_context(short_turns())
            metrics_address = None if metrics is None else _tell_metrics(broker, address_of(metrics), stack)
            _say_ready(broker, directory, metrics_address, as_json=as_json)
            _wait(runtime, stopped, with_parent=with_parent)
        if broker.record_trouble:
            fail(broker.record_trouble, Exit.UNKNOWN)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def _stopping(broker: Broker, directory: str) -> Iterator[None]:
    """Stop the broker behind the block; what its disk did not take is one sentence and exit code 3."""
    try:
        yield
    finally:
        try:
            broker.stop()
        except OSError as error:
            fail(f"the store {directory} could not be closed: {error}; the next start recovers it", Exit.UNKNOWN)


def _among_others(config: BrokerConfig, slave_of: str | None, register_at: str | None) -> BrokerConfig:
    """The settings of a slave, or of a broker that registers, as the options say; raises ConfigError."""
    if slave_of is not None:
        address_of(slave_of)
        config = evolve(config, role="SLAVE", master=slave_of, broker_id=config.broker_id or 1, slave_read=True)
    if register_at is not None:
        for address in filter(None, register_at.split(";")):
            address_of(address)
        config = evolve(config, name_servers=register_at)
    return config


def _wait(runtime: RealRuntime, stopped: Event, *, with_parent: bool) -> None:
    """Wait for a signal, or with `with_parent` for the end of the process that started this one."""
    if with_parent:
        runtime.spawn("parent-watcher", lambda: _await_parents_end(stopped))
    stopped.wait()


def _await_parents_end(stopped: Event) -> None:
    """The process that started this one holds the other end of standard input, which the kernel closes at its end."""
    # Not by way of sys.stdin, whose lock a thread that is still reading would hold at the interpreter's end.
    while os.read(0, 1024):
        pass
    stopped.set()


def _server_tls(
    certificate: Path | None, key: Path | None, client_authority: Path | None, *, is_required: bool
) -> ServerTls | None:
    """What clients that speak TLS are shown; None: they are not served. Raises ConfigError."""
    if client_authority is not None and not is_required:
        raise ConfigError("--tls-client-authority keeps nobody out who connects without TLS: give --tls-required too")
    if certificate is None and key is None:
        if is_required:
            raise ConfigError("--tls-required needs a certificate: give --tls-certificate and --tls-key")
        return None
    if certificate is None or key is None:
        raise ConfigError("--tls-certificate and --tls-key belong together: give both")
    authority = None if client_authority is None else str(client_authority)
    return ServerTls(server_context(str(certificate), str(key), authority), is_required)


def _tell_metrics(broker: Broker, where: tuple[str, int], stack: ExitStack) -> str:
    """Serve the broker's metrics until the stack is closed; where. Raises ConfigError."""
    registry = CollectorRegistry()
    registry.register(BrokerCollector(broker))
    host, port = where
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigError(f"metrics cannot be told at {host}:{port}: {error}; give another address") from None
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
    if broker.replicating.replicator is not None:
        places["ha"] = "{}:{}".format(*broker.replicating.replicator.address)
    if metrics is not None:
        places["metrics"] = metrics
    if as_json:
        emit_json({"ready": True, **places})
    else:
        say(printable("ready " + " ".join(f"{name}={place}" for name, place in places.items())))
