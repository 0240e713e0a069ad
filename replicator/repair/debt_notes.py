"""Record placement debts: copies that a repair must put where the placement policy forbids them.

The invariant: if a repair leaves a fragment misplaced, its debt is recorded before the metadata names the new bookie.
So after a crash there may be an unnecessary debt, which the next search for repayable debts deletes, but never a
missing one. If the store does not answer, the round is repeated, and its copies are kept. If there are too many debts,
the repair continues without a record, and the next placement check finds the ledger.

Nothing is recorded without a topology, or for an ensemble with a member at an unknown location, because the placement
cannot be judged then.

Source: docs/placement.md#placement-debts.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from bookie.metadata.ledgers.ledgers import Versioned
from bookie.metadata.tasks.debts import PlacementDebt
from bookie.model.ids import BookieId
from bookie.runtime.waiting import paced
from replicator.plan.installable import ENSEMBLES_JUDGED_PER_STEP
from replicator.plan.steps import Cause, Step
from replicator.ports import RepairPorts

_log = logging.getLogger(__name__)


async def note_debts(ports: RepairPorts, ledger: Versioned, steps: Sequence[Step]) -> None:
    """Record the fragments of ``ledger`` that will be misplaced after ``steps``.

    Raises:
        StoreUnavailableError, WriteOutcomeUnknownError: the debt may not be recorded; do not change the metadata. The
            change would need an answer of the store as well.
    """
    judge, metadata = ports.placement.judge(), ledger.metadata
    if not judge.has_topology:
        return
    ensembles: dict[int, list[BookieId]] = {}
    for step in steps:
        if step.cause is not Cause.MISPLACED and step.target != step.old:
            members = ensembles.setdefault(step.fragment_index, list(metadata.fragments[step.fragment_index].members))
            members[step.position] = step.target
    firsts, detail = [], ""
    async for index, members in paced(sorted(ensembles.items()), ENSEMBLES_JUDGED_PER_STEP):
        faults = judge.faults(members, metadata.write_quorum, metadata.custom)
        if faults.cost > (0, 0):
            firsts.append(metadata.fragments[index].first_entry_id)
            detail = detail or faults.detail
    if not firsts:
        return
    debt = PlacementDebt(ledger.ledger_id, ports.clock.epoch_ms(), tuple(firsts), detail)
    extra: dict[str, object] = {"ledger_id": ledger.ledger_id, "fragments": len(firsts), "detail": detail}
    if await ports.debts.add(debt):
        _log.info("copies are put where the placement policy forbids them, as no bookie is better", extra=extra)
    else:
        _log.warning("placement debt is not recorded: there are too many", extra=extra)
