"""API tokens: a file of names, roles and hashes.

One token a line, ``name role sha256 [expires]``, separated by blanks; ``#`` begins a comment. ``expires`` is a time
such as ``2027-01-31T00:00:00Z``; from then on the token is refused. The file contains no secret: a token is 256 random
bits, so a plain hash of it cannot be reversed. It is read again when it changes. If it is unreadable or has an invalid
line, no token is admitted, because it is not known which tokens were revoked.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import logging
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bookie.model.errors import PermanentError
from bookie.model.times import epoch_ms, rfc3339

_log = logging.getLogger(__name__)

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_TIME: Final = re.compile(r"[0-9T:.\-]+(Z|[+-][0-9]{2}:[0-9]{2})")
"""A time with an offset: a local time would mean a different moment on each machine."""
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_PREFIX: Final = "bkheal_"
"""Prefix by which people and scanners for leaked secrets recognize a token."""
ANONYMOUS: Final = "anonymous"
_TOKEN_BYTES_MAX: Final = 64 << 10
"""Size limit of the file of one token. A token of bkheal has 50 characters, a JWT of another service a few thousand."""


class TokensFileError(PermanentError):
    """A line of the tokens file is invalid. The message never repeats the line, which might be a token."""


class TokenFileError(PermanentError):
    """The file of a caller's own token cannot be used. The message never repeats its content."""


class Role(enum.StrEnum):
    """What a caller may do. Each role includes those before it."""

    READ = "read"
    OPERATE = "operate"
    """Start, pause and cancel runs; drain, boost, limit copying, retry dead letters; enable recovery."""
    ADMINISTER = "administer"
    """Disable recovery, set the lost-bookie delay, accept losses, drop dead letters, hold critical ledgers back."""

    def includes(self, needed: Role) -> bool:
        """Whether this role may do what ``needed`` may."""
        order = list(Role)
        return order.index(self) >= order.index(needed)


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """One line of the file."""

    name: str
    role: Role
    sha256: str = field(repr=False)
    expires_ms: int = 0
    """From then on it is refused; 0: it does not expire."""

    def is_expired(self, now_ms: int) -> bool:
        """Whether it is refused."""
        return 0 < self.expires_ms <= now_ms


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token just made: ``token`` for its owner, ``line`` for the file."""

    token: str = field(repr=False)
    line: str


def make_token(name: str, role: Role, expires_ms: int = 0) -> NewToken:
    """Make a token that expires at a given time, or never if the time is 0.

    Raises:
        TokensFileError: ``name`` is not a valid name.
    """
    if not _NAME.fullmatch(name) or name == ANONYMOUS:
        raise TokensFileError(
            f"a token cannot be named {name!r}: letters, digits, '.', '_', '@' and '-', up to 64, and not {ANONYMOUS!r}"
        )
    token = _PREFIX + secrets.token_urlsafe(32)
    expires = f" {rfc3339(expires_ms, 'seconds')}" if expires_ms > 0 else ""
    return NewToken(token, f"{name} {role.value} {_sha256(token)}{expires}")


def parse_tokens(text: str) -> tuple[TokenEntry, ...]:
    """Read the content of a tokens file.

    Raises:
        TokensFileError: a line is invalid; the message contains its number and the expected form.
    """
    entries: dict[str, TokenEntry] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        entry = _entry(words)
        if entry is None:
            raise TokensFileError(
                f"line {number} of the tokens file is not `name role sha256 [expires]` with one of the roles "
                f"{', '.join(Role)}; "
                "`bkheal auditor-token NAME` prints such a line"
            )
        if entry.name in entries:
            raise TokensFileError(f"line {number} of the tokens file names {entry.name} a second time")
        entries[entry.name] = entry
    return tuple(entries.values())


def read_token_file(path: Path) -> str:
    """Read the token for a caller's own requests from the file's present content.

    Raises:
        TokenFileError: the file cannot be read, or does not contain exactly one token.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_TOKEN_BYTES_MAX + 1)
        if len(content) > _TOKEN_BYTES_MAX:
            raise TokenFileError(f"cannot read the token in {path}: it has more than {_TOKEN_BYTES_MAX} bytes")
        token = content.decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise TokenFileError(f"cannot read the token in {path}: {_reason(error)}") from None
    if not token:
        raise TokenFileError(f"there is no token in {path}")
    if not is_valid_token(token):
        raise TokenFileError(f"what is in {path} is not a token: it must be one word of plain ASCII")
    return token


def is_valid_token(token: str) -> bool:
    """Whether ``token`` is valid in a header. The error for a malformed header would contain the token."""
    return all(char.isascii() and char.isprintable() and not char.isspace() for char in token)


class Tokens:
    """The tokens in the present content of one file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._entries: tuple[TokenEntry, ...] = ()

    def find(self, token: str) -> TokenEntry | None:
        """Return the entry of a token, or None. Takes the same time for valid and invalid tokens."""
        self._refresh()
        asked, found = _sha256(token), None
        for entry in self._entries:
            if hmac.compare_digest(entry.sha256, asked):
                found = entry
        return found

    def _refresh(self) -> None:
        if self._path is None:
            return
        try:
            stat = self._path.stat()
            seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if seen == self._seen:
                return
            self._entries, self._seen = (), seen
            self._entries = parse_tokens(self._path.read_text(encoding="utf-8"))
            _log.info("tokens read", extra={"path": str(self._path), "tokens": len(self._entries)})
        except (OSError, UnicodeDecodeError, TokensFileError) as error:
            if self._entries or not isinstance(error, OSError) or self._seen is not None:
                _log.error("no token is admitted", extra={"path": str(self._path), "error": _reason(error)})
            self._entries = ()
            self._seen = None if isinstance(error, OSError) else self._seen


def _entry(words: list[str]) -> TokenEntry | None:
    if len(words) not in (3, 4) or words[1] not in set(Role) or words[0] == ANONYMOUS:
        return None
    name, role, sha256 = words[0], words[1], words[2].removeprefix("sha256:").lower()
    if not _NAME.fullmatch(name) or not _SHA256.fullmatch(sha256):
        return None
    expires_ms = 0
    if len(words) == 4:
        try:
            expires_ms = epoch_ms(words[3])
        except (ValueError, OverflowError):
            return None
        if expires_ms <= 0 or not _TIME.fullmatch(words[3]):
            return None
    return TokenEntry(name, Role(role), sha256, expires_ms)


def _sha256(token: str) -> str:
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    return (isinstance(error, OSError) and error.strerror) or str(error)
