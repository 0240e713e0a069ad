"""Logins at ZooKeeper by GSSAPI, against a Kerberos server of MIT on this machine."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bookie.metadata.access import ZooKeeperAccess, ZooKeeperAccessError, ZooKeeperLogin
from bookie.metadata.port import AccessDeniedError, StoreUnavailableError
from bookie.metadata.store.zookeeper import ZooKeeperStore
from tests.contract.conftest import KERBEROS_ACCESS, ZooKeeperBackend, log_in_by_keytab
from tests.deadlines import STATE_S
from tests.worlds.kerberos import CONFIGURATION, REALM, Realm
from tests.worlds.secured import Secured

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.needs("kerberos")]


@pytest.fixture
def secured(kerberized: Secured) -> Secured:
    """A server of the Kerberos realm, with TLS as well."""
    return kerberized


@pytest.fixture(autouse=True)
def client_of_the_realm(realm: Realm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_in_by_keytab(realm, tmp_path, monkeypatch)


ACCESS = KERBEROS_ACCESS


@pytest.mark.parametrize("principal", ["", f"bkheal@{REALM}"])
async def test_a_login_with_a_keytab_works_and_nodes_belong_to_the_principal(principal: str, secured: Secured) -> None:
    access = replace(ACCESS, sasl_username=principal)
    store = await ZooKeeperStore.connect(secured.server.connect_string, access=access)
    path = await store.create(f"/owned-{len(principal)}", b"x")
    other = await ZooKeeperStore.connect(secured.server.connect_string, access=ZooKeeperAccess())
    try:
        assert (await store.get(path)).data == b"x"
        with pytest.raises(AccessDeniedError, match=path):
            await other.get(path)
    finally:
        await store.close()
        await other.close()


async def test_a_login_with_a_ticket_works_over_tls(
    secured: Secured, realm: Realm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    realm.run("kinit", "-c", str(tmp_path / "tickets"), "-kt", str(realm.directory / "bkheal.keytab"), "bkheal")
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", "FILE:/nowhere/keytab")
    access = replace(secured.tls, login=ZooKeeperLogin.GSSAPI, acl="creator")
    store = await ZooKeeperStore.connect(secured.server.secure_connect_string, access=access)
    try:
        path = await store.create("/by-ticket")
        assert await store.stat(path) is not None
    finally:
        await store.close()


async def test_the_login_is_repeated_at_each_connection(secured: Secured) -> None:
    backend = ZooKeeperBackend(secured.server.connect_string, ACCESS)
    store = await backend.open()
    try:
        path = await store.create("/repeated")
        await backend.interrupt(store)
        assert (await store.get(path)).data == b""
    finally:
        await backend.close()


async def test_a_failed_login_in_a_running_process_is_retried(
    secured: Secured, realm: Realm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keytab, away = tmp_path / "keytab", tmp_path / "away"
    shutil.copy(realm.directory / "bkheal.keytab", keytab)
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", f"FILE:{keytab}")
    backend = ZooKeeperBackend(secured.server.connect_string, ACCESS)
    store = await backend.open()
    try:
        path = await store.create("/tried-again")
        keytab.rename(away)
        (tmp_path / "tickets").unlink()
        interrupting = asyncio.create_task(backend.interrupt(store))
        async with asyncio.timeout(STATE_S):
            while not store._connection.problem:  # noqa: ASYNC110 (nothing is fired)
                await asyncio.sleep(0.01)
        assert "No Kerberos credentials available" in store._connection.problem
        away.rename(keytab)
        await interrupting
        assert (await store.get(path)).data == b""
    finally:
        await backend.close()


async def test_a_principal_whose_key_is_missing_cannot_log_in(secured: Secured) -> None:
    access = replace(ACCESS, sasl_username=f"another@{REALM}")
    with pytest.raises(ZooKeeperAccessError, match=f"another@{REALM}.*for GSSAPI"):
        await ZooKeeperStore.connect(secured.server.connect_string, access=access, connect_timeout_s=10 * STATE_S)


async def test_without_a_ticket_or_a_key_the_login_fails_with_a_clear_message(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", "FILE:/nowhere/keytab")
    with pytest.raises(ZooKeeperAccessError, match=r"zookeeper/127\.0\.0\.1: .*; for GSSAPI the ticket or keytab"):
        await ZooKeeperStore.connect(secured.server.connect_string, access=ACCESS, connect_timeout_s=10 * STATE_S)


async def test_a_server_that_is_unknown_in_the_realm_is_named(secured: Secured) -> None:
    access = replace(ACCESS, sasl_service="zk")
    with pytest.raises(ZooKeeperAccessError, match=r"Server zk/127\.0\.0\.1@BKHEAL\.TEST not found in Kerberos"):
        await ZooKeeperStore.connect(secured.server.connect_string, access=access, connect_timeout_s=10 * STATE_S)


async def test_an_unreachable_kerberos_server_is_retried(
    secured: Secured, realm: Realm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = tmp_path / "krb5.conf"
    away.write_text(CONFIGURATION.format(realm=REALM, port=1))
    monkeypatch.setenv("KRB5_CONFIG", str(away))
    with pytest.raises(StoreUnavailableError, match=r"no Kerberos ticket for zookeeper/127\.0\.0\.1"):
        await ZooKeeperStore.connect(secured.server.connect_string, access=ACCESS, connect_timeout_s=2.0)
