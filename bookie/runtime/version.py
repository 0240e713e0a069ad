"""The version of the program."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Final

UNKNOWN_VERSION: Final = "unknown"


def installed_version() -> str:
    """Return the version of the installed package, or ``unknown`` if the code runs without an installation."""
    try:
        return version("bkheal")
    except PackageNotFoundError:
        return UNKNOWN_VERSION
