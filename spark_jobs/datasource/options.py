"""Options of the data sources: text from Spark in, checked values out.

Ranges are options and not pushed filters: Spark keeps a pushed filter on the source, so a DataFrame that is used twice
returns wrong rows (Spark 4.1 to 4.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bookie.metadata.access import ZooKeeperAccess, access_from_text, current_access
from bookie.metadata.uri import MetadataUri, parse_uri
from bookie.model.errors import PermanentError
from bookie.model.ids import LEDGER_ID_MAX
from bookie.runtime.version import UNKNOWN_VERSION
from spark_jobs import settings
from spark_jobs.pacing.budget import FREE, TaskBudget, task_budget

METADATA_URI: Final = "metadata_uri"
ACCESS: Final = "zookeeper_access"
"""How to reach ZooKeeper. The value has names of files, and no secret. Default: the access of the planning process."""
NUM_PARTITIONS: Final = "num_partitions"
FIRST_LEDGER: Final = "first_ledger"
LAST_LEDGER: Final = "last_ledger"
CONNECT_TIMEOUT_S: Final = "connect_timeout_s"
BUDGET: Final = "budget"

_SECONDS_MAX: Final = 3600


class InvalidOptionError(PermanentError):
    """A data source option is missing or invalid; the text names it."""


@dataclass(frozen=True, slots=True)
class LedgerOptions:
    """Options for reading ledgers: those of ``bk_ledgers``, and some that only audits use."""

    uri: MetadataUri
    access: ZooKeeperAccess
    connect_timeout_s: float
    """How long each task tries to connect before it fails, and Spark repeats it."""
    num_partitions: int | None = None
    """Number of partitions of ``bk_ledgers``. None: it is derived from the numbers of cores and ledgers."""
    first_ledger: int = 0
    """Lowest ledger id to return, inclusive."""
    last_ledger: int = LEDGER_ID_MAX
    """Highest ledger id to return, inclusive."""
    live_bookies: frozenset[str] | None = None
    """If given, readable ledgers that name only these bookies are counted and not returned."""
    is_summarized: bool = False
    """Whether each partition ends with a row that holds its counts (column ``summary``) and nothing else."""
    is_brief: bool = False
    """Whether rows have only the columns of ``ledger_schema.BRIEF_DDL``."""
    image_dir: str | None = None
    """Directory in which each partition writes its part of an image; ``summary`` lists the files."""
    image_from_ms: int = 0
    """Start of the reading for this image, epoch milliseconds."""
    image_unsettled: Sequence[int] | None = ()
    """Ledgers that count as not settled in this image, although they are healthy; None: all ledgers."""
    budget: TaskBudget = FREE
    """The limits on the reads of each task."""
    driver_version: str = UNKNOWN_VERSION
    """The version of bkheal that executors must have, if the driver's is known."""

    def is_wanted(self, ledger_id: int) -> bool:
        """Return whether the ledger is in the range."""
        return self.first_ledger <= ledger_id <= self.last_ledger


def ledger_options(options: Mapping[str, str]) -> LedgerOptions:
    """Check the options of ``bk_ledgers``.

    Raises:
        InvalidOptionError: one is missing, not a number, or out of range.
        InvalidUriError: the metadata URI cannot be used.
    """
    first = number(options, FIRST_LEDGER, 0, 0)
    last = number(options, LAST_LEDGER, LEDGER_ID_MAX, 0)
    if first > last:
        raise InvalidOptionError(f"options {FIRST_LEDGER}={first} and {LAST_LEDGER}={last} select no ledger")
    return LedgerOptions(
        uri=source_uri(options),
        access=source_access(options),
        connect_timeout_s=seconds(options, CONNECT_TIMEOUT_S, settings.CONNECT_TIMEOUT_S),
        num_partitions=number(options, NUM_PARTITIONS, 0, 1) or None,
        first_ledger=first,
        last_ledger=last,
        budget=source_budget(options),
    )


def source_uri(options: Mapping[str, str]) -> MetadataUri:
    """Return the metadata URI, an option of every source.

    Raises:
        InvalidOptionError: it is missing.
        InvalidUriError: it cannot be used.
    """
    text = options.get(METADATA_URI)
    if not text:
        raise InvalidOptionError(f"option {METADATA_URI} is missing, for example {METADATA_URI}=zk://zk1:2181/ledgers")
    return parse_uri(text)


def source_access(options: Mapping[str, str]) -> ZooKeeperAccess:
    """Return how to reach ZooKeeper.

    Raises:
        ConfigurationError: the option, or the environment, has unusable values.
    """
    text = options.get(ACCESS)
    return current_access() if text is None else access_from_text(text)


def source_budget(options: Mapping[str, str]) -> TaskBudget:
    """Return the limits of each task; default: none.

    Raises:
        InvalidOptionError: the option is not what ``TaskBudget.to_text`` returned.
    """
    text = options.get(BUDGET)
    try:
        return FREE if text is None else task_budget(text)
    except ValueError as error:
        raise InvalidOptionError(f"option {BUDGET}={text!r} cannot be used: {error}") from error


def seconds(options: Mapping[str, str], name: str, default: float) -> float:
    """Return the value of an option in seconds.

    Raises:
        InvalidOptionError: it is not a number of seconds, or out of range.
    """
    text = options.get(name)
    try:
        value = default if text is None else float(text)
    except ValueError:
        raise InvalidOptionError(f"option {name}={text!r} is not a number of seconds") from None
    if not 0 < value <= _SECONDS_MAX:
        raise InvalidOptionError(f"option {name}={text} is out of range, need more than 0 and at most {_SECONDS_MAX}")
    return value


def number(options: Mapping[str, str], name: str, default: int, least: int) -> int:
    """Return the value of an option for a whole number.

    Raises:
        InvalidOptionError: it is not a whole number, or out of range; ``least`` is inclusive.
    """
    text = options.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        raise InvalidOptionError(f"option {name}={text!r} is not a whole number") from None
    if not least <= value <= LEDGER_ID_MAX:
        raise InvalidOptionError(f"option {name}={value} is out of range, need {least} to {LEDGER_ID_MAX}")
    return value
