"""Makes the archive of Spark's Java classes: an audit of a small cluster loads them, and Java writes them at its exit.

The cluster is metadata in an embedded ZooKeeper, without bookies. Nothing else is read or changed.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Callable, Collection, Coroutine
from pathlib import Path
from typing import Any, Final

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
from bookie.runtime.kept_files import place_to_make
from spark_jobs.class_archive import SUBMIT_OPTIONS, VARIABLE

_ROOT: Final = "/ledgers"
_LEDGERS: Final = 20
_BOOKIES: Final = ("bookie-0:3181", "bookie-1:3181", "bookie-2:3181")
_LOST: Final = "bookie-3:3181"
_AUDIT_S: Final = 600.0
_WAIT_S: Final = 2 * _AUDIT_S
"""The longest wait for another process that makes the same archive."""
_OUTPUT_CHARS: Final = 2000


class ClassArchiveError(PermanentError):
    """This Java cannot make an archive, or the audit that loads the classes failed."""


def make_class_archive(
    path: Path,
    java: Java,
    run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run,
    on_wait: Callable[[], None] = lambda: None,
) -> None:
    """Make the archive. An existing file is replaced only by a complete one. Takes a minute, and 200 MB of disk.

    What killed processes left beside it is removed. If another process makes the archive, this waits for its end.

    Args:
        path: the file. Its folder is created.
        java: the Java that will use it.
        run: runs the part that takes long, to its end or until a signal cancels it.
        on_wait: called if another process makes the archive, before the wait for its end.

    Raises:
        ClassArchiveError: this Java cannot make it, or the audit failed; the message has the end of the audit's output.
        BeingMadeError: another process was making it all the time.
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
    with place_to_make(path, _WAIT_S, on_wait=on_wait) as (directory, lock):
        made = directory / path.name
        run(_make(made, java, directory, () if lock is None else (lock,)))
        mark_complete(made)
        made.replace(path)


async def _make(archive: Path, java: Java, directory: Path, inherited: Collection[int]) -> None:
    async with await EmbeddedZooKeeper.start(directory / "zookeeper", is_durable=False, java=java) as server:
        await _fill(server.connect_string)
        code, output = await _load_classes(server.connect_string, archive, java, directory, inherited)
    if code or not archive.is_file():
        raise ClassArchiveError(f"the audit that loads the classes ended with {code}: {_output_tail(output)}")


async def _load_classes(
    hosts: str, archive: Path, java: Java, directory: Path, inherited: Collection[int]
) -> tuple[int | None, str]:
    """Run the audit in another process, and return its exit code and its output. A cancellation ends the process."""
    words = [sys.executable, "-m", "spark_jobs.class_loading", f"zk://{hosts}{_ROOT}", str(directory / "reports")]
    process = await asyncio.create_subprocess_exec(
        *words,
        env={**os.environ, **java_environment(java), SUBMIT_OPTIONS: " ".join(writing(archive))},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=tuple(inherited),  # the directory is in use until this process has ended, even if ours is killed
    )
    try:
        async with asyncio.timeout(_AUDIT_S):
            output, _ = await process.communicate()
    except TimeoutError as error:
        raise ClassArchiveError(f"the audit that loads the classes did not end within {_AUDIT_S:.0f} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode, output.decode(errors="replace")


def _output_tail(output: str) -> str:
    return output[-_OUTPUT_CHARS:].strip() or "it printed nothing"


async def _fill(hosts: str) -> None:
    """Create a cluster with a lost bookie, so the audit finds and marks ledgers."""
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
