"""A second machine of the test cluster, which can be lost: power, link, kubelet.

`SecondNode(node).start()` makes it beside a running `Node`; it has namespaces, a kubelet and a runtime of its own, and
the taint and label `pool: spot`. Run as a program it is the machine's first process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from kube.harness.pki import Pki
from kube.harness.processes import Process, eventually
from kube.harness.tools import ROOT, run, tools_dir
from node.harness import cgroups, configs, keeper, mounts
from node.harness.configs import Layout
from node.harness.inside import API_PORT
from node.harness.node import Node
from node.harness.spec import NodeSpec

NAME = "node-1"
POOL = "pool"
_NEAR, _FAR = "10.78.0.1", "10.78.0.2"
_PODS, _ALL_PODS = "10.244.1.0/24", "10.244.0.0/16"


class SecondNode:
    """Start it, lose it, start it again as a machine with an empty disk and the same name."""

    def __init__(self, first: Node, *, volumes: bool = False) -> None:
        """`volumes`: the first machine's can be mounted here, too, as if they were on a network."""
        self.first = first
        self._volumes = volumes
        self._guard: subprocess.Popen[str] | None = None
        self._started = 0
        self._kubelet = 0  # as the machine counts

    def start(self) -> None:
        """Returns when pods can run on it."""
        self._started += 1
        directory = self.first.directory / f"machine-{self._started}"
        directory.mkdir()
        self._cgroup = f"{self.first.directory.name}-{self._started}"
        cgroups.make(self._cgroup)
        unshare = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
        inside = [sys.executable, "-m", "node.harness.second", str(self.first.directory), str(directory), self._cgroup]
        inside += ["shared"] if self._volumes else []
        shell = ["--propagation", "private", "bash", "-c", '"$@" & wait $!', "node"]
        self._guard = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *unshare, *shell, *inside],
            stdout=subprocess.PIPE,
            stderr=(self.first.logs / "second.log").open("ab"),
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
            start_new_session=True,
        )
        children = Path(f"/proc/{self._guard.pid}/task/{self._guard.pid}/children")
        eventually(lambda: children.read_text().split(), "the machine's first process", timeout_s=20)
        time.sleep(0.5)  # until it has left the network of its parent
        self._net("link", "del", "kp0", check=False)
        self._net("link", "add", "kp0", "type", "veth", "peer", "name", "kp1")
        self._net("link", "set", "kp1", "netns", children.read_text().split()[0])
        self._net("addr", "add", f"{_NEAR}/24", "dev", "kp0")
        self.heal()
        assert self._guard.stdout is not None
        inner = int(self._guard.stdout.readline() or "0")
        assert inner, (self.first.logs / "second.log").read_text()[-4000:]
        self._kubelet = _outer(inner, "kubelet")
        eventually(self.ready, f"{NAME} is Ready", timeout_s=120)

    def ready(self) -> bool:
        """Whether Kubernetes says so."""
        found = self.first.admin.get("v1", "Node", "", NAME)
        conditions = found["status"].get("conditions", []) if found else []
        return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)

    def part(self) -> None:
        """The machine lives and nobody hears it: no packet arrives, and no reset."""
        self._net("link", "set", "kp0", "down")

    def heal(self) -> None:
        """The link is there again."""
        self._net("link", "set", "kp0", "up")
        self._net("route", "replace", _PODS, "via", _FAR)

    def stop_kubelet(self) -> None:
        """Pods live and are reached; Kubernetes hears nothing of the machine."""
        os.kill(self._kubelet, signal.SIGSTOP)

    def continue_kubelet(self) -> None:
        """And hears of it again."""
        os.kill(self._kubelet, signal.SIGCONT)

    def power_off(self) -> None:
        """First the link goes, then all processes at once: a machine without power says no good-bye."""
        self.part()
        self.stop()

    def stop(self) -> None:
        """Ends its processes; what was on its disk is lost."""
        if self._guard is None:
            return
        os.killpg(self._guard.pid, signal.SIGKILL)
        self._guard.wait()
        self._guard = None
        deadline = time.monotonic() + keeper.PATIENCE_S
        while time.monotonic() < deadline:
            with suppress(OSError):  # processes of it are still ending
                cgroups.remove(self._cgroup)
                return
            time.sleep(0.1)

    def _net(self, *words: str, check: bool = True) -> None:
        run(["nsenter", f"--target={self.first.pid}", "--net", "ip", *words], check=check)


