"""The edge where a topology file is read; what it means is ``metadata.topology``'s."""

from __future__ import annotations

from pathlib import Path

from bookie.metadata.bookies.topology import InvalidTopologyError


def topology_text(path: Path | None) -> str | None:
    """Content of a topology file; None for no file.

    Raises:
        InvalidTopologyError: it cannot be read.
    """
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidTopologyError(f"topology file {path}: {error}") from error
