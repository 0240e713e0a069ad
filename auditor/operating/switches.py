"""The switch of recovery and the delay for lost bookies, with a record of each change."""

from __future__ import annotations

from auditor.operating.client import Actor, ClusterClient, Document
from bookie.metadata.tasks.changes import OperatorChange
from bookie.metadata.tasks.switches import DELAY_S_MAX, AlreadyDisabledError, AlreadyEnabledError, InvalidDelayError
from bookie.model.times import rfc3339_if_known


async def read_switches(client: ClusterClient) -> Document:
    """Return the switch and the delay, which is None if it cannot be read.

    Raises:
        StoreUnavailableError: no answer.
    """
    return {
        "enabled": not await client.ports.tasks.switches.is_disabled(),
        "lost_bookie_delay_seconds": await readable_delay_s(client),
    }


async def readable_delay_s(client: ClusterClient) -> int | None:
    """Return the delay, or None if the stored value is not a number of seconds. Raises StoreUnavailableError."""
    try:
        return await client.ports.tasks.switches.lost_bookie_delay_s()
    except InvalidDelayError:
        return None


async def switch_recovery(client: ClusterClient, actor: Actor, *, is_on: bool, is_dry_run: bool = False) -> Document:
    """Enable or disable recovery.

    Raises:
        AlreadyEnabledError, AlreadyDisabledError: recovery already is in this state.
        StoreUnavailableError, WriteOutcomeUnknownError: no answer.
    """
    tasks = client.ports.tasks
    await client.store.sync(client.cluster.root)  # so that a change made just before is found
    if await tasks.switches.is_disabled() is not is_on:
        error = AlreadyEnabledError if is_on else AlreadyDisabledError
        raise error(f"auto-recovery of {client.cluster.root} is {'enabled' if is_on else 'disabled'} already")
    if not is_dry_run:
        await actor.record(client, f"recovery {'enable' if is_on else 'disable'}")
        await tasks.initialize()
        await (tasks.switches.enable() if is_on else tasks.switches.disable())
    return {"dry_run": is_dry_run, "enabled": is_on}


async def set_delay(client: ClusterClient, actor: Actor, seconds: int, *, is_dry_run: bool = False) -> Document:
    """Set the delay. Setting the present value again makes Apache's auditor start an audit.

    Raises:
        InvalidDelayError: ``seconds`` is not a delay.
        StoreUnavailableError, WriteOutcomeUnknownError: no answer; setting it again is safe.
    """
    if not 0 <= seconds <= DELAY_S_MAX:
        raise InvalidDelayError(f"not a delay in seconds: {seconds} (0 to {DELAY_S_MAX})")
    before = await readable_delay_s(client)  # an invalid value is replaced as well
    if not is_dry_run:
        await actor.record(client, "recovery delay", f"{seconds} s, was {'unreadable' if before is None else before}")
        await client.ports.tasks.initialize()
        await client.ports.tasks.switches.set_lost_bookie_delay_s(seconds)
    return {"dry_run": is_dry_run, "lost_bookie_delay_seconds": seconds, "before_seconds": before}


def change_row(change: OperatorChange) -> Document:
    """Return a record of a change as a document."""
    return {
        "at": rfc3339_if_known(change.at_ms),
        "by": change.by,
        "via": change.via,
        "action": change.action,
        "detail": change.detail,
    }