def _outer(inner: int, name: str) -> int:
    """The process id, as this machine counts, of what has another one in a namespace below."""
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError, StopIteration):
            text = status.read_text()
            ids = next(line for line in text.splitlines() if line.startswith("NSpid:")).split()[1:]
            if len(ids) > 1 and ids[-1] == str(inner) and f"Name:\t{name}" in text:
                return int(ids[0])
    raise AssertionError(f"there is no {name} with the id {inner}")


def main(first: Path, here: Path, cgroup: str, *, shared: bool) -> None:
    """Runs as the first program of the machine's namespaces: the runtime, the kubelet, kube-proxy."""
    spec = NodeSpec.read(first / "spec.json")
    configs.NODE, configs.NODE_ADDRESS, configs.POD_RANGE = NAME, _FAR, _PODS
    mounts.shield(here)
    for source, target in spec.binds:
        mounts.bind(source, target)
    (first / "volumes").mkdir(exist_ok=True)
    if not shared:
        run(["mount", "-t", "tmpfs", "tmpfs", str(first / "volumes")])  # attached to the first machine alone
    run(["ip", "link", "set", "lo", "up"])
    eventually(lambda: run(["ip", "link", "show", "kp1"], check=False).returncode == 0, "the link", timeout_s=30)
    for words in (f"addr add {_FAR}/24 dev kp1", "link set kp1 up", f"route add default via {_NEAR}"):
        run(["ip", *words.split()])
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    layout = Layout(here, tools_dir(), spec.runc, spec.cni, cgroup)
    os.environ["PATH"] = f"{layout.tools}:{os.environ['PATH']}"
    for name, text in {
        "containerd.toml": configs.containerd(layout),
        "runsc.toml": configs.runsc(layout),
        "cni/10-pods.conflist": configs.cni(layout),
    }.items():
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text(text)

    def start(name: str, *command: str) -> Process:
        return Process(name, list(command), spec.logs / f"second-{name}.log", env=dict(os.environ))

    containerd = start("containerd", str(layout.tools / "containerd"), "--config", layout.path("containerd.toml"))
    ctr = [str(layout.tools / "ctr"), "--address", str(layout.socket), "--namespace", "k8s.io"]
    containerd.wait_until(lambda: run([*ctr, "version"], check=False).returncode == 0, "containerd answers")
    for archive in spec.archives:
        run([*ctr, "images", "import", "--local", str(archive)], timeout_s=180)
    pki = Pki.__new__(Pki)  # the first machine's authority, which is made already
    pki.directory = first / "control-plane" / "pki"

    def credentials(name: str, subject: str, *extensions: str) -> Path:
        pki.issue(name, subject, *extensions)
        config = json.loads(pki.kubeconfig(name, f"https://10.77.0.1:{API_PORT}").read_text())
        config["clusters"][0]["cluster"]["tls-server-name"] = "kubernetes"
        path = here / f"{name}.kubeconfig"
        path.write_text(json.dumps(config))
        return path

    names = f"subjectAltName=IP:{_FAR},DNS:{NAME}\nextendedKeyUsage=serverAuth,clientAuth"
    kubeconfig = credentials(f"kubelet-{NAME}", f"/O=system:nodes/CN=system:node:{NAME}", names)
    keys = [pki.path(name) for name in ("ca.crt", f"kubelet-{NAME}.crt", f"kubelet-{NAME}.key")]
    (here / "kubelet.yaml").write_text(configs.kubelet(layout, *keys))
    kubelet = start(
        "kubelet",
        str(layout.tools / "kubelet"),
        f"--kubeconfig={kubeconfig}",
        f"--config={here / 'kubelet.yaml'}",
        f"--root-dir={layout.path('kubelet')}",
        f"--hostname-override={NAME}",
        f"--node-ip={_FAR}",
        f"--node-labels={POOL}=spot",
        f"--register-with-taints={POOL}=spot:NoSchedule",
    )
    proxy = configs.kube_proxy(credentials(f"kube-proxy-{NAME}", "/CN=system:kube-proxy")).replace(_PODS, _ALL_PODS)
    (here / "kube-proxy.yaml").write_text(proxy)
    start("kube-proxy", str(layout.tools / "kube-proxy"), f"--config={here / 'kube-proxy.yaml'}")
    print(kubelet.pid, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], shared="shared" in sys.argv[4:])
