"""The version of the program."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def installed_version() -> str:
    """Return the version of the installed package, or ``unknown`` if the code runs without an installation."""
    try:
        return version("bkheal")
    except PackageNotFoundError:
        return "unknown"
