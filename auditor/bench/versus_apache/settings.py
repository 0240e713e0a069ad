"""The setup of Apache's bookies for a comparison: the defaults, with enough memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bookie.embedded.apache_settings import ApacheOptions

BOOKIE_HEAP_MIB: Final = 768
_APACHE_DEFAULT_OPTIONS: Final[Mapping[str, str]] = {
    "journalPreAllocSizeMB": "16",
    "skipListSizeLimit": str(64 << 20),
    "logSizeLimit": str(1 << 30),
    "pageLimit": "-1",
}
"""Apache's own defaults for settings that the embedded cluster changes for small heaps and disks."""


def bookie_options() -> ApacheOptions:
    """Return Apache's defaults, with a journal that is synced before each answer."""
    return ApacheOptions(extra=_APACHE_DEFAULT_OPTIONS)
