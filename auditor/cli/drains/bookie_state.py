"""Makes Apache bookies read-only through their HTTP servers, before they are drained.

The server does not report which bookie it belongs to. So the change counts only after the intended bookie is registered
as read-only. If it is not, the address belongs to another bookie, which is made writable again, so a wrong address
takes no bookie out of service. If the command fails or is interrupted before the drains are recorded, all bookies are
made writable again. If another command drains a bookie by then, it stays read-only, because this drain relies on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from auditor.cli.admin_requests import AdminClient, AdminRefusedError
from bookie.metadata.bookies.service_info import PROTOCOL_APACHE, PROTOCOL_HTTP
from bookie.metadata.port import WriteOutcomeUnknownError
from bookie.model.errors import BkhealError
from bookie.runtime.tasks import run_to_completion

if TYPE_CHECKING:
    from bookie.metadata.bookies.drains import Drains
    from bookie.metadata.bookies.registration import Registrations
    from bookie.metadata.bookies.service_info import ServiceInfo
    from bookie.model.ids import BookieId
    from bookie.runtime.clock import Clock

REQUEST_S: Final = 20.0
"""Deadline of a request. It includes the change of the registration, which the bookie makes before it answers."""
_REGISTERED_S: Final = 10.0
"""Longest wait until the changed registration appears here."""
_POLL_S: Final = 0.25
_PATH: Final = "/api/v1/bookie/state/readonly"


async def with_read_only(
    servers: Mapping[BookieId, AdminClient],
    registrations: Registrations,
    drains: Drains,
    clock: Clock,
    note: Callable[[str], None],
    begin: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    """Make these bookies read-only and then ``begin`` the drains; after a failure make them writable again (R75).

    A cancellation is handled like an error. A request under way and ``begin`` are awaited even then: both have a
    deadline, and the state after a cancelled one would be unknown. If the outcome of ``begin`` is unknown, the bookies
    stay read-only. So does a bookie whose drain another command has recorded, and every bookie if the drains cannot be
    read.

    Args:
        servers: the HTTP server of each bookie.
        registrations: of the cluster.
        drains: of the cluster.
        clock: for the time until a registration appears.
        note: receives sentences about bookies that were made writable again, or stay read-only.
        begin: records the drains.

    Raises:
        AdminRefusedError, AdminUnavailableError, AdminOutcomeUnknownError, StoreUnavailableError: see
            ``_make_read_only``; no drain was begun.
        Exception: any error of ``begin``.
    """
    asked: dict[BookieId, AdminClient] = {}
    is_kept = False
    try:
        for bookie, admin in servers.items():
            await _make_read_only(admin, bookie, registrations, clock, asked)
        await run_to_completion(begin())
        is_kept = True
    except WriteOutcomeUnknownError:
        is_kept = True
        if asked:
            unknown = (
                f"it is not known whether the drain began, so {', '.join(servers)} may stay read-only: start again"
            )
            _try_to_note(note, unknown)
        raise
    finally:
        if asked and not is_kept:
            await run_to_completion(_undo(asked, registrations, drains, note))


async def _make_read_only(
    admin: AdminClient, bookie: BookieId, registrations: Registrations, clock: Clock, asked: dict[BookieId, AdminClient]
) -> None:
    """Make ``bookie`` read-only and wait for its registration; do nothing if it is not registered as writable.

    The server is added to ``asked`` before its bookie can change.

    Raises:
        AdminRefusedError: the request was refused, or the server belongs to another bookie; the drain has not begun.
        AdminUnavailableError, AdminOutcomeUnknownError: no answer; the bookie may have become read-only.
        StoreUnavailableError: no answer.
    """
    if bookie not in (await registrations.list()).writable:
        return
    what = f"{bookie} is not made read-only, and no drain was begun"
    if await _state(admin, "GET", what):
        raise AdminRefusedError(f"{what}: the bookie at {admin.base} is read-only already, so it is another one")
    asked[bookie] = admin
    await run_to_completion(_state(admin, "PUT", what, is_read_only=True))
    end_s = clock.monotonic_s() + _REGISTERED_S
    while bookie not in (await registrations.list()).read_only:
        if clock.monotonic_s() >= end_s:
            raise AdminRefusedError(f"{what}: {admin.base} is the address of another bookie")
        await clock.sleep(_POLL_S)


def http_address(info: ServiceInfo | None) -> str:
    """Return the address of the HTTP server in an Apache bookie's registration; empty if there is none (pure).

    The registration contains the server's listening address. If that is the wildcard, the bookie's own host is used.
    """
    server = info.endpoint(PROTOCOL_HTTP) if info is not None else None
    if info is None or server is None or not 0 < server.port <= 65535:
        return ""
    bookie = info.endpoint(PROTOCOL_APACHE)
    host = server.host
    if host in ("", "0.0.0.0", "::", "0:0:0:0:0:0:0:0"):  # noqa: S104  # compared, nothing listens
        host = bookie.host if bookie is not None else ""
    if not host:
        return ""
    return f"http://[{host}]:{server.port}" if ":" in host else f"http://{host}:{server.port}"


async def _undo(
    asked: Mapping[BookieId, AdminClient], registrations: Registrations, drains: Drains, note: Callable[[str], None]
) -> None:
    """Make the bookies at these servers writable, concurrently, except those that another command drains.

    If a bookie is registered as writable, its server belongs to another bookie, and that bookie is made writable.
    """
    try:
        drained = (await drains.current()).bookies - (await registrations.list()).writable
    except BkhealError as error:
        unknown = f"the drains cannot be read, so {', '.join(asked)} may stay read-only"
        _try_to_note(note, f"no drain was begun; {unknown}: start again ({error})")
        return
    for bookie in sorted(asked.keys() & drained):
        _try_to_note(note, f"a drain of {bookie} is recorded, so it stays read-only")
    servers = [admin for bookie, admin in asked.items() if bookie not in drained]
    if servers:
        names = ", ".join(admin.base for admin in servers)
        _try_to_note(note, f"no drain was begun; the bookies at {names} are made writable again")
        for sentence in await asyncio.gather(*map(_make_writable, servers)):
            _try_to_note(note, sentence)


async def _make_writable(admin: AdminClient) -> str:
    try:
        await _state(admin, "PUT", f"the bookie at {admin.base} may still be read-only", is_read_only=False)
    except BkhealError as error:
        return str(error)
    return f"the bookie at {admin.base} is writable again"


def _try_to_note(note: Callable[[str], None], text: str) -> None:
    with suppress(OSError):  # the terminal may have been closed, which must not prevent the rest
        note(text)


async def _state(admin: AdminClient, method: str, what: str, *, is_read_only: bool | None = None) -> bool:
    """Return whether the server's bookie is read-only; if ``is_read_only`` is given, change the state first."""
    answer = await admin.ask(method, _PATH, what, None if is_read_only is None else {"readOnly": is_read_only})
    found = (answer.document or {}).get("readOnly")
    if answer.status != 200 or not isinstance(found, bool) or is_read_only not in (None, found):
        raise answer.error(what)
    return found
