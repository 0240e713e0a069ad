"""Apache's bookies with logins and TLS: which clients are admitted, and which errors the other clients read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from bookie.client.errors import WrongDigestTypeError, WrongPasswordError
from bookie.client.options import LedgerOptions
from bookie.embedded.apache import ApacheBookie
from bookie.embedded.apache_jars import ApacheJvm
from bookie.embedded.apache_settings import ApacheOptions, ApacheSasl, ApacheTls
from bookie.model.ids import LedgerId
from bookie.model.metadata import DigestType
from bookie.wire.apache.connection import CERTIFICATE_REFUSED, TLS_OR_LOGIN_DEMANDED
from bookie.wire.apache.transport import BULK_ENTRIES_MIN, ApacheTransport
from bookie.wire.port import Status
from bookie.wire.requests import Info, ListEntries
from bookie.wire.security import BookieSecurity, SaslCredentials, TlsSettings
from tests.apache.driver import JavaError, expected, payloads
from tests.apache.programs import Audit, Ended, Replicator, bkheal
from tests.apache.waiting import until
from tests.apache.worlds import (
    PASSWORD,
    SIZES,
    ApacheWorld,
    Ledger,
    check_healthy,
    connect,
    each,
    extend,
    gone,
    no_work_left,
    on,
    seen,
    world,
    written,
)
from tests.certificates import make_ca, make_certificate
from tests.contract.scripted_apache_bookie import BOOKIE, DEADLINE_S, LEDGER, Directory, batch

pytestmark = [
    pytest.mark.apache,
    pytest.mark.needs("openssl"),
]

NAME, SECRET = "keeper", 'pa"ss, word\\1'
UNAVAILABLE, CONFIGURATION, FAILED = 69, 78, 1
CLIENT = "secured"
ENTRIES = 10
"""The number of entries of each ledger written by Apache's client with a login."""
ROLES = {
    "bookieAuthProviderFactoryClass": "org.apache.bookkeeper.tls.BookieAuthZFactory",
    "authorizedRoles": "keeper",
}
"""Options of a bookie that accepts only certificates with a role."""


@dataclass(frozen=True)
class Secured:
    """A cluster whose bookies require a login, with right and wrong credentials, and a ledger on each bookie."""

    world: ApacheWorld
    directory: Path
    ledgers: list[Ledger]

    @property
    def login(self) -> tuple[str, ...]:
        return ("--sasl-username", NAME, "--sasl-password-file", str(self.directory / "password"))

    @property
    def tls(self) -> tuple[str, ...]:
        return self.tls_of("our-ca")

    def tls_of(self, ca: str, name: str = "client") -> tuple[str, ...]:
        where = self.directory
        return (
            "--tls-ca",
            f"{where / ca}.pem",
            "--tls-cert",
            f"{where / name}.pem",
            "--tls-key",
            f"{where / name}.key",
        )

    def certificate(self, name: str) -> TlsSettings:
        where = self.directory
        return TlsSettings(where / "our-ca.pem", where / f"{name}.pem", where / f"{name}.key")

    async def written_on(self, members: Sequence[str]) -> Ledger:
        """Write a closed ledger with a copy of each entry on each of these bookies."""
        copies = len(members)
        handle = await on(self.world.java, members, copies, copies, copies, password=PASSWORD, client=CLIENT)
        await extend(handle, "CRC32C", ENTRIES)
        await handle.close()
        return Ledger(handle.ledger_id, "CRC32C", ENTRIES)

    async def read(self, options: tuple[str, ...], ledger: Ledger, **more: str) -> Ended:
        words = [word for name, value in more.items() for word in (f"--{name}", value)]
        return await bkheal(
            *options, "ledger", "read", str(ledger.ledger_id), "--format", "raw", *words, uri=self.world.uri
        )


def make_pem(directory: Path) -> None:
    make_ca(directory, "our-ca")
    make_ca(directory, "strange-ca")
    make_certificate(directory, "bookie", "our-ca", "IP:127.0.0.1")
    make_certificate(directory, "elsewhere", "our-ca", "DNS:another.example")
    make_certificate(directory, "client", "our-ca", "DNS:client")
    (directory / "password").write_text(f"{SECRET}\n")
    (directory / "wrong").write_text("guess\n")


