"""A real Pulsar on this machine: bookies with Pulsar's metadata driver, its auto-recovery, and a broker, as processes.

This needs the jars of ``pulsar-broker`` with all dependencies (``.ci/pulsar/pom.xml``). All processes listen only on
127.0.0.1, and end with this process.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from typing_extensions import override

from bookie.embedded.apache import LEDGERS_ROOT, ApacheCluster, java_properties
from bookie.embedded.apache_jars import ApacheJvm
from bookie.embedded.apache_settings import ApacheOptions, ApacheStorage, write_log_settings, write_settings
from bookie.embedded.process import ManagedProcess
from bookie.runtime.kept_files import cache_folder
from bookie.runtime.ports import free_loopback_port
from tests.deadlines import PROGRAM_S
from tests.sessions import LONG_SESSION_S

VERSION: Final = "4.0.7"
LIB_VARIABLE: Final = "BKHEAL_PULSAR_LIB"
NAMESPACE: Final = "public/default"
_NAME: Final = "c"
_SET_UP_MAIN: Final = "org.apache.pulsar.PulsarClusterMetadataSetup"
_BROKER_MAIN: Final = "org.apache.pulsar.PulsarBrokerStarter"
_BROKER_READY: Final = r"messaging service is ready"
_OPENED: Final = ("java.nio", "jdk.internal.misc", "sun.net", "jdk.internal.platform", "java.lang")
_DRIVERS: Final = "org.apache.pulsar.metadata.bookkeeper.PulsarMetadata{}Driver"


def pulsar_lib() -> Path:
    """The folder of the jars, whether or not it exists."""
    given = os.environ.get(LIB_VARIABLE)
    return Path(given) if given else cache_folder() / f"apache-pulsar-{VERSION}"


def pulsar_jvm(jvm: ApacheJvm, *, has_own_driver: bool = True) -> ApacheJvm:
    """Return the settings for Pulsar's programs: bookies and auto-recovery use its metadata driver, or BookKeeper's."""
    drivers = tuple(
        f"-Dbookkeeper.metadata.{side.lower()}.drivers={_DRIVERS.format(side)}" for side in ("Bookie", "Client")
    )
    options = (
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        *(word for name in _OPENED for word in ("--add-opens", f"java.base/{name}=ALL-UNNAMED")),
        *("--add-opens", "java.management/sun.management=ALL-UNNAMED"),
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-XX:MaxDirectMemorySize=256m",
        *(drivers if has_own_driver else ()),
    )
    return replace(jvm, lib=pulsar_lib(), options=options)


class PulsarCluster(ApacheCluster):
    """Bookies from Pulsar's jars, which access their metadata through Pulsar's driver."""

    @property
    @override
    def metadata_uri(self) -> str:
        return f"metadata-store:zk:{self.zookeeper.connect_string}"

    @property
    def broker_settings(self) -> Mapping[str, str]:
        """Return a broker's settings for finding the bookies: by default through Pulsar's driver."""
        return {}

    @override
    async def _format(self, is_by_apache: bool) -> None:
        """Create the cluster with Pulsar's tool, as an operator does."""
        store = f"zk:{self.zookeeper.connect_string}"
        where = self.directory / "set-up"
        write_log_settings(where / "log4j2.properties", is_shell=False)
        arguments = {
            "cluster": _NAME,
            "metadata-store": store,
            "configuration-metadata-store": store,
            "web-service-url": "http://127.0.0.1:1",
            "broker-service-url": "pulsar://127.0.0.1:1",
            "initial-num-transaction-coordinators": "1",
        }
        words = [word for name, value in arguments.items() for word in (f"--{name}", value)]
        command = self.jvm.command(
            _SET_UP_MAIN, *words, properties=java_properties(where / "log4j2.properties", self.jaas)
        )
        process = ManagedProcess.start("pulsar set-up", command, log_path=where / "log.txt")
        try:
            code = await process.wait(PROGRAM_S)
        finally:
            process.kill9()
        assert code == 0, process.log_path.read_text(errors="replace")


class NativePulsarCluster(PulsarCluster):
    """The same with BookKeeper's driver, as in Pulsar's chart and in bare-metal installations."""

    @property
    @override
    def metadata_uri(self) -> str:
        return f"zk+hierarchical://{self.zookeeper.connect_string}{LEDGERS_ROOT}"

    @property
    @override
    def broker_settings(self) -> Mapping[str, str]:
        return {"bookkeeperMetadataServiceUri": self.metadata_uri}


def pulsar_options() -> ApacheOptions:
    """Return the relevant settings of Pulsar's ``bookkeeper.conf``, with a long session timeout."""
    extra = {"zkTimeout": str(round(1000 * LONG_SESSION_S)), "autoRecoveryDaemonEnabled": "false"}
    extra |= {"journalSyncData": "false"}  # no test simulates a power loss
    return ApacheOptions(storage=ApacheStorage.DB, extra=extra)


@dataclass
class Broker:
    """A broker with Pulsar's driver for its ledgers as well."""

    process: ManagedProcess
    port: int
    web_port: int

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"pulsar://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        """The URL of the admin API."""
        return f"http://127.0.0.1:{self.web_port}"

    @classmethod
    async def start(
        cls, cluster: PulsarCluster, name: str = "broker", further: Mapping[str, str] = MappingProxyType({})
    ) -> Broker:
        """Start the broker, with further settings, and wait until it is ready."""
        where, rng = cluster.directory / name, random.SystemRandom()
        port, web_port = free_loopback_port(rng), free_loopback_port(rng)
        store = f"zk:{cluster.zookeeper.connect_string}"
        settings = {
            "clusterName": _NAME,
            "metadataStoreUrl": store,
            "configurationMetadataStoreUrl": store,
            "metadataStoreSessionTimeoutMillis": str(round(1000 * LONG_SESSION_S)),
            "brokerServicePort": str(port),
            "webServicePort": str(web_port),
            "bindAddress": "127.0.0.1",
            "advertisedAddress": "127.0.0.1",
            "managedLedgerDefaultEnsembleSize": "2",
            "managedLedgerDefaultWriteQuorum": "2",
            "managedLedgerDefaultAckQuorum": "2",
            "managedLedgerMaxEntriesPerLedger": "100",
            "managedLedgerMinLedgerRolloverTimeMinutes": "0",
            # Without retention, the broker deletes messages for which no subscription waits.
            "defaultRetentionTimeInMinutes": "-1",
            "defaultRetentionSizeInMB": "-1",
            "brokerDeleteInactiveTopicsEnabled": "false",
            "loadBalancerEnabled": "false",
            "numIOThreads": "2",
            "numHttpServerThreads": "8",
            "managedLedgerCacheSizeMB": "16",
            "functionsWorkerEnabled": "false",
            **cluster.broker_settings,
            **further,
        }
        write_settings(where / "broker.conf", settings)
        write_log_settings(where / "log4j2.properties", is_shell=False)
        with (where / "log4j2.properties").open("a") as log:
            log.write("logger.broker.name = org.apache.pulsar.broker.PulsarService\nlogger.broker.level = info\n")
        command = replace(cluster.jvm, heap_mib=384).command(
            _BROKER_MAIN,
            *("--broker-conf", str(where / "broker.conf")),
            properties=java_properties(where / "log4j2.properties", None),
        )
        process = ManagedProcess.start(name, command, log_path=where / "log.txt")
        await process.wait_for_line(_BROKER_READY, PROGRAM_S)
        return cls(process, port, web_port)
