"""One HTTP request and its answer, and how both cross from the JVM and back: as text, never as objects.

Returning Java objects from callbacks races with the garbage collector of the bridge, and asking a request object for
each header would cost a round trip each. So the Java side writes down what we need in the form of a query string, and
gets back ``status``, header lines, an empty line, and the body.
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


class StrangeCallError(Exception):
    """A call that did not come from our own Java side, or that was garbled there."""


@dataclass(frozen=True, slots=True)
class TabRequest:
    """The parts of a request needed for decisions."""

    method: str = "GET"
    path: str = ""
    """Below the servlet: ``/v1/runs``."""
    base: str = ""
    """Prefix of links; see ``rules.safe_base``."""
    user: str = ""
    """From Spark's filters; empty: anonymous."""
    address: str = ""
    may_modify: bool = False
    """Whether Spark's own modify access list lets this user through. True for an anonymous user as well."""
    length: int = 0
    """Bytes of the body; -1: unknown in advance."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Those passed on by the Java side, by lower-case name."""
    form: Mapping[str, str] = field(default_factory=dict)
    body: str = ""

    @property
    def is_json(self) -> bool:
        """Whether the body is JSON."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower() == JSON

    @property
    def wants_json(self) -> bool:
        """Whether the client is a program, not a browser."""
        return self.is_json or JSON in self.headers.get("accept", "")


@dataclass(frozen=True, slots=True)
class Answer:
    """What to send back."""

    status: int
    body: str = ""
    content_type: str = HTML
    headers: tuple[tuple[str, str], ...] = ()


def decode_request(text: str, key: str) -> TabRequest:
    """Read a request written by the Java side.

    Raises:
        StrangeCallError: it lacks our key, or cannot be read. The bridge's port is open to every local user.
    """
    try:
        fields = dict(parse_qsl(text, keep_blank_values=True, strict_parsing=True, max_num_fields=_FIELDS_MAX))
        if not hmac.compare_digest(fields.get("key", "").encode(), key.encode()):
            raise StrangeCallError("the call does not carry this tab's key")
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
        raise StrangeCallError(f"the call cannot be read: {error!r}") from error


def encode_answer(answer: Answer) -> str:
    """Write an answer for the Java side. Line ends cannot get into a header."""
    headers = (("Content-Type", answer.content_type), *answer.headers)
    lines = [f"{name}: {' '.join(value.split())}" for name, value in headers]
    return "\n".join([str(answer.status), *lines, "", answer.body])


def json_answer(status: int, values: Mapping[str, Any], headers: tuple[tuple[str, str], ...] = ()) -> Answer:
    """Return an answer for a program."""
    return Answer(status, json.dumps(values, indent=2) + "\n", JSON, headers)


def _with_prefix(fields: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name.removeprefix(prefix): value for name, value in fields.items() if name.startswith(prefix)}
