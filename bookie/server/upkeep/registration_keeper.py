"""The keeper of a bookie's registration, across ZooKeeper sessions.

The registration is an ephemeral node, so it ends with the session (S14). While the bookie serves, the keeper registers
it again as soon as there is a new session. Until then, the bookie continues to serve clients that know its address. The
keeper also checks from time to time whether the node still exists, because an operator may have deleted it.

A process does not register again if another one was started on other disks under the same id: it must end (R158).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final

from bookie.metadata.bookies.registration import DisksReplacedError, Registrations
from bookie.metadata.bookies.service_info import (
    PROPERTY_CAN_COPY,
    PROPERTY_INCARNATION,
    PROTOCOL_APACHE,
    PROTOCOL_GRPC,
    Endpoint,
    ServiceInfo,
)
from bookie.metadata.port import MetadataStore, Session
from bookie.model.errors import BkhealError
from bookie.model.ids import BookieId
from bookie.runtime.clock import Clock
from bookie.runtime.tasks import cancel, guarded

_log = logging.getLogger(__name__)

RETRY_S: Final = 1.0
"""Pause between attempts to register while the store is unavailable or the id is taken."""
RECHECK_INTERVAL_S: Final = 30.0
"""The longest time until a deleted registration is noticed."""


@dataclass(frozen=True, slots=True)
class _Registered:
    """The session and the mode of the registration node."""

    epoch: int
    is_read_only: bool


def service_info(
    host: str,
    port: int,
    incarnation: str,
    *,
    apache_port: int | None = None,
    is_tls: bool = False,
    can_copy: bool = False,
) -> ServiceInfo:
    """Return the registration of a bookie that listens for gRPC at ``host:port``.

    With ``apache_port``, it offers Apache's protocol on this port as Apache's own bookies do
    (docs/formats.md#registration): with the id "bookie", and with the extension "tls" if TLS is required. With
    ``can_copy``, it offers to copy entries from other bookies.
    """
    properties: tuple[tuple[str, str], ...] = ((PROPERTY_INCARNATION, incarnation),)
    if can_copy:
        properties = ((PROPERTY_CAN_COPY, "true"), *properties)
    if apache_port is None:
        return ServiceInfo((Endpoint("bookie", host, port, PROTOCOL_GRPC),), properties)
    extensions = ("tls",) if is_tls else ()
    apache = Endpoint("bookie", host, apache_port, PROTOCOL_APACHE, extensions=extensions)
    return ServiceInfo((apache, Endpoint("grpc", host, port, PROTOCOL_GRPC)), properties)


class RegistrationKeeper:
    """The registration of one bookie. Call ``start`` first and ``stop`` at the end."""

    def __init__(
        self,
        store: MetadataStore,
        registrations: Registrations,
        bookie: BookieId,
        info: ServiceInfo,
        clock: Clock,
        *,
        takeover_deadline_s: float,
    ) -> None:
        """Prepare to register.

        Args:
            store: the store whose session carries the registration.
            registrations: the registrations of the bookie's cluster.
            bookie: the id to register.
            info: the content of the registration.
            clock: time.
            takeover_deadline_s: deadline for the end of an earlier session's registration. It must be longer than any
                session timeout, because the node of a killed bookie exists for that long.
        """
        self._store = store
        self._registrations = registrations
        self._bookie = bookie
        self._info = info
        self._clock = clock
        self._takeover_deadline_s = takeover_deadline_s
        self._is_read_only = False
        self._registered: _Registered | None = None
        self._attempted_read_only: bool | None = None
        """The mode of the last attempt to register, which may have failed after a part of its changes."""
        self._change_requested = asyncio.Event()
        """Set when ``_is_read_only`` may have changed."""
        self._noted = asyncio.Event()
        """Set, and replaced, after each attempt that succeeded."""
        self._task: asyncio.Task[None] | None = None
        self.replaced: asyncio.Future[DisksReplacedError] = asyncio.get_running_loop().create_future()
        """Completed if other disks were recorded under this id: the process must end."""

    async def start(self, *, is_read_only: bool) -> None:
        """Register the bookie, and keep it registered until ``stop``.

        Raises:
            BookieIdInUseError: another live session is registered under this id.
            DisksReplacedError: other disks were recorded under this id.
            StoreUnavailableError: no answer from the store.
            WriteOutcomeUnknownError: the store's answer was lost.
        """
        self._is_read_only = is_read_only
        await self._register(self._store.session)
        self._task = guarded("bookie registration", self._keep())

    async def switch(self, *, is_read_only: bool, deadline_s: float) -> bool:
        """Register as read-only or writable, and return whether this is done. If not, the attempts continue."""
        self._is_read_only = is_read_only
        self._change_requested.set()
        try:
            async with asyncio.timeout(deadline_s):
                while not self._is_settled(is_read_only=is_read_only):
                    await self._noted.wait()
        except TimeoutError:
            return False
        return True

    def _is_settled(self, *, is_read_only: bool) -> bool:
        """Whether the bookie is registered in this mode, and no later attempt may have changed this."""
        registered = self._registered
        is_in_mode = registered is not None and registered.is_read_only == is_read_only
        return is_in_mode and self._attempted_read_only == is_read_only

    @property
    def is_registered(self) -> bool:
        """Whether clients can find the bookie, as far as is known here. It may be read in any thread."""
        registered, session = self._registered, self._store.session
        return session.is_connected and registered is not None and registered.epoch == session.epoch

    async def stop(self, deadline_s: float) -> None:
        """Delete the registration. If that fails or there is no connection, it ends with the session."""
        await cancel(self._task)
        if not self._store.session.is_connected:
            return
        try:
            async with asyncio.timeout(deadline_s):
                await self._registrations.unregister(self._bookie)
        except (BkhealError, TimeoutError) as error:
            _log.warning("not unregistered", extra={"bookie_id": self._bookie, "error": str(error)})

    async def _keep(self) -> None:
        while not self.replaced.done():
            session = self._store.session
            if not session.is_connected:
                await self._store.wait_session_changed(session)
            elif not self._is_current(session) or await self._is_quiet(session):
                await self._try_to_register(session)

    def _is_current(self, session: Session) -> bool:
        is_in_session = self._registered is not None and self._registered.epoch == session.epoch
        return is_in_session and self._is_settled(is_read_only=self._is_read_only)

    async def _is_quiet(self, session: Session) -> bool:
        """Wait for a change until the next check of the node is due. Return whether there was none."""
        changed = _first_ended(self._store.wait_session_changed(session), self._change_requested.wait())
        is_quiet = await _first_ended(changed, self._clock.sleep(RECHECK_INTERVAL_S)) == 1
        self._change_requested.clear()
        return is_quiet

    async def _try_to_register(self, session: Session) -> None:
        try:
            await self._register(session)
        except DisksReplacedError as error:
            self.replaced.set_result(error)
        except BkhealError as error:
            _log.warning("not registered, will try again", extra={"bookie_id": self._bookie, "error": str(error)})
            await self._clock.sleep(RETRY_S)

    async def _register(self, session: Session) -> None:
        is_read_only = self._attempted_read_only = self._is_read_only
        await self._registrations.register(
            self._bookie, self._info, is_read_only=is_read_only, takeover_deadline_s=self._takeover_deadline_s
        )
        registered = _Registered(session.epoch, is_read_only)
        if self._store.session.epoch == session.epoch:
            if self._registered != registered:
                _log.info("registered", extra={"bookie_id": self._bookie, "is_read_only": is_read_only})
            self._registered = registered
            self._noted.set()
            self._noted = asyncio.Event()


async def _first_ended(*waits: Coroutine[Any, Any, Any]) -> int:
    """Wait for the first of ``waits`` to end, cancel the others, and return the index of the first."""
    tasks = [guarded("bookie registration wait", wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            await cancel(task)
    return min(tasks.index(task) for task in done)