def make_role(directory: Path, name: str, role: str) -> None:
    """Make a certificate whose organizational unit names a role, in the form read by Apache's bookies."""
    make_certificate(directory, name, "our-ca", "DNS:client", subject=f"/OU=0:{role}/CN={name}")


@asynccontextmanager
async def reached(bookie: ApacheBookie, security: BookieSecurity) -> AsyncIterator[ApacheTransport]:
    transport = ApacheTransport(Directory(bookie.port), security=security)
    yield transport
    await transport.close()


async def restart(*bookies: ApacheBookie) -> None:
    await asyncio.gather(*(bookie.stop() for bookie in bookies))
    for bookie in bookies:
        bookie.launch()
    for bookie in bookies:
        await bookie.wait_ready()


@pytest.fixture(scope="module")
def secured(apache_jvm: ApacheJvm, java_classes: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Bookies that require a login, at first without TLS."""
    directory = tmp_path_factory.mktemp("secured")
    make_pem(directory)
    sasl = ApacheSasl({NAME: SECRET}, NAME)

    async def fill(here: ApacheWorld) -> list[Ledger]:
        await here.java.new_client(CLIENT, settings=sasl.settings())
        await here.java.new_client(f"{CLIENT}-v2", v2=True, settings=sasl.settings())
        return await written(here.java, ((2, 2, 2), (3, 2, 2)), 6, client=CLIENT)

    with world(directory, apache_jvm, java_classes, bookies=3, options=ApacheOptions(sasl=sasl)) as here:
        yield Secured(here, directory, asyncio.run(fill(here)))


def refused(ended: Ended, code: int, *words: str) -> None:
    """Check that a program ended with this exit code and one sentence, with these words and without the secret."""
    assert ended.exit_code == code, ended
    assert ended.printed == ""
    (sentence,) = ended.errors.splitlines()
    assert all(word in sentence for word in words), sentence
    assert SECRET not in sentence


async def unchanged(secured: Secured) -> object:
    """Return the state that failed attempts must not change."""
    java = secured.world.java
    ledgers = sorted((await java.call("ledgers"))["ledgers"])
    metadata = await each(ledgers, lambda ledger_id: java.call("metadata", ledger=ledger_id))
    return ledgers, metadata, await secured.world.tasks()


async def test_our_client_logs_in_and_reads_and_writes(secured: Secured, tmp_path: Path) -> None:
    java = secured.world.java
    ended = await bkheal(
        *secured.login,
        "ledger",
        "read",
        str(secured.ledgers[0].ledger_id),
        "--to",
        str(tmp_path / "read"),
        uri=secured.world.uri,
    )
    assert ended.exit_code == 0, ended.errors
    assert (tmp_path / "read").read_bytes() == b"".join(secured.ledgers[0].contents)
    security = BookieSecurity(sasl=SaslCredentials(NAME, SECRET))
    async with await connect(secured.world.uri, security=security) as client:
        for ledger in secured.ledgers:
            reader = await client.open_ledger(LedgerId(ledger.ledger_id), password=PASSWORD)
            assert [entry.payload async for entry in reader.read_all()] == ledger.contents
        async with client.create_ledger(LedgerOptions(3, 2, 2), password=PASSWORD) as writer:
            contents = payloads("ours", range(20), SIZES)
            for content in contents:
                await writer.submit(content)
    for name in (CLIENT, f"{CLIENT}-v2"):
        read = await java.read_all(writer.ledger_id, password=PASSWORD, client=name)
        assert read == expected(contents)


async def test_a_wrong_missing_or_unsupported_login_is_reported_in_one_line(secured: Secured) -> None:
    """Apache's bookies offer only DIGEST-MD5, and none of these uses TLS."""
    where, ledger = secured.directory, secured.ledgers[0]
    before = await unchanged(secured)
    wrong = ("--sasl-username", NAME, "--sasl-password-file", str(where / "wrong"))
    stranger = ("--sasl-username", "stranger", "--sasl-password-file", str(where / "password"))
    in_the_clear = (*secured.login, "--sasl-mechanism", "plain")
    over_tls = (*secured.tls, *secured.login)
    by_wrong, by_stranger, by_none, by_plain, by_tls = await asyncio.gather(
        *(secured.read(options, ledger) for options in (wrong, stranger, (), in_the_clear, over_tls))
    )
    refused(by_wrong, UNAVAILABLE, f"login of '{NAME}'", "password")
    refused(by_stranger, UNAVAILABLE, "login of 'stranger'")
    refused(by_none, UNAVAILABLE, "login")
    refused(by_plain, CONFIGURATION, "PLAIN sends the password")
    refused(by_tls, UNAVAILABLE, "does not speak TLS")
    assert await unchanged(secured) == before
    writing = await bkheal(*wrong, "ledger", "write", "-n", "3", uri=secured.world.uri)
    note, sentence = writing.errors.splitlines()  # a ledger is created before the first request to a bookie
    assert note.startswith("note: ledger ")
    refused(Ended(writing.exit_code, writing.printed, sentence), UNAVAILABLE, f"login of '{NAME}'")


@pytest.mark.usefixtures("quick_spark")
async def test_a_replicas_check_without_a_login_gives_the_reason_and_reports_nothing_missing(
    secured: Secured, tmp_path: Path
) -> None:
    before = await unchanged(secured)
    where = ("--report-dir", str(tmp_path / "reports"))
    ended = await bkheal("audit", "run", "--kind", "replicas", *where, "--output", "json", uri=secured.world.uri)
    unknown = ended.document["replicas"]["unknown"]
    assert {one["bookie_id"] for one in unknown} == {bookie.bookie_id for bookie in secured.world.running}
    assert all(one["detail"] and "login" in one["detail"] for one in unknown)
    assert ended.document["replicas"]["absent"] == 0
    assert await secured.world.tasks() == {}
    assert await unchanged(secured) == before


async def test_a_wrong_ledger_password_or_digest_is_refused(secured: Secured) -> None:
    ledger = secured.ledgers[0]
    refused(await secured.read(secured.login, ledger, password="guess"), FAILED, "password")
    security = BookieSecurity(sasl=SaslCredentials(NAME, SECRET))
    async with await connect(secured.world.uri, security=security) as client:
        with pytest.raises(WrongPasswordError):
            await client.open_ledger(LedgerId(ledger.ledger_id), password=b"guess")
        with pytest.raises(WrongDigestTypeError):
            await client.open_ledger(LedgerId(ledger.ledger_id), password=PASSWORD, digest_type=DigestType.CRC32)
    with pytest.raises(JavaError):
        await secured.world.java.open(ledger.ledger_id, digest=ledger.digest, password=b"guess", client=CLIENT)


async def failures(replicator: Replicator) -> list[str]:
    """Return the reasons of its failed repairs."""
    return [event["detail"] for event in replicator.events() if event.get("ending") == "failed"]


async def test_a_replicator_that_cannot_log_in_changes_nothing_and_one_that_can_repairs(
    secured: Secured, audit: Audit, tmp_path: Path
) -> None:
    here = secured.world
    lost, other, _ = here.running
    await secured.written_on([lost.bookie_id, other.bookie_id])  # the third bookie is a possible target
    await here.kill9(lost)
    async with await connect(here.uri) as client:
        await gone(client, lost.bookie_id)
        await audit(here.uri, tmp_path)
        before = await unchanged(secured)
        hurt = {ledger.ledger_id for ledger in secured.ledgers} & set(await here.tasks())
        assert hurt
        wrong = ("--sasl-username", NAME, "--sasl-password-file", str(secured.directory / "wrong"))
        stranger = await Replicator.start(here.uri, tmp_path / "stranger", *wrong)
        try:
            failed = await until(lambda: failures(stranger), bool, "the replicator with the wrong password has failed")
        finally:
            await stranger.stop()
        assert all("login" in detail for detail in failed), failed
        assert stranger.repaired == []
        assert await unchanged(secured) == before
        await here.cluster.add_bookies(1)
        ours = await Replicator.start(here.uri, tmp_path / "ours", "--once", *secured.login)
        assert await ours.wait() == 0
        assert hurt <= set(ours.repaired)
        await no_work_left(here, client)
    after = await seen(here.java, secured.ledgers)
    assert all(lost.bookie_id not in found.members for found in after.values())
    await check_healthy(here.java, secured.ledgers, (f"{CLIENT}-v2", CLIENT))


async def test_tls_with_a_login_inside_works_and_each_wrong_setting_is_refused(
    secured: Secured, tmp_path: Path
) -> None:
    """From here on, the bookies use TLS and require certificates; that of the last bookie is for another host."""
    here, where = secured.world, secured.directory
    *others, impostor = (bookie.bookie_id for bookie in here.running)
    good, other = [await secured.written_on(members) for members in (others[:2], [others[0], impostor])]
    for number, bookie in enumerate(here.running):
        name = "elsewhere" if number == len(here.running) - 1 else "bookie"
        tls = ApacheTls(where / f"{name}.pem", where / f"{name}.key", where / "our-ca.pem", asks_clients=True)
        bookie.settings.update(tls.settings())
    await restart(*here.running)
    found = await seen(here.java, [other])
    before = await unchanged(secured)
    right = (*secured.tls, *secured.login)

    security = BookieSecurity(secured.certificate("client"), SaslCredentials(NAME, SECRET))
    async with await connect(here.uri, security=security) as client:
        reader = await client.open_ledger(LedgerId(good.ledger_id))
        assert [entry.payload async for entry in reader.read_all()] == good.contents
        reader = await client.open_ledger(LedgerId(other.ledger_id))  # the other copy is sufficient
        assert [entry.payload async for entry in reader.read_all()] == other.contents
    wrong = (*secured.tls, "--sasl-username", NAME, "--sasl-password-file", str(where / "wrong"))
    strange_ca = (*secured.tls_of("strange-ca"), *secured.login)
    by_right, by_wrong, by_none, by_stranger = await asyncio.gather(
        *(secured.read(options, good) for options in (right, wrong, secured.tls, strange_ca))
    )
    assert by_right.exit_code == 0
    refused(by_wrong, UNAVAILABLE, f"login of '{NAME}'")
    refused(by_none, UNAVAILABLE, "login")
    refused(by_stranger, UNAVAILABLE, "TLS", "certificate")
    for bookie in here.running[:-1]:
        await bookie.stop()
    position = str(list(found[other.ledger_id].ensembles["0"]).index(impostor))
    only_there = await secured.read(right, other, first=position, last=position)
    refused(only_there, UNAVAILABLE, "TLS", "127.0.0.1", "certificate")
    assert await unchanged(secured) == before


async def test_bookies_that_require_certificates_report_this_to_clients_without_one(secured: Secured) -> None:
    """From here on, two bookies require no login, but a certificate with a role, and so TLS."""
    here, where, ledger = secured.world, secured.directory, secured.ledgers[0]
    make_role(where, "keeper", role="keeper")
    bookies = [here.bookie(member) for member in (await seen(here.java, [ledger]))[ledger.ledger_id].members]
    tls = ApacheTls(where / "bookie.pem", where / "bookie.key", where / "our-ca.pem", asks_clients=True)
    for bookie in bookies:
        bookie.settings.update(tls.settings() | ROLES)
    await restart(*bookies)
    before = await unchanged(secured)
    refused(await secured.read((), ledger), UNAVAILABLE, "demands TLS", "--tls-ca", "--sasl-username")
    assert (await secured.read(secured.tls_of("our-ca", "keeper"), ledger)).exit_code == 0
    assert await unchanged(secured) == before

    async with reached(bookies[0], BookieSecurity()) as outside:
        for one in (batch(0), batch(*range(BULK_ENTRIES_MIN), is_recovery=True)):
            reply = await outside.add(BOOKIE, one, DEADLINE_S)
            assert (reply.status, reply.detail) == (Status.UNREACHABLE, TLS_OR_LOGIN_DEMANDED)
    async with reached(bookies[0], BookieSecurity(sasl=SaslCredentials(NAME, SECRET))) as outside:
        assert "demands TLS (--tls-ca)" in (await outside.ask(BOOKIE, Info(), DEADLINE_S)).detail
    async with reached(bookies[0], BookieSecurity(secured.certificate("client"))) as outside:
        assert (await outside.ask(BOOKIE, Info(), DEADLINE_S)).detail == CERTIFICATE_REFUSED
    async with reached(bookies[0], BookieSecurity(secured.certificate("keeper"))) as inside:
        assert (await inside.ask(BOOKIE, ListEntries(LEDGER), DEADLINE_S)).status is Status.NO_LEDGER
        assert (await inside.ask(BOOKIE, Info(), DEADLINE_S)).status is Status.OK
