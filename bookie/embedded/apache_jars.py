"""The location of the jars of a real Apache BookKeeper, and commands to start its programs.

The jars are not dependencies of this project: only tests and comparisons use them. ``.ci/apache/pom.xml`` names the
version, and Maven fetches it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bookie.model.errors import PermanentError
from bookie.runtime.java import Java
from bookie.runtime.kept_files import cache_folder

APACHE_VERSION: Final = "4.17.3"
"""The version in ``.ci/apache/pom.xml``."""
LIB_VARIABLE: Final = "BKHEAL_APACHE_LIB"
"""Environment variable that names another folder with the jars, for example of another version."""

_OPENED: Final = ("java.base/java.io=ALL-UNNAMED", "java.base/java.util.zip=ALL-UNNAMED")
"""Packages opened by Apache's own start scripts: file descriptors for page cache hints, and fast checksums."""


class ApacheJarsMissingError(PermanentError):
    """The jars of Apache BookKeeper are missing on this machine; the text explains how to get them."""


@dataclass(frozen=True, slots=True)
class ApacheJvm:
    """How to start one of Apache's Java programs."""

    java: Java
    lib: Path
    """Folder with every jar."""
    heap_mib: int = 192
    """Java heap in MiB. Buffers outside the heap may take the same amount in addition."""
    options: Sequence[str] = field(default=("-XX:+UseSerialGC",))
    """Further options of the Java virtual machine."""

    def command(self, main_class: str, *arguments: str, properties: Mapping[str, str] | None = None) -> list[str]:
        """Return the command line for ``main_class``; ``properties`` are Java system properties."""
        return [
            str(self.java.executable),
            f"-Xmx{self.heap_mib}m",
            "-XX:-UsePerfData",
            *self.options,
            *(part for opened in _OPENED for part in ("--add-opens", opened)),
            *(f"-D{name}={value}" for name, value in (properties or {}).items()),
            "-cp",
            f"{self.lib}/*",
            main_class,
            *arguments,
        ]


def default_apache_lib(environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder of the jars, existing or not: ``BKHEAL_APACHE_LIB``, or one in the cache."""
    env = os.environ if environment is None else environment
    if given := env.get(LIB_VARIABLE):
        return Path(given)
    return cache_folder(env) / f"apache-bookkeeper-{APACHE_VERSION}"


def find_apache_lib(environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder with the jars of Apache BookKeeper's server and their dependencies.

    Raises:
        ApacheJarsMissingError: the folder has no such jars.
    """
    lib = default_apache_lib(environment)
    if not any(lib.glob("bookkeeper-server-*.jar")):
        raise ApacheJarsMissingError(
            f"no Apache BookKeeper in {lib}. In a checkout of this project, with Maven installed, do: "
            f"mvn -B -f .ci/apache/pom.xml dependency:copy-dependencies -DoutputDirectory={lib} "
            f"or set {LIB_VARIABLE} to a folder with the jars of its binary release"
        )
    return lib.resolve()


def apache_version(lib: Path) -> str:
    """Return the version of the server jar in ``lib``."""
    jar = min(lib.glob("bookkeeper-server-*.jar"))
    return jar.stem.removeprefix("bookkeeper-server-")
