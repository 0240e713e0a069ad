"""How histories of the same profile differ: the settings, the kind of bookies, and the number of auditors.

Half of the histories use small settings, so that they reach every limit within seconds. The other half use the default
settings of the product, on a suitable time scale: pauses, faults and sessions last eight times as long.
"""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass, replace
from typing import Final

from bookie.client.settings import ClientSettings
from bookie.server.upkeep.collector import CollectorSettings
from bookie.storage.port import DISK_SILENCE_S_MAX
from bookie.storage.settings import StorageSettings
from replicator.settings import ReplicatorSettings

SLOW: Final = 8.0
"""How much slower a history with default settings is."""
_URI: Final = "zk://simulated/ledgers"
_PULLING_SHARE: Final = 0.3
_RACKS_SHARE: Final = 0.3
FIRST_WITH_RACKS: Final = 10_000_000_000
"""Histories of smaller seeds have no racks, except in the profile ``placement``. So the seeds of the corpus and of
planted defects, which were found without racks, keep their histories."""
FIRST_WITH_JOURNALS: Final = 20_000_000_000
"""In histories of smaller seeds every bookie has one journal, so that these histories stay the same."""
FIRST_WITH_DIRECTORIES: Final = 30_000_000_000
"""In histories of smaller seeds every bookie has one ledger directory, so that these histories stay the same."""

FIRST_WITH_HARSHNESS: Final = 70_000_000_000
"""Histories of smaller seeds have no ``Harshness``, so that these histories stay the same."""

FIRST_WITH_MORE_HARSHNESS: Final = 80_000_000_000
"""Histories of smaller seeds have none of the later kinds of ``Harshness``."""

SMALL_STORAGE: Final = StorageSettings(
    journal_batch_bytes=2048,
    journal_file_bytes=6000,
    cache_bytes_max=12_000,
    flush_page_bytes=2000,
    flush_page_entries=8,
    flush_sync_bytes=4000,
    flush_sync_entries=16,
    flush_retry_s=0.5,
    ledgers_in_memory=2,
    open_logs=2,
    list_page_keys=8,
    read_cache_bytes_max=12_000,
    read_ahead_bytes=1500,
    read_ahead_entries=6,
)
SMALL_SILENT_S: Final = 2.0
SMALL_CLIENT: Final = ClientSettings(
    add_timeout_s=1.0,
    read_timeout_s=0.8,
    close_timeout_s=4.0,
    pipeline_entries_max=16,
    pipeline_bytes_max=1 << 14,
    batches_in_flight_max=2,
    busy_retries_max=5,
    busy_backoff_s=0.05,
    ensemble_change_attempts_max=6,
    failed_bookie_quarantine_s=3.0,
    read_chunk_entries=5,
)
SMALL_REPLICATOR: Final = ReplicatorSettings(
    _URI, ledgers_in_flight=3, poll_interval_s=1.5, grace_s=1.0, open_ledger_grace_s=2.0
)


class Bookies(enum.Enum):
    """Which kind of bookies a history has."""

    OURS = "ours"
    MIXED = "mixed"
    APACHE = "apache"


