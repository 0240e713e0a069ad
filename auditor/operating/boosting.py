"""Boosts of ledgers, with a record of each change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from auditor.operating.client import Actor, ClusterClient, Document, NoSuchObjectError
from bookie.metadata.tasks.boosts import Boost, Boosts, TooManyBoostsError, check_boost_capacity
from bookie.model.ids import LedgerId
from bookie.model.times import rfc3339

SPAN_S_MAX: Final = 7 * 86400
"""Longest boost, so that a forgotten boost ends after a week."""


async def list_boosts(client: ClusterClient) -> Document:
    """Return the boosted ledgers.

    Raises:
        StoreUnavailableError: no answer.
    """
    active = await Boosts(client.store, client.cluster.root).active(client.ports.clock.epoch_ms())
    rows = [{"ledger_id": each.ledger_id, "by": each.by, "until": rfc3339(each.until_ms)} for each in active]
    return {"items": rows}


async def boost_ledgers(
    client: ClusterClient, actor: Actor, ledgers: Sequence[LedgerId], span_s: int, *, is_dry_run: bool = False
) -> Document:
    """Boost marked ledgers for some time. If the bound is reached, ``problem`` is set, and the rest is not boosted.

    Raises:
        NoSuchObjectError: a ledger is not marked; nothing was changed.
        StoreUnavailableError, WriteOutcomeUnknownError: no answer; boosting again is safe.
    """
    tasks = await client.ports.tasks.read_many(ledgers)
    unmarked = [str(each) for each, task in zip(ledgers, tasks, strict=True) if task is None]
    if unmarked:
        raise NoSuchObjectError(
            f"not marked for repair: {', '.join(unmarked)} (`bkheal underreplicated list` lists the marked ledgers)"
        )
    if not is_dry_run:
        await actor.record(client, "boost", f"{_named(ledgers)} for {span_s} s")
    boosts, now_ms = Boosts(client.store, client.cluster.root), client.ports.clock.epoch_ms()
    until_ms = now_ms + span_s * 1000
    await boosts.active(now_ms)  # removes ended boosts, which would count towards the bound
    recorded = set(await boosts.recorded())
    rows: list[Document] = []
    problem = ""
    for ledger_id in ledgers:
        try:
            if is_dry_run and not problem:
                check_boost_capacity(recorded, ledger_id)
                recorded.add(ledger_id)
            elif not problem:
                await boosts.start(Boost(ledger_id, actor.name, now_ms, until_ms))
        except TooManyBoostsError as error:
            problem = f"ledger {ledger_id} was not boosted: {error}"
        is_parked = await client.parked.get(ledger_id) is not None
        outcome, until = ("not_boosted", None) if problem else ("boosted", rfc3339(until_ms))
        rows.append({"ledger_id": ledger_id, "outcome": outcome, "until": until, "parked": is_parked})
    return {"dry_run": is_dry_run, "by": actor.name, "ledgers": rows, "problem": problem or None}


async def end_boosts(
    client: ClusterClient, actor: Actor, ledgers: Sequence[LedgerId], *, is_dry_run: bool = False
) -> Document:
    """End the boosts of ledgers; the outcome of a ledger without one is ``not_boosted``. Idempotent.

    Raises:
        StoreUnavailableError, WriteOutcomeUnknownError: no answer; ending them again is safe.
    """
    boosts = Boosts(client.store, client.cluster.root)
    await client.store.sync(client.cluster.root)  # so that a change made just before is found
    await boosts.active(client.ports.clock.epoch_ms())
    recorded = await boosts.recorded()
    boosted = [ledger_id for ledger_id in ledgers if ledger_id in recorded]
    if boosted and not is_dry_run:
        await actor.record(client, "boost end", _named(boosted))
        for ledger_id in boosted:
            await boosts.stop(ledger_id)
    rows = [
        {"ledger_id": each, "outcome": "ended" if each in recorded else "not_boosted", "until": None, "parked": False}
        for each in ledgers
    ]
    return {"dry_run": is_dry_run, "by": actor.name, "ledgers": rows, "problem": None}


def _named(ledgers: Sequence[LedgerId]) -> str:
    return "ledgers " + ", ".join(map(str, ledgers))
