"""The credentials of a client, the verification of bookies, and the limit of their answers."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

from bookie.model.errors import PermanentError
from bookie.model.option import Option
from bookie.runtime.configuration.options import file_problem, range_problems
from bookie.wire.apache.framing import FRAME_BYTES_LIMIT, FRAME_BYTES_MAX, FRAME_BYTES_SAFE_MAX

FRAME_BYTES_MIN: Final = FRAME_BYTES_SAFE_MAX
"""Apache's own default of the longest frame: a lower limit would only lose frames of correct bookies."""


class SecurityFilesError(PermanentError):
    """A file with a secret cannot be used."""


class SaslMechanism(enum.Enum):
    """Ways to log in to an Apache bookie that requires it (docs/formats.md#tls-and-login)."""

    DIGEST_MD5 = "DIGEST-MD5"
    PLAIN = "PLAIN"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Paths of PEM files of one end of a connection."""

    ca: Annotated[
        Path, Option("PEM file of the authority that signs the peers' certificates; enables TLS.", is_file=True)
    ]
    """CA certificates; the certificate of a peer must be signed by one of them."""
    cert: Annotated[Path | None, Option("PEM file of the certificate, with --tls-ca.", is_file=True)] = None
    """This side's certificate chain; a server must have one, a client needs it for servers that ask (ours do)."""
    key: Annotated[Path | None, Option("PEM file of its key, with --tls-ca.", is_file=True)] = None
    """Private key of ``cert``."""


@dataclass(frozen=True, slots=True)
class SaslCredentials:
    """A name and a password for Apache bookies whose authentication plugin is ``sasl``."""

    username: str
    password: str = field(repr=False)
    mechanism: SaslMechanism = SaslMechanism.DIGEST_MD5


@dataclass(frozen=True, slots=True)
class BookieSecurity:
    """The security settings of a transport, for every bookie."""

    tls: TlsSettings | None = None
    """None: connections in the clear. Otherwise every bookie must use TLS; Apache's are asked by START_TLS."""
    sasl: SaslCredentials | None = None
    """None: no login. Only for Apache bookies; ours identify clients by their certificates."""
    frame_bytes_max: int = FRAME_BYTES_MAX
    """Longest frame from and to Apache bookies: their ``nettyMaxFrameSizeBytes`` if it was raised.

    An entry of bkheal's writers never needs more.
    """


PLAINTEXT: Final = BookieSecurity()
"""Neither TLS nor login, for loopback and trusted networks."""


@dataclass(frozen=True, slots=True)
class SecurityFiles:
    """The operator's settings: files and bounds, but no secrets. May be logged, and sent to Spark's executors."""

    tls_ca: Annotated[
        Path | None, Option("PEM file of the authority that signed the certificates of bookies; enables TLS.")
    ] = None
    tls_cert: Annotated[
        Path | None, Option("PEM file of the certificate that this process presents, with the one above.")
    ] = None
    tls_key: Annotated[Path | None, Option("PEM file of its key.")] = None
    sasl_username: Annotated[str, Option("Log in to Apache bookies that require it (SASL).")] = ""
    sasl_password_file: Annotated[Path | None, Option("Its first line is the password.")] = None
    sasl_mechanism: Annotated[SaslMechanism, Option("How to log in.")] = SaslMechanism.DIGEST_MD5
    frame_bytes_max: Annotated[
        int,
        Option(
            "Longest frame of Apache bookies: their nettyMaxFrameSizeBytes if it was raised.",
            minimum=FRAME_BYTES_MIN,
            maximum=FRAME_BYTES_LIMIT,
        ),
    ] = FRAME_BYTES_MAX

    def problems(self, prefix: str = "") -> Iterator[str]:
        """Yield contradictions and missing files, one sentence each; ``prefix`` goes before each option's name."""
        if (self.tls_cert is None) != (self.tls_key is None):
            yield f"{prefix}tls_cert and {prefix}tls_key go together"
        if self.tls_ca is None and (self.tls_cert or self.tls_key):
            yield f"{prefix}tls_cert and {prefix}tls_key need {prefix}tls_ca"
        if bool(self.sasl_username) != (self.sasl_password_file is not None):
            yield f"{prefix}sasl_username and {prefix}sasl_password_file go together"
        if self.sasl_username and self.sasl_mechanism is SaslMechanism.PLAIN and self.tls_ca is None:
            yield f"{prefix}sasl_mechanism PLAIN sends the password as it is: it needs {prefix}tls_ca"
        for name in ("tls_ca", "tls_cert", "tls_key", "sasl_password_file"):
            if (problem := file_problem(f"{prefix}{name}", getattr(self, name))) is not None:
                yield problem

    def load(self) -> BookieSecurity:
        """Read the password, and return the settings of a transport, which reads the certificates.

        Raises:
            SecurityFilesError: these settings contradict themselves, or the password cannot be read.
        """
        if problems := [*range_problems(self), *self.problems()]:
            raise SecurityFilesError("; ".join(problems))
        tls = TlsSettings(self.tls_ca, self.tls_cert, self.tls_key) if self.tls_ca else None
        return BookieSecurity(tls, self._sasl(), self.frame_bytes_max)

    def _sasl(self) -> SaslCredentials | None:
        if self.sasl_password_file is None:
            return None
        try:
            lines = self.sasl_password_file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SecurityFilesError(f"cannot read the password file {self.sasl_password_file}: {error}") from error
        if not lines or not lines[0]:
            raise SecurityFilesError(f"the first line of the password file {self.sasl_password_file} is empty")
        return SaslCredentials(self.sasl_username, lines[0], self.sasl_mechanism)


NO_FILES: Final = SecurityFiles()
"""Neither TLS nor login, and frames of the default length."""
