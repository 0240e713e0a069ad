"""Apache's own Java client, driven from Python: one Java process for many tests, one JSON object per command.

The commands are in ``tests/apache/java``. This module uses no event loop: each command opens its own connection.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bookie.embedded.apache import ApacheCluster, java_properties
from bookie.embedded.apache_jars import ApacheJvm
from bookie.embedded.apache_settings import write_log_settings
from bookie.embedded.process import ManagedProcess
from bookie.runtime.class_data import fingerprint
from bookie.runtime.java import Java
from bookie.runtime.kept_files import cache_folder
from tests.deadlines import PROGRAM_S, STATE_S
from tests.kept_files import made_once

SOURCES: Final = Path(__file__).parent / "java"
_ANSWER_DEADLINE_S: Final = 150.0
"""The deadline for an answer, longer than the driver's own deadlines."""
_ANSWER_BYTES_MAX: Final = 256 << 20


class JavaError(Exception):
    """A command failed; ``kind`` is the class of Java's exception, ``code`` Apache's code (0 if it has none)."""

    def __init__(self, kind: str, code: int, message: str) -> None:
        super().__init__(f"{kind} ({code}): {message}")
        self.kind = kind
        self.code = code


@dataclass(frozen=True)
class JavaEntry:
    """An entry as Apache's client returns it."""

    entry_id: int
    length: int
    """The sum of the payload sizes up to and including this entry."""
    size: int
    sha256: str


@dataclass(frozen=True)
class JavaState:
    """What a handle of Apache's client knows about its ledger."""

    ledger_id: int
    last_add_confirmed: int
    length: int
    is_closed: bool


@dataclass(frozen=True)
class JavaHandle:
    """A ledger that Apache's client created or opened."""

    driver: JavaDriver
    name: str
    ledger_id: int

    async def write(
        self,
        count: int = 0,
        *,
        seed: str = "",
        sizes: Sequence[int] = (100,),
        ids: Sequence[int] | None = None,
        is_aloud: bool = False,
    ) -> JavaState:
        """Append ``count`` entries, or those with the given ``ids``, with the payloads ``payload(seed, id, size)``.

        The size of entry ``n`` is ``sizes[n % len(sizes)]``. Returns after every entry is acknowledged. With
        ``is_aloud`` the process prints each acknowledged entry before the return (``JavaDriver.acknowledged``).
        """
        more: dict[str, Any] = {} if ids is None else {"ids": list(ids)}
        if is_aloud:
            more["aloud"] = True
        return _state(await self._call("write", count=count, seed=seed, sizes=list(sizes), **more))

    async def write_past_a_loss(self, count: int, *, seed: str = "", sizes: Sequence[int] = (100,)) -> None:
        """Append ``count`` entries after the loss of a bookie: one at a time until the writer has replaced it.

        The other bookies may acknowledge a whole burst before the writer notices the loss; the writer would then
        replace the bookie only with its next entry.
        """
        before = await self._fragments()
        for left in range(count - 1, -1, -1):
            await self.write(1, seed=seed, sizes=sizes)
            if await self._fragments() > before:
                await self.write(left, seed=seed, sizes=sizes)
                return
        raise AssertionError(f"no bookie of ledger {self.ledger_id} was replaced within {count} entries")

    async def read(self, first: int, last: int, **more: Any) -> list[JavaEntry]:
        """Read the entries ``first..last`` (inclusive).

        Options: ``unconfirmed=True``; ``batch_count=n, batch_bytes=n`` for a batch read (protocol version 2), which
        ignores ``last``.
        """
        return [_entry(one) for one in (await self._call("read", first=first, last=last, **more))["entries"]]

    async def state(self) -> JavaState:
        """Return what the handle knows, without a request."""
        return _state(await self._call("handle"))

    async def last_add_confirmed(self) -> int:
        """Read the last add confirmed from the bookies."""
        return int((await self._call("read_lac"))["lac"])

    async def wait_last_add_confirmed(self, entry_id: int, timeout_ms: int) -> tuple[int, list[JavaEntry]]:
        """Long poll for ``entry_id``; return the last add confirmed, and the entry if the answer contains it."""
        answer = await self._call("wait_lac", entry=entry_id, timeout_ms=timeout_ms)
        return int(answer["lac"]), [_entry(one) for one in answer["entries"]]

    async def force(self) -> JavaState:
        """Make every bookie of the ensemble sync. This is for ledgers created with ``deferred_sync``."""
        return _state(await self._call("force"))

    async def close(self) -> JavaState:
        """Close the handle. If it writes the ledger, this closes the ledger too."""
        return _state(await self._call("close"))

    async def _fragments(self) -> int:
        return len((await self.driver.call("metadata", ledger=self.ledger_id))["ensembles"])

    async def _call(self, command: str, **fields: Any) -> dict[str, Any]:
        return await self.driver.call(command, handle=self.name, **fields)


