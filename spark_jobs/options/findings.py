"""The option of the folder through which findings go from executors to the driver. Importable without Spark.

A one-shot audit and the service have the same option. ``spark_jobs.runs.hadoop_files`` describes its use.
"""

from __future__ import annotations

from typing import Annotated

from bookie.model.option import Option
from spark_jobs.store_address import StoreAddressError, parse_address

FindingsDir = Annotated[
    str,
    Option(
        "Executors write the findings to this folder of a Hadoop file system, such as s3a://BUCKET/PATH, and the "
        "driver takes them from there, so the directory of reports need not be shared. The settings of Hadoop are "
        "Spark's. See docs/spark-clusters.md.",
        default_text="none",
    ),
]


def findings_dir_problems(text: str) -> list[str]:
    """Return why ``text`` is not such a folder; empty: it is one. Pure; no message contains a password."""
    try:
        address = parse_address(text)
    except StoreAddressError as error:
        return [f"findings_dir: {error}"]
    if address.parameters:
        return ["findings_dir: the address has parameters; the settings of Spark name the endpoint, spark.hadoop.fs..."]
    if address.scheme == "s3":
        return ["findings_dir: the file system of Hadoop for S3 is s3a://"]
    return []
