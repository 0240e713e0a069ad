"""A cluster of Hadoop's file system on loopback, in a process of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_SOURCE: Final = """
import java.io.File;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

public class HdfsCluster {
    public static void main(String[] arguments) throws Exception {
        File folder = new File(arguments[0]);
        MiniDFSCluster cluster = new MiniDFSCluster.Builder(new Configuration(), folder).numDataNodes(1).build();
        cluster.waitActive();
        System.out.println(cluster.getNameNodePort());
        System.out.flush();
        while (System.in.read() >= 0) {}
        System.exit(0);
    }
}
"""


@contextmanager
def hdfs_cluster(folder: Path) -> Iterator[str]:
    """Yield the address of a cluster with one data node. It ends with this process, when its input closes."""
    folder.mkdir()
    source = folder / "HdfsCluster.java"
    source.write_text(_SOURCE)
    classes = os.environ["BKHEAL_HADOOP_HDFS_CLASSPATH"]
    command = ["java", "-Xmx512m", "-cp", classes, str(source), str(folder / "data")]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log) as cluster,
    ):
        assert cluster.stdout is not None
        try:
            port = cluster.stdout.readline().strip()
            assert port, (folder / "log").read_text()
            yield f"hdfs://127.0.0.1:{port}"
        finally:
            cluster.kill()
