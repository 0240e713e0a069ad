"""Folders for findings: only those that Hadoop can open, and never one that contains a secret."""

from __future__ import annotations

import pytest

from bookie.runtime.configuration.settings import ConfigurationError
from spark_jobs.options.findings import findings_dir_problems
from spark_jobs.settings import AuditSettings


@pytest.mark.parametrize(
    "text", ["s3a://bucket/f", "gs://bucket/f", "abfss://box@account.dfs.core.windows.net/f", "hdfs://name:8020/f"]
)
def test_valid_folders_are_accepted(text: str) -> None:
    assert findings_dir_problems(text) == []
    assert AuditSettings("zk://zk1:2181/ledgers", findings_dir=text).findings_dir == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("s3a://id:secret@bucket/f", "must not contain a user or a password"),
        ("s3a://bucket/f?endpoint_override=http://minio:9000", "the settings of Spark name the endpoint"),
        ("s3://bucket/f", "s3a://"),
        ("/mnt/findings", "begins with one of"),
    ],
)
def test_other_folders_are_refused_without_repeating_a_secret(text: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason) as refused:
        AuditSettings("zk://zk1:2181/ledgers", findings_dir=text)
    assert "secret@" not in str(refused.value)
