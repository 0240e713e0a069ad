"""The switches of auto-recovery for a whole cluster (docs/formats.md#under-replication).

They are Apache's nodes, so its auditors and workers obey them as well. While the ``disable`` node exists, audits do not
mark and workers do not copy: audits read it before each batch, and workers check it before each chunk (S7). A worker
caches the answer for at most a second, or until a watch fires (``replicator.knowledge.recent``). The lost-bookie delay
is a number of seconds in a separate node, which is never cached. So a change by Apache's tools takes effect at once.

S rules are defined in docs/invariants.md.
"""

from __future__ import annotations

import contextlib
from typing import Final

from bookie.metadata.layout import disable_path, lost_bookie_delay_path
from bookie.metadata.nodes import create_with_parents, find, put, reread
from bookie.metadata.port import MetadataStore, NodeExistsError, NoNodeError, WriteOutcomeUnknownError
from bookie.model.errors import ConflictError, PermanentError

DELAY_S_MAX: Final = (1 << 31) - 1
"""Longest delay in seconds: Apache's auditor reads the delay as a signed 32-bit number."""


class AlreadyDisabledError(ConflictError):
    """Auto-recovery is disabled already."""


class AlreadyEnabledError(ConflictError):
    """Auto-recovery is enabled already."""


class InvalidDelayError(PermanentError):
    """The lost-bookie delay is not a number of seconds."""


class RecoverySwitches:
    """The switches of one cluster."""

    def __init__(self, store: MetadataStore, root: str) -> None:
        self._store = store
        self._root = root

    async def is_disabled(self) -> bool:
        """Whether auto-recovery is disabled cluster-wide (S7).

        Raises:
            StoreUnavailableError: no answer.
        """
        return await self._store.stat(disable_path(self._root)) is not None

    async def disable(self) -> None:
        """Disable auto-recovery cluster-wide, for Apache's workers as well.

        Raises:
            AlreadyDisabledError: it is disabled.
            StoreUnavailableError, WriteOutcomeUnknownError: no answer.
        """
        path = disable_path(self._root)
        try:
            await create_with_parents(self._store, path, b"", self._root)
        except NodeExistsError as error:
            raise AlreadyDisabledError(f"auto-recovery of {self._root} is disabled already") from error
        except WriteOutcomeUnknownError:
            if await reread(self._store, path) is None:
                raise

    async def enable(self) -> None:
        """Enable auto-recovery again.

        Raises:
            AlreadyEnabledError: it is enabled.
            StoreUnavailableError, WriteOutcomeUnknownError: no answer.
        """
        path = disable_path(self._root)
        try:
            await self._store.delete(path)
        except NoNodeError as error:
            raise AlreadyEnabledError(f"auto-recovery of {self._root} is enabled already") from error
        except WriteOutcomeUnknownError:
            if await reread(self._store, path) is not None:
                raise

    async def wait_enabled(self) -> None:
        """Wait until auto-recovery is enabled.

        Raises:
            StoreUnavailableError: no answer, or the session was lost while waiting.
        """
        path = disable_path(self._root)
        while (stat := await self._store.stat(path)) is not None:
            await self._store.wait_node_changed(path, stat)

    async def wait_switched(self, *, is_disabled: bool) -> None:
        """Wait until auto-recovery is switched, or may have been, since ``is_disabled`` was read.

        Raises:
            StoreUnavailableError: no answer, or the session was lost while waiting.
        """
        path = disable_path(self._root)
        stat = await self._store.stat(path)
        if (stat is not None) == is_disabled:
            await self._store.wait_node_changed(path, stat)

    async def lost_bookie_delay_s(self) -> int:
        """Seconds to wait before a lost bookie's ledgers are marked; 0 if it was never set.

        Raises:
            InvalidDelayError: the stored value is not a number of seconds.
            StoreUnavailableError: no answer.
        """
        path = lost_bookie_delay_path(self._root)
        node = await find(self._store, path)
        if node is None:
            return 0
        if not node.data.isdigit() or len(node.data) > 10:
            raise InvalidDelayError(f"{path} contains {node.data[:40]!r}, not a number of seconds: set the delay again")
        return int(node.data)

    async def initialize_lost_bookie_delay(self) -> None:
        """Set the delay to 0 if it was never set. Apache's ``triggeraudit`` and ``decommissionbookie`` need the node.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; initializing again is safe.
        """
        with contextlib.suppress(NodeExistsError):
            await create_with_parents(self._store, lost_bookie_delay_path(self._root), b"0", self._root)

    async def set_lost_bookie_delay_s(self, seconds: int) -> None:
        """Set the delay. Setting the same value again makes Apache's auditor start an audit.

        Raises:
            InvalidDelayError: ``seconds`` is negative or too large for a signed 32-bit number.
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; setting it again is safe.
        """
        if not 0 <= seconds <= DELAY_S_MAX:
            raise InvalidDelayError(f"not a delay in seconds: {seconds} (0 to {DELAY_S_MAX})")
        path, data = lost_bookie_delay_path(self._root), str(seconds).encode()
        await put(self._store, path, data, self._root)
