"""The process from which Spark forks its Python workers, with a faster start.

By default, Spark's workers import ``pyspark`` from an archive of sources, which Python compiles again in each process.
The package that contains this archive has the same modules in compiled form (decision 123).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

_ARCHIVE: Final = "python/lib/pyspark.zip"


def compiled_paths(paths: list[str]) -> list[str]:
    """Return the search path with the archive replaced by the package ``pyspark`` that contains it."""
    return [_package_of(path) or path for path in paths]


def _package_of(path: str) -> str | None:
    if not path.endswith(f"/{_ARCHIVE}"):
        return None
    package = Path(path.removesuffix(f"/{_ARCHIVE}"))
    return str(package.parent) if package.name == "pyspark" and (package / "__init__.py").is_file() else None


if __name__ == "__main__":
    sys.path[:] = compiled_paths(sys.path)
    from pyspark.daemon import manager

    from bookie.runtime.arrow import leave_out_pandas

    leave_out_pandas()
    manager()
