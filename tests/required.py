"""Programs outside Python that some tests need. If one is missing, its tests are skipped, unless it is required.

``BKHEAL_REQUIRE`` names the required programs, separated by commas, for example ``apache,helm``. If one of them is
missing, its tests fail, so a complete run cannot pass by skipping them.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Mapping
from typing import Final, NoReturn

import pytest

VARIABLE: Final = "BKHEAL_REQUIRE"
NAMES: Final = (
    "browser",
    "promtool",
    "prometheus",
    "helm",
    "apache",
    "openssl",
    "apiserver",
    "image",
    "schemathesis",
    "pulsar",
    "kerberos",
    "moto",
    "hadoop-aws",
    "hadoop-hdfs",
    "loop",
)


def required() -> frozenset[str]:
    """Return the names of the required programs.

    Raises:
        pytest.UsageError: a name that no test knows.
    """
    named = frozenset(name for name in os.environ.get(VARIABLE, "").split(",") if name)
    if unknown := named - set(NAMES):
        raise pytest.UsageError(f"{VARIABLE} names {', '.join(sorted(unknown))}; choose from {', '.join(NAMES)}")
    return named


def why_missing(name: str) -> str:
    """Return why this machine lacks the program of the mark ``needs(name)``; empty if it has the program.

    Raises:
        pytest.UsageError: there is no rule for this name.
    """
    if name not in _FOUND_BY:
        raise pytest.UsageError(f"there is no rule to find {name!r}; choose from {', '.join(_FOUND_BY)}")
    return _FOUND_BY[name]()


def missing(name: str, why: str) -> NoReturn:
    """Skip the running test for the reason ``why``, or fail it if ``name`` is required."""
    if name in required():
        pytest.fail(f"{why} ({name} is required by {VARIABLE})", pytrace=False)
    pytest.skip(why)


def _openssl() -> str:
    return _not_on_path("openssl")


def _api_server() -> str:
    for name in ("BKHEAL_KUBE_APISERVER", "BKHEAL_ETCD"):
        if not os.environ.get(name):
            return f"{name} is not set: .ci/build_kube_apiserver.sh builds one"
    return _not_on_path("kubectl", "openssl")


def _image() -> str:
    if not os.environ.get("BKHEAL_IMAGE_STORE"):
        return "BKHEAL_IMAGE_STORE is not set: make image-test builds the image"
    return "podman needs root here" if os.geteuid() else _not_on_path("podman", "crun", "ip", "unshare")


def _schemathesis() -> str:
    found = importlib.util.find_spec("schemathesis")
    return "" if found else "schemathesis is not installed: pip install -e '.[dev]' -c constraints.txt installs it"


def _kerberos() -> str:
    if importlib.util.find_spec("kerberos") is None:
        return "kerberos is not installed: pip install -e '.[kerberos]' installs it (needs libkrb5-dev)"
    return _not_on_path("krb5kdc", "kdb5_util", "kadmin.local", "kinit", "openssl")


def _moto() -> str:
    found = importlib.util.find_spec("moto")
    return "" if found else "moto is not installed: pip install 'moto[server]>=5' installs it"


def _hadoop_aws() -> str:
    return _no_jars("BKHEAL_HADOOP_AWS_CLASSPATH", "hadoop-aws")


def _hadoop_hdfs() -> str:
    if importlib.util.find_spec("hdfs_native") is None:
        return "hdfs-native is not installed: pip install -e '.[hdfs]' installs it"
    return _no_jars("BKHEAL_HADOOP_HDFS_CLASSPATH", "hadoop-hdfs") or _not_on_path("java", "javac")


def _no_jars(variable: str, folder: str) -> str:
    paths = os.environ.get(variable, "")
    if paths and all(map(os.path.isfile, paths.split(os.pathsep))):
        return ""
    pom = f"mvn -q -f .ci/{folder}/pom.xml dependency:build-classpath -Dmdep.outputFile=FILE"
    return f"{variable} names no jars: {pom} writes its value"


def _loop() -> str:
    if os.geteuid():
        return "mounting a file system on a loop device needs root"
    return _not_on_path("mkfs.ext4", "mount", "umount")


def _not_on_path(*programs: str) -> str:
    absent = [name for name in programs if shutil.which(name) is None]
    return f"{', '.join(absent)} not on the path" if absent else ""


_FOUND_BY: Final[Mapping[str, Callable[[], str]]] = {
    "openssl": _openssl,
    "apiserver": _api_server,
    "image": _image,
    "schemathesis": _schemathesis,
    "kerberos": _kerberos,
    "moto": _moto,
    "hadoop-aws": _hadoop_aws,
    "hadoop-hdfs": _hadoop_hdfs,
    "loop": _loop,
}
