"""Application class-data sharing: Java programs start faster with an archive of their classes.

Java writes the archive at its exit and maps it into memory at later starts. An archive fits one release of Java and one
set of jars at one path; Java ignores an archive that does not fit. A truncated archive, for example after a full disk,
can crash Java with a signal at any moment. For this reason a mark follows the last byte written by Java.

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
"""Spark splits its options at blanks, and Java splits lists of archives at colons."""


def is_possible(java: Java) -> bool:
    """Whether this Java can make an archive: it must include the archive of its own classes as the base."""
    return (java.home / "lib" / "server" / "classes.jsa").exists()


def is_usable_path(archive: Path) -> bool:
    """Whether the path of an archive can be an option of Spark and of Java."""
    return _SEPARATORS.isdisjoint(str(archive))


def mark_whole(archive: Path) -> None:
    """Append the mark to the archive, ignored by Java, and sync it to the disk.

    Raises:
        OSError: it cannot be written.
    """
    archive.chmod(_MODE)  # Java leaves it read-only
    with archive.open("ab") as file:
        file.write(_MARK)
        file.flush()
        os.fsync(file.fileno())


def is_whole(archive: Path) -> bool:
    """Whether the file is readable and ends with the mark."""
    try:
        with archive.open("rb") as file:
            file.seek(-len(_MARK), os.SEEK_END)
            return file.read() == _MARK
    except OSError:  # also if it is shorter than the mark
        return False


def reading(archive: Path) -> tuple[str, ...]:
    """Return the Java options to use ``archive``."""
    return f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", *_SILENT


def writing(archive: Path) -> tuple[str, ...]:
    """Return the Java options to write ``archive`` at exit."""
    return f"-XX:ArchiveClassesAtExit={archive}", *_SILENT


def fingerprint(java: Java, jars: Path, *more: str) -> str:
    """Return a short text unique to the release of Java, the jars in the folder ``jars``, and ``more``."""
    release = java.home / "release"
    facts = [str(java.executable.resolve()), release.read_text() if release.is_file() else "", *more]
    for jar in sorted(jars.glob("*.jar")):
        status = jar.stat()
        facts.append(f"{jar} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
