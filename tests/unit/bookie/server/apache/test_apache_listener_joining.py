"""A bookie with and without the listener of Apache's protocol: its registration, and which clusters it joins."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest

from bookie.metadata.bookies.cookies import Cookie, CookieStore, ForeignClusterError
from bookie.metadata.bookies.service_info import Endpoint, ServiceInfo
from bookie.model.ids import BookieId
from bookie.runtime.configuration.settings import ConfigurationError
from bookie.server.joining.admission import AdmittedBookie, RoleDirectory, admit
from bookie.server.joining.directories import INCARNATION_FILE, LIMBO_FILE, REBUILT_FILE, DirectoryRole
from bookie.server.settings import BookieSettings
from bookie.server.upkeep.registration_keeper import service_info
from bookie.storage.disks.memory import MemoryDisk
from tests.worlds.cluster import MemoryCluster

US, OTHER, APACHE = BookieId("us:3181"), BookieId("other:3181"), BookieId("apache:3181")


class JoiningWorld(MemoryCluster):
    """A cluster, and the disks of two bookies."""

    def __init__(self) -> None:
        super().__init__()
        self.disks = {bookie: (MemoryDisk(), MemoryDisk()) for bookie in (US, OTHER)}

    async def join(self, bookie: BookieId = US, *, speaks_apache: bool = False) -> AdmittedBookie:
        journal, ledgers = self.disks[bookie]
        places = (
            RoleDirectory(DirectoryRole.JOURNAL, Path("/j"), journal),
            RoleDirectory(DirectoryRole.LEDGERS, Path("/l"), ledgers),
        )
        rng = random.Random(str(bookie))
        admitted = await admit(
            self.store,
            self.cluster,
            places,
            bookie,
            "",
            self.clock,
            rng,
            takeover_deadline_s=60,
            speaks_apache=speaks_apache,
        )
        info = service_info("h", 1, admitted.incarnation, apache_port=2 if speaks_apache else None)
        await self.registrations.register(bookie, info, is_read_only=False, takeover_deadline_s=60)
        return admitted

    async def add_apache(self) -> None:
        await CookieStore(self.store, self.cluster).create(Cookie(APACHE, ("/j",), ("/l",)))


@pytest.fixture
async def world() -> JoiningWorld:
    return await JoiningWorld().found()


def test_both_protocols_are_registered_as_apaches_clients_expect() -> None:
    info = service_info("h", 1, "uuid", apache_port=2, is_tls=True)
    assert info.endpoint("bookie-rpc") == Endpoint("bookie", "h", 2, "bookie-rpc", extensions=("tls",))
    assert info.endpoint("bookie-grpc") == Endpoint("grpc", "h", 1, "bookie-grpc")
    assert info.incarnation == "uuid"
    plain = service_info("h", 1, "uuid", apache_port=2)
    assert plain.endpoints[0].extensions == ()


def test_without_the_listener_the_registration_is_unchanged() -> None:
    assert service_info("h", 1, "u", is_tls=True) == ServiceInfo(
        (Endpoint("bookie", "h", 1, "bookie-grpc"),), (("bkheal.incarnation", "u"),)
    )


async def test_in_a_cluster_of_apaches_bookies_only_a_bookie_with_their_protocol_joins(world: JoiningWorld) -> None:
    await world.add_apache()
    with pytest.raises(ForeignClusterError, match="--apache-port") as refused:
        await world.join()
    assert APACHE in str(refused.value)
    assert (await world.join(speaks_apache=True)).bookie_id == US


async def test_a_new_bookie_must_speak_the_protocol_of_the_others(world: JoiningWorld) -> None:
    await world.join(OTHER, speaks_apache=True)
    with pytest.raises(ForeignClusterError, match=r"other:3181.*--apache-port"):
        await world.join()
    assert (await world.join(speaks_apache=True)).bookie_id == US


async def test_a_known_bookie_is_let_in_with_a_warning(world: JoiningWorld, caplog: pytest.LogCaptureFixture) -> None:
    first = await world.join()
    await world.join(OTHER, speaks_apache=True)
    assert caplog.records == []
    assert await world.join() == first
    [line] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "--apache-port" in line.getMessage()


async def test_a_known_bookie_whose_index_was_rebuilt_is_let_in_as_well(world: JoiningWorld) -> None:
    first = await world.join()
    await world.join(OTHER, speaks_apache=True)
    for disk in world.disks[US]:
        await disk.make_directory("data")
        for name, content in ((REBUILT_FILE, first.incarnation), (LIMBO_FILE, "new"), (INCARNATION_FILE, "new")):
            await disk.replace(name, content.encode())
    for _ in range(2):
        await world.registrations.unregister(US)
        again = await world.join()
        assert (again.incarnation, again.is_stamped) == ("new", False)


async def test_its_own_earlier_registration_causes_no_refusal_or_warning(
    world: JoiningWorld, caplog: pytest.LogCaptureFixture
) -> None:
    first = await world.join(speaks_apache=True)
    assert await world.join() == first
    assert caplog.records == []


@pytest.mark.parametrize(
    ("port", "apache_port", "problem"),
    [(0, 0, None), (1, 2, None), (3, None, None), (5, 5, "each its own"), (0, 65536, "65536"), (0, -1, "-1")],
)
def test_invalid_ports_are_named(port: int, apache_port: int | None, problem: str | None) -> None:
    if problem is None:
        BookieSettings("zk://h/ledgers", "/j", "/l", port=port, apache_port=apache_port)
        return
    with pytest.raises(ConfigurationError, match=problem) as refused:
        BookieSettings("zk://h/ledgers", "/j", "/l", port=port, apache_port=apache_port)
    assert len(refused.value.problems) == 1


def test_a_listener_too_small_for_one_connection_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="apache_connections_max = 0") as refused:
        BookieSettings("zk://h/l", "/j", "/l", apache_connections_max=0)
    assert len(refused.value.problems) == 1
    BookieSettings("zk://h/l", "/j", "/l", port=0, apache_connections_max=1)
