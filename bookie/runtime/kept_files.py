"""The folder for files that outlive a process. All its content can be recreated."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path


def cache_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return ``$XDG_CACHE_HOME/bkheal`` or ``~/.cache/bkheal``; without a home, this user's temporary folder.

    Args:
        environment: default: this process's.
    """
    env = os.environ if environment is None else environment
    if env.get("XDG_CACHE_HOME"):
        return Path(env["XDG_CACHE_HOME"]) / "bkheal"
    if env.get("HOME"):
        return Path(env["HOME"]) / ".cache" / "bkheal"
    return temporary_folder()


def temporary_folder() -> Path:
    """This user's folder among the temporary files."""
    return Path(tempfile.gettempdir()) / f"bkheal-{os.getuid()}"
