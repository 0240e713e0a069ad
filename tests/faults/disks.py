"""Small disks of bookies, which can be filled. Each is a tmpfs, which root may mount."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

SIZES_MIB: Final = {"journal": 256, "ledgers": 768}
"""The sizes of the disks by directory: a run uses less than half of them."""
_FILLER: Final = "filler"
"""The name of the file that fills a disk. It is next to ``current``, where a bookie ignores it."""
_STEP_BYTES: Final = 1 << 16


class Disks:
    """The small disks of a cluster."""

    def __init__(self) -> None:
        """Start without a disk."""
        self.problem = ""
        """The reason why no disk can be mounted."""
        self._mounted: dict[str, list[Path]] = {}

    def mount(self, name: str, directory: Path) -> None:
        """Mount the disks of a bookie in its empty directory, if possible."""
        for part, size_mib in SIZES_MIB.items():
            disk = directory / part
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


def _free(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize
