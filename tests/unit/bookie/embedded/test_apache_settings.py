"""Finding Apache's jars, and the configuration of its programs. Java is not needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie.embedded.apache_jars import APACHE_VERSION, ApacheJarsMissingError, ApacheJvm, find_apache_lib
from bookie.embedded.apache_settings import ApacheOptions, ApacheSasl, ApacheStorage, ApacheTls, write_settings
from bookie.model.errors import PermanentError
from bookie.runtime.java import Java, JavaOrigin

URI = "zk+hierarchical://127.0.0.1:2181/ledgers"


def test_the_version_is_the_one_that_maven_fetches() -> None:
    pom = (Path(__file__).parents[4] / ".ci" / "apache" / "pom.xml").read_text()
    assert f"<bookkeeper.version>{APACHE_VERSION}</bookkeeper.version>" in pom
    assert f"apache-bookkeeper-{APACHE_VERSION}" in (Path(__file__).parents[4] / ".ci" / "prepare.sh").read_text()


def test_missing_jars_are_an_error_with_instructions(tmp_path: Path) -> None:
    with pytest.raises(ApacheJarsMissingError) as raised:
        find_apache_lib({"XDG_CACHE_HOME": str(tmp_path)})
    assert "mvn -B -f .ci/apache/pom.xml" in str(raised.value)
    assert str(tmp_path / "bkheal" / f"apache-bookkeeper-{APACHE_VERSION}") in str(raised.value)


def test_jars_are_found_in_the_cache_or_where_the_variable_says(tmp_path: Path) -> None:
    cached = tmp_path / ".cache" / "bkheal" / f"apache-bookkeeper-{APACHE_VERSION}"
    given = tmp_path / "given"
    for lib in (cached, given):
        lib.mkdir(parents=True)
        (lib / "bookkeeper-server-0.jar").touch()
    assert find_apache_lib({"HOME": str(tmp_path)}) == cached.resolve()
    assert find_apache_lib({"HOME": str(tmp_path), "BKHEAL_APACHE_LIB": str(given)}) == given.resolve()


def test_a_bookie_listens_only_on_loopback_and_syncs_its_journal(tmp_path: Path) -> None:
    settings = ApacheOptions(storage=ApacheStorage.DB).bookie(URI, 3181, tmp_path)
    assert settings["advertisedAddress"] == "127.0.0.1"
    assert settings["listeningInterface"].startswith("lo")
    assert settings["journalSyncData"] == "true"
    assert settings["ledgerStorageClass"].endswith(".DbLedgerStorage")
    assert settings["metadataServiceUri"] == URI


def test_settings_of_the_caller_win(tmp_path: Path) -> None:
    options = ApacheOptions(extra={"journalSyncData": "false", "gcWaitTime": "1000"})
    settings = options.bookie(URI, 3181, tmp_path)
    assert (settings["journalSyncData"], settings["gcWaitTime"]) == ("false", "1000")


def test_tls_and_login_are_configured_for_servers_and_for_apaches_own_clients(tmp_path: Path) -> None:
    tls = ApacheTls(tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem", asks_clients=True)
    sasl = ApacheSasl({"a": 'quoted "word" \\', "b": "plain"}, own_name="b")
    settings = ApacheOptions(tls=tls, sasl=sasl).shared(URI)
    assert settings["tlsClientAuthentication"] == "true"
    assert settings["tlsKeyStore"] == str(tmp_path / "key.pem")
    assert {"bookieAuthProviderFactoryClass", "clientAuthProviderFactoryClass"} <= set(settings)
    assert r'user_a="quoted \"word\" \\"' in sasl.jaas()
    assert 'username="b"' in sasl.jaas()
    assert "plain" not in repr(sasl)


def test_a_value_that_a_configuration_file_cannot_contain_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="bookieId"):
        write_settings(tmp_path / "bookie.conf", {"bookieId": "a\nb=c"})
    write_settings(tmp_path / "bookie.conf", {"a": r"back\slash", "b": ".*"})
    assert (tmp_path / "bookie.conf").read_text() == "a=back\\\\slash\nb=.*\n"


def test_the_command_line_contains_heap_jars_and_properties(tmp_path: Path) -> None:
    java = Java(tmp_path, tmp_path / "bin" / "java", 17, JavaOrigin.PATH)
    command = ApacheJvm(java, tmp_path / "lib", heap_mib=99).command("a.Main", "--conf", "x", properties={"p": "1"})
    assert command[0] == str(tmp_path / "bin" / "java")
    assert "-Xmx99m" in command
    assert "-Dp=1" in command
    assert command[-5:] == ["-cp", f"{tmp_path}/lib/*", "a.Main", "--conf", "x"]
