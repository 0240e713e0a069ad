"""Archives that tests unpack, on every supported Python."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(archive: Path, directory: Path, *, is_trusted: bool = False) -> None:
    """Unpack a tar archive.

    Python 3.11.0 to 3.11.3 have no filters of members, and Python 3.12 and later warn without one.

    Args:
        archive: the archive, which may be compressed.
        directory: created if necessary.
        is_trusted: whether members may refer to files outside of the directory, as links of an environment do.
    """
    name = "fully_trusted_filter" if is_trusted else "data_filter"
    with tarfile.open(archive) as opened:
        opened.extraction_filter = getattr(tarfile, name, lambda member, path: member)
        opened.extractall(directory)
