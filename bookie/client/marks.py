"""Marks for repair, of bookies that lack entries at the close of a ledger."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from bookie.client.ports import ClientPorts
from bookie.metadata.port import StoreUnavailableError
from bookie.model.errors import ConflictError, PermanentError
from bookie.model.ids import BookieId, LedgerId

_log: Final = logging.getLogger(__name__)


async def mark_incomplete(ports: ClientPorts, ledger_id: LedgerId, incomplete: Sequence[BookieId]) -> None:
    """Mark a ledger for repair of ``incomplete``, if there are any. A task that cannot be changed is only logged.

    Raises:
        StoreUnavailableError: no answer, or other clients keep changing the task; perhaps not marked, mark again.
        WriteOutcomeUnknownError: no answer; mark again.
    """
    if not incomplete:
        return
    try:
        await ports.tasks.marking.mark(ledger_id, incomplete)
    except ConflictError as error:
        raise StoreUnavailableError(f"ledger {ledger_id} is not marked for repair yet: {error}") from error
    except PermanentError as error:  # a damaged task is no reason to leave the ledger open
        _log.warning("task cannot be marked", extra={"ledger_id": ledger_id, "error": str(error)})