@dataclass
class JavaDriver:
    """The Java process that runs the commands. ``call`` runs any command; other methods are for frequent commands.

    Clients have names: ``v3`` and ``v2`` (protocol version 2) exist from the start, ``new_client`` makes others.
    """

    process: ManagedProcess
    port: int

    @classmethod
    async def start(cls, directory: Path, cluster: ApacheCluster | str, jvm: ApacheJvm, classes: Path) -> JavaDriver:
        """Start the process for a cluster, or for a metadata URI."""
        uri, jaas = (cluster, None) if isinstance(cluster, str) else (cluster.metadata_uri, cluster.jaas)
        logging = directory / "log4j2.properties"
        write_log_settings(logging, is_shell=False)
        command = jvm.command("bkheal.Driver", uri, properties=java_properties(logging, jaas))
        at = command.index("-cp") + 1
        command[at] = f"{command[at]}:{classes}"  # last, because the class path must begin with that of the archive
        process = ManagedProcess.start("java driver", command, log_path=directory / "log.txt")
        ready = await process.wait_for_line(r"^driver ready on (\d+)$", STATE_S)
        return cls(process, int(ready[1]))

    async def stop(self) -> None:
        """Stop the process."""
        await self.process.stop()

    async def kill9(self) -> None:
        """Send SIGKILL and wait for the end of the process. Running commands fail."""
        self.process.kill9()
        await self.process.wait(STATE_S)

    def acknowledged(self, ledger_id: int) -> list[int]:
        """Return the entries that the process has printed as acknowledged so far, among the lines of its log."""
        reported = self.process.log_path.read_text(errors="replace")
        return [int(entry) for entry in re.findall(rf"acknowledged (\d+) of ledger {ledger_id}\b", reported)]

    async def call(self, command: str, **fields: Any) -> dict[str, Any]:
        """Run one command.

        Raises:
            JavaError: it failed.
        """
        async with asyncio.timeout(_ANSWER_DEADLINE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=_ANSWER_BYTES_MAX)
            try:
                writer.write(json.dumps({"command": command, **fields}).encode() + b"\n")
                answer: dict[str, Any] = json.loads(await reader.readline())
            finally:
                writer.close()
                await writer.wait_closed()
        if "error" in answer:
            raise JavaError(answer["error"], answer["code"], answer["message"])
        return answer

    async def new_client(
        self, name: str, *, v2: bool = False, settings: Mapping[str, str] | None = None, uri: str | None = None
    ) -> None:
        """Connect another client. ``settings`` have Apache's names, for example ``ledgerMetadataVersion``."""
        more = {} if uri is None else {"uri": uri}
        await self.call("client", name=name, v2=v2, settings=dict(settings or {}), **more)

    async def drop_client(self, name: str) -> None:
        """End a client without closing its ledgers, as if its process died. If there is none, do nothing."""
        await self.call("drop_client", name=name)

    async def create(
        self,
        ensemble: int = 3,
        write_quorum: int = 2,
        ack_quorum: int = 2,
        *,
        digest: str = "CRC32C",
        password: bytes = b"",
        custom: Mapping[str, bytes] | None = None,
        client: str = "v3",
        own_ids: bool = False,
        ledger_id: int | None = None,
        deferred_sync: bool = False,
    ) -> JavaHandle:
        """Create a ledger. Digests: ``CRC32``, ``MAC``, ``CRC32C``, ``DUMMY``. ``ledger_id`` requires ``own_ids``."""
        answer = await self.call(
            "create",
            ensemble=ensemble,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            digest=digest,
            password=password.hex(),
            custom={name: value.hex() for name, value in (custom or {}).items()},
            client=client,
            own_ids=own_ids,
            ledger=ledger_id,
            deferred_sync=deferred_sync,
        )
        return JavaHandle(self, answer["handle"], answer["ledger"])

    async def open(
        self,
        ledger_id: int,
        *,
        digest: str = "CRC32C",
        password: bytes = b"",
        recovery: bool = False,
        client: str = "v3",
    ) -> JavaHandle:
        """Open a ledger for reading. With ``recovery``, it is fenced and closed before."""
        answer = await self.call(
            "open", ledger=ledger_id, digest=digest, password=password.hex(), recovery=recovery, client=client
        )
        return JavaHandle(self, answer["handle"], answer["ledger"])

    async def read_all(
        self, ledger_id: int, *, digest: str = "CRC32C", password: bytes = b"", client: str = "v3"
    ) -> list[JavaEntry]:
        """Open a ledger without recovery, read every confirmed entry, and close the handle."""
        handle = await self.open(ledger_id, digest=digest, password=password, client=client)
        try:
            last = (await handle.state()).last_add_confirmed
            return await handle.read(0, last) if last >= 0 else []
        finally:
            await handle.close()


