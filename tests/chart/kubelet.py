"""Run the pods of a release from the image as a kubelet would: podman for containers, a bridge for their addresses.

Arguments, variables, volumes, users, read-only roots and capabilities of a pod's template are applied or refused.
Limits of memory and CPU, ``preStop`` and restarts are ignored; the seccomp profile is podman's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.chart.rendering import Pod, Release
from tests.chart.waiting import wait_for_answer
from tests.deadlines import PROGRAM_S

STORE: Final = os.environ.get("BKHEAL_IMAGE_STORE", "")
IMAGE: Final = "localhost/bkheal:built"
NEEDED: Final = ("podman", "crun", "ip", "unshare")
_BRIDGE: Final = "bkheal-br0"
_NETWORK: Final = "10.213.87"
_SECURITY: Final[Mapping[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""The only supported security setting; podman gets the same option below."""
# A separate mount namespace, because crun refuses a mixture of cgroup versions.
_ALONE: Final = """
mount --make-rprivate /
for at in $(awk '$5 ~ "^/sys/fs/cgroup" {print $5}' /proc/self/mountinfo | sort -r); do umount -l "$at"; done
mount -t cgroup2 none /sys/fs/cgroup
exec podman "$@"
"""


class RefusedError(Exception):
    """A security context, variable or volume of an unsupported kind."""


@dataclass
class Container:
    """A running or finished container."""

    name: str
    address: str
    process: subprocess.Popen[bytes]
    home: Path

    @property
    def output(self) -> str:
        """Return what it has printed so far."""
        return (self.home / "output").read_text(errors="replace")

    @property
    def log(self) -> str:
        """Return its standard error so far."""
        return (self.home / "log").read_text(errors="replace")

    def wait(self, deadline_s: float = PROGRAM_S) -> int:
        """Wait until it ends, and return its exit code."""
        return self.process.wait(deadline_s)

    def kill9(self) -> None:
        """Kill its first process with SIGKILL, which ends the container. If it has ended, do nothing."""
        if self.process.poll() is None:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                os.kill(int((self.home / "pid").read_text()), signal.SIGKILL)
        self.process.wait(PROGRAM_S)

    def get(self, port: int, path: str) -> str:
        """Wait until there is a text at ``path``, and return it."""
        return wait_for_answer(f"http://{self.address}:{port}{path}", self.process, self.home / "log")


