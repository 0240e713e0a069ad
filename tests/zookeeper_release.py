"""Another release of ZooKeeper as the server of the tests: ``BKHEAL_ZOOKEEPER_LIB`` names the folder with its jars.

By default, the server is the one inside pyspark. ``.ci/zookeeper_releases`` downloads others.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bookie.embedded import zookeeper as embedded

FOLDER: Final = os.environ.get("BKHEAL_ZOOKEEPER_LIB", "")


def use_release() -> None:
    """Let all embedded servers of this process start from the jars of that release."""
    if FOLDER:
        embedded._jars = _all_jars


def _all_jars(patterns: Sequence[str] = ()) -> list[str]:
    """Return every jar, because the names of jars differ between releases."""
    return sorted(map(str, Path(FOLDER).glob("*.jar")))
