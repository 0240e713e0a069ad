"""Lasting refusals: an Apache bookie refuses copies of a ledger that its collector deleted before.

Since BookKeeper 4.16.7 and 4.17.2, a bookie remembers each such ledger until it is restarted, or until it gets no
request for the ledger for seven days. Until then it answers FENCED to every add of the ledger, even to recovery adds.
Each attempt starts the seven days again. So the refusals are stored in the record of the parked task, and these bookies
are not chosen again before an attempt can succeed.
"""

from __future__ import annotations

from typing import Final

from bookie.metadata.tasks.parked import CopyRefusal
from bookie.model.ids import BookieId, LedgerId
from bookie.wire.port import Status
from replicator.knowledge.evidence import BookieAnswer
from replicator.ports import RepairPorts

REFUSAL_TTL_MS: Final = 8 * 86_400_000
"""The time after which such a bookie may be chosen again without a restart: longer than the seven days."""
_WHY: Final = (
    "an Apache bookie refuses a ledger that its collector deleted, until it is restarted or is not asked for 7 days"
)


def fenced(bookie: BookieId, detail: str = "") -> BookieAnswer:
    """Return the refusal of a recovery add by a bookie that answered FENCED."""
    return BookieAnswer(bookie, Status.FENCED, f"{_WHY}: {detail}" if detail else _WHY)


async def refusals_in_effect(ports: RepairPorts, ledger_id: LedgerId) -> dict[BookieId, CopyRefusal]:
    """Return the recorded refusals of a parked task that are still in effect. The caller holds the lock of the task.

    A refusal ends when the bookie registers again, because it then was restarted.

    Raises:
        StoreUnavailableError: the store does not answer.
    """
    record = await ports.parked.get(ledger_id)
    if record is None:
        return {}
    now_ms = ports.clock.epoch_ms()
    recent = {each.bookie: each for each in record.refusals if now_ms - each.at_ms < REFUSAL_TTL_MS}
    numbers = await ports.registrations.numbers(recent)
    return {bookie: recent[bookie] for bookie, czxid in numbers.items() if czxid < recent[bookie].zxid}
