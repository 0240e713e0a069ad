"""The options of reading from ZooKeeper, the same in a one-shot audit and in the service. Importable without Spark."""

from __future__ import annotations

from typing import Annotated

from bookie.model.option import Option

MetadataRate = Annotated[
    float,
    Option(
        "Read at most so many ledgers per second from ZooKeeper, all Spark tasks together; 0: as fast as possible.",
        minimum=0,
        maximum=100_000_000,
    ),
]
"""A share for each task that can run: see ``spark_jobs.datasource.pace``."""
