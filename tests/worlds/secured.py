"""A real ZooKeeper with TLS and logins, its authority, and the access of an accepted client."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bookie.embedded.zookeeper import EmbeddedZooKeeper, ZooKeeperSecurity
from bookie.metadata.access import VARIABLES, ZooKeeperAccess, ZooKeeperLogin
from bookie.runtime.configuration.options import options_of
from tests.certificates import make_ca, make_certificate

USER: Final = "bkheal"
PASSWORD: Final = "canary-password"
"""A secret that must not appear in any output."""


@dataclass(frozen=True, slots=True)
class Secured:
    """A server, and the files and settings of a client."""

    server: EmbeddedZooKeeper
    directory: Path
    """The directory of certificates and secrets."""

    @property
    def tls(self) -> ZooKeeperAccess:
        """Access with a client certificate and no login."""
        return _with_certificate(self.directory)

    @property
    def sasl(self) -> ZooKeeperAccess:
        """Access with a login and no TLS."""
        return _with_login(ZooKeeperAccess(), self.directory)

    @property
    def both(self) -> ZooKeeperAccess:
        """Access with a client certificate and a login, and ACLs that permit only the client."""
        return full_access(self.directory)


def full_access(directory: Path) -> ZooKeeperAccess:
    """Return an access with the files of ``make_security``: a certificate, a login, and ACLs for only this client."""
    return replace(_with_login(_with_certificate(directory), directory), acl="creator")


def _with_certificate(directory: Path) -> ZooKeeperAccess:
    cert, key = directory / "client.pem", directory / "client.key"
    return ZooKeeperAccess(tls_ca=directory / "ca.pem", tls_cert=cert, tls_key=key)


def _with_login(access: ZooKeeperAccess, directory: Path) -> ZooKeeperAccess:
    return replace(
        access,
        login=ZooKeeperLogin.DIGEST_MD5,
        sasl_username=USER,
        sasl_password_file=directory / "password",
    )


def make_security(directory: Path, *, is_login_required: bool = False) -> ZooKeeperSecurity:
    """Make the files of a server and of a client."""
    directory.mkdir(parents=True, exist_ok=True)
    make_ca(directory, "ca")
    server = make_certificate(directory, "server", "ca", "IP:127.0.0.1")
    make_certificate(directory, "client", "ca", "DNS:client")
    assert server.cert is not None
    assert server.key is not None
    both = directory / "server-with-key.pem"
    both.write_text(server.cert.read_text() + server.key.read_text())
    (directory / "password").write_text(f"{PASSWORD}\n")
    return ZooKeeperSecurity(both, directory / "ca.pem", {USER: PASSWORD, "other": "other-secret"}, is_login_required)


def environment_of(access: ZooKeeperAccess) -> dict[str, str]:
    """Return the environment variables of a process with this access."""
    values = {option.name: getattr(access, option.fields[0]) for option in options_of(ZooKeeperAccess)}
    return {
        f"{VARIABLES}{name.upper()}": str(getattr(value, "value", value))
        for name, value in values.items()
        if value is not None
    }


async def start_secured(directory: Path, *, is_login_required: bool = False) -> Secured:
    """Start a server in ``directory``."""
    security = make_security(directory / "certificates", is_login_required=is_login_required)
    server = await EmbeddedZooKeeper.start(directory / "zookeeper", is_durable=False, security=security)
    return Secured(server, directory / "certificates")
