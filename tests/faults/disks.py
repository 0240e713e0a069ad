"""The directories of bookies, and small disks below them, which can be filled.

Each small disk is a tmpfs, which root may mount. A directory is unmounted by hiding its files, so that it is empty.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bookie.server.joining.directories import CURRENT

SIZES_MIB: Final = {"journal": 256, "ledgers": 768}
"""The sizes of all disks for journals and for ledgers of a bookie: a run uses less than half of them."""
_HIDDEN: Final = "hidden"
"""The name of the files of a directory that is unmounted. It is next to ``current``, where a bookie ignores it."""
_FILLER: Final = "filler"
"""The name of the file that fills a disk. It is next to ``current``, where a bookie ignores it."""
_STEP_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Directories:
    """The directories of one of our bookies."""

    journals: Sequence[Path]
    ledgers: Sequence[Path]

    @classmethod
    def below(cls, directory: Path, count: int) -> Directories:
        """Return the directories with ``count`` journals and ``count`` ledger directories."""
        journals, ledgers = (
            [directory / (f"{part}-{number}" if number > 1 else part) for number in range(1, count + 1)]
            for part in SIZES_MIB
        )
        return cls(journals, ledgers)

    @property
    def options(self) -> Sequence[str]:
        """The options for a bookie, or a command, that uses them."""
        return [f"--{part}-dir={','.join(map(str, paths))}" for part, paths in self._parts()]

    def sizes_mib(self) -> Sequence[tuple[Path, int]]:
        """Return each directory with the size of its disk."""
        sizes = zip(self._parts(), SIZES_MIB.values(), strict=True)
        return [(path, size // len(paths)) for (_, paths), size in sizes for path in paths]

    def _parts(self) -> Sequence[tuple[str, Sequence[Path]]]:
        return ("journal", self.journals), ("ledger", self.ledgers)


class Disks:
    """The small disks of a cluster."""

    def __init__(self) -> None:
        """Start without a disk."""
        self.problem = ""
        """The reason why no disk can be mounted."""
        self._mounted: dict[str, list[Path]] = {}

    def mount(self, name: str, directories: Directories) -> None:
        """Mount a disk at each of the new directories of a bookie, if possible."""
        for disk, size_mib in directories.sizes_mib():
            disk.mkdir(parents=True)
            command = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(disk)]
            mounted = subprocess.run(command, capture_output=True, text=True, check=False)
            if mounted.returncode:
                self.problem = mounted.stderr.strip()
                return
            self._mounted.setdefault(name, []).append(disk)

    def of(self, name: str) -> Sequence[Path]:
        """Return the disks of a bookie; empty if it has no small ones."""
        return self._mounted.get(name, ())

    def unmount(self, name: str, *, are_kept: bool = False) -> None:
        """Unmount the disks of a bookie; ``are_kept``: keep a copy of their files in place of each."""
        for disk in self._mounted.pop(name, ()):
            copy = disk.with_name(f"{disk.name}-copy")
            if are_kept:
                shutil.copytree(disk, copy, ignore=shutil.ignore_patterns(_FILLER))
            subprocess.run(["umount", "--lazy", str(disk)], check=True)
            if are_kept:
                disk.rmdir()
                copy.rename(disk)

    def close(self, *, are_kept: bool) -> None:
        """Unmount all disks."""
        for name in list(self._mounted):
            self.unmount(name, are_kept=are_kept)


def fill(disk: Path, free_bytes: int) -> None:
    """Fill a disk with a file, except for ``free_bytes`` or less."""
    file = os.open(disk / _FILLER, os.O_RDWR | os.O_CREAT)
    try:
        size = 0
        while (left := _free(disk) - free_bytes) >= _STEP_BYTES:
            step = left
            while step >= _STEP_BYTES:
                try:
                    os.posix_fallocate(file, size, step)
                except OSError:  # the bookie uses the disk at the same time
                    step //= 2
                else:
                    size += step
                    break
            else:
                return
    finally:
        os.close(file)


def empty(disk: Path) -> None:
    """Remove the file that fills a disk."""
    (disk / _FILLER).unlink(missing_ok=True)


def hide(directory: Path) -> None:
    """Make a directory of a bookie empty, as if its disk were not mounted."""
    (directory / CURRENT).rename(directory / _HIDDEN)


def show(directory: Path) -> None:
    """Undo ``hide``. A start without the directory may have left a lock file in it."""
    shutil.rmtree(directory / CURRENT, ignore_errors=True)
    (directory / _HIDDEN).rename(directory / CURRENT)


def is_mounted(directory: Path) -> bool:
    """Return whether a directory of a bookie has its files."""
    return (directory / CURRENT / "VERSION").exists()


def destroy_hidden(directory: Path) -> None:
    """Make it impossible to undo ``hide``."""
    shutil.rmtree(directory / _HIDDEN)


def _free(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize
