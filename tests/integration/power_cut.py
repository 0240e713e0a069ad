"""A separate file system on which a test can simulate a loss of power: all data that was not synced is lost.

ext4 on a loop device has an ioctl that shuts it down immediately and drops the data in the page cache and in its
journal in memory. After the next mount, it has only the data that reached the device.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.deadlines import PROGRAM_S
from tests.required import missing

_SHUTDOWN: Final = 0x8004587D
"""EXT4_IOC_SHUTDOWN."""
_FREEZE: Final = 0xC0045877
_THAW: Final = 0xC0045878
"""FIFREEZE and FITHAW, as used by backup programs."""
_WITHOUT_FLUSHING: Final = struct.pack("I", 2)
_IMAGE_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class FragileDisk:
    """A mounted file system."""

    image: Path
    root: Path

    def cut_power(self) -> None:
        """Lose all unsynced data. Every later operation fails, until ``power_on``."""
        descriptor = os.open(self.root, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, _WITHOUT_FLUSHING)
        finally:
            os.close(descriptor)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Let the disk hang: in the block, writes and syncs do not end, but reads do. No signal ends a waiting call."""
        descriptor = os.open(self.root, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _FREEZE, 0)
            try:
                yield
            finally:
                fcntl.ioctl(descriptor, _THAW, 0)
        finally:
            os.close(descriptor)

    def power_on(self) -> None:
        """Mount the file system again. No process must be using it."""
        _run("umount", str(self.root))
        _run("mount", "-o", "loop", str(self.image), str(self.root))


@contextmanager
def fragile_disk(directory: Path) -> Iterator[FragileDisk]:
    """Make and mount a file system in ``directory``. If this is not possible, the test is skipped."""
    disk = FragileDisk(directory / "image", directory / "disk")
    disk.root.mkdir()
    with disk.image.open("wb") as file:
        file.truncate(_IMAGE_BYTES)
    try:
        _run("mkfs.ext4", "-q", "-F", str(disk.image))
        _run("mount", "-o", "loop", str(disk.image), str(disk.root))
    except subprocess.CalledProcessError as error:
        missing("loop", f"no file system on a loop device can be mounted here: {error.stderr.strip()}")
    try:
        yield disk
    finally:
        _run("umount", "--lazy", str(disk.root))
        disk.image.unlink()


@contextmanager
def slow_disk(directory: Path, outer: FragileDisk) -> Iterator[Path]:
    """Make and mount a file system on a file of ``outer`` as its device, and yield its mount point.

    While ``outer`` is frozen, this file system behaves as if its device did not answer: written data stays in memory,
    and syncs do not end.
    """
    root, image = directory / "slow", outer.root / "image"
    root.mkdir()
    with image.open("wb") as file:
        file.truncate(_IMAGE_BYTES // 2)
    _run("mkfs.ext4", "-q", "-F", str(image))
    _run("mount", "-o", "loop", str(image), str(root))
    try:
        yield root
    finally:
        _run("umount", "--lazy", str(root))


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=PROGRAM_S)
    except subprocess.CalledProcessError as error:
        error.add_note(error.stderr)
        raise
