"""``bkheal doctor``: shows the operations that would fail from this machine, and the remedies."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from auditor.cli.changing import connected
from auditor.cli.configuration.command import FileOption, problems_of_file
from auditor.cli.output import OutputFormat, print_json, print_line, print_table
from auditor.cli.running import MetadataUriOption, OutputOption, metadata_uri, run
from auditor.operating.checked import Checked, State, worst
from auditor.operating.doctor import examine
from bookie.metadata.cluster import ClusterClosedError, NoClusterError, NotAClusterError
from bookie.metadata.migration import MigratedError
from bookie.metadata.port import StoreUnavailableError, WriteOutcomeUnknownError
from bookie.metadata.uri import InvalidUriError, parse_uri
from bookie.model.errors import PermanentError
from bookie.model.exit_codes import ExitCode
from bookie.model.hosts import is_host, is_port
from bookie.runtime.configuration.settings import ConfigurationError, config_file
from bookie.runtime.human import printable

_CONNECT_TIMEOUT_S: Final = 5.0
_PORTS_MAX: Final = 16


def doctor(
    context: typer.Context,
    uri: MetadataUriOption = None,
    config: FileOption = None,
    output: OutputOption = OutputFormat.TABLE,
    listen: Annotated[
        list[str] | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="Check that a process could listen here, such as 127.0.0.1:8080; several times for several, "
            f"{_PORTS_MAX} at most.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Check everything that bkheal needs from this machine, and show what would fail and what to do.

    It checks the configuration file; each ZooKeeper server; the cluster and its layout; whether bkheal's state is from
    an earlier cluster; the permission to write to each part of the tree that bkheal writes; the clock; every registered
    bookie, with the TLS and login settings of this call; and ports.

    Nothing in the cluster is changed: permissions are tested by transactions that always fail. Only `doctor` below the
    state root (`/bkheal`) is written, to compare the clock.

    Exit codes: 0 nothing would fail (there may be warnings), 1 something would, 2 wrong usage, 3 ZooKeeper did not
    answer, 78 the configuration or the cluster at this address cannot be used.

    Example: `bkheal doctor --listen 127.0.0.1:8080 --output json`
    """
    if listen and len(listen) > _PORTS_MAX:
        raise typer.BadParameter(f"{len(listen)} addresses; at most {_PORTS_MAX}", param_hint="--listen")
    checks = [*_file_checks(context, config), *[_port_check(each) for each in listen or ()]]
    code = _cluster_checks(uri, config, checks)
    if output is OutputFormat.JSON:
        print_json("Diagnosis", worst=worst(checks).value, checks=[each.row() for each in checks])
    else:
        _print(checks)
    if code is not ExitCode.OK:
        raise typer.Exit(code)
    if worst(checks) is State.FAILED:
        raise typer.Exit(ExitCode.FAILED)


def _cluster_checks(uri: str | None, config: Any, checks: list[Checked]) -> ExitCode:
    """Add the checks of ZooKeeper and the cluster; return the exit code of an early end."""
    try:
        target = metadata_uri(uri, config)
        hosts = parse_uri(target).hosts
    except (ConfigurationError, InvalidUriError) as error:
        advice = "give --metadata-uri, or set BKHEAL_METADATA_URI"
        checks.append(Checked("configuration", "metadata URI", State.FAILED, str(error), advice))
        return ExitCode.CONFIGURATION
    servers = run(_server_checks(hosts))
    checks += servers
    try:
        run(_collect_checks(target, checks))
    except (StoreUnavailableError, WriteOutcomeUnknownError) as error:
        checks.append(Checked("zookeeper", hosts, State.FAILED, str(error), _unreachable_advice(servers)))
        return ExitCode.STORE_UNREACHABLE
    except PermanentError as error:
        check = "cluster" if isinstance(error, NotAClusterError | MigratedError) else "configuration"
        checks.append(Checked(check, target, State.FAILED, str(error), _advice(error)))
        return ExitCode.CONFIGURATION
    return ExitCode.OK


def _unreachable_advice(servers: Sequence[Checked]) -> str:
    """Return what to do if there is no session with ZooKeeper, by the checks of its servers. Pure."""
    if not any(each.state is State.OK for each in servers):
        return "start ZooKeeper, or allow connections to it from this machine (firewall, routing)"
    return (
        "remove the cause that its detail names. If it names none, check that the port speaks TLS if and only if "
        "zk_tls_ca is set, and that a majority of the servers runs"
    )


def _advice(error: PermanentError) -> str:
    match error:
        case NoClusterError():
            return "correct the path in the URI, or create a cluster: `bkheal cluster init`"
        case ClusterClosedError():
            return (
                "use an identity that may read the cluster (zk_login, zk_tls_cert, zk_digest_file); or, if an ACL "
                "denies it to this one, change the ACL (setAcl)"
            )
        case _:
            return "remove the problem that its detail describes, and run this again for the other checks"


async def _collect_checks(uri: str, checks: list[Checked]) -> None:
    async with connected(uri) as client:
        async for check in examine(client):
            checks.append(check)


async def _server_checks(hosts: str) -> list[Checked]:
    """Check whether each ZooKeeper server accepts a connection. A client needs one; a failover needs the others."""

    async def check_server(address: str) -> Checked:
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except (OSError, TimeoutError) as error:
            text = f"no connection: {error.strerror or error}" if isinstance(error, OSError) else "no connection"
            advice = "start this server, or allow connections to it: a session moves to it if its server fails"
            return Checked("zookeeper", address, State.WARNING, text, advice)
        writer.close()
        return Checked("zookeeper", address, State.OK, "accepts connections")

    return list(await asyncio.gather(*(check_server(address) for address in hosts.split(","))))


def _file_checks(context: typer.Context, config: Any) -> list[Checked]:
    path = config_file(config, os.environ)
    if path is None:
        return []
    try:
        problems: Sequence[str] = problems_of_file(path, context)
    except ConfigurationError as error:
        problems = error.problems
    if not problems:
        return [Checked("configuration", str(path), State.OK, "every option is known and of its type")]
    advice = "correct the file; `bkheal config validate` checks it"
    return [Checked("configuration", str(path), State.FAILED, problem, advice) for problem in problems]


def _port_check(address: str) -> Checked:
    host, _, port = address.rpartition(":")
    if not is_host(host) or not is_port(port):
        raise typer.BadParameter(f"{address!r} is not HOST:PORT", param_hint="--listen")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host.strip("[]"), int(port)))
    except OSError as error:
        advice = "choose another port, or end the process that uses it; if that is the service, nothing is wrong"
        return Checked("port", address, State.WARNING, error.strerror or str(error), advice)
    return Checked("port", address, State.OK, "free")


def _print(checks: Sequence[Checked]) -> None:
    cells = [(each.state.value, each.check, printable(each.target), printable(each.detail)) for each in checks]
    print_table(("STATE", "CHECK", "TARGET", "DETAIL"), cells)
    needed = [each for each in checks if each.state is State.FAILED or (each.advice and each.state is not State.OK)]
    if not needed:
        print_line("\nnothing has to be done")
        return
    print_line("\nnext")
    for number, each in enumerate(needed, 1):
        print_line(f"  {number}. {printable(each.target)}: {printable(each.advice or 'see its detail')}")
