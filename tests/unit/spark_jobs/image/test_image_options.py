"""The places where an image may be stored: paths, and URLs without secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie.runtime.configuration.settings import ConfigurationError
from spark_jobs.image.folder import LocalImageFolder, StoreImageFolder, image_folder
from spark_jobs.settings import AuditSettings

URI = "zk://zk1:2181/ledgers"


@pytest.mark.parametrize("text", ["s3a://bucket/image", "s3://bucket", "gs://bucket/a", "hdfs://name:8020/image",
                                  "abfss://box@account.dfs.core.windows.net/image"])  # fmt: skip
def test_addresses_of_stores_are_accepted(text: str) -> None:
    assert AuditSettings(URI, image_dir=text).image_place == text
    place = image_folder(text).child("cluster").child("run")
    assert isinstance(place, StoreImageFolder)
    assert (place.to_text(), place.name, place.parent.name) == (f"{text}/cluster/run", "run", "cluster")
    assert image_folder(place.to_text()).name == "run"


@pytest.mark.parametrize("text", ["image", "/mnt/image", "file:/mnt/image", "file:///mnt/image", "../image"])
def test_directories_are_accepted(text: str) -> None:
    AuditSettings(URI, image_dir=text)
    assert image_folder(text) == LocalImageFolder(Path(text.removeprefix("file://").removeprefix("file:")))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("s3a://key:pass-word@bucket/image", "must not contain a user or a password"),
        ("s3a://bucket/image?secret_key=pass-word", "parameters"),
        ("s3a://bucket/image?region=eu-1", "AWS_ENDPOINT_URL"),
        ("s3a:/bucket/image", "no bucket"),
        ("ftp://host/image", "begins with one of"),
        ("file://host/image", "has no host"),
        ("s3a://bucket/image#pass-word", "after #"),
    ],
)
def test_other_addresses_are_refused_without_repeating_a_secret(text: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason) as refused:
        AuditSettings(URI, image_dir=text)
    assert "pass-word" not in str(refused.value)


def test_the_image_is_next_to_the_reports_by_default() -> None:
    assert AuditSettings(URI, Path("there")).image_place == str(Path("there") / "image")
    assert AuditSettings(URI, with_image=False).image_place == ""
