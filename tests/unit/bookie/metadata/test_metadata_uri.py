"""Metadata service URIs: which are accepted, and whether refusals contain a hint."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.metadata.uri import InvalidUriError, MetadataUri, parse_uri


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("zk://h:2181/ledgers", MetadataUri("h:2181", "/ledgers", None)),
        ("zk://h/ledgers", MetadataUri("h:2181", "/ledgers", None)),
        ("zk+hierarchical://h1:1;h2:2/a/b", MetadataUri("h1:1,h2:2", "/a/b", "hierarchical")),
        (
            "zk+longhierarchical://h1,h2:2;h3/ledgers",
            MetadataUri("h1:2181,h2:2,h3:2181", "/ledgers", "longhierarchical"),
        ),
        ("zk+flat://h/ledgers/", MetadataUri("h:2181", "/ledgers", "flat")),
        ("zk+null://h/ledgers", MetadataUri("h:2181", "/ledgers", None)),
        ("ZK+None://H/Ledgers", MetadataUri("H:2181", "/Ledgers", None)),
        ("  zk://[::1]:2182;[fe80::2]/ledgers ", MetadataUri("[::1]:2182,[fe80::2]:2181", "/ledgers", None)),
        ("metadata-store:zk:h:2181", MetadataUri("h:2181", "/ledgers", "hierarchical")),
        ("metadata-store:zk:h1:1,h2:2/", MetadataUri("h1:1,h2:2", "/ledgers", "hierarchical")),
        ("Metadata-Store:ZK:h1;h2:2/p/q", MetadataUri("h1:2181,h2:2", "/p/q/ledgers", "hierarchical")),
        # The path is a chroot, even if it looks like the ledgers root.
        ("metadata-store:zk:h:2181/ledgers", MetadataUri("h:2181", "/ledgers/ledgers", "hierarchical")),
    ],
)
def test_valid_uris_are_accepted(text: str, expected: MetadataUri) -> None:
    assert parse_uri(text) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no scheme"),
        ("h:2181/ledgers", "no scheme"),
        ("etcd://h/ledgers", "in etcd is not supported"),
        ("etcd:http://h:2379/ledgers", "in etcd is not supported"),
        ("etcd:h", "in etcd is not supported"),
        ("http://h/ledgers", "'http' is not supported"),
        ("oxia://h:6648/ledgers", "in Oxia is not supported, only in ZooKeeper"),
        ("etcd:http://h:2379/ledgers", "in etcd is not supported, only in ZooKeeper"),
        ("rocksdb:///data/metadata", "in RocksDB is not supported, only in ZooKeeper"),
        ("zk+ms://h/ledgers", "metastore"),
        ("zk+legacyhierarchical://h/ledgers", "leave the layout out"),
        ("zk+unheard://h/ledgers", "flat, hierarchical, longhierarchical"),
        ("zk+flat+flat://h/ledgers", "2 layouts"),
        ("zk://h:2181", "no path"),
        ("zk://h:2181/", "no path"),
        ("zk:///ledgers", "not a host"),
        ("zk://h;;g/ledgers", "not a host"),
        ("zk://zk..example.com:2181/ledgers", "not a host"),
        (f"zk://h;{'x' * 64}/ledgers", "not a host"),
        ("zk://h;/ledgers", "not a host"),
        ("zk://user@h/ledgers", "not a host"),
        ("zk://[::1/ledgers", "not a host"),
        ("zk://[::1]x/ledgers", "not a host"),
        ("zk://h:/ledgers", "not a port"),
        ("zk://h:0/ledgers", "not a port"),
        ("zk://h:65536/ledgers", "not a port"),
        ("zk://h:1:2/ledgers", "not a port"),
        ("zk://h//ledgers", "plain names"),
        ("zk://h/a/../b", "plain names"),
        ("zk://h/a?b=c", "plain names"),
    ],
)
def test_error_names_the_problem_and_shows_an_example(text: str, why: str) -> None:
    with pytest.raises(InvalidUriError) as caught:
        parse_uri(text)
    assert why in str(caught.value)
    assert "zk://zk1:2181;zk2:2181/ledgers" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("metadata-store:oxia://h:6648/ledgers", "in Oxia is not supported, only in ZooKeeper"),
        ("metadata-store:etcd:http://h:2379", "in etcd is not supported, only in ZooKeeper"),
        ("metadata-store:rocksdb:///data/metadata", "in RocksDB is not supported, only in ZooKeeper"),
        ("zk:h:2181/p", "a bookie's begins with metadata-store:"),
        ("metadata-store:zk://h:2181/ledgers", "followed by the hosts"),
        ("metadata-store:h:2181", "followed by the hosts"),
        ("metadata-store:", "followed by the hosts"),
        ("metadata-store:zk:", "not a host"),
        ("metadata-store:zk:/p", "not a host"),
        ("metadata-store:zk:h:2181//p", "plain names"),
    ],
)
def test_error_for_a_uri_of_pulsars_driver_shows_a_working_uri(text: str, why: str) -> None:
    with pytest.raises(InvalidUriError) as caught:
        parse_uri(text)
    assert why in str(caught.value)
    assert parse_uri(str(caught.value).rpartition("(example: ")[2].rstrip(")")).hosts == "zk1:2181,zk2:2181"


@given(st.text(max_size=40) | st.text(max_size=30).map("zk://".__add__) | st.text().map("metadata-store:zk:".__add__))
def test_arbitrary_text_is_read_or_refused(text: str) -> None:
    try:
        uri = parse_uri(text)
    except InvalidUriError:
        return
    assert uri.ledgers_root.startswith("/")
    assert all(host.rpartition(":")[2].isdigit() for host in uri.hosts.split(","))
