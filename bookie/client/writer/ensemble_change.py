"""Ensemble change: replace the bookies that a writer gave up, from last add confirmed + 1 on.

The invariant: an entry is acknowledged only if ``Qa`` bookies have it in the ensemble that the stored metadata names
for it (I1). A writer changes only the last fragment (I8), and fragment starts increase: if the last fragment has no
confirmed entry, it is replaced instead (I7).

The order is the safety argument. Acknowledgements stop first (``state.is_changing``), so last add confirmed, which
determines the start of the new fragment, cannot change. The incarnation of each replacement is looked up before the
metadata names it, and adds carry it: other disks under the same name refuse them. The metadata is then written by
compare-and-set. After the write is known to be stored, the acknowledgements of the replaced positions are discarded,
the unconfirmed entries are sent to the new bookies, and acknowledgements resume. Further failures during the change are
handled in another round.

If the writer dies at any point, the metadata names the old ensemble or the new one. Every confirmed entry precedes the
new fragment, and no unconfirmed one was acknowledged, so a recovery may keep it or not. If the answer to the write is
lost, nothing is acknowledged until a read of the metadata shows the outcome. If the last fragment found is neither the
old one nor one sent by this change, or the state is not OPEN, another client has changed the ledger, and the writer
stops.

Source: docs/formats.md#ensemble-change; I rules are defined in docs/invariants.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from bookie.client.cas import update_metadata
from bookie.client.errors import LedgerFencedError, NotEnoughBookiesError, TooManyEnsembleChangesError, quoted
from bookie.client.placement.groups import writable_candidates
from bookie.client.ports import ClientPorts
from bookie.client.writer.state import WriterState
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.model.errors import OutcomeUnknownError, TransientError
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata, LedgerState

_log: Final = logging.getLogger(__name__)

_RETRY_S: Final = 0.2
"""Pause after the store did not answer; ten rounds outlast a ZooKeeper leader election of a second or two."""


def with_new_ensemble(
    metadata: LedgerMetadata, ledger_id: LedgerId, before: Fragment, wanted: Fragment, sent: Sequence[Fragment]
) -> LedgerMetadata | None:
    """Return the metadata after an ensemble change; None if the change is already stored. Pure.

    Args:
        metadata: the metadata as read; repair may have changed older fragments, which are kept as they are.
        ledger_id: for the error's text.
        before: the last fragment in this writer's metadata.
        wanted: the new last fragment.
        sent: the fragments sent by this change so far: a last fragment among them is this writer's own.

    Raises:
        LedgerFencedError: the ledger is not open any more, or another client changed its last fragment.
    """
    is_open = metadata.state is LedgerState.OPEN
    if is_open and metadata.last_fragment in sent:
        return None  # the answer to an earlier round's write was lost
    if not is_open or metadata.last_fragment != before:
        raise LedgerFencedError(
            f"ledger {ledger_id} is {metadata.state.name} or was changed by another client; "
            "entries not acknowledged yet may or may not be part of it"
        )
    return metadata.with_last_fragment(wanted.first_entry_id, wanted.members)


class EnsembleChange:
    """One change of one writer.

    Attributes:
        ledger: the metadata as last stored or read, also after a failure.
        changes_left: number of further changes that are allowed; None: no limit.
    """

    def __init__(
        self,
        ports: ClientPorts,
        state: WriterState[asyncio.Future[EntryId]],
        ledger: Versioned,
        failed_at_s: Mapping[BookieId, float],
        changes_left: int | None,
        reasons: Mapping[BookieId, str] | None = None,
        refusing: AbstractSet[BookieId] = frozenset(),
    ) -> None:
        """Prepare a change.

        Args:
            ports: see ``ClientPorts``.
            state: the writer's state; its lanes contain the failed positions.
            ledger: the writer's copy of the metadata.
            failed_at_s: time of each bookie's last failure with this writer, by the clock's ``monotonic_s``.
            changes_left: see the attribute.
            reasons: the last failure of each bookie with this writer, for the error's text.
            refusing: bookies that refuse the ledger permanently.
        """
        self.ledger = ledger
        self.changes_left = changes_left
        self._ports = ports
        self._state = state
        self._failed_at_s = failed_at_s
        self._reasons = reasons or {}
        self._refusing = refusing
        self._incarnations: dict[BookieId, str] = {}
        self._sent: list[Fragment] = []
        """The latest fragment that was sent, and earlier ones that are not known to be stored or refused."""

    @property
    def is_in_doubt(self) -> bool:
        """Whether the stored metadata may name an ensemble that the writer has not seen stored."""
        return bool(self._sent)

    async def run(self) -> None:
        """Replace every failed position.

        Raises:
            NotEnoughBookiesError: no bookie is left for a position; others may have been replaced.
            TooManyEnsembleChangesError: the limit is reached.
            LedgerFencedError: the ledger no longer belongs to this writer.
            TransientError, OutcomeUnknownError: the metadata store did not answer within the rounds allowed.
            NoSuchLedgerError: the ledger was deleted.
        """
        last_error: TransientError | OutcomeUnknownError | None = None
        attempts = self._ports.settings.ensemble_change_attempts_max
        for _ in range(attempts):
            try:
                await self._round()
            except LedgerFencedError:
                raise
            except (TransientError, OutcomeUnknownError) as error:
                if isinstance(error, NotEnoughBookiesError) and not self.is_in_doubt:
                    raise
                last_error = error
                await self._ports.clock.sleep(_RETRY_S)
                continue
            if not self._state.failed_positions():
                return
            last_error = None
        raise last_error or NotEnoughBookiesError(
            f"ledger {self.ledger.ledger_id}: bookies kept failing during {attempts} ensemble changes in a row"
        )

    async def readmit(self) -> None:
        """Use each failed member again that is registered with the same disks; no metadata is changed.

        Members that failed within the last ``degraded_retry_s`` are left out.

        Raises:
            StoreUnavailableError: no answer from the metadata store.
        """
        writable = (await self._ports.registrations.list()).writable
        recent = self._bookies_failed_within(self._ports.settings.degraded_retry_s)
        lanes = [lane for lane in self._state.lanes if lane.is_failed]
        back = {lane.bookie for lane in lanes} & writable - recent
        found = await self._ports.registrations.incarnations(back)
        for lane in lanes:
            if found.get(lane.bookie) == lane.incarnation:
                extra = {"ledger_id": self.ledger.ledger_id, "bookie_id": lane.bookie}
                _log.info("writer tries a failed bookie again", extra=extra)
                self._state.readmit(lane.position)

    async def _round(self) -> None:
        if self.changes_left is not None and self.changes_left <= 0:
            raise TooManyEnsembleChangesError(
                f"ledger {self.ledger.ledger_id} has had as many ensemble changes as its writer may make; "
                "close it and continue in a new ledger"
            )
        members = await self._new_members()
        self._state.is_changing = True
        before = self.ledger.metadata.last_fragment
        wanted = Fragment(EntryId(self._state.last_add_confirmed + 1), members)
        self._sent.append(wanted)
        ledger_id, sent = self.ledger.ledger_id, tuple(self._sent)
        try:
            stored = await update_metadata(
                self._ports.ledgers,
                self.ledger,
                lambda found: with_new_ensemble(found, ledger_id, before, wanted, sent),
            )
        except TransientError:
            self._sent.pop()  # this family promises that nothing was changed
            raise
        self._install(stored)

    def _install(self, stored: Versioned) -> None:
        fragment = stored.metadata.last_fragment
        extra = {"ledger_id": stored.ledger_id, "first_entry_id": fragment.first_entry_id}
        _log.info("ensemble changed", extra=extra)
        self._sent.clear()
        self.ledger = stored
        if self.changes_left is not None:
            self.changes_left -= 1
        self._state.replace(fragment.members, self._incarnations)

    async def _new_members(self) -> tuple[BookieId, ...]:
        """Return the last ensemble with as many failed positions replaced as possible, at least one."""
        settings = self._ports.settings
        bookies = await self._ports.registrations.list()
        members = tuple(lane.bookie for lane in self._state.lanes)
        ledger_id, metadata = self.ledger.ledger_id, self.ledger.metadata
        writable = writable_candidates(self._ports.placement, ledger_id, metadata, members, bookies)
        failed = self._state.failed_positions()
        found = await self._replaced(members, failed, writable, settings.failed_bookie_quarantine_s)
        if found is None and not self._state.is_quorum_reachable:  # a bookie that failed is better than no quorum
            found = await self._replaced(members, failed, writable, settings.degraded_retry_s)
        if found is not None:
            return found
        where = " in its bookie groups" if len(writable) < len(bookies.writable) else ""
        raise NotEnoughBookiesError(
            f"ledger {self.ledger.ledger_id}: no writable bookie is left to replace "
            f"{', '.join(members[position] for position in failed)} "
            f"({len(writable)} registered{where}, all in the ensemble or failed); start another bookie"
            f"{quoted(self._reasons.get(members[position], '') for position in failed)}"
        )

    async def _replaced(
        self, members: tuple[BookieId, ...], failed: Sequence[int], writable: frozenset[BookieId], quarantine_s: float
    ) -> tuple[BookieId, ...] | None:
        placement, write_quorum = self._ports.placement, self.ledger.metadata.write_quorum
        excluded = self._bookies_failed_within(quarantine_s)
        while chosen := placement.replacements(members, failed, write_quorum, writable, excluded, self._ports.rng):
            found = await self._ports.registrations.incarnations(chosen.values())
            gone = set(chosen.values()) - found.keys()
            if not gone:
                self._incarnations.update(found)
                return tuple(chosen.get(position, bookie) for position, bookie in enumerate(members))
            excluded |= gone
        return None

    def _bookies_failed_within(self, seconds: float) -> AbstractSet[BookieId]:
        """Return the bookies that failed in the last ``seconds``, and those that refuse the ledger permanently."""
        since_s = self._ports.clock.monotonic_s() - seconds
        return self._refusing | {bookie for bookie, failed_at_s in self._failed_at_s.items() if failed_at_s > since_s}
