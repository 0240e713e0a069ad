"""Which version of the program this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def installed_version() -> str:
    """Version of the installed package; ``unknown`` if the code runs without an installation."""
    try:
        return version("bkheal")
    except PackageNotFoundError:
        return "unknown"
