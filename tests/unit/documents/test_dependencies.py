"""The oldest permitted versions of the dependencies suffice for the code that was generated for them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[3]
REQUIREMENTS: Final[list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
GENERATED: Final = sorted(
    path
    for package in ("auditor", "bookie", "replicator", "spark_jobs")
    for path in (ROOT / package).rglob("*_pb2*.py")
)


def oldest(name: str) -> tuple[int, ...]:
    """The version of a dependency below which it is not permitted."""
    (version,) = (found[1] for text in REQUIREMENTS if (found := re.fullmatch(rf"{name}>=([\d.]+)(,.*)?", text)))
    return tuple(map(int, version.split(".")))


def needed(text: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The dependencies that a generated module checks when it is imported, with the version that it needs."""
    if found := re.search(r"GRPC_GENERATED_VERSION = '([\d.]+)'", text):
        yield "grpcio", tuple(map(int, found[1].split(".")))
    if found := re.search(r"ValidateProtobufRuntimeVersion\(\s*[\w.]+,\s*(\d+),\s*(\d+),\s*(\d+),", text):
        yield "protobuf", tuple(map(int, found.groups()))


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: path.name)
def test_generated_code_accepts_the_oldest_permitted_version(path: Path) -> None:
    found = dict(needed(path.read_text()))
    assert found
    for name, version in found.items():
        assert oldest(name) >= version
