"""The options of the image of ledger metadata. A one-shot audit and the service have the same ones.

``spark_jobs.image`` describes its purpose. Importable without Spark.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from bookie.model.option import Option
from spark_jobs.store_address import StoreAddressError, is_path, parse_address

_HEADING: Final = "Image of ledger metadata"
IMAGE_AGE_MAX_S: Final = 7 * 86_400.0
"""Largest age of an image. The loss of a ledger that was created or moved later is found only by the pass over all
ledgers."""

WithImage = Annotated[
    bool,
    Option(
        "Keep an image of ledger metadata, and mark the ledgers of a lost bookie by it before all ledgers are read.",
        heading=_HEADING,
    ),
]
ImageDir = Annotated[
    str,
    Option(
        "Directory of the image, which all Spark executors share, or its address: s3a://BUCKET/PATH, gs://, abfss:// "
        "or hdfs://. Credentials come from the environment. See docs/audits.md.",
        default_text="image in the report directory",
        heading=_HEADING,
    ),
]
ImageAgeMax = Annotated[
    float,
    Option(
        "Do not use an image older than this, in seconds.",
        minimum=60,
        maximum=366 * 86_400,
        heading=_HEADING,
    ),
]
REREAD_WITHIN_S: Final = 7 * 86_400.0
"""The same as the default age of an image: a change that no list of ledgers shows is found within a week."""

Incremental = Annotated[
    bool,
    Option(
        "With --kind bookies: read new, open and endangered ledgers and a part of the others, and take the rest from "
        "the image.",
        heading=_HEADING,
    ),
]
RereadWithin = Annotated[
    float,
    Option(
        "With --incremental, read every ledger again within this time, in seconds.",
        minimum=60,
        maximum=366 * 86_400,
        heading=_HEADING,
    ),
]


def image_dir_problems(text: str) -> list[str]:
    """Return why ``text`` is neither a directory nor an address; empty: it is. Pure; no message contains a password."""
    if is_path(text):
        return []
    try:
        address = parse_address(text)
    except StoreAddressError as error:
        return [f"image_dir: {error}"]
    if address.parameters:
        return ["image_dir: the address has parameters; the variable AWS_ENDPOINT_URL names another S3 server"]
    if address.scheme == "file" and address.authority:
        return ["image_dir: the address of a directory has no host: file:///PATH"]
    return []


def image_text(report_dir: Path, image_dir: str, *, has_image: bool) -> str:
    """Return the directory or the address of the image; empty: there is no image."""
    return (image_dir or str(report_dir / "image")) if has_image else ""
