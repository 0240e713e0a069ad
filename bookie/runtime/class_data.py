"""Application class-data sharing: Java programs start faster with an archive of the classes that they load.

A Java machine writes the archive when it ends, and later ones map it into memory. It fits one release of Java and one
set of jars at one path. Java starts without an archive that does not fit. One that was cut off, perhaps by a full disk,
ends Java with a signal at any moment. So a mark follows the last byte that Java wrote.

Source: JEP 350.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

from bookie.runtime.java import Java

_SILENT: Final = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
_MARK: Final = b"\nend of bkheal's class archive\n"
_MODE: Final = 0o644
_SEPARATORS: Final = frozenset(" \t\n\r\"'\\:,")
"""Spark splits its options at blanks, and Java the names of archives at colons."""


def is_possible(java: Java) -> bool:
    """Whether this Java can make an archive: one of its own classes came with it, which others extend."""
    return (java.home / "lib" / "server" / "classes.jsa").exists()


def is_usable_path(archive: Path) -> bool:
    """Whether the path of an archive can be an option of Spark and of Java."""
    return _SEPARATORS.isdisjoint(str(archive))


def mark_whole(archive: Path) -> None:
    """Write the mark behind what Java wrote; it is on the disk when this returns. Java ignores it.

    Raises:
        OSError: it cannot be written.
    """
    archive.chmod(_MODE)  # Java leaves it read-only
    with archive.open("ab") as file:
        file.write(_MARK)
        file.flush()
        os.fsync(file.fileno())


def is_whole(archive: Path) -> bool:
    """Whether the file can be read and ends with the mark."""
    try:
        with archive.open("rb") as file:
            file.seek(-len(_MARK), os.SEEK_END)
            return file.read() == _MARK
    except OSError:  # also if it is shorter than the mark
        return False


def reading(archive: Path) -> tuple[str, ...]:
    """Options of a Java machine that uses ``archive``."""
    return f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", *_SILENT


def writing(archive: Path) -> tuple[str, ...]:
    """Options of a Java machine that writes ``archive`` when it ends."""
    return f"-XX:ArchiveClassesAtExit={archive}", *_SILENT


def fingerprint(java: Java, jars: Path, *more: str) -> str:
    """A short text that changes with the release of Java, with any jar in the folder ``jars``, and with ``more``."""
    release = java.home / "release"
    facts = [str(java.executable.resolve()), release.read_text() if release.is_file() else "", *more]
    for jar in sorted(jars.glob("*.jar")):
        status = jar.stat()
        facts.append(f"{jar} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
