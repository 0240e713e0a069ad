"""Judge whether a bookie's memory, file handles or disk grow, and choose how long each of its lives lasts."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bookie.storage.settings import StorageSettings

_STORAGE: Final = StorageSettings()

MEMORY_SLACK_BYTES: Final = 96 << 20
"""How much the resident memory may exceed its maximum in the warm-up: one and a half write caches. How full the two
caches are at a sample is random."""
HANDLES_SLACK: Final = 48
"""How much the number of open file handles may exceed its maximum in the warm-up: those of entry logs, of tables of the
index and of connections vary."""
DISK_CONSTANT_BYTES: Final = 4 * _STORAGE.journal_file_bytes + 2 * _STORAGE.cache_bytes_max
"""The disk space in addition to entries: the journal of two write caches, in files of which the first and the last are
partly used; an entry log that is being filled, and one that is being compacted."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The measurements of one moment."""

    at_s: float
    """Seconds since the start of the soak."""
    life: int
    """The number of earlier starts of the bookie."""
    ledgers: int
    """The number of ledgers created so far."""
    written_bytes: int
    """The bytes acknowledged so far."""
    rss_bytes: int
    handles: int
    disk_bytes: int
    """The bytes of the journal, the entry logs and the index."""
    live_bytes: int
    """The bytes of the ledgers not deleted."""
    waiting_bytes: int
    """The bytes of deleted ledgers, except those that a finished collection must have removed."""
    is_warm: bool
    """Whether the warm-up ended before this moment."""

    @property
    def disk_bytes_max(self) -> float:
        """The most bytes that the bookie may use on its disk, given the live share that compaction guarantees."""
        return (self.live_bytes + self.waiting_bytes) / _STORAGE.compact_below + DISK_CONSTANT_BYTES


def problem_of(samples: Sequence[Sample]) -> str | None:
    """Return a sentence about the growth that the newest sample shows, if it exceeds a limit."""
    newest = samples[-1]
    if newest.disk_bytes > newest.disk_bytes_max:
        return (
            f"the disk holds {_mb(newest.disk_bytes)} MB, and may hold {_mb(newest.disk_bytes_max)} MB "
            f"for {_mb(newest.live_bytes)} MB of live ledgers and {_mb(newest.waiting_bytes)} MB to be collected"
        )
    warm_up = [sample for sample in samples if not sample.is_warm]
    if not newest.is_warm or not warm_up:
        return None
    rss_bytes, handles = max(one.rss_bytes for one in warm_up), max(one.handles for one in warm_up)
    if newest.rss_bytes > rss_bytes + MEMORY_SLACK_BYTES:
        return (
            f"the resident memory grew to {_mb(newest.rss_bytes)} MB; the warm-up needed {_mb(rss_bytes)} MB, "
            f"and the slack is {_mb(MEMORY_SLACK_BYTES)} MB"
        )
    if newest.handles > handles + HANDLES_SLACK:
        return f"{newest.handles} file handles are open; the warm-up needed {handles}, and the slack is {HANDLES_SLACK}"
    return None


class Waiting:
    """The deleted ledgers whose entries the bookie may still have.

    A collection deletes the ledgers it finds when it begins, at least a minute later. So the end of a collection proves
    the removal of all ledgers deleted before its start: those from before this life, and later those from before the
    end of the previous collection.
    """

    def __init__(self) -> None:
        self._deleted: list[tuple[float, int]] = []
        self._found_before_s = 0.0
        self._looked_at_s = 0.0
        self._collected = 0

    @property
    def bytes(self) -> int:
        """The bytes of these ledgers."""
        return sum(size for _, size in self._deleted)

    def deleted(self, at_s: float, size: int) -> None:
        """Record that a client deleted a ledger of ``size`` bytes."""
        self._deleted.append((at_s, size))

    def bookie_started(self, at_s: float) -> None:
        """Record that the bookie was started, so that its counter of collected ledgers is 0."""
        self._found_before_s = self._looked_at_s = at_s
        self._collected = 0

    def looked(self, at_s: float, collected: int) -> bool:
        """Record the collected ledgers of this life, and return whether a collection has ended since the last call.

        The counter of a bookie grows once for each collection, after its compaction.
        """
        has_ended = collected > self._collected
        if has_ended:
            self._deleted = [one for one in self._deleted if one[0] > self._found_before_s]
            self._found_before_s = self._looked_at_s
        self._looked_at_s, self._collected = at_s, collected
        return has_ended


@dataclass(frozen=True, slots=True)
class BookieRun:
    """When one life of the bookie ends, and by which signal."""

    collections: int
    """The life lasts for this number of collections, each of which takes a minute or more."""
    more_s: float
    """After the last collection, the life lasts for this number of further seconds."""
    is_killed: bool
    """Whether SIGKILL ends it; else SIGTERM stops it."""


def lives(rng: random.Random) -> Iterator[BookieRun]:
    """Yield long and short lives, without end. The number of lengths is odd, so each is combined with both signals."""
    for number, collections in enumerate(itertools.cycle((1, 0, 0, 3, 0, 0, 6))):
        yield BookieRun(collections, rng.uniform(2.0, 12.0), is_killed=number % 2 == 0)


HEADER: Final = "    time  life  ledgers  written MB  RSS MB  handles  disk MB  live MB  deleted MB  disk max MB"


def row(sample: Sample) -> str:
    """Return a line of the table that ``HEADER`` begins."""
    minutes, seconds = divmod(int(sample.at_s), 60)
    return (
        f"{minutes:>5}:{seconds:02} {sample.life:>5} {sample.ledgers:>8} {_mb(sample.written_bytes):>11} "
        f"{_mb(sample.rss_bytes):>7} {sample.handles:>8} {_mb(sample.disk_bytes):>8} {_mb(sample.live_bytes):>8} "
        f"{_mb(sample.waiting_bytes):>11} {_mb(sample.disk_bytes_max):>12}"
    )


def _mb(count_bytes: float) -> int:
    return round(count_bytes / 1e6)
