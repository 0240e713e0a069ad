"""Apache's records about a cluster and its bookies, read and written by our programs, and the reverse."""

from __future__ import annotations

import re

import pytest

from bookie.embedded.apache import ApacheCluster
from bookie.metadata.bookies.cookies import CookieStore, decode_cookie, encode_cookie
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.bookies.service_info import (
    PROTOCOL_APACHE,
    PROTOCOL_GRPC,
    Endpoint,
    ServiceInfo,
    decode_service_info,
    encode_service_info,
)
from bookie.metadata.cluster import Cluster, decode_layout, encode_layout, open_cluster
from bookie.metadata.layout import bookie_path, cookie_path
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.model.ids import BookieId
from tests.apache.conftest import OwnCluster
from tests.apache.driver import JavaDriver
from tests.apache.waiting import until
from tests.apache.worlds import ApacheWorld, on
from tests.sessions import LONG_SESSION_S

pytestmark = pytest.mark.apache


async def test_a_root_created_by_apaches_shell_is_decoded(
    apache_store: ZooKeeperStore, apache_metadata: Cluster
) -> None:
    layout = (await apache_store.get(f"{apache_metadata.root}/LAYOUT")).data
    assert encode_layout(decode_layout(layout, apache_metadata.root)) == layout
    instance_id = (await apache_store.get(f"{apache_metadata.root}/INSTANCEID")).data.decode()
    assert apache_metadata.instance_id == instance_id
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", instance_id)


async def test_cookies_and_registrations_of_apaches_bookies_are_decoded(
    apache_store: ZooKeeperStore, apache_metadata: Cluster, apache_cluster: ApacheCluster
) -> None:
    registrations = Registrations(apache_store, apache_metadata)
    ids = {bookie.bookie_id for bookie in apache_cluster.bookies}
    assert await registrations.known() == ids
    assert (await registrations.list()).writable == ids
    for bookie in apache_cluster.bookies:
        path = cookie_path(apache_metadata.root, bookie.bookie_id)
        data = (await apache_store.get(path)).data
        cookie = decode_cookie(data)
        assert encode_cookie(cookie) == data
        assert cookie.bookie_id == bookie.bookie_id
        assert cookie.ledger_dirs == (str(bookie.directory / "ledgers"),)
        assert cookie.instance_id == apache_metadata.instance_id
        assert (bookie.directory / "ledgers" / "current" / "VERSION").read_bytes() == data
        data = (await apache_store.get(bookie_path(apache_metadata.root, bookie.bookie_id, is_read_only=False))).data
        info = decode_service_info(data, bookie.bookie_id)
        assert encode_service_info(info) == data
        assert info.endpoints == (Endpoint("bookie", "127.0.0.1", bookie.port, PROTOCOL_APACHE),)
    assert (await CookieStore(apache_store, apache_metadata).read(apache_cluster.bookies[0].bookie_id)) is not None


async def test_apache_reads_the_service_info_of_our_bookie(
    java: JavaDriver, apache_store: ZooKeeperStore, apache_metadata: Cluster
) -> None:
    """Apache uses the address of the Apache endpoint, at any position in the list, and keeps the rest."""
    bookie = BookieId("a-bookie-of-ours")
    info = ServiceInfo(
        (
            Endpoint("grpc", "127.0.0.1", 4001, PROTOCOL_GRPC, extensions=("tls",)),
            Endpoint("bookie", "127.0.0.1", 4002, PROTOCOL_APACHE),
        ),
        (("bkheal.incarnation", "b6ad6c1e-4e2c-4a5e-9c49-4b2a3c7e3f0e"), ("name", "ü")),
    )
    path = bookie_path(apache_metadata.root, bookie, is_read_only=True)
    await apache_store.create(path, encode_service_info(info), is_ephemeral=True)
    try:
        names = await until(
            lambda: java.call("bookies"), lambda seen: bookie in seen["read_only"], "Apache's client lists the bookie"
        )
        assert bookie not in names["writable"]
        read = await java.call("service_info", bookie=bookie)
        assert [(one["id"], one["port"], one["protocol"], one["extensions"]) for one in read["endpoints"]] == [
            (one.id, one.port, one.protocol, list(one.extensions)) for one in info.endpoints
        ]
        assert read["properties"] == dict(info.properties)
    finally:
        await apache_store.delete(path)


async def test_apaches_programs_work_with_a_root_that_we_created(own_cluster: OwnCluster) -> None:
    cluster, java = await own_cluster(bookies=1, is_formatted_by_apache=False)
    handle = await java.create(1, 1, 1)
    await handle.write(3)
    await handle.close()
    assert [entry.entry_id for entry in await java.read_all(handle.ledger_id)] == [0, 1, 2]
    assert "127.0.0.1" in await cluster.shell("listbookies", "-rw")


async def test_both_clients_see_that_a_bookie_is_read_only(lent: ApacheWorld) -> None:
    cluster, java = lent.cluster, lent.java
    store = await ZooKeeperStore.connect(cluster.zookeeper.connect_string, session_timeout_s=LONG_SESSION_S)
    try:
        registrations = Registrations(store, await open_cluster(store, cluster.metadata_uri))
        bookie = cluster.bookies[0]
        await bookie.stop()
        bookie.settings |= {"forceReadOnlyBookie": "true"}
        await bookie.start()
        listed = await registrations.list()
        assert listed.writable == {other.bookie_id for other in cluster.bookies[1:]}
        assert listed.read_only == {bookie.bookie_id}
        data = (await store.get(bookie_path("/ledgers", bookie.bookie_id, is_read_only=True))).data
        assert decode_service_info(data, bookie.bookie_id).endpoints[0].port == bookie.port
        await until(
            lambda: java.call("bookies"),
            lambda seen: seen["read_only"] == [bookie.bookie_id],
            "Apache's client lists the bookie as read-only",
        )
    finally:
        await store.close()


async def test_a_killed_bookie_comes_back_with_its_id_and_its_entries(lent: ApacheWorld) -> None:
    java, bookie = lent.java, lent.cluster.bookies[0]
    handle = await on(java, {bookie.bookie_id}, 1, 1, 1)
    await handle.write(50)
    await handle.close()
    before = bookie.bookie_id
    await lent.kill9(bookie)
    await bookie.start()
    assert bookie.bookie_id == before
    assert len(await java.read_all(handle.ledger_id)) == 50
