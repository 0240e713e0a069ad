"""An HTTP request and its answer, and how they pass between the JVM and Python: as text, never as objects.

Returning Java objects from callbacks races with the garbage collector of the bridge, and reading each header from a
request object would cost a round trip. So the Java side passes what we need as a query string. The answer to it has the
status, header lines, an empty line, and the body.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl

_FIELDS_MAX: Final = 100
HTML: Final = "text/html; charset=utf-8"
JSON: Final = "application/json"


class InvalidCallError(Exception):
    """A malformed call, or one that did not come from our own Java side."""


@dataclass(frozen=True, slots=True)
class TabRequest:
    """The parts of a request needed for decisions."""

    method: str = "GET"
    path: str = ""
    """Path below the servlet, such as ``/v1/runs``."""
    base: str = ""
    """Prefix of links; see ``rules.safe_base``."""
    user: str = ""
    """Name of the user, from Spark's filters; empty: anonymous."""
    address: str = ""
    may_modify: bool = False
    """Whether Spark's modify access list admits this user. It also admits anonymous users."""
    length: int = 0
    """Size of the body in bytes; -1: unknown in advance."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """The headers that the Java side passes on, by lower-case name."""
    form: Mapping[str, str] = field(default_factory=dict)
    body: str = ""

    @property
    def is_json(self) -> bool:
        """Whether the body is JSON."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower() == JSON

    @property
    def wants_json(self) -> bool:
        """Whether the client is a program and not a browser."""
        return self.is_json or JSON in self.headers.get("accept", "")


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request."""

    status: int
    body: str = ""
    content_type: str = HTML
    headers: tuple[tuple[str, str], ...] = ()


def decode_request(text: str, key: str) -> TabRequest:
    """Decode a request from the Java side.

    Raises:
        InvalidCallError: the request lacks our key, or cannot be read. Every local user can connect to the bridge's
            port.
    """
    try:
        fields = dict(parse_qsl(text, keep_blank_values=True, strict_parsing=True, max_num_fields=_FIELDS_MAX))
        if not hmac.compare_digest(fields.get("key", "").encode(), key.encode()):
            raise InvalidCallError("the call does not carry this tab's key")
        return TabRequest(
            method=fields["method"],
            path=fields.get("path", ""),
            base=fields.get("base", ""),
            user=fields.get("user", ""),
            address=fields.get("address", ""),
            may_modify=fields.get("may_modify") == "true",
            length=int(fields.get("length", "-1")),
            headers=_with_prefix(fields, "header."),
            form=_with_prefix(fields, "form."),
            body=fields.get("body", ""),
        )
    except (ValueError, KeyError) as error:
        raise InvalidCallError(f"the call cannot be read: {error!r}") from error


def encode_answer(answer: Answer) -> str:
    """Encode an answer for the Java side. A header can never contain a line end."""
    headers = (("Content-Type", answer.content_type), *answer.headers)
    lines = [f"{name}: {' '.join(value.split())}" for name, value in headers]
    return "\n".join([str(answer.status), *lines, "", answer.body])


def json_answer(status: int, values: Mapping[str, Any], headers: tuple[tuple[str, str], ...] = ()) -> Answer:
    """Return an answer for a program."""
    return Answer(status, json.dumps(values, indent=2) + "\n", JSON, headers)


def _with_prefix(fields: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name.removeprefix(prefix): value for name, value in fields.items() if name.startswith(prefix)}
