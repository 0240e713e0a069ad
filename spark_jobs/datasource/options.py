"""Options of the data sources: text from Spark in, checked values out.

Ranges are options and not pushed filters: a pushed filter stays on the source, and a DataFrame that is used twice then
returns wrong rows (Spark 4.1 to 4.3).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Final

from bookie.metadata.access import ZooKeeperAccess, access_from_text, access_in_use
from bookie.metadata.uri import MetadataUri, parse_uri
from bookie.model.errors import PermanentError
from bookie.model.ids import LEDGER_ID_MAX
from bookie.runtime.version import UNKNOWN_VERSION
from spark_jobs import settings
from spark_jobs.datasource.partitions import LeafParent
from spark_jobs.image.leaves import LeafStat
from spark_jobs.pacing.budget import FREE, TaskBudget, task_budget

METADATA_URI: Final = "metadata_uri"
ACCESS: Final = "zookeeper_access"
"""How to reach ZooKeeper: names of files, no secret. Default: that of the process that plans."""
NUM_PARTITIONS: Final = "num_partitions"
FIRST_LEDGER: Final = "first_ledger"
LAST_LEDGER: Final = "last_ledger"
LIVE_BOOKIES: Final = "live_bookies"
WITH_SUMMARY: Final = "with_summary"
PLAN: Final = "plan"
CONNECT_TIMEOUT_S: Final = "connect_timeout_s"
IMAGE_DIR: Final = "image_dir"
IMAGE_FROM_MS: Final = "image_from_ms"
BUDGET: Final = "budget"
BRIEF: Final = "brief"
DRIVER_VERSION: Final = "driver_version"
"""The version of bkheal that executors must have. Default: any."""

_SECONDS_MAX: Final = 3600


class InvalidOptionError(PermanentError):
    """A data source option that is missing or makes no sense; the text names it."""


@dataclass(frozen=True, slots=True)
class LedgerOptions:
    """Options of ``bk_ledgers``."""

    uri: MetadataUri
    access: ZooKeeperAccess
    num_partitions: int | None
    """None: chosen from the number of cores and ledgers."""
    first_ledger: int
    """Lowest ledger id to return, inclusive."""
    last_ledger: int
    """Highest ledger id to return, inclusive."""
    live_bookies: frozenset[str] | None
    """If given, a readable ledger all of whose members are in it is counted and not returned."""
    is_summarized: bool
    """Whether each partition ends with a row that holds its counts (column ``summary``) and nothing else."""
    connect_timeout_s: float
    """How long each task tries to connect, before Spark tries the task again."""
    plan: tuple[LeafParent, ...] | None
    """The nodes to read, from a listing that the caller made; None: list them."""
    image_dir: str | None = None
    """Directory in which each partition writes its part of an image; its files are in ``summary``."""
    image_from_ms: int = 0
    """When the reading for this image began, epoch milliseconds."""
    budget: TaskBudget = FREE
    """Of each task."""
    is_brief: bool = False
    """Whether rows have the columns of ``ledger_schema.BRIEF_DDL`` alone."""
    driver_version: str = UNKNOWN_VERSION
    """The version of bkheal that executors must have, if it is known."""

    def is_wanted(self, ledger_id: int) -> bool:
        """Whether the ledger is in the range."""
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
        raise InvalidOptionError(f"options {FIRST_LEDGER}={first} and {LAST_LEDGER}={last} leave no ledger to read")
    live = options.get(LIVE_BOOKIES)
    return LedgerOptions(
        uri=source_uri(options),
        access=source_access(options),
        num_partitions=number(options, NUM_PARTITIONS, 0, 1) or None,
        first_ledger=first,
        last_ledger=last,
        live_bookies=None if live is None else frozenset(filter(None, live.split(","))),
        is_summarized=options.get(WITH_SUMMARY, "false").lower() == "true",
        connect_timeout_s=seconds(options, CONNECT_TIMEOUT_S, settings.CONNECT_TIMEOUT_S),
        plan=_plan(options.get(PLAN)),
        image_dir=options.get(IMAGE_DIR),
        image_from_ms=number(options, IMAGE_FROM_MS, 0, 0),
        budget=source_budget(options),
        is_brief=options.get(BRIEF, "false").lower() == "true",
        driver_version=options.get(DRIVER_VERSION, UNKNOWN_VERSION),
    )


def source_uri(options: Mapping[str, str]) -> MetadataUri:
    """Return the option that every source needs.

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
        ConfigurationError: the option, or the environment, has values that cannot be used.
    """
    text = options.get(ACCESS)
    return access_in_use() if text is None else access_from_text(text)


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


def plan_text(parents: Sequence[LeafParent]) -> str:
    """Return ``parents`` as the value of the option ``plan``."""
    return json.dumps(
        [[parent.path, parent.planned, None if parent.stat is None else astuple(parent.stat)] for parent in parents]
    )


def _plan(text: str | None) -> tuple[LeafParent, ...] | None:
    if text is None:
        return None
    try:
        return tuple(
            LeafParent(str(path), int(planned), None if stat is None else LeafStat(*map(int, stat)))
            for path, planned, stat in json.loads(text)
        )
    except (ValueError, TypeError) as error:
        raise InvalidOptionError(f"option {PLAN} is not a list of [path, number of children, stat]: {error}") from error


def seconds(options: Mapping[str, str], name: str, default: float) -> float:
    """Return an option that is a span.

    Raises:
        InvalidOptionError: it is none.
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
    """Return an option that is a whole number.

    Raises:
        InvalidOptionError: it is none, or below ``least``.
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
