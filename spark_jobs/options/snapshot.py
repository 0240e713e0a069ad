"""The options of snapshots sent by ZooKeeper's admin server. Importable without Spark.

``spark_jobs.snapshot.streaming`` describes their purpose.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

from bookie.model.hosts import is_host
from bookie.model.option import Option

AUTHORIZATION_VARIABLE: Final = "BKHEAL_SNAPSHOT_AUTHORIZATION"
_HEADING: Final = "Snapshot of ZooKeeper, with --kind bookies or everything"

SnapshotUrl = Annotated[
    str,
    Option(
        "Let this admin server of ZooKeeper (3.9 or newer) make and send the snapshot, such as http://zk1:8080.",
        heading=_HEADING,
    ),
]
SnapshotAuthorizationFile = Annotated[
    Path | None,
    Option(
        f"Holds the Authorization header, such as digest user:password. Default: ${AUTHORIZATION_VARIABLE}.",
        is_file=True,
        heading=_HEADING,
    ),
]
SnapshotCa = Annotated[
    Path | None,
    Option("PEM file of the authority that signed the admin server's certificate.", is_file=True, heading=_HEADING),
]


def url_problems(url: str) -> Iterator[str]:
    """Yield what is wrong with the URL of an admin server, one sentence each."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not is_host(parts.hostname or ""):
        yield f"snapshot_url = {url.rpartition('@')[2]!r} is no URL such as http://zk1:8080"
    elif parts.username or parts.password:
        yield "snapshot_url has a password: give it in a file, as snapshot_authorization_file"
    elif parts.query or parts.fragment:
        yield "snapshot_url has more than the address and the path of the commands"
