"""Addresses of stores for reports and images: URIs without secrets. Pure; needs neither Spark nor Arrow."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from bookie.model.errors import PermanentError
from bookie.model.option import Option

SCHEMES: Final = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs", "file")
S3: Final = ("s3", "s3a")
ReportStoreOption = Annotated[
    str,
    Option(
        "Also write each report to this store, and fetch missing reports from it: s3://BUCKET/PATH, gs://, "
        "abfss://, hdfs:// or file://. Credentials come from the environment. See docs/reports.md.",
        default_text="none",
    ),
]
_S3_PARAMETERS: Final = frozenset({"endpoint_override", "region", "scheme"})
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
"""A scheme of two or more characters. None of the project's paths begins like this."""


class StoreAddressError(PermanentError):
    """A text is not an address of a store, or contains a password."""


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """The location of a folder: the parts of a URI without secrets."""

    scheme: str
    authority: str
    path: str
    parameters: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        query = f"?{urlencode(self.parameters, safe=':/')}" if self.parameters else ""
        return f"{self.scheme}://{self.authority}{self.path}{query}"


def address_problems(text: str) -> list[str]:
    """Return why ``text`` is not an address of a store; empty: it is one. Pure; no message contains a password."""
    try:
        parse_address(text)
    except StoreAddressError as error:
        return [f"report_store: {error}"]
    return []


def is_path(text: str) -> bool:
    """Whether a text is a path of this machine, and not meant as an address. Pure."""
    return _SCHEME.match(text) is None


def parse_address(text: str) -> StoreAddress:
    """Return the address in a URI such as ``s3://bucket/reports?endpoint_override=http://minio:9000``. Pure.

    Raises:
        StoreAddressError: it is not an address, or contains a password.
    """
    try:
        parts = urlsplit(text)
        has_secret = parts.password is not None or ("@" in parts.netloc and parts.scheme not in ("abfs", "abfss"))
        parameters = tuple(parse_qsl(parts.query, strict_parsing=True)) if parts.query else ()
    except ValueError as error:
        raise StoreAddressError("the address of the store is no URI") from error
    if parts.scheme not in SCHEMES:
        raise StoreAddressError(f"the address of a store begins with one of {', '.join(f'{s}://' for s in SCHEMES)}")
    if has_secret:
        raise StoreAddressError(
            "the address of the store must not contain a user or a password; credentials come from the environment, "
            "from the files of the library of the store, or from the role of the machine"
        )
    if parts.fragment or not (parts.netloc or parts.scheme in ("file", "hdfs", "viewfs")):
        raise StoreAddressError("the address of the store has no bucket, or a part after #")
    allowed = _S3_PARAMETERS if parts.scheme in S3 else frozenset[str]()
    unknown = sorted({name for name, _ in parameters} - allowed)
    if unknown:
        raise StoreAddressError(f"the address of the store has other parameters than {', '.join(sorted(allowed))}")
    return StoreAddress(parts.scheme, parts.netloc, parts.path.rstrip("/"), parameters)
