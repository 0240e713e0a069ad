"""Damage of unclosed ledgers: recorded by workers and marked later, the same on the twin and a real ZooKeeper."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from bookie.metadata.cluster import Cluster
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.nodes import create_with_parents
from bookie.metadata.port import AccessDeniedError, MetadataStore, StoreUnavailableError
from bookie.metadata.tasks import damage_notes as notes_module
from bookie.metadata.tasks.damage_notes import DamageNote, DamageNotes
from bookie.model.ids import BookieId, LedgerId
from bookie.model.metadata import LedgerState
from spark_jobs.runs.marking.noted_damage import mark_recorded_damage
from tests.contract.conftest import Backend
from tests.worlds.ledgers import make_metadata, names

CLOSED = make_metadata((0, "a b c"), quorum=(3, 2), last=9)
OPEN = make_metadata((0, "a b c"), quorum=(3, 2), state=LedgerState.OPEN)
L1, L2, L3 = LedgerId(1), LedgerId(2), LedgerId(3)


class Marks:
    """Records the marks that it receives, unless recovery is disabled."""

    def __init__(self) -> None:
        self.marked: list[tuple[LedgerId, tuple[BookieId, ...]]] = []
        self.is_disabled = False

    async def mark(self, batch: Sequence[tuple[LedgerId, tuple[BookieId, ...]]]) -> int | None:
        if self.is_disabled:
            return None
        self.marked += batch
        return len(batch)


@pytest.fixture
def notes(store: MetadataStore, base: str) -> DamageNotes:
    return DamageNotes(store, base)


@pytest.fixture
def ledgers(store: MetadataStore, cluster: Cluster) -> LedgerStore:
    return LedgerStore(store, cluster, random.Random(1))


async def test_ledgers_are_marked_after_they_are_closed(notes: DamageNotes, ledgers: LedgerStore) -> None:
    marks = Marks()
    opened = await ledgers.create(L1, OPEN)
    await notes.add(L1, names("a"))
    await notes.add(L1, names("b z"))
    assert not await mark_recorded_damage(notes, ledgers, marks.mark)
    await ledgers.write(L1, CLOSED, opened.version)
    assert await mark_recorded_damage(notes, ledgers, marks.mark) == marks.marked
    assert marks.marked == [(L1, names("a b"))], "z is marked, but is not a member"
    assert await notes.all() == []


async def test_a_ledger_that_may_not_be_read_does_not_prevent_the_marks_of_others(
    notes: DamageNotes, ledgers: LedgerStore, backend: Backend
) -> None:
    marks = Marks()
    for ledger_id in (L1, L2):
        await ledgers.create(ledger_id, CLOSED)
        await notes.add(ledger_id, names("a"))
    backend.deny(ledgers.path(L1))
    assert await mark_recorded_damage(notes, ledgers, marks.mark) == [(L2, names("a"))]
    assert [note.ledger_id for note in await notes.all()] == [L1]


async def test_no_record_is_removed_while_recovery_is_disabled(notes: DamageNotes, ledgers: LedgerStore) -> None:
    marks = Marks()
    marks.is_disabled = True
    await ledgers.create(L1, CLOSED)
    await notes.add(L1, names("a"))
    assert not await mark_recorded_damage(notes, ledgers, marks.mark)
    marks.is_disabled = False
    assert [ledger_id for ledger_id, _ in await mark_recorded_damage(notes, ledgers, marks.mark)] == [L1]


@pytest.mark.parametrize("error", [StoreUnavailableError("no answer"), AccessDeniedError("not allowed")])
async def test_marks_whose_records_cannot_be_deleted_are_returned(
    notes: DamageNotes, ledgers: LedgerStore, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    marks = Marks()
    await ledgers.create(L1, CLOSED)
    await notes.add(L1, names("a"))

    async def failing(note: DamageNote) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(notes, "remove", failing)
        assert await mark_recorded_damage(notes, ledgers, marks.mark) == marks.marked == [(L1, names("a"))]
    assert [ledger_id for ledger_id, _ in await mark_recorded_damage(notes, ledgers, marks.mark)] == [L1]
    assert await notes.all() == []


async def test_records_of_deleted_ledgers_and_of_replaced_members_are_deleted(
    notes: DamageNotes, ledgers: LedgerStore
) -> None:
    marks = Marks()
    await ledgers.create(L2, CLOSED)
    await notes.add(L1, names("a"))
    await notes.add(L2, names("z"))
    assert (await mark_recorded_damage(notes, ledgers, marks.mark), marks.marked) == ([], [])
    assert await notes.all() == []


async def test_a_damaged_record_counts_for_all_members_and_is_not_replaced(
    store: MetadataStore, notes: DamageNotes, ledgers: LedgerStore
) -> None:
    marks = Marks()
    await ledgers.create(L1, CLOSED)
    await create_with_parents(store, notes.path(L1), b"damaged", "/")
    assert await notes.add(L1, names("a"))
    await mark_recorded_damage(notes, ledgers, marks.mark)
    assert marks.marked == [(L1, names("a b c"))]
    assert await notes.all() == []


async def test_a_record_that_changed_since_it_was_read_stays(notes: DamageNotes) -> None:
    await notes.add(L1, names("a"))
    [read] = await notes.all()
    await notes.add(L1, names("b"))
    await notes.remove(read)
    assert [note.members for note in await notes.all()] == [frozenset(names("a b"))]


async def test_the_number_of_records_is_bounded(notes: DamageNotes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes_module, "NOTES_MAX", 2)
    assert [await notes.add(each, names("a")) for each in (L1, L2, L3)] == [True, True, False]
    assert await notes.add(L2, names("b")), "the ledger has a record already"
    assert [note.ledger_id for note in await notes.all()] == [L1, L2]
