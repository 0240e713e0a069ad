"""Facts about kinds and runs that are not in their records: success, pauses, requests to end a run, records to keep.

last-success/<kind>   beginning of the last complete run of this kind; outlives the records
paused/<kind>         until its end: no scheduled run of this kind begins
requests/<run_id>     if it exists, the end of this run was requested; the process of the run looks for it
kept                  number of records to keep, as set for the last leading auditor; for runs without an auditor
images                the last runs that wrote an image: ZooKeeper has not been set back to a time before these images
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from bookie.metadata.nodes import change, find, put, remove
from bookie.metadata.own_state import own_path
from bookie.metadata.port import BadVersionError, MetadataStore, NoNodeError
from bookie.model.records import UnreadableRecordError, decode_record, encode_record
from bookie.model.run import PAUSE_S_MAX, RunKind
from bookie.model.times import CLOCK_SKEW_MS_MAX

_TEXT_MAX: Final = 200
"""Maximum length of a stored name; the rest is cut off."""
_IMAGES_MAX: Final = 32
"""Number of runs in the list of images. Auditors with directories of their own share the list."""


@dataclass(frozen=True, slots=True)
class KindPause:
    """A pause in the schedule of a kind. It never affects the reaction to a lost bookie."""

    owner: str
    until_ms: int = 0
    """Its end, epoch milliseconds; 0 if unknown, and the leader sets one."""

    def is_over(self, now_ms: int) -> bool:
        """Whether its end has passed."""
        return 0 < self.until_ms <= now_ms


@dataclass(frozen=True, slots=True)
class ImageRuns:
    """Ids of the last runs that wrote an image, the newest last."""

    begun: tuple[str, ...] = ()
    """Runs that began to read for an image."""
    read: tuple[str, ...] = ()
    """Runs that have read everything for their image."""

    def with_begun(self, run_id: str) -> ImageRuns:
        """Return the list with one more run that began."""
        return replace(self, begun=(*(each for each in self.begun if each != run_id), run_id)[-_IMAGES_MAX:])

    def with_read(self, run_id: str) -> ImageRuns:
        """Return the list with one more run that has read everything."""
        return replace(self, read=(*(each for each in self.read if each != run_id), run_id)[-_IMAGES_MAX:])


class RunNotes:
    """The notes of one cluster."""

    def __init__(self, store: MetadataStore, ledgers_root: str) -> None:
        self._store = store
        self._base = own_path("runs", ledgers_root)

    async def note_success(self, kind: RunKind, started_ms: int, now_ms: int) -> None:
        """Record a complete run of this kind begun at ``started_ms``.

        An older time changes nothing, unless the recorded time is after ``now_ms``: then a clock was wrong.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; recording it again is safe.
        """

        def later(data: bytes | None) -> bytes | None:
            is_newer = data is not None and started_ms <= _number(data) <= now_ms + CLOCK_SKEW_MS_MAX
            return None if is_newer else str(started_ms).encode()

        await change(self._store, self._path("last-success", kind.value), later)

    async def last_success_ms(self) -> Mapping[RunKind, int]:
        """Return the beginning of each kind's last successful run, epoch milliseconds; kinds without one are absent.

        Raises:
            StoreUnavailableError: no answer.
        """
        nodes = await self._store.get_many_data([self._path("last-success", kind.value) for kind in RunKind])
        times = {kind: _number(data) for kind, data in zip(RunKind, nodes, strict=True) if data is not None}
        return {kind: time_ms for kind, time_ms in times.items() if time_ms > 0}

    async def note_kept(self, count: int) -> None:
        """Record the number of records to keep, for the runs that do not know the settings of the auditor.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; recording it again is safe.
        """
        text = str(count).encode()
        await change(self._store, f"{self._base}/kept", lambda data: None if data == text else text)

    async def kept(self, default: int) -> int:
        """Return the recorded number of records to keep; ``default`` if no auditor has recorded one.

        Raises:
            StoreUnavailableError: no answer.
            UnreadableRecordError: it is damaged.
        """
        node = await find(self._store, f"{self._base}/kept")
        if node is None:
            return default
        if (count := _number(node.data)) == 0:
            raise UnreadableRecordError(f"no number of records to keep: {node.data[:_TEXT_MAX]!r}")
        return count

    async def note_image(self, run_id: str, *, is_read: bool) -> None:
        """Record that a run begins to read for an image, or, if ``is_read``, that it has read everything.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; recording it again is safe.
        """

        def changed(data: bytes | None) -> bytes:
            noted = _images(data)
            return encode_record(noted.with_read(run_id) if is_read else noted.with_begun(run_id))

        await change(self._store, f"{self._base}/images", changed)

    async def images(self) -> ImageRuns:
        """Return the last runs that wrote an image. A damaged record counts as empty.

        Raises:
            StoreUnavailableError: no answer.
        """
        path = f"{self._base}/images"
        await self._store.sync(path)
        node = await find(self._store, path)
        return _images(None if node is None else node.data)

    async def pause_kind(self, kind: RunKind, owner: str, until_ms: int) -> None:
        """Prevent scheduled runs of this kind until ``until_ms``, in every process. Replaces an earlier pause.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; pausing again is safe.
        """
        await put(self._store, self._path("paused", kind.value), encode_record(KindPause(owner[:_TEXT_MAX], until_ms)))

    async def resume_kind(self, kind: RunKind) -> None:
        """Undo ``pause_kind``. Idempotent.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; resuming again is safe.
        """
        await remove(self._store, self._path("paused", kind.value))

    async def paused_kinds(self, now_ms: int) -> Mapping[RunKind, KindPause]:
        """Return the kinds whose schedule is paused at ``now_ms``.

        Raises:
            StoreUnavailableError: no answer.
        """
        nodes = await self._store.get_many_data([self._path("paused", kind.value) for kind in RunKind])
        pauses = {kind: _pause(data) for kind, data in zip(RunKind, nodes, strict=True) if data is not None}
        return {kind: pause for kind, pause in pauses.items() if not pause.is_over(now_ms)}

    async def end_pauses(self, now_ms: int, pause_s: float) -> Sequence[RunKind]:
        """Remove the ended pauses, and return their kinds.

        A pause with an unknown or impossible end (a wrong clock) is set to end ``pause_s`` from now. A pause extended
        at the same time stays.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; the next call does the rest.
        """
        ended = []
        nodes = await self._store.get_many([self._path("paused", kind.value) for kind in RunKind])
        for kind, node in zip(RunKind, nodes, strict=True):
            pause = None if node is None else _pause(node.data)
            if node is None or pause is None:
                continue
            path = self._path("paused", kind.value)
            try:
                if pause.is_over(now_ms):
                    await self._store.delete(path, node.stat.version)
                    ended.append(kind)
                elif pause.until_ms == 0 or pause.until_ms > now_ms + PAUSE_S_MAX * 1000:
                    bounded = KindPause(pause.owner, now_ms + int(pause_s * 1000))
                    await self._store.set(path, encode_record(bounded), node.stat.version)
            except (NoNodeError, BadVersionError):
                continue
        return ended

    async def request_cancel(self, run_id: str, owner: str) -> None:
        """Request the end of a run; its process looks for requests every few seconds.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; requesting it again is safe.
        """
        await put(self._store, self._path("requests", run_id), owner.encode()[:_TEXT_MAX])

    async def cancel_requested_by(self, run_id: str) -> str | None:
        """Return who requested the end of a run; None if there is no request.

        Raises:
            StoreUnavailableError: no answer.
        """
        node = await find(self._store, self._path("requests", run_id))
        return None if node is None else node.data.decode(errors="replace")[:_TEXT_MAX]

    async def clear_request(self, run_id: str) -> None:
        """Delete a request. Idempotent.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; pruning clears it.
        """
        await remove(self._store, self._path("requests", run_id))

    def _path(self, part: str, name: str) -> str:
        return f"{self._base}/{part}/{name}"


def _pause(data: bytes) -> KindPause:
    """Decode a pause. It has no known end if damaged, or written by an earlier release (only a name)."""
    try:
        return decode_record(data, KindPause)
    except UnreadableRecordError:
        return KindPause(data.decode(errors="replace")[:_TEXT_MAX])


def _images(data: bytes | None) -> ImageRuns:
    try:
        return ImageRuns() if data is None else decode_record(data, ImageRuns)
    except UnreadableRecordError:
        return ImageRuns()


def _number(data: bytes) -> int:
    return int(data) if data.isdigit() and len(data) < 16 else 0