@dataclass(frozen=True, slots=True)
class Variation:
    """The variation of one history.

    Attributes:
        is_default: whether the product's default settings apply.
        bookies: the kind of bookies.
        auditors: the number of auditors.
        is_pulling: whether workers let bkheal's bookies copy from each other.
        racks: seed for the racks of the bookies; None: the topology is empty, unless the profile has racks.
        journals: seed for the number of journals of each of bkheal's bookies; None: one.
        directories: seed for the number of ledger directories of each of bkheal's bookies; None: one.
        harshness: seed for the behaviour of ``Harshness``; None: there is none of it.
        has_more_harshness: whether it has the later kinds of behaviour as well.
    """

    is_default: bool = False
    bookies: Bookies = Bookies.OURS
    auditors: int = 1
    is_pulling: bool = False
    racks: int | None = None
    journals: int | None = None
    directories: int | None = None
    harshness: int | None = None
    has_more_harshness: bool = False

    @property
    def scale(self) -> float:
        """The factor of all times."""
        return SLOW if self.is_default else 1.0

    @property
    def storage(self) -> StorageSettings:
        """The storage settings of every bookie."""
        return StorageSettings() if self.is_default else SMALL_STORAGE

    @property
    def silent_s(self) -> float:
        """The time after which a ledger directory that does not answer is no longer used."""
        return DISK_SILENCE_S_MAX if self.is_default else SMALL_SILENT_S

    def client(self, add_timeout_s: float | None = None) -> ClientSettings:
        """Return the settings of clients; ``add_timeout_s`` replaces the value of the small settings."""
        if self.is_default:
            return ClientSettings()
        return SMALL_CLIENT if add_timeout_s is None else replace(SMALL_CLIENT, add_timeout_s=add_timeout_s)

    def replicator(self, bytes_per_second: int = 0) -> ReplicatorSettings:
        """Return the settings of every worker, with its own rate."""
        settings = ReplicatorSettings(_URI) if self.is_default else SMALL_REPLICATOR
        return replace(settings, bytes_per_second=bytes_per_second, is_pulling=self.is_pulling)

    def collector(self, interval_s: float, confirm_after_s: float) -> CollectorSettings:
        """Return the settings of every bookie's collector, which runs far more often than in production."""
        if self.is_default:
            return CollectorSettings(interval_s=interval_s)
        return CollectorSettings(interval_s=interval_s, confirm_after_s=confirm_after_s, suspects_per_s=20.0)

    def journals_of(self, name: str) -> int:
        """Return the number of journals of one of bkheal's bookies, for all its lives. No other event depends on it."""
        return 1 if self.journals is None else random.Random(f"journals {self.journals} {name}").choice((1, 2))

    def ledger_directories_of(self, name: str) -> int:
        """Return the number of ledger directories of one of bkheal's bookies. No other event depends on it."""
        return 1 if self.directories is None else random.Random(f"ledgers {self.directories} {name}").choice((1, 2, 3))

    def is_apache(self, rng: random.Random) -> bool:
        """Whether the next bookie is one of Apache's."""
        return self.bookies is Bookies.APACHE or (self.bookies is Bookies.MIXED and rng.random() < 0.5)

    def __str__(self) -> str:
        settings = "default" if self.is_default else "small"
        copies = ", bookies copy from each other" if self.is_pulling else ""
        racks = "" if self.racks is None else ", racks"
        journals = "" if self.journals is None else ", one or two journals"
        directories = "" if self.directories is None else ", one to three ledger directories"
        harsh = "" if self.harshness is None else ", harsh"
        more = f"{copies}{racks}{journals}{directories}{harsh}"
        return f"{settings} settings, bookies: {self.bookies.value}, auditors: {self.auditors}{more}"


def vary(seed: int, *, may_be_apache: bool) -> Variation:
    """Return the variation of a seed. It depends on the profile only by ``may_be_apache``."""
    rng = random.Random(f"variation {seed}")
    is_default = rng.random() < 0.52
    bookies = rng.choice((Bookies.OURS, Bookies.OURS, Bookies.MIXED, Bookies.APACHE, Bookies.APACHE))
    auditors = rng.choice((1, 1, 2, 3))
    is_pulling = rng.random() < _PULLING_SHARE
    racks = rng.getrandbits(64) if seed >= FIRST_WITH_RACKS and rng.random() < _RACKS_SHARE else None
    journals = rng.getrandbits(64) if seed >= FIRST_WITH_JOURNALS else None
    directories = rng.getrandbits(64) if seed >= FIRST_WITH_DIRECTORIES else None
    harshness = rng.getrandbits(64) if seed >= FIRST_WITH_HARSHNESS else None
    kind = bookies if may_be_apache else Bookies.OURS
    has_more = seed >= FIRST_WITH_MORE_HARSHNESS
    return Variation(is_default, kind, auditors, is_pulling, racks, journals, directories, harshness, has_more)
