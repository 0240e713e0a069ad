"""Apache's bookies with TLS and with a login: our client and Apache's are accepted, clients without are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie.client.options import LedgerOptions
from bookie.embedded.apache_settings import ApacheOptions, ApacheSasl, ApacheTls
from bookie.model.errors import BkhealError
from bookie.model.ids import EntryId, LedgerId
from bookie.wire.security import PLAINTEXT, BookieSecurity, SaslCredentials, TlsSettings
from tests.apache.conftest import OwnCluster
from tests.apache.driver import JavaDriver, JavaError, expected, payloads
from tests.apache.worlds import connect
from tests.certificates import make_ca, make_certificate

pytestmark = pytest.mark.apache

SIZES = (100, 0, 70_000)
CONTENTS = payloads("secure", range(12), SIZES)
SASL = ApacheSasl({"ours": 'a "word" \\', "theirs": "another"}, own_name="theirs")


def certificate(directory: Path, name: str, host: str) -> TlsSettings:
    """Return a certificate signed by ``ca.pem``, which is created if necessary."""
    if not (directory / "ca.pem").exists():
        make_ca(directory, "ca")
    return make_certificate(directory, name, "ca", host)


async def cross(uri: str, security: BookieSecurity, java_client: str, java: JavaDriver) -> None:
    """Check that Apache's client reads our client's entries, and the reverse."""
    async with await connect(uri, security=security) as ours:
        async with ours.create_ledger(LedgerOptions(2, 2, 2)) as ledger:
            for content in CONTENTS:
                await ledger.append(content)
        assert await java.read_all(ledger.ledger_id, client=java_client) == expected(CONTENTS)
        handle = await java.create(2, 2, 2, client=java_client)
        await handle.write(len(CONTENTS), seed="secure", sizes=SIZES)
        await handle.close()
        reader = await ours.open_ledger(LedgerId(handle.ledger_id))
        assert [entry.payload async for entry in reader.read_all()] == CONTENTS


async def is_refused(uri: str, security: BookieSecurity, ledger_id: int) -> None:
    async with await connect(uri, security=security) as ours:
        reader = await ours.open_ledger(LedgerId(ledger_id))
        with pytest.raises(BkhealError):
            await reader.read(EntryId(0))


@pytest.mark.needs("openssl")
async def test_connections_with_tls_certificates_on_both_sides_work(own_cluster: OwnCluster, tmp_path: Path) -> None:
    bookie, client = (certificate(tmp_path, name, "IP:127.0.0.1") for name in ("bookie", "client"))
    assert bookie.cert
    assert bookie.key
    tls = ApacheTls(bookie.cert, bookie.key, bookie.ca, asks_clients=True)
    cluster, java = await own_cluster(bookies=2, options=ApacheOptions(tls=tls))
    for name, is_v2 in (("tls-v3", False), ("tls-v2", True)):
        await java.new_client(name, v2=is_v2, settings=client_tls(client))
        await cross(cluster.metadata_uri, BookieSecurity(tls=client), name, java)


def client_tls(files: TlsSettings) -> dict[str, str]:
    return {
        "tlsProvider": "JDK",
        "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
        "tlsClientAuthentication": "true",
        "clientKeyStoreType": "PEM",
        "clientKeyStore": str(files.key),
        "tlsCertificatePath": str(files.cert),
        "clientTrustStoreType": "PEM",
        "clientTrustStore": str(files.ca),
    }


async def test_a_login_with_name_and_password_works(own_cluster: OwnCluster) -> None:
    cluster, java = await own_cluster(bookies=2, options=ApacheOptions(sasl=SASL))
    for name, is_v2 in (("login-v3", False), ("login-v2", True)):
        await java.new_client(name, v2=is_v2, settings=SASL.settings())
        right = BookieSecurity(sasl=SaslCredentials("ours", SASL.passwords["ours"]))
        await cross(cluster.metadata_uri, right, name, java)
    handle = await java.create(2, 2, 2, client="login-v3")
    await handle.write(1)
    await handle.close()
    for security in (BookieSecurity(sasl=SaslCredentials("ours", "a guess")), PLAINTEXT):
        await is_refused(cluster.metadata_uri, security, handle.ledger_id)
    with pytest.raises(JavaError):
        await java.read_all(handle.ledger_id, client="v3")
