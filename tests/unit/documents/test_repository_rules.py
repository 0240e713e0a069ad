"""Rules about the tree that linters do not check: which modules may do I/O, and what texts must not contain."""

from __future__ import annotations

import ast
import logging
import tomllib
from collections import Counter

import pytest

from tests.worlds.sources import ROOT, sources

USERS = {
    "kazoo": {
        "bookie/metadata/store/kazoo_connection.py",
        "auditor/bench/audits/other_client.py",
        "auditor/bench/audits/scan_measurement.py",
    },
    "httpx": {
        "auditor/cli/audit/remote.py",
        "auditor/cli/admin_requests.py",
        "spark_jobs/snapshot/streaming.py",
    },
    "rocksdict": {"bookie/storage/disks/rocks.py"},
}
"""Third-party libraries with a single adapter.

There are exceptions: benchmarks use kazoo directly as a baseline and as another client; httpx has an adapter for
auditors, one for other programs, and one for snapshots of ZooKeeper.
"""

FOLDERS = {"grpc": ("bookie/wire/", "bookie/server/", "auditor/api/"), "pyspark": ("spark_jobs/", "auditor/bench/")}

CORES: dict[str, set[str]] = {
    "bookie/model": set(),
    # The last two modules read the environment and secrets.
    "bookie/metadata": {"kazoo_connection.py", "sockets.py", "lookup.py", "access.py", "credentials.py"},
    "bookie/client": set(),
    "bookie/storage": {"files.py", "directory_lock.py", "rocks.py"},
    "replicator": {"main.py", "__main__.py"},
}
"""Packages that run in the simulator, and their modules that do not."""

NAMES_OF_TWO_CLASSES = {
    # Requests of Apache's clients to a bookie, and the requests of our own transport.
    *("Info", "ListEntries", "Read", "ReadLac", "WriteLac"),
    # A reader and its options in the client, and in Spark's data source.
    *("LedgerOptions", "LedgerReader"),
    # The copy of an entry range as a request, and a copy of a ledger in the inventory; two sides of a Java process.
    *("Copy", "Java"),
}
"""Public names with more than one class in the product. Do not add one: find the better noun."""

WORLD = {"time", "threading", "socket", "os", "subprocess", "concurrent", "multiprocessing", "shutil", "tempfile"}


@pytest.mark.parametrize("library", USERS)
def test_a_library_with_one_adapter_is_imported_only_there(library: str) -> None:
    assert {source.path for source in sources() if library in source.libraries} == USERS[library]


@pytest.mark.parametrize("library", FOLDERS)
def test_a_library_is_imported_only_in_its_packages(library: str) -> None:
    users = {source.path for source in sources() if library in source.libraries}
    assert users
    assert {path for path in users if not path.startswith(FOLDERS[library])} == set()


@pytest.mark.parametrize("package", CORES)
def test_cores_do_io_only_through_ports(package: str) -> None:
    users = {source.path.rsplit("/", 1)[1] for source in sources(package) if source.libraries & WORLD}
    assert users == CORES[package]


def test_package_files_contain_no_logic() -> None:
    full = [
        source.path
        for source in sources()
        if source.path.endswith("__init__.py") and [node for node in source.body if not isinstance(node, ast.Expr)]
    ]
    assert full == []


def test_a_public_class_has_a_name_of_its_own() -> None:
    counts = Counter(
        node.name
        for source in sources()
        for node in source.nodes
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in counts.items() if count > 1} <= NAMES_OF_TWO_CLASSES


def test_run_time_requirements_of_spark_are_installed_with_the_product() -> None:
    """Spark's functions on Arrow batches import pandas.

    No import in our code shows this, and the tests install pandas anyway.
    """
    calls = {node.attr for source in sources("spark_jobs") for node in source.nodes if isinstance(node, ast.Attribute)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "mapInArrow" in calls
    assert any(needed.startswith("pandas") for needed in project["optional-dependencies"]["spark"])


def test_nothing_is_unpickled() -> None:
    assert [source.path for source in sources() if source.libraries & {"pickle", "marshal", "shelve"}] == []


def test_no_product_code_decides_fault_points() -> None:
    """Outside a simulation, every fault point is false."""
    deciders = [
        source.path
        for source in sources()
        for node in source.nodes
        if isinstance(node, ast.ImportFrom)
        and node.module == "bookie.runtime.fault_points"
        and any(alias.name != "fault_point" for alias in node.names)
    ]
    assert deciders == []


def test_there_are_many_fault_points_and_each_has_a_name() -> None:
    """Each one has a name of its own form, written in place, so that a simulation can count how often it fires."""
    names = [
        node.args[0].value if isinstance(node.args[0], ast.Constant) else None
        for source in sources("bookie", "replicator")
        for node in source.nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "fault_point"
    ]
    assert all(isinstance(name, str) and name.count(".") == 1 for name in names)
    assert len(set(names)) >= 40


def test_no_event_field_has_the_name_of_a_log_record_attribute() -> None:
    """For such a name, the logging module raises KeyError in the very branch that reports a problem."""
    reserved = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}
    clashes = [
        f"{source.path}:{keyword.value.lineno} {key.value}"
        for source in sources()
        for keyword in source.nodes
        if isinstance(keyword, ast.keyword) and keyword.arg == "extra" and isinstance(keyword.value, ast.Dict)
        for key in keyword.value.keys
        if isinstance(key, ast.Constant) and key.value in reserved
    ]
    assert clashes == []
