"""The client's side of a SASL login: PLAIN (RFC 4616) and DIGEST-MD5 (RFC 2831), quality of protection ``auth``.

This module only makes and checks tokens; ``handshake`` sends them. Apache's bookies offer DIGEST-MD5, an old mechanism
that only keeps the password off the wire: a login should be made inside TLS.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from typing_extensions import override

from bookie.model.errors import PermanentError
from bookie.wire.security import SaslCredentials, SaslMechanism

APACHE_SERVICE: Final = "bookkeeper"
APACHE_HOST: Final = "bookkeeper"
"""Service and host in the signatures of Apache's bookies and clients: fixed words in their code, independent of
configuration and machine."""

_CHALLENGE_BYTES_MAX: Final = 2048
"""RFC 2831, section 2.1.1."""
_DIRECTIVE: Final = re.compile(r'[\s,]*([!-+\--<>-~]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))\s*(?:,|$)')
_NONCE_COUNT: Final = "00000001"


class LoginError(PermanentError):
    """The bookie's token is invalid or proves nothing. The text contains no password."""


class Login(Protocol):
    """One login over one connection."""

    @property
    def is_complete(self) -> bool:
        """True if nothing is left to send or to check."""
        ...

    def first(self) -> bytes:
        """Return the first token."""
        ...

    def answer(self, token: bytes) -> bytes | None:
        """Return the answer to the bookie's token; None if there is nothing more to send.

        Raises:
            LoginError: the token is invalid here, or the bookie did not prove that it has the password.
        """
        ...


def login(credentials: SaslCredentials) -> Login:
    """Begin a login."""
    if credentials.mechanism is SaslMechanism.PLAIN:
        return PlainLogin(credentials)
    return DigestMd5Login(credentials, _secure_nonce)


class PlainLogin(Login):
    """Name and password in one token, which the bookie accepts or not."""

    def __init__(self, credentials: SaslCredentials) -> None:
        self._credentials = credentials
        self._is_complete = False

    @property
    @override
    def is_complete(self) -> bool:
        return self._is_complete

    @override
    def first(self) -> bytes:
        return f"\0{self._credentials.username}\0{self._credentials.password}".encode()

    @override
    def answer(self, token: bytes) -> bytes | None:
        if token:
            raise LoginError("the bookie continues a completed PLAIN login: it offers another mechanism")
        self._is_complete = True
        return None


class DigestMd5Login(Login):
    """Challenge and response; the bookie's last token proves that it has the password as well."""

    def __init__(
        self,
        credentials: SaslCredentials,
        new_nonce: Callable[[], str],
        service: str = APACHE_SERVICE,
        host: str = APACHE_HOST,
    ) -> None:
        self._credentials = credentials
        self._new_nonce = new_nonce
        self._digest_uri = f"{service}/{host}"
        self._expected_proof = ""
        self._is_complete = False

    @property
    @override
    def is_complete(self) -> bool:
        return self._is_complete

    @override
    def first(self) -> bytes:
        """Empty: in this mechanism the server begins."""
        return b""

    @override
    def answer(self, token: bytes) -> bytes | None:
        if self._is_complete:
            raise LoginError("the bookie continues a completed login")
        directives = parse_challenge(token)
        if not self._expected_proof:
            return self._response(directives)
        if not hmac.compare_digest(directives.get("rspauth", "").encode(), self._expected_proof.encode()):
            raise LoginError("the bookie did not prove that it knows the password")
        self._is_complete = True
        return None

    def _response(self, challenge: Mapping[str, str]) -> bytes:
        nonce = challenge.get("nonce", "")
        if not nonce or challenge.get("algorithm") != "md5-sess":
            raise LoginError("the bookie's challenge has no nonce, or asks for another algorithm than md5-sess")
        if "auth" not in re.split(r"[\s,]+", challenge.get("qop", "auth")):
            raise LoginError("the bookie demands a protected session, which only TLS gives here")
        if challenge.get("stale", "false") == "true":
            raise LoginError("the bookie calls a first login stale")
        cnonce = self._new_nonce()
        realm = challenge.get("realm", APACHE_HOST)
        is_utf8 = challenge.get("charset", "").lower() == "utf-8"
        secret = self._secret(realm, nonce, cnonce, is_utf8=is_utf8)

        def proof(prefix: str) -> str:
            a2 = hashlib.md5(f"{prefix}:{self._digest_uri}".encode(), usedforsecurity=False).hexdigest()
            signed = f"{secret}:{nonce}:{_NONCE_COUNT}:{cnonce}:auth:{a2}"
            return hashlib.md5(signed.encode(), usedforsecurity=False).hexdigest()

        self._expected_proof = proof("")
        charset = "charset=utf-8," if is_utf8 else ""
        username = _quoted(self._credentials.username)
        return (
            f'{charset}username="{username}",realm="{_quoted(realm)}",nonce="{_quoted(nonce)}",nc={_NONCE_COUNT},'
            f'cnonce="{_quoted(cnonce)}",digest-uri="{_quoted(self._digest_uri)}",response={proof("AUTHENTICATE")},qop=auth'
        ).encode("utf-8" if is_utf8 else "latin-1", "replace")

    def _secret(self, realm: str, nonce: str, cnonce: str, *, is_utf8: bool) -> str:
        parts = (self._credentials.username, realm, self._credentials.password)
        known = hashlib.md5(
            b":".join(_encode_for_hash(part, is_utf8) for part in parts), usedforsecurity=False
        ).digest()
        return hashlib.md5(known + f":{nonce}:{cnonce}".encode(), usedforsecurity=False).hexdigest()


def parse_challenge(token: bytes) -> dict[str, str]:
    """Return the directives of a DIGEST-MD5 token. Of several with the same name, such as realms, the first one counts.

    Raises:
        LoginError: it is not such a token.
    """
    if len(token) > _CHALLENGE_BYTES_MAX:
        raise LoginError(f"a login token of {len(token)} bytes, at most {_CHALLENGE_BYTES_MAX} are allowed")
    try:
        text = token.decode()
    except UnicodeDecodeError:
        text = token.decode("latin-1")
    directives: dict[str, str] = {}
    end = 0
    while match := _DIRECTIVE.match(text, end):
        name, quoted, plain = match.groups()
        directives.setdefault(name.lower(), plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted))
        end = match.end()
    if not directives or text[end:].strip(" \t\r\n,"):
        raise LoginError("the bookie's login token is not a list of directives: it offers another mechanism")
    return directives


def _encode_for_hash(text: str, is_utf8: bool) -> bytes:
    """Encode per RFC 2831, section 2.1.2.1: as ISO 8859-1 if possible, even if UTF-8 was agreed on."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        if is_utf8:
            return text.encode()
        raise LoginError("the name or the password needs UTF-8, which the bookie does not offer") from None


def _quoted(text: str) -> str:
    return re.sub(r'(["\\])', r"\\\1", text)


def _secure_nonce() -> str:
    return base64.b64encode(secrets.token_bytes(24)).decode()
