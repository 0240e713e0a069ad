"""The credentials of a client, the verification of bookies, and the limit of their answers."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bookie.model.errors import PermanentError
from bookie.wire.apache.framing import FRAME_BYTES_EVERYBODY_TAKES, FRAME_BYTES_LIMIT, FRAME_BYTES_MAX

if TYPE_CHECKING:
    from bookie.wire.tls import TlsSettings  # gRPC, which no command line needs for its help


FRAME_BYTES_LEAST: Final = FRAME_BYTES_EVERYBODY_TAKES
"""Apache's own default of the longest frame: a lower bound here would only lose what every bookie sends."""


class SecurityFilesError(PermanentError):
    """A file with a secret cannot be used."""


class SaslMechanism(enum.Enum):
    """Ways to log in at an Apache bookie that asks for it (docs/formats.md#tls-and-login)."""

    DIGEST_MD5 = "DIGEST-MD5"
    PLAIN = "PLAIN"


@dataclass(frozen=True, slots=True)
class SaslCredentials:
    """A name and a password for Apache bookies whose authentication plugin is ``sasl``."""

    username: str
    password: str = field(repr=False)
    mechanism: SaslMechanism = SaslMechanism.DIGEST_MD5


@dataclass(frozen=True, slots=True)
class BookieSecurity:
    """What a transport uses at every bookie."""

    tls: TlsSettings | None = None
    """None: connections in the clear. Otherwise every bookie must speak TLS; Apache's are asked by START_TLS."""
    sasl: SaslCredentials | None = None
    """None: no login. Apache bookies only; ours know clients by their certificates."""
    frame_bytes_max: int = FRAME_BYTES_MAX
    """Longest frame from and to Apache bookies: theirs if ``nettyMaxFrameSizeBytes`` was raised.

    An entry of bkheal's writers never needs more.
    """


PLAINTEXT: Final = BookieSecurity()
"""Neither TLS nor login, for loopback and trusted networks."""


@dataclass(frozen=True, slots=True)
class SecurityFiles:
    """What an operator names: files, bounds, and no secret itself. May be logged, and sent to Spark's executors."""

    tls_ca: Path | None = None
    """PEM file: bookies speak TLS, with certificates that it signed."""
    tls_cert: Path | None = None
    """PEM file: this side's certificate."""
    tls_key: Path | None = None
    """PEM file of its key."""
    sasl_username: str = ""
    sasl_password_file: Path | None = None
    """Its first line is the password."""
    sasl_mechanism: SaslMechanism = SaslMechanism.DIGEST_MD5
    frame_bytes_max: int = FRAME_BYTES_MAX
    """Longest frame of Apache's protocol, in bytes."""

    def problems(self, prefix: str = "") -> Iterator[str]:
        """What contradicts itself or is not there, one sentence each; ``prefix`` goes before each option's name."""
        if (self.tls_cert is None) != (self.tls_key is None):
            yield f"{prefix}tls_cert and {prefix}tls_key go together"
        if self.tls_ca is None and (self.tls_cert or self.tls_key):
            yield f"{prefix}tls_cert and {prefix}tls_key need {prefix}tls_ca"
        if bool(self.sasl_username) != (self.sasl_password_file is not None):
            yield f"{prefix}sasl_username and {prefix}sasl_password_file go together"
        if self.sasl_username and self.sasl_mechanism is SaslMechanism.PLAIN and self.tls_ca is None:
            yield f"{prefix}sasl_mechanism PLAIN sends the password as it is: it needs {prefix}tls_ca"
        if not FRAME_BYTES_LEAST <= self.frame_bytes_max <= FRAME_BYTES_LIMIT:
            bounds = f"need {FRAME_BYTES_LEAST} to {FRAME_BYTES_LIMIT}"
            yield f"{prefix}frame_bytes_max = {self.frame_bytes_max} is out of range, {bounds}"
        for name in ("tls_ca", "tls_cert", "tls_key", "sasl_password_file"):
            path = getattr(self, name)
            if path is not None and not path.is_file():
                yield f"{prefix}{name}: there is no file {path}"

    def load(self) -> BookieSecurity:
        """Read the password; certificates are read by the transport.

        Raises:
            SecurityFilesError: these settings contradict themselves, or the password cannot be read.
        """
        if problems := list(self.problems()):
            raise SecurityFilesError("; ".join(problems))
        from bookie.wire.tls import TlsSettings

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
"""Neither TLS nor login, and frames of the usual length."""
