"""An MIT Kerberos server on this machine for the time of a test: one realm, principals, and their keys in files."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from bookie.embedded.process import ManagedProcess
from bookie.runtime.ports import free_loopback_port
from tests.deadlines import STATE_S

REALM: Final = "BKHEAL.TEST"

CONFIGURATION: Final = """[libdefaults]
default_realm = {realm}
dns_lookup_kdc = false
dns_lookup_realm = false
dns_canonicalize_hostname = false
rdns = false
udp_preference_limit = 1
[realms]
{realm} = {{
  kdc = 127.0.0.1:{port}
}}
"""
_SERVER: Final = """[kdcdefaults]
kdc_listen = 127.0.0.1:{port}
kdc_tcp_listen = 127.0.0.1:{port}
[realms]
{realm} = {{
  database_name = {directory}/principals
  key_stash_file = {directory}/stash
}}
"""


class Realm:
    """A realm with its principals, in a directory with their keys."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def configuration(self) -> Path:
        """The file ``krb5.conf`` of clients and servers."""
        return self.directory / "krb5.conf"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of programs in this realm."""
        return {"KRB5_CONFIG": str(self.configuration), "KRB5_KDC_PROFILE": str(self.directory / "kdc.conf")}

    def keytab(self, principal: str) -> Path:
        """Create the principal, and return the file with its key."""
        target = self.directory / f"{principal.replace('/', '-')}.keytab"
        self.run("kadmin.local", "-r", REALM, "-q", f"addprinc -randkey {principal}")
        self.run("kadmin.local", "-r", REALM, "-q", f"ktadd -k {target} {principal}")
        return target

    def run(self, *command: str) -> None:
        """Run a program of Kerberos."""
        subprocess.run(command, env=os.environ | self.environment, check=True, capture_output=True, timeout=STATE_S)


@asynccontextmanager
async def a_realm(directory: Path) -> AsyncIterator[Realm]:
    """Run the server of a realm until the end of the block."""
    directory.mkdir(parents=True, exist_ok=True)
    realm, port = Realm(directory), free_loopback_port(random.Random(str(directory)))
    realm.configuration.write_text(CONFIGURATION.format(realm=REALM, port=port))
    (directory / "kdc.conf").write_text(_SERVER.format(realm=REALM, port=port, directory=directory))
    realm.run("kdb5_util", "create", "-s", "-W", "-r", REALM, "-P", "the key of a test")
    process = ManagedProcess.start(
        "krb5kdc", ["krb5kdc", "-n", "-r", REALM], log_path=directory / "kdc.log", environment=realm.environment
    )
    async with process:

        async def answers() -> bool:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), STATE_S):
                return True
            return False

        await process.wait_until(answers, "to accept connections", STATE_S)
        yield realm