def compiled_driver(java: Java, lib: Path) -> Path:
    """Return the folder in the cache with the driver's classes, which are compiled if they are missing.

    Raises:
        OSError: nothing can be written there.
        subprocess.CalledProcessError: it does not compile; its output has the reason.
    """
    sources = [path.read_text() for path in sorted(SOURCES.rglob("*.java"))]
    classes = cache_folder() / f"apache-driver-{fingerprint(java, lib, *sources)}"
    made_once(classes, lambda made: compile_java(java, lib, made))
    return classes


def compile_java(java: Java, lib: Path, classes: Path) -> None:
    """Compile the driver into ``classes``. This blocks for a few seconds.

    Raises:
        subprocess.CalledProcessError: it does not compile; its output has the reason.
    """
    classes.mkdir(parents=True, exist_ok=True)
    sources = [str(path) for path in sorted(SOURCES.rglob("*.java"))]
    arguments = [str(find_javac(java)), "-proc:none", "-d", str(classes), "-cp", f"{lib}/*", *sources]
    subprocess.run(arguments, check=True, timeout=PROGRAM_S, stdin=subprocess.DEVNULL)


def find_javac(java: Java) -> Path | None:
    """Return the compiler in the folder of ``java`` or on the path; None if there is none."""
    beside = java.home / "bin" / "javac"
    if beside.is_file():
        return beside
    found = shutil.which("javac")
    return Path(found) if found else None


def payload(seed: str, entry_id: int, size: int) -> bytes:
    """Return a payload as ``JavaHandle.write`` writes it."""
    blocks = (hashlib.sha256(f"{seed}/{entry_id}/{block}".encode()).digest() for block in range(-(-size // 32)))
    return b"".join(blocks)[:size]


def payloads(seed: str, ids: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
    """Return the payloads of many entries, as ``JavaHandle.write`` makes them."""
    return [payload(seed, entry_id, sizes[entry_id % len(sizes)]) for entry_id in ids]


def expected(contents: Sequence[bytes], first: int = 0) -> list[JavaEntry]:
    """Return what Apache's client must read for these payloads, if all entries before ``first`` are empty."""
    entries, length = [], 0
    for entry_id, content in enumerate(contents, first):
        length += len(content)
        entries.append(JavaEntry(entry_id, length, len(content), hashlib.sha256(content).hexdigest()))
    return entries


def _entry(one: Mapping[str, Any]) -> JavaEntry:
    return JavaEntry(one["id"], one["length"], one["size"], one["sha256"])


def _state(answer: Mapping[str, Any]) -> JavaState:
    return JavaState(answer["ledger"], answer["lac"], answer["length"], answer["closed"])
