"""Record copies in places forbidden by the placement policy before a repair makes them.

The invariant: a fragment made or left misplaced by a repair has a debt before the metadata names the new bookie. So a
crash may leave an unnecessary debt, deleted by the next look at it, but never a missing one. A debt never hinders a
repair: if the store does not answer, or if there are too many debts, the repair continues, and the next placement check
finds the ledger.

Nothing is recorded without a topology, or for an ensemble with a member at an unknown location: there is no verdict.

Source: docs/placement.md#placement-debts.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from bookie.metadata.ledgers.ledgers import Versioned
from bookie.metadata.tasks.debts import PlacementDebt
from bookie.model.errors import OutcomeUnknownError, TransientError
from bookie.model.ids import BookieId
from replicator.plan.steps import Cause, Step
from replicator.ports import RepairPorts

_log = logging.getLogger(__name__)


async def note_debts(ports: RepairPorts, ledger: Versioned, steps: Sequence[Step]) -> None:
    """Record the fragments of ``ledger`` misplaced after its planned ``steps``."""
    judge, metadata = ports.placement.judge(), ledger.metadata
    if not judge.has_topology:
        return
    ensembles: dict[int, list[BookieId]] = {}
    for step in steps:
        if step.cause is not Cause.MISPLACED and step.target != step.old:
            members = ensembles.setdefault(step.fragment_index, list(metadata.fragments[step.fragment_index].members))
            members[step.position] = step.target
    firsts, detail = [], ""
    for index, members in sorted(ensembles.items()):
        faults = judge.faults(members, metadata.write_quorum, metadata.custom)
        if faults.cost > (0, 0):
            firsts.append(metadata.fragments[index].first_entry_id)
            detail = detail or faults.detail
    if not firsts:
        return
    debt = PlacementDebt(ledger.ledger_id, ports.clock.epoch_ms(), tuple(firsts), detail)
    extra: dict[str, object] = {"ledger_id": ledger.ledger_id, "fragments": len(firsts), "detail": detail}
    try:
        if await ports.debts.add(debt):
            _log.info("copies are put where the placement policy forbids them, as no bookie is better", extra=extra)
        else:
            _log.warning("placement debt is not recorded: there are too many", extra=extra)
    except (TransientError, OutcomeUnknownError) as error:
        _log.warning("placement debt is not recorded", extra=extra | {"error": str(error)})
