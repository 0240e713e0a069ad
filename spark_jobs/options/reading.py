"""How audits read from ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from bookie.metadata.uri import InvalidUriError, parse_uri
from bookie.model.option import Option

MetadataRate = Annotated[
    float,
    Option(
        "The most nodes (of ledgers and of Pulsar) to read from ZooKeeper per second, over all runs; 0: no limit.",
        minimum=0,
        maximum=100_000_000,
    ),
]
"""Each concurrent task gets a share: see ``spark_jobs.pacing.budget``."""
MetadataBytesRate = Annotated[
    float,
    Option(
        "The most bytes of nodes to read from ZooKeeper per second, over all runs; 0: no limit.",
        minimum=0,
        maximum=1e12,
    ),
]
MetadataObservers = Annotated[
    str,
    Option(
        "ZooKeeper servers from which Spark tasks read, such as observers: host:port, separated by commas. If none of "
        "them answers, and by default: those of the metadata URI."
    ),
]
MetadataConnections = Annotated[
    int,
    Option(
        "Spark tasks of all runs that read from ZooKeeper at the same time, each with one connection; 0: one for each "
        "core.",
        minimum=0,
        maximum=100_000,
    ),
]
MetadataLatencyFactor = Annotated[
    float,
    Option(
        "Each Spark task reads less from ZooKeeper if the latency of a small read approaches this multiple of the "
        "latency of an idle ZooKeeper; 0: the latency is not measured.",
        minimum=0,
        maximum=1000,
    ),
]


def observer_hosts(text: str) -> str:
    """Return the observers as a connect string with explicit ports; empty: there are none.

    Raises:
        InvalidUriError: one of them is not a ``host:port``.
    """
    return parse_uri(f"zk://{text.strip()}/ledgers").hosts if text.strip() else ""


def observer_problems(text: str) -> Iterator[str]:
    """Yield why ``text`` names no observers, as a sentence with the name of the setting; nothing if it does."""
    try:
        observer_hosts(text)
    except InvalidUriError as error:
        yield f"metadata_observers: {error}"
