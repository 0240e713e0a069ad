"""Decide which copied steps the metadata may name: pure functions.

The invariant: a step is installed only if its target is writable and has the disks that it had during the copy (R30),
and if the reason for the step still exists: its bookie has not returned (R5), and no bookie is back that may have an
entry which the copy left out (R148). Moves that would make the placement of a fragment worse are dropped (R57).

A target that records no incarnation, and whose registration has changed, may have other disks. It must be asked again
for the same entries (R136).

R rules are defined in docs/failure-model.md, S rules in docs/invariants.md.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final

from bookie.client.placement.judge import EnsembleJudge
from bookie.metadata.bookies.registration import BookieObservation, Bookies, Registration
from bookie.model.availability import EntryRuns
from bookie.model.errors import InvariantError
from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import LedgerMetadata
from replicator.plan.steps import Cause, CopyPosition, Step, SwapMember

TARGETS_MAX: Final = 200
"""The most targets that one write names, because each needs two checks in its transaction. The next round names the
others."""
ENSEMBLES_JUDGED_PER_STEP: Final = 100
"""The number of ensembles that are judged between two turns of the event loop: some milliseconds of work."""
_NOTHING: Final = EntryRuns(())


@dataclass(frozen=True, slots=True)
class CopiedStep:
    """A step whose entries the target has all acknowledged, and the target's incarnation ("" if it has none)."""

    step: Step
    _: KW_ONLY
    incarnation: str = ""
    entries: int = 0
    bytes: int = 0
    overwritten: tuple[EntryId, ...] = ()
    """Entries that were damaged on the target before. Its list contains them anyway, so they are read back."""
    left_out: EntryRuns = _NOTHING
    """Entries that the copy left out, because their loss was accepted (R148)."""
    has_accepted: bool = False
    """Whether an accepted loss names entries of the position. The copy may have found some of them."""
    absent: frozenset[BookieId] = frozenset()
    """The members of the fragment that counted as lost when entries were left out."""

    @property
    def bookies(self) -> frozenset[BookieId]:
        """The bookies whose state decides whether the step may be installed."""
        return self.absent | {self.step.old, self.step.target}


@dataclass(frozen=True, slots=True, kw_only=True)
class Installable:
    """The steps that may be installed while bookies are in a certain state, and why others may not."""

    steps: tuple[CopiedStep, ...]
    unwritable: tuple[BookieId, ...]
    """Targets that are not registered as writable."""
    without_disks: tuple[BookieId, ...]
    """Targets whose disks were replaced, and that do not serve the new ones yet."""
    again: frozenset[BookieId]
    """Targets to ask again, because their registration has changed and they record no incarnation."""


def installable(
    copied: Sequence[CopiedStep], bookies: Bookies, seen: BookieObservation, targets: Mapping[BookieId, Registration]
) -> Installable:
    """Decide which steps may be installed.

    Args:
        copied: the steps. Each target has listed every entry of its position.
        bookies: the registered ones of the bookies of all steps, with those that are draining.
        seen: their registrations and disks, read after the lists.
        targets: the registration of each target, read before the copies.
    """
    again = _registered_again(copied, seen, targets)
    return Installable(
        steps=tuple(copy for copy in copied if copy.step.target not in again and _is_still_wanted(copy, bookies, seen)),
        unwritable=tuple(copy.step.target for copy in copied if copy.step.target not in bookies.writable),
        without_disks=tuple(copy.step.target for copy in copied if _is_without_disks(copy, seen)),
        again=again,
    )


def with_few_targets(copied: Sequence[CopiedStep]) -> list[CopiedStep]:
    """Return the steps with the first ``TARGETS_MAX`` targets."""
    targets = list(dict.fromkeys(copy.step.target for copy in copied))
    few = frozenset(targets[:TARGETS_MAX])
    return [copy for copy in copied if copy.step.target in few]


def with_steps(metadata: LedgerMetadata, steps: Iterable[Step]) -> LedgerMetadata:
    """Return the metadata with the target of every step at its position, and nothing else changed.

    Raises:
        InvariantError: a step does not fit the metadata, or its target is already a member of the fragment (S9).
    """
    changed: dict[int, tuple[BookieId, ...]] = {}
    for step in steps:
        index, position = step.fragment_index, step.position
        members = changed.get(index, metadata.fragments[index].members)
        if members[position] != step.old or step.target in members:
            raise InvariantError(f"{step} does not fit an ensemble of {', '.join(members)}")
        changed[index] = (*members[:position], step.target, *members[position + 1 :])
    return metadata.with_members(changed)


def dropping_worse_moves(
    metadata: LedgerMetadata, copied: Sequence[CopiedStep], judge: EnsembleJudge
) -> Generator[None, None, list[CopiedStep]]:
    """Return ``copied`` without moves in fragments whose placement would become worse (R57), with pauses.

    Moves that were planned together may depend on each other, and some of them may have failed.
    """
    moved = {copy.step.fragment_index for copy in copied if copy.step.cause is Cause.MISPLACED}
    if not moved:
        return list(copied)
    changed = with_steps(metadata, [copy.step for copy in copied if not copy.step.is_in_place])
    worse = set()
    for number, index in enumerate(sorted(moved), start=1):
        before, after = metadata.fragments[index].members, changed.fragments[index].members
        costs = [judge.faults(each, metadata.write_quorum, metadata.custom).cost for each in (before, after)]
        if costs[1] > costs[0]:
            worse.add(index)
        if number % ENSEMBLES_JUDGED_PER_STEP == 0:
            yield
    return [copy for copy in copied if copy.step.cause is not Cause.MISPLACED or copy.step.fragment_index not in worse]


def _is_without_disks(copy: CopiedStep, seen: BookieObservation) -> bool:
    """Whether the target's disks were replaced, and it is not registered with the new disks."""
    target = copy.step.target
    known = seen.latest.get(target)
    if isinstance(copy.step, SwapMember) or known is None:
        return False
    return known.uuid != copy.incarnation and _incarnation(target, seen) != known.uuid


def _registered_again(
    copied: Iterable[CopiedStep], seen: BookieObservation, targets: Mapping[BookieId, Registration]
) -> frozenset[BookieId]:
    copied_to = {copy.step.target for copy in copied if isinstance(copy.step, CopyPosition)}
    return frozenset(
        target
        for target in copied_to & seen.registrations.keys() - seen.latest.keys()
        if target not in targets or seen.registrations[target].czxid != targets[target].czxid
    )


def _is_still_wanted(copy: CopiedStep, bookies: Bookies, seen: BookieObservation) -> bool:
    step = copy.step
    if step.is_of_lost_bookie and step.old in bookies.staying:
        return False  # R5: it returned with its copies, or its drain was withdrawn
    if copy.left_out and not copy.absent.isdisjoint(bookies.registered):
        return False  # R148: a bookie that counted as lost is back, and may have the entries that were left out
    if step.target not in bookies.writable:
        return False
    if isinstance(step, SwapMember):
        return True
    # R30: if the target has other disks now, they do not have the copies.
    known = seen.latest.get(step.target)
    return copy.incarnation == (_incarnation(step.target, seen) if known is None else known.uuid)


def _incarnation(bookie: BookieId, seen: BookieObservation) -> str | None:
    found = seen.registrations.get(bookie)
    return None if found is None else found.info.incarnation
