"""Which process may start as which bookie: every row of the decision table, and interrupted first starts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from itertools import count, product
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bookie.metadata.bookies.cookies import Cookie, CookieStore, ForeignClusterError, encode_cookie
from bookie.metadata.bookies.incarnations import Incarnation, Incarnations
from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import cookie_path
from bookie.metadata.port import StoreUnavailableError, WriteOutcomeUnknownError
from bookie.metadata.store.memory import Fault, MemoryCell, MemoryStore
from bookie.model.ids import BookieId
from bookie.runtime.clock import SystemClock
from bookie.server.joining.admission import AdmittedBookie, RoleDirectory, admit, stamp
from bookie.server.joining.directories import (
    INCARNATION_FILE,
    VERSION_FILE,
    DirectoryRole,
    LocalDirectory,
    read_directory,
)
from bookie.server.joining.identity import (
    Evidence,
    IdentityError,
    JoinRefusal,
    KnownBookie,
    NewBookie,
    NewIncarnation,
    decide,
)
from bookie.server.joining.succession import succeed
from bookie.server.upkeep.operator_read_only import ReadOnlyRequest, write_recorded_request
from bookie.storage.disks.files import FileDisk
from bookie.storage.disks.memory import MemoryDisk, Operation
from bookie.storage.port import DiskError, DiskFullError, StalledDiskError
from tests.worlds.cluster import formatted

OURS = Cookie(BookieId("bookie-1"), ("/journal",), ("/ledgers",), "this-cluster")
OTHER_BOOKIE = replace(OURS, bookie_id=BookieId("bookie-2"))
OTHER_CLUSTER = replace(OURS, instance_id="another-cluster")
MOVED = replace(OURS, ledger_dirs=("/elsewhere",))
NEW, OLD = "incarnation-new", "incarnation-old"

EMPTY_JOURNAL = LocalDirectory(DirectoryRole.JOURNAL, "/journal")
EMPTY_LEDGERS = LocalDirectory(DirectoryRole.LEDGERS, "/ledgers")


def stamped(directory: LocalDirectory, cookie: Cookie = OURS, incarnation: str | None = NEW) -> LocalDirectory:
    return replace(directory, version=encode_cookie(cookie), incarnation=incarnation, has_data=True)


def begun(directory: LocalDirectory, *, has_version: bool = False) -> LocalDirectory:
    """Return the state after an interrupted first start."""
    return replace(directory, version=encode_cookie(OURS) if has_version else None, incarnation=NEW)


JOURNAL, LEDGERS = stamped(EMPTY_JOURNAL), stamped(EMPTY_LEDGERS)


@pytest.mark.parametrize(
    ("stored", "history", "directories", "decision"),
    [
        (None, [], [EMPTY_JOURNAL, EMPTY_LEDGERS], NewBookie(None)),
        (None, [OLD], [EMPTY_JOURNAL, EMPTY_LEDGERS], NewBookie(None)),
        (OURS, [NEW], [JOURNAL, LEDGERS], KnownBookie(NEW)),
        (OURS, [OLD, NEW], [JOURNAL, LEDGERS], KnownBookie(NEW)),
        (None, [], [begun(EMPTY_JOURNAL), EMPTY_LEDGERS], NewBookie(None)),
        (None, [], [begun(EMPTY_JOURNAL), begun(EMPTY_LEDGERS)], NewBookie(NEW)),
        (None, [OLD, NEW], [begun(EMPTY_JOURNAL), begun(EMPTY_LEDGERS)], NewBookie(NEW)),
        (OURS, [NEW], [begun(EMPTY_JOURNAL), begun(EMPTY_LEDGERS)], NewBookie(NEW)),
        (OURS, [NEW], [begun(EMPTY_JOURNAL, has_version=True), begun(EMPTY_LEDGERS)], NewBookie(NEW)),
        (
            OURS,
            [NEW],
            [begun(EMPTY_JOURNAL, has_version=True), begun(EMPTY_LEDGERS, has_version=True)],
            KnownBookie(NEW),
        ),
    ],
)
def test_new_known_and_interrupted_bookies_start(
    stored: Cookie | None, history: list[str], directories: list[LocalDirectory], decision: NewBookie | KnownBookie
) -> None:
    assert decide(Evidence(OURS, stored, history, directories)) == decision


@pytest.mark.parametrize(
    ("refusal", "stored", "history", "directories", "advice"),
    [
        (JoinRefusal.COOKIE_GONE, None, [NEW], [JOURNAL, LEDGERS], "restore the metadata"),
        (JoinRefusal.COOKIE_GONE, None, [], [JOURNAL, EMPTY_LEDGERS], "restore the metadata"),
        (
            JoinRefusal.UNMARKED_DATA,
            None,
            [],
            [replace(EMPTY_JOURNAL, has_data=True), EMPTY_LEDGERS],
            "empty directory",
        ),
        (
            JoinRefusal.UNMARKED_DATA,
            None,
            [],
            [EMPTY_JOURNAL, replace(EMPTY_LEDGERS, has_data=True)],
            "empty directory",
        ),
        (JoinRefusal.EMPTY_DISKS, OURS, [OLD], [EMPTY_JOURNAL, EMPTY_LEDGERS], "another bookie id"),
        (JoinRefusal.EMPTY_DISKS, OURS, [OLD], [begun(EMPTY_JOURNAL), begun(EMPTY_LEDGERS)], "data-integrity repair"),
        (JoinRefusal.EMPTY_JOURNAL, OURS, [NEW], [EMPTY_JOURNAL, LEDGERS], "mount the disk"),
        (JoinRefusal.EMPTY_JOURNAL, OURS, [NEW], [replace(JOURNAL, version=None), LEDGERS], "mount the disk"),
        (JoinRefusal.EMPTY_LEDGERS, OURS, [NEW], [JOURNAL, EMPTY_LEDGERS], "mount the disk"),
        (JoinRefusal.EMPTY_LEDGERS, OURS, [NEW], [JOURNAL, begun(EMPTY_LEDGERS)], "mount the disk"),
        (JoinRefusal.OTHER_CLUSTER, OTHER_CLUSTER, [NEW], [EMPTY_JOURNAL, EMPTY_LEDGERS], "metadata URI"),
        (JoinRefusal.OTHER_CLUSTER, OURS, [NEW], [stamped(EMPTY_JOURNAL, OTHER_CLUSTER), LEDGERS], "metadata URI"),
        (JoinRefusal.OTHER_CLUSTER, None, [], [JOURNAL, stamped(EMPTY_LEDGERS, OTHER_CLUSTER)], "metadata URI"),
        (JoinRefusal.OTHER_BOOKIE, OURS, [NEW], [JOURNAL, stamped(EMPTY_LEDGERS, OTHER_BOOKIE)], "bookie-2"),
        (JoinRefusal.OTHER_BOOKIE, None, [], [stamped(EMPTY_JOURNAL, OTHER_BOOKIE), EMPTY_LEDGERS], "bookie-2"),
        (JoinRefusal.OTHER_DIRECTORIES, MOVED, [NEW], [JOURNAL, LEDGERS], "/elsewhere"),
        (JoinRefusal.OTHER_DIRECTORIES, OURS, [NEW], [JOURNAL, stamped(EMPTY_LEDGERS, MOVED)], "it was made with"),
        (JoinRefusal.OTHER_INCARNATION, OURS, [NEW], [JOURNAL, stamped(EMPTY_LEDGERS, OURS, OLD)], OLD),
        (JoinRefusal.OTHER_INCARNATION, OURS, [NEW], [stamped(EMPTY_JOURNAL, OURS, None), LEDGERS], "nothing"),
        (JoinRefusal.OTHER_INCARNATION, OURS, [NEW, OLD], [JOURNAL, LEDGERS], "last ran on"),
        (JoinRefusal.NOT_OURS, OURS, [], [JOURNAL, LEDGERS], "Apache"),
        (JoinRefusal.NOT_OURS, OURS, [], [EMPTY_JOURNAL, EMPTY_LEDGERS], "another bookie id"),
        (JoinRefusal.DAMAGED_COOKIE, OURS, [NEW], [replace(JOURNAL, version=b"\0\0"), LEDGERS], "/journal"),
        (JoinRefusal.DAMAGED_COOKIE, None, [], [EMPTY_JOURNAL, replace(LEDGERS, version=b"")], "/ledgers"),
    ],
)
def test_everything_else_is_refused_with_advice(
    refusal: JoinRefusal, stored: Cookie | None, history: list[str], directories: list[LocalDirectory], advice: str
) -> None:
    with pytest.raises(IdentityError) as refused:
        decide(Evidence(OURS, stored, history, directories))
    assert refused.value.refusal is refusal
    assert advice in str(refused.value)


def rebuilt(
    directory: LocalDirectory, *, incarnation: str = NEW, pending: str | None = NEW, before: str | None = OLD
) -> LocalDirectory:
    """Return the state after a rebuild of the index."""
    return replace(stamped(directory, incarnation=incarnation), pending=pending, rebuilt_from=before)


REBUILT = [rebuilt(EMPTY_JOURNAL), rebuilt(EMPTY_LEDGERS)]


@pytest.mark.parametrize(
    ("history", "directories"),
    [
        ([OLD], REBUILT),
        ([OLD, NEW], REBUILT),
        ([OLD], [rebuilt(EMPTY_JOURNAL, incarnation=OLD), rebuilt(EMPTY_LEDGERS, incarnation=OLD, pending=None)]),
        ([OLD], [rebuilt(EMPTY_JOURNAL), rebuilt(EMPTY_LEDGERS, incarnation=OLD)]),
    ],
)
def test_disks_whose_index_was_rebuilt_become_a_new_incarnation_with_their_data(
    history: list[str], directories: list[LocalDirectory]
) -> None:
    assert decide(Evidence(OURS, OURS, history, directories)) == NewIncarnation(NEW)


def test_leftovers_of_a_finished_rebuild_change_nothing() -> None:
    left = [rebuilt(EMPTY_JOURNAL, pending=None), rebuilt(EMPTY_LEDGERS, pending=None)]
    assert decide(Evidence(OURS, OURS, [OLD, NEW], left)) == KnownBookie(NEW)


@pytest.mark.parametrize(
    ("refusal", "stored", "history", "directories"),
    [
        (JoinRefusal.COOKIE_GONE, None, [OLD], REBUILT),
        (JoinRefusal.NOT_OURS, OURS, [], REBUILT),
        (JoinRefusal.OTHER_INCARNATION, OURS, [OLD, "later"], REBUILT),
        (JoinRefusal.OTHER_INCARNATION, OURS, [OLD, NEW, "later"], REBUILT),
        (JoinRefusal.OTHER_INCARNATION, OURS, [NEW, OLD], REBUILT),
        (JoinRefusal.OTHER_INCARNATION, OURS, [OLD], [rebuilt(EMPTY_JOURNAL, before=None)] * 2),
        (JoinRefusal.OTHER_INCARNATION, OURS, [OLD], [REBUILT[0], rebuilt(EMPTY_LEDGERS, incarnation="later")]),
        (JoinRefusal.OTHER_INCARNATION, OURS, [OLD], [REBUILT[0], rebuilt(EMPTY_LEDGERS, pending="later")]),
    ],
)
def test_rebuilt_disks_that_are_not_the_last_ones_are_refused(
    refusal: JoinRefusal, stored: Cookie | None, history: list[str], directories: list[LocalDirectory]
) -> None:
    with pytest.raises(IdentityError) as refused:
        decide(Evidence(OURS, stored, history, directories))
    assert refused.value.refusal is refusal


versions = st.sampled_from([None, *map(encode_cookie, (OURS, OTHER_BOOKIE, OTHER_CLUSTER, MOVED)), b"damaged"])
incarnations = st.sampled_from([None, NEW, OLD])
directories = st.tuples(
    *(
        st.builds(
            LocalDirectory, st.just(place.role), st.just(place.path), versions, incarnations, has_data=st.booleans()
        )
        for place in (EMPTY_JOURNAL, EMPTY_LEDGERS)
    )
)
histories = st.lists(st.sampled_from([NEW, OLD]), max_size=2)
stored_cookies = st.sampled_from([None, OURS, OTHER_CLUSTER, MOVED])


@given(stored_cookies, histories, directories, st.booleans())
@example(
    stored=OURS,
    history=[OLD],
    found=(EMPTY_JOURNAL, replace(EMPTY_LEDGERS, has_data=True)),
    may_be_new_incarnation=True,
)
def test_no_bookie_starts_that_may_have_lost_data(
    stored: Cookie | None, history: list[str], found: tuple[LocalDirectory, ...], may_be_new_incarnation: bool
) -> None:
    try:
        decision = decide(Evidence(OURS, stored, history, found, may_be_new_incarnation))
    except IdentityError:
        return
    if isinstance(decision, KnownBookie):
        assert stored == OURS
        assert {directory.version for directory in found} == {encode_cookie(OURS)}
        assert {directory.incarnation for directory in found} == {decision.incarnation} == {history[-1]}
        return
    assert not any(directory.has_data for directory in found)
    if isinstance(decision, NewIncarnation):
        assert may_be_new_incarnation
        assert {directory.version for directory in found} == {None}
    elif stored is None:
        assert {directory.version for directory in found} == {None}
    else:
        assert decision.incarnation == history[-1]
    if decision.incarnation is not None:
        assert {directory.incarnation for directory in found} == {decision.incarnation}


class Interrupted(Exception):  # noqa: N818
    """The simulated death of the process."""


class MortalDisk(FileDisk):
    """A disk of a process that may die before or after it writes a file."""

    change: Callable[[], None]
    is_unreadable: bool
    refusal: DiskError | None
    """The error of each write; None: there is none."""

    async def names(self, directory: str) -> list[str]:
        if self.is_unreadable:
            raise DiskError("input/output error")
        return await super().names(directory)

    async def replace(self, path: str, data: bytes) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.change()
        await super().replace(path, data)
        self.change()


@dataclass
class Machine:
    """Two directories and a cluster; counts their changes, so that the process can die at one of them."""

    root: Path
    store: MemoryStore
    cluster: Cluster
    dies_at: int | None = None
    changes: count[int] = field(default_factory=count)
    unreadable: str = ""
    refusals: dict[str, DiskError] = field(default_factory=dict)
    ledgers: tuple[str, ...] = ("ledgers",)
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    disk: type[MortalDisk] = MortalDisk

    def change(self) -> None:
        if next(self.changes) == self.dies_at:
            raise Interrupted

    async def start(
        self, wanted_id: str = "bookie-1", default_id: str = "default", *, is_stamped: bool = False
    ) -> AdmittedBookie:
        """Admit; with ``is_stamped``, also stamp disks whose former contents are in limbo."""
        places = []
        disks = []
        for role, name in (
            (DirectoryRole.JOURNAL, "journal"),
            *((DirectoryRole.LEDGERS, name) for name in self.ledgers),
        ):
            disk = await self.disk.acquire(self.root / name / "current")
            assert isinstance(disk, MortalDisk)
            disk.change, disk.is_unreadable = self.change, name == self.unreadable
            disk.refusal = self.refusals.get(name)
            disks.append(disk)
            places.append(RoleDirectory(role, self.root / name, disk))
        try:
            made = await admit(
                self.store, self.cluster, places, wanted_id, default_id, SystemClock(), self.rng, takeover_deadline_s=60
            )
            if is_stamped and not made.is_stamped:
                made = await stamp(self.store, self.cluster, places, made)
            return made
        finally:
            for disk in disks:
                await disk.close()

    async def history(self, bookie: str) -> tuple[Incarnation, ...]:
        return await Incarnations(self.store, self.cluster.root).read(BookieId(bookie))


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    store = MemoryStore(MemoryCell())
    machine = Machine(tmp_path, store, await formatted(store, seed=2))

    async def die_at_writes(operation: str, path: str) -> Fault | None:
        if operation in ("create", "set", "multi"):
            machine.change()
        return None

    store.fault_hook = die_at_writes
    yield machine
    await store.close()


async def test_a_new_bookie_is_recorded_everywhere_and_recognized_afterwards(machine: Machine) -> None:
    first = await machine.start()
    [recorded] = await machine.history("bookie-1")
    assert first == AdmittedBookie(BookieId("bookie-1"), recorded.uuid)
    stored = await CookieStore(machine.store, machine.cluster).read(BookieId("bookie-1"))
    assert stored is not None
    for name in ("journal", "ledgers"):
        current = machine.root / name / "current"
        assert (current / VERSION_FILE).read_bytes() == encode_cookie(stored.cookie)
        assert (current / INCARNATION_FILE).read_text() == recorded.uuid
    assert await machine.start() == first
    assert len(await machine.history("bookie-1")) == 1


async def test_without_an_id_the_directories_or_else_the_address_decide(machine: Machine) -> None:
    assert (await machine.start("", "host:3181")).bookie_id == "host:3181"
    assert (await machine.start("", "host:9999")).bookie_id == "host:3181"


async def test_a_first_start_may_be_interrupted_anywhere(machine: Machine) -> None:
    machine.dies_at = 0
    for moment in count():
        for name in ("journal", "ledgers"):
            for file in (machine.root / name / "current").glob("[!.]*"):
                file.unlink()
        bookie, machine.changes, machine.dies_at = f"bookie-{moment}", count(), moment
        try:
            await machine.start(bookie)
        except Interrupted:
            machine.dies_at = None
            again = await machine.start(bookie)
            assert await machine.start(bookie) == again
            assert [i.uuid for i in await machine.history(bookie)] == [again.incarnation]
        else:
            break
    assert moment > 8  # before and after each of four files, and the writes to the store


@pytest.mark.parametrize("fault", [Fault.FAIL_BEFORE, Fault.LOSE_ANSWER])
async def test_a_first_start_survives_occasional_failures_of_the_store(machine: Machine, fault: Fault) -> None:
    rng = random.Random(3)

    async def fail_often(operation: str, path: str) -> Fault | None:
        return fault if rng.random() < 0.15 else None

    machine.store.fault_hook = fail_often
    for _ in range(1000):
        try:
            admitted = await machine.start()
            break
        except (StoreUnavailableError, WriteOutcomeUnknownError):
            continue
    machine.store.fault_hook = None
    assert await machine.start() == admitted
    assert [i.uuid for i in await machine.history("bookie-1")] == [admitted.incarnation]


async def test_lost_disks_are_refused(machine: Machine) -> None:
    await machine.start()
    for path in (machine.root / "ledgers" / "current").glob("[!.]*"):
        path.unlink()
    (machine.root / "journal" / "current" / "journal").mkdir()
    with pytest.raises(IdentityError, match="ledger directory"):
        await machine.start()


async def test_a_damaged_cookie_in_the_store_is_refused(machine: Machine) -> None:
    await machine.start()
    await machine.store.set(cookie_path("/ledgers", BookieId("bookie-1")), b"garbage", -1)
    with pytest.raises(IdentityError, match="VERSION") as refused:
        await machine.start()
    assert refused.value.refusal is JoinRefusal.DAMAGED_COOKIE


async def test_a_cluster_of_apaches_bookies_is_refused(machine: Machine) -> None:
    await CookieStore(machine.store, machine.cluster).create(replace(OURS, bookie_id=BookieId("apache:3181")))
    with pytest.raises(ForeignClusterError, match="apache:3181"):
        await machine.start()
    assert await Incarnations(machine.store, machine.cluster.root).known() == frozenset()


async def test_only_other_files_than_cookie_and_incarnation_count_as_data(tmp_path: Path) -> None:
    disk = await FileDisk.acquire(tmp_path)
    try:
        assert await read_directory(DirectoryRole.JOURNAL, "/j", disk) == LocalDirectory(DirectoryRole.JOURNAL, "/j")
        await disk.replace(VERSION_FILE, b"version")
        await disk.replace(INCARNATION_FILE, b"uuid\n")
        (tmp_path / f"{VERSION_FILE}.tmp").touch()
        assert await read_directory(DirectoryRole.JOURNAL, "/j", disk) == LocalDirectory(
            DirectoryRole.JOURNAL, "/j", b"version", "uuid"
        )
        await disk.make_directory("journal")
        assert (await read_directory(DirectoryRole.JOURNAL, "/j", disk)).has_data
    finally:
        await disk.close()


@pytest.mark.parametrize("dies_at", [None, 6])
async def test_the_read_only_mode_may_be_requested_before_the_first_start(
    machine: Machine, dies_at: int | None
) -> None:
    """The same holds after an interrupted first start."""
    machine.dies_at = dies_at
    if dies_at is not None:
        with pytest.raises(Interrupted):
            await machine.start()
    disk = await FileDisk.acquire(machine.root / "ledgers" / "current")
    await write_recorded_request(disk, ReadOnlyRequest("ops", 1))
    await disk.close()
    admitted = await machine.start()
    assert [item.uuid for item in await machine.history("bookie-1")] == [admitted.incarnation]


TWO = replace(OURS, ledger_dirs=("/ledgers", "/more"))
EMPTY_MORE = LocalDirectory(DirectoryRole.LEDGERS, "/more")
BOTH = [stamped(EMPTY_JOURNAL, TWO), stamped(EMPTY_LEDGERS, TWO)]
MORE = stamped(EMPTY_MORE, TWO)
UNMOUNTED = "it has no file VERSION: is its disk mounted?"


@pytest.mark.parametrize(
    ("stored", "directories", "decision"),
    [
        (TWO, [*BOTH, MORE], KnownBookie(NEW)),
        (TWO, [*BOTH, EMPTY_MORE], KnownBookie(NEW, (("/more", UNMOUNTED),))),
        (TWO, [*BOTH, replace(EMPTY_MORE, has_data=True)], KnownBookie(NEW, (("/more", UNMOUNTED),))),
        (TWO, [*BOTH, replace(EMPTY_MORE, problem="bad")], KnownBookie(NEW, (("/more", "bad"),))),
        (OURS, [JOURNAL, LEDGERS, EMPTY_MORE], KnownBookie(NEW, (), ("/more",), True)),
        (OURS, [JOURNAL, LEDGERS, begun(EMPTY_MORE)], KnownBookie(NEW, (), ("/more",), True)),
        (TWO, [JOURNAL, LEDGERS, begun(EMPTY_MORE)], KnownBookie(NEW, (), ("/more",), True)),
        (TWO, [BOTH[0], LEDGERS, begun(EMPTY_MORE)], KnownBookie(NEW, (), ("/more",), True)),
        (TWO, [*BOTH, replace(MORE, version=JOURNAL.version)], KnownBookie(NEW, (), (), True)),
        (TWO, [begun(EMPTY_JOURNAL), begun(EMPTY_LEDGERS), begun(EMPTY_MORE)], NewBookie(NEW)),
        (None, [EMPTY_JOURNAL, EMPTY_LEDGERS, EMPTY_MORE], NewBookie(None)),
    ],
)
def test_an_empty_ledger_directory_may_be_added_and_one_may_be_missing(
    stored: Cookie | None, directories: list[LocalDirectory], decision: NewBookie | KnownBookie
) -> None:
    assert decide(Evidence(TWO, stored, [] if stored is None else [NEW], directories)) == decision


def test_a_directory_is_added_while_another_one_is_missing() -> None:
    expected = replace(TWO, ledger_dirs=(*TWO.ledger_dirs, "/third"))
    found = [*BOTH, EMPTY_MORE, LocalDirectory(DirectoryRole.LEDGERS, "/third")]
    decision = decide(Evidence(expected, TWO, [NEW], found))
    assert decision == KnownBookie(NEW, (("/more", UNMOUNTED),), ("/third",), True)


def test_the_first_start_after_a_rebuild_may_add_an_empty_ledger_directory() -> None:
    found = [*REBUILT, EMPTY_MORE]
    assert decide(Evidence(TWO, OURS, [OLD], found)) == NewIncarnation(NEW)
    for stored, more in ((TWO, EMPTY_MORE), (MOVED, EMPTY_MORE)):  # a lost disk, and other directories
        with pytest.raises(IdentityError) as refused:
            decide(Evidence(TWO, stored, [OLD], [*REBUILT, more]))
        assert refused.value.refusal is JoinRefusal.EMPTY_LEDGERS
    with pytest.raises(IdentityError) as refused:
        decide(Evidence(TWO, OURS, [OLD], [*REBUILT, replace(EMPTY_MORE, has_data=True)]))
    assert refused.value.refusal is JoinRefusal.OTHER_INCARNATION
    with pytest.raises(IdentityError) as refused:
        decide(Evidence(TWO, OURS, [OLD], [*REBUILT, replace(EMPTY_MORE, problem="bad")]))
    assert refused.value.refusal is JoinRefusal.EMPTY_LEDGERS


@pytest.mark.parametrize(
    ("stored", "expected", "empty"),
    [
        (TWO, OURS, [EMPTY_JOURNAL, EMPTY_LEDGERS]),
        (TWO, replace(TWO, ledger_dirs=("/more", "/ledgers")), [EMPTY_JOURNAL, EMPTY_MORE, EMPTY_LEDGERS]),
        (replace(OURS, journal_dirs=("/journal", "/other")), OURS, [EMPTY_JOURNAL, EMPTY_LEDGERS]),
        (MOVED, OURS, [EMPTY_JOURNAL, EMPTY_LEDGERS]),
    ],
    ids=["left out", "another order", "a journal left out", "moved"],
)
def test_rebuilt_disks_start_only_with_the_directories_that_they_were_rebuilt_with(
    stored: Cookie, expected: Cookie, empty: list[LocalDirectory]
) -> None:
    directories = [replace(rebuilt(directory), version=encode_cookie(stored)) for directory in empty]
    with pytest.raises(IdentityError, match="it was made with") as refused:
        decide(Evidence(expected, stored, [OLD], directories))
    assert refused.value.refusal is JoinRefusal.OTHER_DIRECTORIES


@pytest.mark.parametrize(
    ("refusal", "expected", "stored", "directories", "advice"),
    [
        (JoinRefusal.OTHER_DIRECTORIES, OURS, TWO, BOTH, "can be added at the end"),
        (JoinRefusal.OTHER_DIRECTORIES, TWO, MOVED, [*BOTH, MORE], "it was made with"),
        (
            JoinRefusal.OTHER_DIRECTORIES,
            replace(TWO, ledger_dirs=("/more", "/ledgers")),
            TWO,
            [BOTH[0], MORE, BOTH[1]],
            "it was made with",
        ),
        (
            JoinRefusal.NOT_EMPTY,
            TWO,
            OURS,
            [JOURNAL, LEDGERS, replace(EMPTY_MORE, has_data=True)],
            "an empty directory",
        ),
        (JoinRefusal.NOT_EMPTY, TWO, OURS, [JOURNAL, LEDGERS, MORE], "an empty directory"),
        (JoinRefusal.NOT_EMPTY, TWO, OURS, [JOURNAL, LEDGERS, replace(EMPTY_MORE, incarnation=OLD)], "/more"),
        (JoinRefusal.NOT_EMPTY, TWO, OURS, [JOURNAL, LEDGERS, replace(EMPTY_MORE, problem="bad")], "bad"),
        (JoinRefusal.OTHER_INCARNATION, TWO, TWO, [*BOTH, stamped(EMPTY_MORE, TWO, OLD)], OLD),
        (JoinRefusal.OTHER_BOOKIE, TWO, TWO, [*BOTH, stamped(EMPTY_MORE, OTHER_BOOKIE)], "bookie-2"),
        (JoinRefusal.EMPTY_LEDGERS, TWO, TWO, [BOTH[0], EMPTY_LEDGERS, MORE], "mount the disk"),
        (JoinRefusal.EMPTY_DISKS, TWO, TWO, [EMPTY_JOURNAL, EMPTY_LEDGERS, EMPTY_MORE], "another bookie id"),
        (JoinRefusal.UNUSABLE, TWO, None, [EMPTY_JOURNAL, EMPTY_LEDGERS, replace(EMPTY_MORE, problem="bad")], "bad"),
    ],
)
def test_other_changes_of_the_ledger_directories_are_refused(
    refusal: JoinRefusal, expected: Cookie, stored: Cookie | None, directories: list[LocalDirectory], advice: str
) -> None:
    with pytest.raises(IdentityError) as refused:
        decide(Evidence(expected, stored, [] if stored is None else [NEW], directories))
    assert refused.value.refusal is refusal
    assert advice in str(refused.value)


async def test_the_start_that_adds_a_ledger_directory_may_be_interrupted_anywhere(machine: Machine) -> None:
    for moment in count():
        bookie, names = f"bookie-{moment}", ("ledgers", "second", "third")
        for name in ("journal", *names):
            for file in (machine.root / name / "current").glob("[!.]*"):
                file.unlink()
        machine.ledgers, machine.dies_at = names[:1], None
        first = await machine.start(bookie)
        for name in ("journal", "ledgers"):
            (machine.root / name / "current" / "data").touch()
        machine.ledgers, machine.changes, machine.dies_at = names, count(), moment
        try:
            assert await machine.start(bookie) == first
        except Interrupted:
            machine.dies_at = None
            assert await machine.start(bookie) == first
        stored = await CookieStore(machine.store, machine.cluster).read(BookieId(bookie))
        assert stored is not None
        assert len(stored.cookie.ledger_dirs) == 3
        for name in ("journal", *names):
            assert (machine.root / name / "current" / VERSION_FILE).read_bytes() == encode_cookie(stored.cookie)
        if machine.dies_at is not None:
            break
    assert moment > 12  # before and after six files, and the cookie


async def test_the_start_after_a_rebuild_that_adds_a_ledger_directory_may_be_interrupted_anywhere(
    machine: Machine,
) -> None:
    for moment in count():
        bookie, names = f"bookie-{moment}", ("ledgers", "second")
        for name in ("journal", *names):
            for file in (machine.root / name / "current").glob("[!.]*"):
                file.unlink()
        machine.ledgers, machine.dies_at = names[:1], None
        first = await machine.start(bookie)
        for name in ("journal", "ledgers"):
            (machine.root / name / "current" / "data").touch()
        rebuilt_disks = [await FileDisk.acquire(machine.root / name / "current") for name in ("journal", "ledgers")]
        incarnation = await succeed(rebuilt_disks, first.incarnation, None, machine.rng)
        for disk in rebuilt_disks:
            await disk.close()
        machine.ledgers, machine.changes, machine.dies_at = names, count(), moment
        try:
            await machine.start(bookie, is_stamped=True)
        except Interrupted:
            machine.dies_at = None
            await machine.start(bookie, is_stamped=True)
        stored = await CookieStore(machine.store, machine.cluster).read(BookieId(bookie))
        assert stored is not None
        assert len(stored.cookie.ledger_dirs) == 2
        for name in ("journal", *names):
            assert (machine.root / name / "current" / VERSION_FILE).read_bytes() == encode_cookie(stored.cookie)
            assert (machine.root / name / "current" / INCARNATION_FILE).read_text() == incarnation
        if machine.dies_at is not None:
            break
    assert moment > 12


async def test_a_missing_ledger_directory_is_left_out_until_it_returns(machine: Machine) -> None:
    machine.ledgers = ("ledgers", "second")
    first = await machine.start()
    for name in ("journal", "ledgers"):
        (machine.root / name / "current" / "data").touch()
    (machine.root / "second").rename(machine.root / "away")
    again = await machine.start()
    assert (again.bookie_id, again.incarnation) == (first.bookie_id, first.incarnation)
    assert again.out_of_use == {str(machine.root / "second"): UNMOUNTED}
    assert not list((machine.root / "second" / "current").glob("[!.]*")), "nothing is written to the mount point"
    (machine.root / "second" / "current" / ".bkheal.lock").unlink()
    (machine.root / "second" / "current").rmdir()
    (machine.root / "away").rename(machine.root / "second")
    assert await machine.start() == first


async def test_nothing_is_written_to_a_missing_directory_while_another_one_is_added(machine: Machine) -> None:
    """With a file ``VERSION``, the mount point of a missing disk would count as that disk after the next start."""
    machine.ledgers = ("ledgers", "second")
    await machine.start()
    for name in ("journal", "ledgers"):
        (machine.root / name / "current" / "data").touch()
    (machine.root / "second").rename(machine.root / "away")
    machine.ledgers = ("ledgers", "second", "third")
    for _ in range(2):
        assert (await machine.start()).out_of_use == {str(machine.root / "second"): UNMOUNTED}
        assert not list((machine.root / "second" / "current").glob("[!.]*"))
        assert (machine.root / "third" / "current" / VERSION_FILE).exists()


@pytest.mark.parametrize(
    ("name", "error", "is_started"),
    [
        ("journal", DiskFullError("no space left"), True),
        ("ledgers", DiskFullError("no space left"), True),
        ("second", DiskFullError("no space left"), True),
        ("second", DiskError("input/output error"), True),
        ("journal", DiskError("input/output error"), False),
        ("ledgers", DiskError("input/output error"), False),
        ("third", DiskFullError("no space left"), False),
    ],
)
async def test_a_directory_is_added_although_another_one_is_full_or_fails(
    machine: Machine, name: str, error: DiskError, is_started: bool
) -> None:
    machine.ledgers = ("ledgers", "second")
    first = await machine.start()
    for each in ("journal", "ledgers", "second"):
        (machine.root / each / "current" / "data").touch()
    machine.ledgers, machine.refusals = ("ledgers", "second", "third"), {name: error}
    for _ in range(2):
        if is_started:
            assert await machine.start() == first
        else:
            with pytest.raises(DiskError, match=str(error)):
                await machine.start()
    machine.refusals = {}
    assert await machine.start() == first
    assert len({(machine.root / each / "current" / VERSION_FILE).read_bytes() for each in machine.ledgers}) == 1


async def test_a_ledger_directory_that_cannot_be_read_is_left_out_unless_it_is_the_first(machine: Machine) -> None:
    machine.ledgers = ("ledgers", "second")
    first = await machine.start()
    for name in ("journal", "ledgers"):
        (machine.root / name / "current" / "data").touch()
    machine.unreadable = "second"
    again = await machine.start()
    assert (again.bookie_id, again.incarnation) == (first.bookie_id, first.incarnation)
    assert again.out_of_use == {str(machine.root / "second"): "input/output error"}
    for name in ("journal", "ledgers"):
        machine.unreadable = name
        with pytest.raises(DiskError, match="input/output error"):
            await machine.start()
    machine.unreadable = ""
    assert await machine.start() == first


async def test_a_directory_that_does_not_answer_has_a_deadline(tmp_path: Path) -> None:
    async def hang(operation: Operation, path: str) -> None:
        await asyncio.Event().wait()

    with pytest.raises(StalledDiskError, match=r"cannot read /ledgers: its disk did not answer for 0\.02 s"):
        await read_directory(DirectoryRole.LEDGERS, "/ledgers", MemoryDisk(before=hang), silent_s=0.02)


async def test_of_two_first_starts_under_one_id_the_later_one_is_refused(machine: Machine, tmp_path: Path) -> None:
    """The first bookie may have stored entries by then; the other one would deny them without a limbo (S17)."""
    later = Machine(tmp_path / "later", MemoryStore(machine.store.cell), machine.cluster, rng=random.Random(2))
    earlier: list[AdmittedBookie] = []

    async def start_earlier(operation: str, path: str) -> Fault | None:
        if not earlier and operation == "create" and path.endswith("incarnations/ledgers/bookie-1"):
            earlier.append(await machine.start())
        return None

    later.store.fault_hook = start_earlier
    with pytest.raises(IdentityError, match="has just joined as bookie-1") as refused:
        await later.start()
    assert refused.value.refusal is JoinRefusal.EMPTY_DISKS
    stored = await CookieStore(machine.store, machine.cluster).read(BookieId("bookie-1"))
    assert stored is not None
    assert stored.cookie.ledger_dirs == (str(machine.root / "ledgers"),)
    assert [each.is_stamped for each in earlier] == [True]
    with pytest.raises(IdentityError, match="give another bookie id"):
        await later.start()
    assert await machine.start() == earlier[0]


REQUESTS = 22
"""The upper limit of the requests of one first start."""


@dataclass
class FirstStart:
    """One of two bookies that start with the same id on empty disks. It pauses before one of its requests."""

    store: MemoryStore
    cluster: Cluster
    path: Path
    seed: int
    pause: int | None = None
    disks: tuple[MemoryDisk, MemoryDisk] = field(default_factory=lambda: (MemoryDisk(), MemoryDisk()))
    requests: count[int] = field(default_factory=count)
    paused: asyncio.Event = field(default_factory=asyncio.Event)
    resumed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.store.fault_hook = self.before

    async def before(self, operation: str, path: str) -> None:
        if next(self.requests) == self.pause:
            self.paused.set()
            await self.resumed.wait()

    async def start(self) -> str | None:
        """Return the incarnation, or None if the start is refused."""
        rng = random.Random(self.seed)
        places = [
            RoleDirectory(role, self.path / role.value, disk)
            for role, disk in zip(DirectoryRole, self.disks, strict=True)
        ]
        try:
            admitted = await admit(
                self.store, self.cluster, places, "bookie-1", "default", SystemClock(), rng, takeover_deadline_s=60
            )
            if not admitted.is_stamped:
                admitted = await stamp(self.store, self.cluster, places, admitted)
        except IdentityError:
            return None
        finally:
            self.paused.set()
        return admitted.incarnation


@pytest.mark.parametrize("is_same_path", [False, True])
async def test_of_two_concurrent_first_starts_one_is_refused_and_the_other_can_restart(
    machine: Machine, is_same_path: bool
) -> None:
    """Each one is paused at every possible request before both continue; also if both machines use the same paths."""
    for moments in product(range(REQUESTS), repeat=2):
        cell = MemoryCell()
        cluster = await formatted(MemoryStore(cell), seed=2)
        paths = (Path("/one"), Path("/one" if is_same_path else "/two"))
        pair = [FirstStart(MemoryStore(cell), cluster, *each) for each in zip(paths, (1, 2), moments, strict=True)]
        tasks = []
        for bookie in pair:
            tasks.append(asyncio.create_task(bookie.start()))
            await bookie.paused.wait()
        found = []
        for bookie, task in zip(pair, tasks, strict=True):
            bookie.resumed.set()
            found.append(await task)
            assert next(bookie.requests) <= REQUESTS, "REQUESTS is too small, so some moments were not tried"
        [winner] = [bookie for bookie, incarnation in zip(pair, found, strict=True) if incarnation is not None]
        await winner.disks[0].replace("data", b"")
        assert await winner.start() in found, moments


async def test_a_start_does_not_replace_the_cookie_of_disks_that_were_recorded_later(machine: Machine) -> None:
    """The other start may replace the cookie before, between or after the requests of this one."""
    bookie, other = BookieId("bookie-1"), MemoryStore(machine.store.cell)
    incarnations, cookies = Incarnations(other, machine.cluster.root), CookieStore(other, machine.cluster)
    places = [RoleDirectory(role, machine.root / role.value, MemoryDisk()) for role in DirectoryRole]
    theirs = Cookie(bookie, ("/other-journal",), ("/other-ledgers",), machine.cluster.instance_id)
    await cookies.create(replace(theirs, ledger_dirs=("/lost",)))
    for moment in count():
        await incarnations.record(bookie, f"ours-{moment}", moment)
        requests = count()

        async def replaced(operation: str, path: str, moment: int = moment, requests: count[int] = requests) -> None:
            if next(requests) == moment:
                await incarnations.record(bookie, f"theirs-{moment}", moment)
                stored = await cookies.read(bookie)
                assert stored is not None
                await cookies.replace(theirs, stored.version)

        machine.store.fault_hook = replaced
        ours = AdmittedBookie(bookie, f"ours-{moment}", is_stamped=False)
        try:
            await stamp(machine.store, machine.cluster, places, ours)
        except IdentityError:
            stored = await cookies.read(bookie)
            assert stored is not None
            assert stored.cookie == theirs
            await cookies.replace(replace(theirs, ledger_dirs=("/lost",)), stored.version)
        else:
            break
    assert next(requests) == moment == 3, "the start is refused at each of its requests"


@pytest.mark.parametrize("has_history", [True, False])
async def test_a_first_start_does_not_replace_a_cookie_that_other_software_wrote_meanwhile(
    machine: Machine, has_history: bool
) -> None:
    bookie, cookies = BookieId("bookie-1"), CookieStore(machine.store, machine.cluster)
    apache = Cookie(bookie, ("/other-journal",), ("/other-ledgers",), machine.cluster.instance_id)
    await cookies.create(apache)
    if has_history:
        await Incarnations(machine.store, machine.cluster.root).record(bookie, "ours", 1)
    places = [RoleDirectory(role, machine.root / role.value, MemoryDisk()) for role in DirectoryRole]
    with pytest.raises(IdentityError, match="has just joined as bookie-1"):
        await stamp(machine.store, machine.cluster, places, AdmittedBookie(bookie, "ours", is_stamped=False))
    stored = await cookies.read(bookie)
    assert stored is not None
    assert stored.cookie == apache


async def test_a_start_with_disks_that_are_not_in_the_history_is_refused(machine: Machine) -> None:
    places = [RoleDirectory(role, machine.root / role.value, MemoryDisk()) for role in DirectoryRole]
    ours = AdmittedBookie(BookieId("bookie-1"), "ours", is_stamped=False)
    with pytest.raises(IdentityError, match="has just joined as bookie-1"):
        await stamp(machine.store, machine.cluster, places, ours)
    assert await CookieStore(machine.store, machine.cluster).read(ours.bookie_id) is None


async def test_a_start_that_adds_a_directory_does_not_replace_a_changed_cookie(
    machine: Machine,
) -> None:
    await machine.start()
    for name in ("journal", "ledgers"):
        (machine.root / name / "current" / "data").touch()
    cookies = CookieStore(MemoryStore(machine.store.cell), machine.cluster)
    first = await cookies.read(BookieId("bookie-1"))
    assert first is not None
    changed = replace(first.cookie, ledger_dirs=(*first.cookie.ledger_dirs, "/changed"))

    class Changing(MortalDisk):
        async def replace(self, path: str, data: bytes) -> None:
            if path == INCARNATION_FILE:
                await cookies.replace(changed, 0)
            await super().replace(path, data)

    machine.ledgers, machine.disk = ("ledgers", "second"), Changing
    with pytest.raises(IdentityError, match="was changed during the start: start again"):
        await machine.start()
    stored = await cookies.read(BookieId("bookie-1"))
    assert stored is not None
    assert stored.cookie == changed
