"""Errors of snapshots."""

from __future__ import annotations

from bookie.model.errors import PermanentError


class SnapshotError(PermanentError):
    """A file is not a usable snapshot of the cluster; the text names the file and the reason."""
