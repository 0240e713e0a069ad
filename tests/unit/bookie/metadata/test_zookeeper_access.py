"""The values of the access to ZooKeeper: its sources, contradictions, and ACLs."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from bookie.metadata.access import (
    CREATOR_ACL,
    OPEN_ACL,
    PLAIN_ACCESS,
    AclEntry,
    TlsVerify,
    ZooKeeperAccess,
    ZooKeeperAccessError,
    ZooKeeperLogin,
    access_from_environment,
    access_from_text,
    parse_acl,
    without_access,
)
from bookie.metadata.store.credentials import TicketUnavailableError, check_kerberos, get_ticket, sasl_options
from bookie.runtime.configuration.settings import ConfigurationError

FULL = ZooKeeperAccess(
    tls_ca=Path("/ca"),
    tls_cert=Path("/cert"),
    tls_key=Path("/key"),
    tls_key_password_file=Path("/key-password"),
    tls_verify=TlsVerify.AUTHORITY,
    login=ZooKeeperLogin.DIGEST_MD5,
    sasl_username="bkheal",
    sasl_password_file=Path("/password"),
    sasl_service="zk",
    digest_file=Path("/digest"),
    acl="sasl:bkheal:cdrwa,world:anyone:r",
    state_root="/pulsar/bkheal",
)


@pytest.mark.parametrize("access", [PLAIN_ACCESS, FULL])
def test_the_text_for_executors_is_read_back(access: ZooKeeperAccess) -> None:
    assert access_from_text(access.to_text()) == access


@pytest.mark.parametrize(
    "text", ["", "[]", "3", '{"nothing": 1}', '{"tls_verify": "maybe"}', '{"login": "x"}', '{"acl": "x"}']
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        access_from_text(text)


def test_the_environment_contains_file_names_and_no_secrets() -> None:
    environment = {
        "BKHEAL_ZK_TLS_CA": "/ca",
        "BKHEAL_ZK_TLS_VERIFY": "authority",
        "BKHEAL_ZK_LOGIN": "DIGEST-MD5",
        "BKHEAL_ZK_USERNAME": "bkheal",
        "BKHEAL_ZK_PASSWORD": "secret",
        "BKHEAL_ZK_ACL": "",
        "BKHEAL_STATE_ROOT": "/pulsar/bkheal",
        "HOME": "/root",
    }
    access = access_from_environment(environment)
    assert access == ZooKeeperAccess(
        tls_ca=Path("/ca"),
        tls_verify=TlsVerify.AUTHORITY,
        login=ZooKeeperLogin.DIGEST_MD5,
        sasl_username="bkheal",
        state_root="/pulsar/bkheal",
    )
    assert without_access(environment) == {"HOME": "/root"}
    assert access_from_environment({}) == PLAIN_ACCESS


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"BKHEAL_ZK_TLS_VERIFY": "maybe"}, "BKHEAL_ZK_TLS_VERIFY"),
        ({"BKHEAL_ZK_LOGIN": "PLAIN"}, "BKHEAL_ZK_LOGIN"),
        ({"BKHEAL_ZK_TLS_CERT": "/c"}, "zk_tls_cert and zk_tls_key go together"),
        ({"BKHEAL_ZK_TLS_CERT": "/c", "BKHEAL_ZK_TLS_KEY": "/k"}, "need zk_tls_ca"),
        ({"BKHEAL_ZK_USERNAME": "a"}, "need zk_login"),
        ({"BKHEAL_ZK_LOGIN": "DIGEST-MD5"}, "needs zk_username"),
        ({"BKHEAL_ZK_ACL": "everybody"}, "'everybody' is not an ACL entry"),
        ({"BKHEAL_STATE_ROOT": "bkheal"}, "state_root = 'bkheal' is not absolute"),
        ({"BKHEAL_STATE_ROOT": "/a/../b"}, "not a path of plain names"),
        ({"BKHEAL_STATE_ROOT": "/a/"}, "not a path of plain names"),
        ({"BKHEAL_STATE_ROOT": "/a//b"}, "not a path of plain names"),
        ({"BKHEAL_STATE_ROOT": "/"}, "not a path of plain names"),
        ({"BKHEAL_STATE_ROOT": "/a b"}, "not a path of plain names"),
        ({"BKHEAL_STATE_ROOT": "/zookeeper/bkheal"}, "belongs to ZooKeeper"),
        ({"BKHEAL_STATE_ROOT": "/" + "a" * 200}, "longer than 200 characters"),
    ],
)
def test_invalid_settings_are_refused(environment: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        access_from_environment(environment)


@pytest.mark.parametrize(
    ("text", "acl"),
    [
        ("world", OPEN_ACL),
        ("creator", CREATOR_ACL),
        ("digest:a:aGFzaA==:rw", (AclEntry(3, "digest", "a:aGFzaA=="),)),
        ("sasl:a:cdrwa,world:anyone:r", (AclEntry(31, "sasl", "a"), AclEntry(1, "world", "anyone"))),
        ("x509:CN=a,O=b:cd;ip:10.0.0.0/8:r", (AclEntry(12, "x509", "CN=a,O=b"), AclEntry(1, "ip", "10.0.0.0/8"))),
    ],
)
def test_acls_are_read_as_zookeepers_shell_writes_them(text: str, acl: tuple[AclEntry, ...]) -> None:
    assert parse_acl(text) == acl


@pytest.mark.parametrize("text", ["", ",", "a", "a:b", "a:b:", ":b:r", "a:b:x", "a:b:r" + ",a:b:r" * 64])
def test_other_text_is_not_an_acl(text: str) -> None:
    with pytest.raises(ZooKeeperAccessError):
        parse_acl(text)


def test_an_acl_that_does_not_fit_into_requests_is_refused() -> None:
    assert len(parse_acl(f"sasl:{'a' * 16_000}:r")) == 1
    with pytest.raises(ZooKeeperAccessError, match=r"zk_acl has 17020 bytes in a request: at most 16384"):
        parse_acl(f"sasl:{'a' * 17_000}:r")


@pytest.mark.parametrize(
    ("access", "says"),
    [
        (PLAIN_ACCESS, "no login"),
        (FULL, "sasl:bkheal and the digest user of /digest and the certificate /cert"),
        (ZooKeeperAccess(login=ZooKeeperLogin.GSSAPI), "Kerberos"),
    ],
)
def test_the_identity_is_described(access: ZooKeeperAccess, says: str) -> None:
    assert says in access.identity


@pytest.mark.parametrize(
    ("username", "options"),
    [
        ("", {"mechanism": "GSSAPI", "service": "zookeeper"}),
        ("bkheal/host", {"mechanism": "GSSAPI", "service": "zookeeper", "principal": "bkheal/host"}),
    ],
)
def test_kerberos_takes_a_ticket_and_no_password(username: str, options: dict[str, Any]) -> None:
    assert sasl_options(ZooKeeperAccess(login=ZooKeeperLogin.GSSAPI, sasl_username=username)) == options


def test_kerberos_without_its_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "kerberos", None)
    with pytest.raises(ZooKeeperAccessError, match="bkheal\\[kerberos\\]"):
        check_kerberos(ZooKeeperAccess(login=ZooKeeperLogin.GSSAPI))


class _KrbError(Exception):
    """An error like the library's."""


