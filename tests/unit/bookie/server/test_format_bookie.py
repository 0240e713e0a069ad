"""Erasing the directories of a bookie: what is refused, and what remains after a crash in the middle."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bookie.metadata.bookies.cookies import Cookie, CookieStore, encode_cookie
from bookie.metadata.bookies.incarnations import Incarnations
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.tasks.changes import ChangeRecords
from bookie.model.ids import BookieId
from bookie.server.joining.directories import CURRENT, INCARNATION_FILE, VERSION_FILE, DirectoryRole, LocalDirectory
from bookie.server.joining.formatting import FormatRefusedError, erase, owner, release_cookie
from bookie.storage.disks.files import FileDisk
from bookie.storage.port import DiskError
from tests.worlds.cluster import MemoryCluster, service_info

US = BookieId("us:3181")


def directories(cookie: Cookie | None, *, has_data: bool = True, incarnation: str = "uuid") -> list[LocalDirectory]:
    version = None if cookie is None else encode_cookie(cookie)
    return [LocalDirectory(role, "/d", version, incarnation, has_data=has_data) for role in DirectoryRole]


def test_the_owner_is_the_bookie_named_in_all_directories() -> None:
    cookie = Cookie(US, ("/j",), ("/l",))
    assert owner(directories(cookie)) == cookie
    assert owner(directories(None, has_data=False)) is None
    erased = replace(directories(cookie)[0], version=None, has_data=False)
    assert owner([erased, directories(cookie)[1]]) == cookie  # a crash after the first of two cookies


def test_directories_with_an_unknown_owner_are_refused() -> None:
    cookie = Cookie(US, ("/j",), ("/l",))
    with pytest.raises(FormatRefusedError, match="no file VERSION"):
        owner(directories(None))
    with pytest.raises(FormatRefusedError, match="damaged"):
        owner([replace(directories(cookie)[0], version=b"?")])
    with pytest.raises(FormatRefusedError, match="different bookies"):
        owner([*directories(cookie), *directories(replace(cookie, bookie_id=BookieId("other:1")))])


@pytest.mark.parametrize("reached", [0, 1, 2])
async def test_an_interrupted_addition_of_a_ledger_directory_does_not_hide_the_owner(reached: int) -> None:
    """The cookie in ZooKeeper names the directory; so do the files VERSION of the first ``reached`` directories."""
    world, cookie = await joined()
    grown = replace(cookie, ledger_dirs=("/l", "/added"))
    await CookieStore(world.store, world.cluster).replace(grown, 0)
    known = [*directories(grown)[:reached], *directories(cookie)[reached:]]
    found = [*known, LocalDirectory(DirectoryRole.LEDGERS, "/added", None, "uuid")]
    whose = owner(found)
    assert whose is not None
    assert await release(world, whose, found=found)
    assert await CookieStore(world.store, world.cluster).read(US) is None


async def joined(*, is_registered: bool = False) -> tuple[MemoryCluster, Cookie]:
    world = await MemoryCluster().found()
    cookie = Cookie(US, ("/j",), ("/l",), world.cluster.instance_id)
    await Incarnations(world.store, world.cluster.root).record(US, "uuid", 1)
    await CookieStore(world.store, world.cluster).create(cookie)
    if is_registered:
        registrations = Registrations(world.store, world.cluster)
        await registrations.register(US, service_info("us"), is_read_only=False, takeover_deadline_s=1)
    return world, cookie


async def release(
    world: MemoryCluster,
    cookie: Cookie,
    *,
    incarnation: str = "uuid",
    may_delete: bool = True,
    found: Sequence[LocalDirectory] = (),
) -> bool:
    found = found or directories(cookie, incarnation=incarnation)

    async def record() -> None:
        assert await CookieStore(world.store, world.cluster).read(US) is not None, (
            "the change is recorded before it is made"
        )
        await ChangeRecords(world.store, world.cluster.root, world.clock).record("me", "command", "format")

    return await release_cookie(world.store, world.cluster, cookie, found, may_delete=may_delete, record=record)


async def test_the_cookie_is_deleted_only_if_allowed_and_the_history_is_kept() -> None:
    world, cookie = await joined()
    with pytest.raises(FormatRefusedError, match="--delete-cookie"):
        await release(world, cookie, may_delete=False)
    assert await CookieStore(world.store, world.cluster).read(US) is not None
    assert await release(world, cookie)
    assert await CookieStore(world.store, world.cluster).read(US) is None
    assert not await release(world, cookie)
    assert not await release(world, cookie, may_delete=False)
    assert len(await ChangeRecords(world.store, world.cluster.root, world.clock).newest(9)) == 1
    assert await Incarnations(world.store, world.cluster.root).read(US)


async def test_a_cookie_of_a_registered_bookie_or_of_other_disks_or_clusters_is_never_deleted() -> None:
    world, cookie = await joined()
    more = replace(cookie, ledger_dirs=("/l", "/m"))
    for wrong in (replace(cookie, ledger_dirs=("/m",)), more, replace(cookie, instance_id="another")):
        with pytest.raises(FormatRefusedError, match=r"other disks|another"):
            await release(world, wrong)
    with pytest.raises(FormatRefusedError, match="other disks"):
        await release(world, cookie, incarnation="earlier")
    assert await CookieStore(world.store, world.cluster).read(US) is not None
    running, its_cookie = await joined(is_registered=True)
    with pytest.raises(FormatRefusedError, match="is registered"):
        await release(running, its_cookie)


async def test_the_cookie_of_newer_disks_of_the_same_bookie_is_never_deleted() -> None:
    """Both have the same cookie, but the disks to erase belong to an earlier incarnation."""
    world, cookie = await joined()
    await Incarnations(world.store, world.cluster.root).record(US, "newer", 2)
    with pytest.raises(FormatRefusedError, match="other disks"):
        await release(world, cookie)
    assert await CookieStore(world.store, world.cluster).read(US) is not None
    assert await release(world, cookie, incarnation="newer")


async def test_directories_of_another_cluster_are_refused_even_without_a_cookie_in_this_one() -> None:
    world = await MemoryCluster().found()
    with pytest.raises(FormatRefusedError, match="another"):
        await release(world, Cookie(US, ("/j",), ("/l",), "another"))


async def test_the_cookie_of_disks_whose_new_incarnation_was_interrupted_may_be_deleted() -> None:
    world, cookie = await joined()
    await Incarnations(world.store, world.cluster.root).record(US, "newer", 2)
    found = [replace(each, pending="newer") for each in directories(cookie)]

    async def record() -> None: ...

    assert await release_cookie(world.store, world.cluster, cookie, found, may_delete=True, record=record)


async def test_a_link_is_removed_and_its_target_stays(tmp_path: Path) -> None:
    current, elsewhere = tmp_path / CURRENT, tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("of others")
    disk = await FileDisk.acquire(current)
    (current / "index").symlink_to(elsewhere)
    await erase([(current, disk)])
    assert [path.name for path in current.iterdir()] == [".bkheal.lock"]
    assert (elsewhere / "file").read_text() == "of others"
    await disk.close()


async def test_everything_but_the_lock_is_erased_and_the_cookies_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    currents = [tmp_path / name / CURRENT for name in ("journal", "ledgers")]
    disks = [await FileDisk.acquire(current) for current in currents]
    for current in currents:
        (current / "index").mkdir()
        (current / "index" / "file").write_text("data")
        for name in (VERSION_FILE, INCARNATION_FILE, "1.log"):
            (current / name).write_text("data")
    pairs = list(zip(currents, disks, strict=True))
    with monkeypatch.context() as failing:
        rmtree = shutil.rmtree

        def fail_in_the_last_directory(path: Path) -> None:
            if path.is_relative_to(currents[-1]):
                raise OSError(5, "Input/output error")
            rmtree(path)

        failing.setattr("shutil.rmtree", fail_in_the_last_directory)
        with pytest.raises(DiskError, match="cannot be erased completely"):
            await erase(pairs)
    assert all((current / VERSION_FILE).exists() for current in currents)
    await erase(pairs)
    assert [[path.name for path in current.iterdir()] for current in currents] == [[".bkheal.lock"]] * 2
    for disk in disks:
        await disk.close()
