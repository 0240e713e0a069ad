"""A real Kubernetes API server on loopback: kube-apiserver and etcd, without controllers for its objects."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from bookie.runtime.ports import free_loopback_port
from tests.deadlines import STATE_S

APISERVER: Final = os.environ.get("BKHEAL_KUBE_APISERVER", "")
ETCD: Final = os.environ.get("BKHEAL_ETCD", "")
_POLL_S: Final = 0.2
_ADMIN: Final = "admin-of-this-test"


class KubectlError(Exception):
    """kubectl failed; the text is its output."""


@dataclass(frozen=True)
class ApiServer:
    """A running API server."""

    url: str
    directory: Path

    @property
    def ca(self) -> Path:
        return self.directory / "certs" / "apiserver.crt"

    def kubectl(self, *arguments: str, text: str | None = None, token: str = _ADMIN) -> str:
        """Run kubectl and return its whole output, warnings as well.

        Raises:
            KubectlError: it failed.
        """
        command = ["kubectl", f"--server={self.url}", f"--certificate-authority={self.ca}", f"--token={token}"]
        done = subprocess.run(
            [*command, *arguments],
            input=text,
            env={"HOME": str(self.directory), "PATH": os.environ["PATH"]},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=100,
        )
        if done.returncode:
            raise KubectlError(done.stdout)
        return done.stdout


@contextlib.contextmanager
def api_server(directory: Path) -> Iterator[ApiServer]:
    """Start etcd and kube-apiserver, wait until the server is ready, and stop both at the end."""
    client, peer, secure = (free_loopback_port(random.SystemRandom()) for _ in range(3))
    _prepare(directory)
    with contextlib.ExitStack() as stack:
        etcd = f"http://127.0.0.1:{client}"
        _start(
            stack,
            directory / "etcd.log",
            [
                ETCD,
                f"--data-dir={directory / 'etcd'}",
                f"--listen-client-urls={etcd}",
                f"--advertise-client-urls={etcd}",
                f"--listen-peer-urls=http://127.0.0.1:{peer}",
                "--unsafe-no-fsync",
            ],
        )
        _start(
            stack,
            directory / "apiserver.log",
            [
                APISERVER,
                f"--etcd-servers={etcd}",
                "--bind-address=127.0.0.1",
                f"--secure-port={secure}",
                f"--cert-dir={directory / 'certs'}",
                f"--token-auth-file={directory / 'tokens.csv'}",
                "--authorization-mode=RBAC",
                "--service-cluster-ip-range=10.0.0.0/24",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={directory / 'account.key'}",
                f"--service-account-signing-key-file={directory / 'account.key'}",
            ],
        )
        server = ApiServer(f"https://127.0.0.1:{secure}", directory)
        _wait_ready(server)
        yield server


def _prepare(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokens.csv").write_text(f"{_ADMIN},admin,admin,system:masters\n")
    subprocess.run(
        ["openssl", "genrsa", "-out", str(directory / "account.key"), "2048"],
        check=True,
        capture_output=True,
        timeout=60,
    )


def _start(stack: contextlib.ExitStack, log: Path, command: list[str]) -> None:
    file: IO[bytes] = stack.enter_context(log.open("wb"))
    process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    stack.callback(_stop, process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STATE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STATE_S)


def _wait_ready(server: ApiServer) -> None:
    deadline = time.monotonic() + STATE_S
    while True:
        with contextlib.suppress(KubectlError):
            if server.ca.exists() and server.kubectl("get", "--raw", "/readyz") == "ok":
                return
        if time.monotonic() > deadline:
            log = (server.directory / "apiserver.log").read_text(errors="replace")
            raise TimeoutError(f"kube-apiserver was not ready within {STATE_S:g} s:\n{log[-4000:]}")
        time.sleep(_POLL_S)
