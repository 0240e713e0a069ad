"""Makes the archive of Spark's Java classes: an audit of a small cluster loads them, and Java writes them at its exit.

The cluster is metadata in an embedded ZooKeeper, without bookies. Nothing else is read or changed.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.cluster import format_cluster, open_cluster
from bookie.metadata.layout import bookie_path
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.model.errors import PermanentError
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.runtime.class_data import is_possible, is_usable_path, make_base_archive, mark_complete, writing
from bookie.runtime.java import Java, is_wrapped, java_environment
from spark_jobs.class_archive import SUBMIT_OPTIONS, VARIABLE

_ROOT: Final = "/ledgers"
_LEDGERS: Final = 20
_BOOKIES: Final = ("bookie-0:3181", "bookie-1:3181", "bookie-2:3181")
_LOST: Final = "bookie-3:3181"
_AUDIT_S: Final = 600.0
_OUTPUT_CHARS: Final = 2000


class ClassArchiveError(PermanentError):
    """This Java cannot make an archive, or the audit that loads the classes failed."""


def make_class_archive(path: Path, java: Java) -> None:
    """Make the archive. An existing file is replaced only by a complete one. Takes a minute, and 200 MB of disk.

    Args:
        path: the file. Its folder is created.
        java: the Java that will use it.

    Raises:
        ClassArchiveError: this Java cannot make it, or the audit failed; the message has the end of the audit's output.
        OSError: the file cannot be written.
        EmbeddedProcessError, ZooKeeperJarsMissingError: there is no ZooKeeper for the audit.
    """
    if not is_possible(java) and is_wrapped(java):
        try:
            make_base_archive(java)
        except subprocess.CalledProcessError as error:
            raise ClassArchiveError(
                f"Java made no archive of its own classes: {error}; {_output_tail(error.stdout)}"
            ) from error
        except subprocess.TimeoutExpired as error:
            raise ClassArchiveError(f"Java made no archive of its own classes in time: {error}") from error
    if not is_possible(java):
        raise ClassArchiveError(
            f"Java at {java.home} came without an archive of its own classes, which others extend. "
            "Use a JDK or JRE that has lib/server/classes.jsa, or make it with `java -Xshare:dump`"
        )
    if not is_usable_path(path):
        raise ClassArchiveError(
            f"{path} has a blank, a quotation mark, a colon or a comma; name another with {VARIABLE}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{path.name}-", dir=path.parent) as directory:
        made = Path(directory) / path.name
        asyncio.run(_make(made, java, Path(directory)))
        mark_complete(made)
        made.replace(path)


async def _make(archive: Path, java: Java, directory: Path) -> None:
    async with await EmbeddedZooKeeper.start(directory / "zookeeper", is_durable=False, java=java) as server:
        await _fill(server.connect_string)
        try:
            done = await asyncio.to_thread(
                subprocess.run,
                [
                    sys.executable,
                    "-m",
                    "spark_jobs.class_loading",
                    f"zk://{server.connect_string}{_ROOT}",
                    str(directory / "reports"),
                ],
                env={**os.environ, **java_environment(java), SUBMIT_OPTIONS: " ".join(writing(archive))},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=_AUDIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ClassArchiveError(f"the audit that loads the classes did not end within {_AUDIT_S:.0f} s") from error
    if done.returncode or not archive.is_file():
        printed = _output_tail(done.stdout)
        raise ClassArchiveError(f"the audit that loads the classes ended with {done.returncode}: {printed}")


def _output_tail(output: str) -> str:
    return output[-_OUTPUT_CHARS:].strip() or "it printed nothing"


async def _fill(hosts: str) -> None:
    """Create a cluster that lost a bookie, so that the audit finds and marks ledgers."""
    store = await ZooKeeperStore.connect(hosts)
    try:
        rng = random.Random(0)
        await format_cluster(store, _ROOT, rng=rng)
        cluster = await open_cluster(store, _ROOT)
        for bookie in _BOOKIES:
            await store.create(bookie_path(_ROOT, BookieId(bookie), is_read_only=False))
        members = (_BOOKIES, (_BOOKIES[0], _BOOKIES[1], _LOST))
        await LedgerStore(store, cluster, rng).create_many(
            [(LedgerId(number), _ledger(members[number % 2])) for number in range(_LEDGERS)]
        )
    finally:
        await store.close()


def _ledger(members: tuple[str, ...]) -> LedgerMetadata:
    fragment = Fragment(EntryId(0), tuple(map(BookieId, members)))
    return LedgerMetadata(len(members), 2, 2, (fragment,)).closed(EntryId(9), 1000)
