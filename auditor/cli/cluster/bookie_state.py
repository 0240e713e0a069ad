"""Making an Apache bookie read-only through its HTTP server, before it is drained.

The server does not report whose it is. So the change counts only after the bookie itself is registered as read-only. If
it is not, the address is another bookie's, which is made writable again: a wrong address takes no bookie away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from auditor.cli.cluster.admin_requests import AdminClient, AdminRefusedError
from bookie.model.errors import BkhealError

if TYPE_CHECKING:
    from bookie.metadata.bookies.registration import Registrations
    from bookie.model.ids import BookieId
    from bookie.runtime.clock import Clock

REQUEST_S: Final = 20.0
"""The bookie changes its registration before it answers."""
_REGISTERED_S: Final = 10.0
"""For the registration to appear here."""
_LOOK_S: Final = 0.25
_PATH: Final = "/api/v1/bookie/state/readonly"


async def make_read_only(admin: AdminClient, bookie: BookieId, registrations: Registrations, clock: Clock) -> None:
    """Return after ``bookie`` is registered as read-only; at once if it is not registered as writable.

    Raises:
        AdminRefusedError: refused, or the server is not this bookie's; the drain has not begun.
        AdminUnavailableError, AdminOutcomeUnknownError: no answer; the bookie may have become read-only.
        StoreUnavailableError: no answer.
    """
    if bookie not in (await registrations.list()).writable:
        return
    what = f"{bookie} is not made read-only, and no drain was begun"
    if await _state(admin, "GET", what):
        raise AdminRefusedError(f"{what}: the bookie at {admin.base} is read-only already, so it is another one")
    await _state(admin, "PUT", what, is_read_only=True)
    end_s = clock.monotonic_s() + _REGISTERED_S
    while bookie not in (await registrations.list()).read_only:
        if clock.monotonic_s() >= end_s:
            raise AdminRefusedError(f"{what}: {admin.base} is the address of another bookie{await _undone(admin)}")
        await clock.sleep(_LOOK_S)


async def _undone(admin: AdminClient) -> str:
    try:
        await _state(admin, "PUT", "it may be read-only now", is_read_only=False)
    except BkhealError as error:
        return f", and {error}"
    return ", which is writable again"


async def _state(admin: AdminClient, method: str, what: str, *, is_read_only: bool | None = None) -> bool:
    """Whether the bookie there is read-only; after a change if ``is_read_only`` is given."""
    answer = await admin.ask(method, _PATH, what, None if is_read_only is None else {"readOnly": is_read_only})
    found = (answer.document or {}).get("readOnly")
    if answer.status != 200 or not isinstance(found, bool) or is_read_only not in (None, found):
        raise answer.error(what)
    return found
