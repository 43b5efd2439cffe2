"""Everything of the node that runs inside its namespaces, started in the order in which parts need each other.

The test run starts it through the keeper. It writes one line to standard output for each thing that is up, `ready`
when pods can run, then stays; the keeper ends it.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kube.harness.control_plane import ControlPlane
from kube.harness.pki import Pki
from kube.harness.processes import Process, eventually
from kube.harness.tools import ROOT, run
from node.harness import configs, manifests, mounts, network
from node.harness.configs import NODE, NODE_ADDRESS, Layout
from node.harness.spec import NodeSpec

API_PORT = 6443  # what NetworkPolicies of charts expect behind the Service


class NodeControlPlane(ControlPlane):
    """The control plane with an address that pods can reach, and a way to kubelets."""

    @property
    def pki(self) -> Pki:
        """To issue certificates for the node's parts."""
        return self._pki

    def _start(self, name: str, command: list[str]) -> None:
        if name == "apiserver":  # the last of equal flags counts
            self.pki.issue("kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client")
            command += ["--bind-address=0.0.0.0", f"--advertise-address={NODE_ADDRESS}"]
            command += ["--endpoint-reconciler-type=lease", "--kubelet-preferred-address-types=InternalIP"]
            command += [f"--kubelet-client-certificate={self.pki.path('kubelet-client.crt')}"]
            command += [f"--kubelet-client-key={self.pki.path('kubelet-client.key')}"]
        super()._start(name, command)


class Inside:
    """The node's processes; nothing here is ever ended but by the end of them all."""

    def __init__(self, spec: NodeSpec) -> None:
        self.spec = spec
        self.layout = Layout(spec.directory, spec.tools, spec.runc, spec.cni, spec.cgroup)
        os.environ["PATH"] = f"{spec.tools}:{os.environ['PATH']}"
        self.control = NodeControlPlane(spec.directory / "control-plane", port=API_PORT)

    def start(self) -> None:
        """Returns when pods can run."""
        with ThreadPoolExecutor(1) as beside:  # a thread of no processes: they would end with it
            images = beside.submit(self.import_images, self.containerd())
            self.control.start()
            self.tell("api server")
            images.result()
        self.relay()
        self.kubelet()
        self.services()
        self.objects()
        self.tell("ready")

    def containerd(self) -> Process:
        """containerd, with runc and gVisor."""
        layout = self.layout
        self.write("containerd.toml", configs.containerd(layout))
        self.write("runsc.toml", configs.runsc(layout))
        self.write("cni/10-pods.conflist", configs.cni(layout))
        return self.process(
            "containerd", [str(layout.tools / "containerd"), "--config", layout.path("containerd.toml")]
        )

    def import_images(self, containerd: Process) -> None:
        """Puts the images where pods find them: there is no registry."""
        layout = self.layout
        ctr = [str(layout.tools / "ctr"), "--address", str(layout.socket), "--namespace", "k8s.io"]
        containerd.wait_until(lambda: run([*ctr, "version"], check=False).returncode == 0, "containerd answers")
        for archive in self.spec.archives:
            run([*ctr, "images", "import", "--local", str(archive)], timeout_s=180)
        self.tell("images")

    def kubelet(self) -> None:
        """kubelet, until the API server knows the node as Ready."""
        pki = self.control.pki
        extension = f"subjectAltName=IP:{NODE_ADDRESS},DNS:{NODE}\nextendedKeyUsage=serverAuth,clientAuth"
        pki.issue("kubelet", f"/O=system:nodes/CN=system:node:{NODE}", extension)
        kubeconfig = pki.kubeconfig("kubelet", self.control.url)
        config = configs.kubelet(self.layout, pki.path("ca.crt"), pki.path("kubelet.crt"), pki.path("kubelet.key"))
        command = [str(self.layout.tools / "kubelet"), f"--kubeconfig={kubeconfig}"]
        command += [f"--config={self.write('kubelet.yaml', config)}", f"--root-dir={self.layout.path('kubelet')}"]
        command += [f"--hostname-override={NODE}", f"--node-ip={NODE_ADDRESS}"]
        self.process("kubelet", command).wait_until(self.node_ready, "the node is Ready")
        self.tell("node")

    def services(self) -> None:
        """kube-proxy, the enforcer of policies and the provisioner of volumes."""
        pki = self.control.pki
        pki.issue("kube-proxy", "/CN=system:kube-proxy")
        proxy = self.write("kube-proxy.yaml", configs.kube_proxy(pki.kubeconfig("kube-proxy", self.control.url)))
        self.process("kube-proxy", [str(self.layout.tools / "kube-proxy"), f"--config={proxy}"])
        ours = [sys.executable, "-m"]
        admin = ["--kubeconfig", str(self.control.kubeconfig)]
        self.process("enforcer", [*ours, "node.harness.enforcer", *admin])
        self.process("volumes", [*ours, "kube.harness.volumes", *admin, "--root", self.layout.path("volumes")])

    def objects(self) -> None:
        """Cluster DNS, until it answers, and gVisor's RuntimeClass."""
        for item in [manifests.runtime_class(), *manifests.dns()]:
            self.control.admin.apply(item)
        eventually(self.dns_ready, "cluster DNS")
        storage = "/apis/storage.k8s.io/v1/storageclasses"
        eventually(lambda: self.control.admin.raw("GET", storage)["items"], "a storage class")

    def node_ready(self) -> bool:
        """Whether the scheduler may place pods here."""
        node = self.control.admin.get("v1", "Node", "", NODE)
        conditions = node["status"]["conditions"] if node else []
        return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)

    def dns_ready(self) -> bool:
        """Whether CoreDNS takes questions."""
        found = self.control.admin.get("apps/v1", "Deployment", "kube-system", "coredns")
        return bool(found and found["status"].get("readyReplicas"))

    def relay(self) -> None:
        """Serves the machine's loopback socket with this namespace's API server."""
        listener = socket.socket(fileno=self.spec.api_descriptor)
        port = int(self.control.url.rsplit(":", 1)[1])
        threading.Thread(target=lambda: asyncio.run(_relay(listener, port)), daemon=True).start()

    def process(self, name: str, command: list[str]) -> Process:
        """Starts one program."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
        return Process(name, command, self.spec.logs / f"{name}.log", env=environment)

    def write(self, name: str, text: str) -> Path:
        """One configuration file."""
        path = self.spec.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def tell(self, what: str) -> None:
        """One line to the test run."""
        print(json.dumps({"up": what}), flush=True)


async def _relay(listener: socket.socket, port: int) -> None:
    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    server = await asyncio.start_server(connected, sock=listener)
    await server.serve_forever()


def main(spec: NodeSpec) -> None:
    """Starts the node and stays."""
    mounts.shield(spec.directory)
    for source, target in spec.binds:
        target.mkdir(parents=True)
        mounts.bind(source, target)
    network.set_up()
    (spec.directory / "control-plane").mkdir()
    (spec.directory / "control-plane" / "log").symlink_to(spec.logs)
    Inside(spec).start()
    threading.Event().wait()


if __name__ == "__main__":
    main(NodeSpec.read(Path(sys.argv[1])))
