"""Making an Apache bookie read-only through its HTTP server, before it is drained.

The server does not report which bookie it belongs to. So the change counts only after the bookie itself is registered
as read-only. If it is not, the address is another bookie's, which is made writable again: a wrong address takes no
bookie out of service.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from auditor.cli.cluster.admin_requests import AdminClient, AdminRefusedError
from bookie.metadata.bookies.service_info import PROTOCOL_APACHE, PROTOCOL_HTTP
from bookie.model.errors import BkhealError

if TYPE_CHECKING:
    from bookie.metadata.bookies.registration import Registrations
    from bookie.metadata.bookies.service_info import ServiceInfo
    from bookie.model.ids import BookieId
    from bookie.runtime.clock import Clock

REQUEST_S: Final = 20.0
"""The bookie changes its registration before it answers."""
_REGISTERED_S: Final = 10.0
"""The time until the registration appears here."""
_LOOK_S: Final = 0.25
_PATH: Final = "/api/v1/bookie/state/readonly"


async def make_read_only(admin: AdminClient, bookie: BookieId, registrations: Registrations, clock: Clock) -> bool:
    """Return after ``bookie`` is registered as read-only; False at once if it is not registered as writable.

    Raises:
        AdminRefusedError: refused, or the server is not this bookie's; the drain has not begun.
        AdminUnavailableError, AdminOutcomeUnknownError: no answer; the bookie may have become read-only.
        StoreUnavailableError: no answer.
    """
    if bookie not in (await registrations.list()).writable:
        return False
    what = f"{bookie} is not made read-only, and no drain was begun"
    if await _state(admin, "GET", what):
        raise AdminRefusedError(f"{what}: the bookie at {admin.base} is read-only already, so it is another one")
    await _state(admin, "PUT", what, is_read_only=True)
    end_s = clock.monotonic_s() + _REGISTERED_S
    while bookie not in (await registrations.list()).read_only:
        if clock.monotonic_s() >= end_s:
            raise AdminRefusedError(f"{what}: {admin.base} is the address of another bookie{await _undone(admin)}")
        await clock.sleep(_LOOK_S)
    return True


async def make_all_read_only(
    servers: Mapping[BookieId, AdminClient], registrations: Registrations, clock: Clock, note: Callable[[str], None]
) -> None:
    """Make all of these bookies read-only, or none: if one fails, the others are made writable again (R75).

    For each bookie see ``make_read_only``. ``note`` receives a sentence about each one made writable again.

    Raises:
        AdminRefusedError, AdminUnavailableError, AdminOutcomeUnknownError, StoreUnavailableError: see
            ``make_read_only``.
    """
    done: dict[BookieId, AdminClient] = {}
    for bookie, admin in servers.items():
        try:
            if await make_read_only(admin, bookie, registrations, clock):
                done[bookie] = admin
        except BkhealError:
            for before, server in done.items():
                note(f"{before} was made read-only{await _undone(server)}")
            raise


def http_address(info: ServiceInfo | None) -> str:
    """Return the address of the HTTP server in an Apache bookie's registration; empty if there is none (pure).

    The host of the registration is the server's listening address. If it is the wildcard, the bookie's own host counts.
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


async def _undone(admin: AdminClient) -> str:
    try:
        await _state(admin, "PUT", "it may be read-only now", is_read_only=False)
    except BkhealError as error:
        return f", and {error}"
    return ", which is writable again"


async def _state(admin: AdminClient, method: str, what: str, *, is_read_only: bool | None = None) -> bool:
    """Return whether the bookie there is read-only; after a change if ``is_read_only`` is given."""
    answer = await admin.ask(method, _PATH, what, None if is_read_only is None else {"readOnly": is_read_only})
    found = (answer.document or {}).get("readOnly")
    if answer.status != 200 or not isinstance(found, bool) or is_read_only not in (None, found):
        raise answer.error(what)
    return found
