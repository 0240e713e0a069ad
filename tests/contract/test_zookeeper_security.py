"""ZooKeeper with TLS, logins and ACLs: what is accepted, what is refused, and that no secret is shown."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import shutil
import socket
import ssl
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.serialization import SASL

from bookie.metadata.access import TlsVerify, ZooKeeperAccess, ZooKeeperAccessError
from bookie.metadata.cluster import format_cluster
from bookie.metadata.nodes import create_with_parents, ensure_path
from bookie.metadata.port import AccessDeniedError, Create, MultiFailedError, SessionState
from bookie.metadata.store.credentials import sasl_options
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.runtime.signal import waiting_for
from tests.certificates import make_ca, make_certificate, openssl
from tests.contract.conftest import ZooKeeperBackend
from tests.deadlines import PROGRAM_S, STATE_S
from tests.worlds.secured import PASSWORD, USER, Secured, start_secured

pytestmark = pytest.mark.needs("openssl")


@asynccontextmanager
async def session(hosts: str, access: ZooKeeperAccess, **options: Any) -> AsyncIterator[ZooKeeperStore]:
    store = await ZooKeeperStore.connect(hosts, access=access, **options)
    try:
        yield store
    finally:
        await store.close()


async def refusal(hosts: str, access: ZooKeeperAccess) -> str:
    """Return the error of a connection that must fail well before the deadline of the call."""
    with pytest.raises((ZooKeeperAccessError, AccessDeniedError)) as caught:
        await ZooKeeperStore.connect(hosts, access=access, connect_timeout_s=10 * STATE_S)
    return str(caught.value)


async def test_a_server_certificate_of_another_authority_is_refused(secured: Secured, tmp_path: Path) -> None:
    make_ca(tmp_path, "strange")
    reported = await refusal(
        secured.server.secure_connect_string, replace(secured.tls, tls_ca=tmp_path / "strange.pem")
    )
    assert "certificate is not accepted" in reported
    assert secured.server.secure_connect_string in reported


async def test_a_server_whose_certificate_names_another_host_is_refused(secured: Secured) -> None:
    hosts = secured.server.secure_connect_string.replace("127.0.0.1", "localhost")
    assert "localhost" in await refusal(hosts, secured.tls)
    async with session(hosts, replace(secured.tls, tls_verify=TlsVerify.AUTHORITY)) as store:
        assert store.session.is_connected


async def test_a_server_whose_certificate_has_expired_is_refused(tmp_path: Path) -> None:
    make_ca(tmp_path, "ca")
    files = make_certificate(tmp_path, "server", "ca", "IP:127.0.0.1")
    dates = ("-not_before", "20200101000000Z", "-not_after", "20200102000000Z")
    old = tmp_path / "old.pem"
    try:
        signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-extfile", "server.ext", *dates, "-out", old.name)
        openssl("x509", "-req", "-in", "server.csr", *signing, directory=tmp_path)
    except subprocess.CalledProcessError:  # before OpenSSL 3.4
        _sign_with_past_date(tmp_path, old)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(old, files.key)
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert "expired" in await refusal(f"127.0.0.1:{port}", ZooKeeperAccess(tls_ca=tmp_path / "ca.pem"))


def _sign_with_past_date(directory: Path, target: Path) -> None:
    (directory / "index.txt").write_text("")
    (directory / "ca.ini").write_text(
        "[ca]\ndefault_ca = here\n[here]\ndir = .\ndatabase = index.txt\nnew_certs_dir = .\nserial = past.srl\n"
        "default_md = sha256\npolicy = any\n[any]\ncommonName = supplied\n"
    )
    (directory / "past.srl").write_text("77\n")
    keys = ("-cert", "ca.pem", "-keyfile", "ca.key", "-in", "server.csr", "-extfile", "server.ext")
    dates = ("-startdate", "20200101000000Z", "-enddate", "20200102000000Z")
    openssl("ca", "-batch", "-config", "ca.ini", *keys, *dates, "-out", target.name, directory=directory)


async def test_a_client_without_a_certificate_is_refused(secured: Secured) -> None:
    access = ZooKeeperAccess(tls_ca=secured.tls.tls_ca)
    reported = await refusal(secured.server.secure_connect_string, access)
    assert "refuses this side without a certificate" in reported
    assert "set zk_tls_cert and zk_tls_key" in reported


async def test_a_client_whose_certificate_has_expired_learns_which_one_to_check(
    secured: Secured, tmp_path: Path
) -> None:
    shutil.copytree(secured.directory, tmp_path / "files")
    expired = make_certificate(tmp_path / "files", "expired", "ca", "DNS:client", days=0)
    access = replace(secured.tls, tls_cert=expired.cert, tls_key=expired.key)
    reported = await refusal(secured.server.secure_connect_string, access)
    assert "refuses this side's certificate" in reported
    assert f"check that {expired.cert} (zk_tls_cert) has not expired" in reported


async def test_a_wrong_password_is_refused(secured: Secured, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("wrong-secret")
    access = replace(secured.sasl, sasl_password_file=tmp_path / "password")
    reported = await refusal(secured.server.connect_string, access)
    assert "refused the login" in reported
    assert "wrong-secret" not in reported


async def test_a_wrong_password_is_refused_by_a_server_that_demands_logins(tmp_path: Path) -> None:
    """Such a server answers a failed login with the error of a request without a login."""
    secured = await start_secured(tmp_path, is_login_required=True)
    async with secured.server:
        (tmp_path / "password").write_text("wrong-secret")
        access = replace(secured.sasl, sasl_password_file=tmp_path / "password")
        assert "refused the login" in await refusal(secured.server.connect_string, access)
        async with session(secured.server.connect_string, secured.sasl) as store:
            await store.get("/zookeeper")


@pytest.mark.parametrize("turn_ms", range(1, 9))
async def test_a_wrong_password_is_refused_even_if_the_event_loop_is_slow(
    turn_ms: int, secured: Secured, tmp_path: Path
) -> None:
    """The connection may have ended before this loop processes its beginning."""

    async def hold_up() -> None:
        while True:
            time.sleep(turn_ms / 1000)  # noqa: ASYNC251  # to block the loop is the point
            await asyncio.sleep(0)

    (tmp_path / "password").write_text("wrong-secret")
    holding = asyncio.ensure_future(hold_up())
    try:
        access = replace(secured.sasl, sasl_password_file=tmp_path / "password")
        assert "refused the login" in await refusal(secured.server.connect_string, access)
    finally:
        holding.cancel()


async def test_a_connection_that_is_cut_during_a_later_login_keeps_its_session(secured: Secured) -> None:
    backend = ZooKeeperBackend(secured.server.connect_string, secured.sasl)
    store = await backend.open(connect_timeout_s=STATE_S)
    try:
        path = await store.create(f"/t-{uuid.uuid4().hex}", is_ephemeral=True)
        seen = store.session
        connection = store._connection._client._connection
        submit, cuts = connection._submit, [SASL]

        def cut_once(request: object, *rest: Any) -> None:
            if isinstance(request, SASL) and cuts:
                cuts.clear()
                connection._socket.shutdown(socket.SHUT_RDWR)
            else:
                submit(request, *rest)

        connection._submit = cut_once
        with waiting_for(store._connection._login_ended) as logged_in:
            await backend.interrupt(store)
            async with asyncio.timeout(STATE_S):
                await logged_in
        found = await store.stat(path)
        assert not cuts
        assert found is not None
        assert found.ephemeral_owner == seen.session_id
        assert store.session == seen
    finally:
        await backend.close()


async def test_a_password_that_is_refused_later_ends_the_session_until_it_is_corrected(
    secured: Secured, tmp_path: Path
) -> None:
    password = tmp_path / "password"
    password.write_text(PASSWORD)
    access = replace(secured.sasl, sasl_password_file=password)
    backend = ZooKeeperBackend(secured.server.connect_string, access)
    store = await backend.open(connect_timeout_s=STATE_S)
    try:
        seen = store.session
        password.write_text("wrong-secret")
        interrupting = asyncio.create_task(backend.interrupt(store))
        async with asyncio.timeout(STATE_S):
            while store.session.state is not SessionState.LOST:
                await store.wait_session_changed(store.session)
            password.write_text(PASSWORD)
            while store.session.epoch == seen.epoch or not store.session.is_connected:
                await store.wait_session_changed(store.session)
            await interrupting
    finally:
        await backend.close()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tls_ca": Path("/nowhere/ca.pem")}, "/nowhere/ca.pem"),
        ({"tls_cert": Path("/nowhere/tls.crt")}, "/nowhere/tls.crt"),
        ({"sasl_password_file": Path("/nowhere/password")}, "/nowhere/password"),
        ({"digest_file": Path("/nowhere/digest")}, "/nowhere/digest"),
    ],
)
async def test_an_unreadable_file_is_named_in_the_error(change: dict[str, Path], says: str, secured: Secured) -> None:
    access = replace(secured.both, **change)  # type: ignore[arg-type]
    assert says in await refusal(secured.server.secure_connect_string, access)


async def test_a_password_can_come_from_the_environment(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    access = replace(secured.sasl, sasl_password_file=None, acl="creator")
    with pytest.raises(ZooKeeperAccessError):
        await ZooKeeperStore.connect(secured.server.connect_string, access=access)
    monkeypatch.setenv("BKHEAL_ZK_PASSWORD", PASSWORD)
    async with session(secured.server.connect_string, access) as store:
        assert await store.create(f"/t-{uuid.uuid4().hex}")


async def test_an_encrypted_key_needs_its_password(secured: Secured, tmp_path: Path) -> None:
    assert secured.tls.tls_key is not None
    encrypted = ("-in", str(secured.tls.tls_key), "-aes256", "-passout", "pass:key-secret", "-out", "key.pem")
    openssl("pkey", *encrypted, directory=tmp_path)
    (tmp_path / "password").write_text("key-secret")
    access = replace(secured.tls, tls_key=tmp_path / "key.pem")
    assert "key.pem" in await refusal(secured.server.secure_connect_string, access)
    access = replace(access, tls_key_password_file=tmp_path / "password")
    async with session(secured.server.secure_connect_string, access) as store:
        assert store.session.is_connected


async def test_a_renewed_certificate_is_used_at_the_next_connection(secured: Secured, tmp_path: Path) -> None:
    """The server would refuse the first certificate by then, so only a client that reads the files again reconnects."""
    directory = tmp_path / "mounted"
    shutil.copytree(secured.directory, directory)
    make_ca(tmp_path, "strange")
    stranger = make_certificate(tmp_path, "stranger", "strange", "DNS:client")
    access = replace(secured.tls, tls_cert=directory / "client.pem", tls_key=directory / "client.key")
    backend = ZooKeeperBackend(secured.server.secure_connect_string, access, secured.server.connect_string)
    store = await backend.open(connect_timeout_s=STATE_S)
    try:
        assert stranger.cert is not None
        assert stranger.key is not None
        shutil.copy(stranger.cert, directory / "client.pem")
        shutil.copy(stranger.key, directory / "client.key")
        interrupting = asyncio.create_task(backend.interrupt(store))
        async with asyncio.timeout(STATE_S):
            while not store._connection.problem:  # noqa: ASYNC110 (until the files are read again; nothing is fired)
                await asyncio.sleep(0.01)
        assert not interrupting.done()
        shutil.copy(secured.directory / "client.pem", directory / "client.pem")
        shutil.copy(secured.directory / "client.key", directory / "client.key")
        await interrupting
        assert store.session.epoch == 1
    finally:
        await backend.close()


async def test_everything_that_is_created_has_the_configured_acl(secured: Secured) -> None:
    top = f"/t-{uuid.uuid4().hex}"
    acl = f"sasl:{USER}:cdrwa,world:anyone:r"
    async with session(secured.server.secure_connect_string, replace(secured.both, acl=acl)) as store:
        await create_with_parents(store, f"{top}/a/b", b"", "/")
        await store.multi([Create(f"{top}/c"), Create(f"{top}/c/d", is_ephemeral=True)])
        await store.create(f"{top}/e", is_ephemeral=True, is_sequential=True)
        paths = [top, *(f"{top}/{name}" for name in ("a", "a/b", "c", "c/d", *(await store.children(top)).names))]
        found = await asyncio.to_thread(_acls, secured, paths)
    expected = {("sasl", USER, 31), ("world", "anyone", 1)}
    assert found == dict.fromkeys(paths, expected)


def _acls(secured: Secured, paths: list[str]) -> dict[str, set[tuple[str, str, int]]]:
    client = KazooClient(secured.server.connect_string, sasl_options=sasl_options(secured.sasl))
    client.start()
    try:
        return {path: {(each.id.scheme, each.id.id, each.perms) for each in client.get_acls(path)[0]} for path in paths}
    finally:
        client.stop()
        client.close()


async def test_nodes_with_a_creator_acl_are_protected_and_the_refusal_names_path_and_identity(
    secured: Secured, tmp_path: Path
) -> None:
    top = f"/t-{uuid.uuid4().hex}"
    (tmp_path / "password").write_text("other-secret")
    other = replace(secured.sasl, sasl_username="other", sasl_password_file=tmp_path / "password")
    async with session(secured.server.secure_connect_string, secured.both) as store:
        await store.create(top)
    async with session(secured.server.connect_string, other) as store:
        with pytest.raises(AccessDeniedError, match=top):
            await store.create(f"{top}/x")
        with pytest.raises(MultiFailedError, match=f"{top}/x"):
            await store.multi([Create(f"{top}/x")])


async def test_an_acl_for_the_creator_needs_an_identity(secured: Secured) -> None:
    async with session(secured.server.connect_string, ZooKeeperAccess(acl="creator")) as store:
        with pytest.raises(AccessDeniedError, match="zk_acl"):
            await store.create(f"/t-{uuid.uuid4().hex}")


async def test_the_digest_scheme_gives_an_identity(secured: Secured, tmp_path: Path) -> None:
    (tmp_path / "digest").write_text("someone:digest-secret\n")
    access = ZooKeeperAccess(digest_file=tmp_path / "digest", acl="creator")
    path = f"/t-{uuid.uuid4().hex}"
    async with session(secured.server.connect_string, access) as store:
        await store.create(path, b"x")
        assert (await store.get(path)).data == b"x"
    async with session(secured.server.connect_string, ZooKeeperAccess()) as store:
        with pytest.raises(AccessDeniedError):
            await store.get(path)


async def test_no_secret_is_logged(secured: Secured, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    (tmp_path / "digest").write_text("someone:digest-secret\n")
    access = replace(secured.both, digest_file=tmp_path / "digest")
    async with session(secured.server.secure_connect_string, access) as store:
        await store.create(f"/t-{uuid.uuid4().hex}")
    for secret in (PASSWORD, "digest-secret"):
        assert secret not in caplog.text
        assert secret not in repr(access)
        assert secret not in access.to_text()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("replicator",), "refused the login"),
        (("bookies",), "refused the login"),
        (("exporter", "--http-port", "0"), "refused the login"),
    ],
)
def test_a_command_with_a_wrong_password_ends_with_a_clear_message(
    command: tuple[str, ...], says: str, secured: Secured, tmp_path: Path
) -> None:
    (tmp_path / "password").write_text("wrong-secret")
    code, reported = _run(command, f"zk://{secured.server.connect_string}/ledgers", USER, tmp_path)
    assert (code, says in reported, "Traceback" in reported) == (78, True, False), reported
    assert "wrong-secret" not in reported


@pytest.mark.integration
def test_a_missing_permission_on_one_subtree_is_named_and_nothing_is_changed(secured: Secured, tmp_path: Path) -> None:
    """The cluster is open to every client, except for its tasks."""
    root = f"/t-{uuid.uuid4().hex}/ledgers"

    async def prepare() -> None:
        async with session(secured.server.connect_string, replace(secured.sasl, acl="world")) as store:
            await ensure_path(store, root.rpartition("/")[0])
            await format_cluster(store, root, rng=random.Random(root))
        acl = f"sasl:{USER}:cdrwa,world:anyone:r"
        async with session(secured.server.connect_string, replace(secured.sasl, acl=acl)) as store:
            await ensure_path(store, f"{root}/underreplication/ledgers")

    asyncio.run(prepare())
    (tmp_path / "password").write_text("other-secret")
    uri = f"zk://{secured.server.connect_string}{root}"
    code, reported = _run(("doctor", "--output", "json"), uri, "other", tmp_path)
    failed = [
        check
        for check in json.loads(reported)["checks"]
        if (check["check"], check["state"]) == ("permission", "failed")
        and check["target"].startswith(root)  # other tests of this server created records below /bkheal
    ]
    assert (code, [check["target"] for check in failed]) == (
        1,
        [f"{root}/underreplication{x}" for x in ("", "/ledgers")],
    )
    assert "sasl:other" in failed[0]["detail"]
    code, reported = _run(("recovery", "disable"), uri, "other", tmp_path)
    # The command first records the change, which is refused as well if another test of this server created /bkheal.
    assert code == 78, reported
    assert "its ACL does not allow this; the permission is needed for sasl:other" in reported

    async def tasks() -> tuple[str, ...]:
        async with session(secured.server.connect_string, secured.sasl) as store:
            return (await store.children(f"{root}/underreplication")).names

    assert asyncio.run(tasks()) == ("ledgers",)


def _run(command: tuple[str, ...], uri: str, username: str, directory: Path) -> tuple[int, str]:
    """Run ``bkheal`` with a login whose password is in the directory. Return its exit code and all of its output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BKHEAL_")} | {
        "BKHEAL_METADATA_URI": uri,
        "BKHEAL_ZK_LOGIN": "DIGEST-MD5",
        "BKHEAL_ZK_USERNAME": username,
        "BKHEAL_ZK_PASSWORD_FILE": str(directory / "password"),
    }
    result = subprocess.run(
        [sys.executable, "-m", "auditor.cli.main", *command],
        env=environment,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
    )
    return result.returncode, result.stdout + result.stderr
