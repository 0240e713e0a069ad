"""The address of a Spark master. Pure; needs no Spark."""

from __future__ import annotations

import re
from typing import Final

_MASTER: Final = re.compile(r"local(-cluster)?(\[[^]]*\])?|yarn|[a-z][a-z0-9+.-]*://\S+")


def master_problems(master: str) -> list[str]:
    """Return why a text is not the address of a Spark master; nothing for an empty one.

    Spark itself refuses it only after its Java process has started; the run is on record by then, and may have marked.
    """
    if not master or _MASTER.fullmatch(master):
        return []
    return [f"{master!r} is not a Spark master: write local[4], yarn, spark://HOST:PORT or k8s://https://HOST:PORT"]