@dataclass
class Node:
    """A machine with an isolated bridge; every name of ``names`` has an address on it."""

    directory: Path
    names: Sequence[str]
    containers: list[Container] = field(default_factory=list)

    def address(self, name: str) -> str:
        return f"{_NETWORK}.{self.names.index(name) + 2}"

    def run(
        self,
        name: str,
        *arguments: str,
        entrypoint: str | None = None,
        variables: Mapping[str, str] | None = None,
        mounts: Mapping[str, tuple[Path, bool]] | None = None,
        user: str = "185:185",
    ) -> Container:
        """Start a container with the address of ``name``. ``mounts``: path inside -> path here, whether read-only."""
        home = self.directory / f"{len(self.containers)}-{name.split('.')[0]}"
        home.mkdir()
        options = [
            *("--log-level", "error", "--cgroup-manager", "cgroupfs", "--events-backend", "none"),
            *("--root", f"{STORE}/store", "--runroot", f"{STORE}/run", "--storage-driver", "overlay"),
            *(
                "run",
                "--rm",
                "--pull",
                "never",
                "--runtime",
                "crun",
                "--cgroups=disabled",
                "--ulimit",
                "host",
                "--log-driver",
                "none",
            ),
            # Unlike podman, Kubernetes adds no entry for the user to /etc/passwd.
            *("--no-healthcheck", "--passwd=false", "--hostname", name.split(".")[0]),
            *("--network", f"ns:/run/netns/{self._namespace(name)}", "--volume", f"{self._hosts()}:/etc/hosts:ro"),
            *("--read-only", "--read-only-tmpfs=false", "--cap-drop", "all", "--security-opt", "no-new-privileges"),
            *("--user", user, "--pidfile", str(home / "pid")),
        ]
        if entrypoint:
            options += ["--entrypoint", entrypoint]
        for variable, value in (variables or {}).items():
            options += ["--env", f"{variable}={value}"]
        for inside, (outside, is_read_only) in (mounts or {}).items():
            options += ["--volume", f"{outside}:{inside}:{'ro' if is_read_only else 'rw'}"]
        command = ["unshare", "-m", "sh", "-ec", _ALONE, "sh", *options, IMAGE, *arguments]
        settings = self.directory / "containers.conf"
        settings.write_text("[containers]\ndefault_ulimits = []\n")
        environment = {**os.environ, "CONTAINERS_CONF": str(settings)}
        with (home / "output").open("wb") as output, (home / "log").open("wb") as log:
            process = subprocess.Popen(command, env=environment, stdout=output, stderr=log)
        made = Container(name, self.address(name), process, home)
        self.containers.append(made)
        return made

    def start(self, made: Release, pod: Pod, name: str) -> Container:
        """Run the pod's init containers one after the other, then start its container."""
        volumes = self._volumes(made, pod, name)
        known = {"metadata.name": name.split(".")[0], "status.podIP": self.address(name)}
        for each in pod.spec.get("initContainers", []):
            begun = self._start(pod, each, name, volumes, known)
            assert begun.wait() == 0, begun.log[-3000:]
        [container] = pod.spec["containers"]
        return self._start(pod, container, name, volumes, known)

    def _start(
        self, pod: Pod, spec: Mapping[str, Any], name: str, volumes: Mapping[str, Path], known: Mapping[str, str]
    ) -> Container:
        if spec["securityContext"] != _SECURITY:
            raise RefusedError(f"security context {spec['securityContext']}")
        mounts = {
            each["mountPath"]: (volumes[each["name"]], bool(each.get("readOnly"))) for each in spec["volumeMounts"]
        }
        entrypoint, *first = spec.get("command", [None])
        context = pod.spec["securityContext"]
        return self.run(
            name,
            *(*first, *spec.get("args", [])),
            entrypoint=entrypoint,
            variables=variables_of(spec, known),
            mounts=mounts,
            user=f"{context['runAsUser']}:{context['runAsGroup']}",
        )

    def _volumes(self, made: Release, pod: Pod, name: str) -> dict[str, Path]:
        """Return the directories of the pod's volumes. Those of claims are kept for the next pod with the same name."""
        claims = [claim["metadata"]["name"] for claim in pod.owner["spec"].get("volumeClaimTemplates", [])]
        found = {claim: self.directory / "claims" / name / claim for claim in claims}
        for volume in pod.spec["volumes"]:
            what = next(iter(set(volume) - {"name"}))
            at = self.directory / "volumes" / str(len(self.containers)) / name / volume["name"]
            at.mkdir(parents=True)
            if what == "configMap":
                data = made.one("ConfigMap", volume[what]["name"])["data"]
                for item in volume[what].get("items") or [{"key": key, "path": key} for key in data]:
                    (at / item["path"]).write_text(data[item["key"]])
            elif what != "emptyDir":
                raise RefusedError(f"volume {volume}")
            found[volume["name"]] = at
        group = pod.spec["securityContext"]["fsGroup"]
        for at in found.values():
            at.mkdir(parents=True, exist_ok=True)
            shutil.chown(at, group=group)
            at.chmod(0o2775)
        return found

    def _hosts(self) -> Path:
        path = self.directory / "hosts"
        lines = ["127.0.0.1 localhost", *(f"{self.address(name)} {name} {name.split('.')[0]}" for name in self.names)]
        path.write_text("\n".join(lines) + "\n")
        return path

    def _namespace(self, name: str) -> str:
        number = self.names.index(name) + 2
        namespace, outside = f"bkheal-{number}", f"bkheal-v{number}"
        if not Path(f"/run/netns/{namespace}").exists():
            _ip("netns", "add", namespace)
            _ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", namespace)
            _ip("link", "set", outside, "master", _BRIDGE, "up")
            _ip("-n", namespace, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                _ip("-n", namespace, "link", "set", link, "up")
        return namespace


@contextlib.contextmanager
def node(directory: Path, names: Sequence[str]) -> Iterator[Node]:
    """Make a node whose containers are killed at the end."""
    _ip("link", "add", _BRIDGE, "type", "bridge")
    made = Node(directory, names)
    try:
        _ip("addr", "add", f"{_NETWORK}.1/24", "dev", _BRIDGE)
        _ip("link", "set", _BRIDGE, "up")
        yield made
    finally:
        for container in made.containers:
            container.kill9()
        for number in range(2, len(names) + 2):
            subprocess.run(["ip", "netns", "del", f"bkheal-{number}"], check=False, stderr=subprocess.DEVNULL)
        _ip("link", "del", _BRIDGE)


def variables_of(spec: Mapping[str, Any], known: Mapping[str, str]) -> dict[str, str]:
    """Return the container's variables; ``known`` are the pod fields permitted in them."""
    found: dict[str, str] = {}
    for each in spec.get("env", []):
        if "valueFrom" in each:
            if set(each["valueFrom"]) != {"fieldRef"}:
                raise RefusedError(f"variable {each}")
            value = known[each["valueFrom"]["fieldRef"]["fieldPath"]]
        else:
            value = each["value"]
            for name, earlier in found.items():
                value = value.replace(f"$({name})", earlier)
        found[each["name"]] = value
    return found


def port_of(pod: Pod, name: str) -> int:
    [container] = pod.spec["containers"]
    [port] = [each["containerPort"] for each in container["ports"] if each["name"] == name]
    return int(port)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
