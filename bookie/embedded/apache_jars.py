"""The location of the jars of a real Apache BookKeeper, and the start of a program in them.

They are not dependencies of this project: tests and comparisons alone use them. ``.ci/apache/pom.xml`` names the
version, Maven fetches it.
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
"""The version that ``.ci/apache/pom.xml`` asks for."""
LIB_VARIABLE: Final = "BKHEAL_APACHE_LIB"
"""Environment variable that names another folder with the jars, for example of another version."""

_OPENED: Final = ("java.base/java.io=ALL-UNNAMED", "java.base/java.util.zip=ALL-UNNAMED")
"""What Apache's own start scripts open: file descriptors for page cache hints, and the fast checksums."""


class ApacheJarsMissingError(PermanentError):
    """The jars of Apache BookKeeper are not on this machine; the text contains the way to get them."""


@dataclass(frozen=True, slots=True)
class ApacheJvm:
    """How a Java program of Apache's is started."""

    java: Java
    lib: Path
    """Folder with every jar."""
    heap_mib: int = 192
    """Java heap in MiB; buffers outside the heap may take as much again."""
    options: Sequence[str] = field(default=("-XX:+UseSerialGC",))
    """Further options of the Java machine."""

    def command(self, main_class: str, *arguments: str, properties: Mapping[str, str] | None = None) -> list[str]:
        """The command line that runs ``main_class``; ``properties`` are Java system properties."""
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
    """Folder of the jars, whether or not it exists: ``BKHEAL_APACHE_LIB``, or one in the cache."""
    env = os.environ if environment is None else environment
    if given := env.get(LIB_VARIABLE):
        return Path(given)
    return cache_folder(env) / f"apache-bookkeeper-{APACHE_VERSION}"


def find_apache_lib(environment: Mapping[str, str] | None = None) -> Path:
    """Folder with the jars of Apache BookKeeper's server and all that it needs.

    Raises:
        ApacheJarsMissingError: they are not there.
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
    """Version of the server jar in ``lib``."""
    jar = min(lib.glob("bookkeeper-server-*.jar"))
    return jar.stem.removeprefix("bookkeeper-server-")