class _Library:
    """A stand-in for the library whose first step fails with the given arguments."""

    KrbError = _KrbError

    def __init__(self, *arguments: object) -> None:
        self._arguments = arguments
        self.asked: list[tuple[str, dict[str, str]]] = []

    def authGSSClientInit(self, service: str, **options: str) -> tuple[int, object]:  # noqa: N802 (its name)
        self.asked.append((service, options))
        return 1, self

    def authGSSClientStep(self, context: object, challenge: str) -> None:  # noqa: N802 (its name)
        if self._arguments:
            raise _KrbError(*self._arguments)


_MAJOR = ("Unspecified GSS failure", 851968)


@pytest.mark.parametrize(
    ("arguments", "kind", "says"),
    [
        ((_MAJOR, ("Server zk/h@R not found in Kerberos database", -1765328377)), ZooKeeperAccessError, "not found in"),
        ((_MAJOR, ("Cannot contact any KDC for realm 'R'", -1765328228)), TicketUnavailableError, "Cannot contact"),
        (
            (("No credentials", 458752), ("No credentials cache", -1765328189)),
            ZooKeeperAccessError,
            "credentials cache",
        ),
        (("something else",), ZooKeeperAccessError, "something else"),
    ],
)
def test_the_reason_of_a_missing_ticket_is_reported(
    arguments: tuple[object, ...], kind: type[Exception], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kerberos", cast(ModuleType, _Library(*arguments)))
    with pytest.raises(kind, match=f"zk/h: .*{says}"):
        get_ticket(ZooKeeperAccess(login=ZooKeeperLogin.GSSAPI, sasl_service="zk"), "h")


def test_a_ticket_is_requested_only_for_kerberos(monkeypatch: pytest.MonkeyPatch) -> None:
    library = _Library()
    monkeypatch.setitem(sys.modules, "kerberos", cast(ModuleType, library))
    get_ticket(PLAIN_ACCESS, "h")
    assert library.asked == []
    get_ticket(ZooKeeperAccess(login=ZooKeeperLogin.GSSAPI), "h")
    get_ticket(ZooKeeperAccess(login=ZooKeeperLogin.GSSAPI, sasl_username="me@R"), "h")
    assert library.asked == [("zookeeper@h", {}), ("zookeeper@h", {"principal": "me@R"})]
