"""The two images that the node itself needs: busybox (pods of the tests, and every sandbox) and CoreDNS."""

from __future__ import annotations

import shutil
from pathlib import Path

from kube.harness.tools import MissingTool, tool
from node.harness.archive import write_image
from node.harness.configs import PAUSE_IMAGE
from node.harness.manifests import COREDNS_IMAGE

BUSYBOX_IMAGE = PAUSE_IMAGE
APPLETS = (
    "cat",
    "echo",
    "grep",
    "hostname",
    "httpd",
    "id",
    "ls",
    "mkdir",
    "nc",
    "nslookup",
    "sh",
    "sleep",
    "timeout",
    "touch",
    "wget",
)


def basic_images(directory: Path) -> list[Path]:
    """Writes their archives."""
    busybox = shutil.which("busybox")
    if busybox is None:
        raise MissingTool("busybox (static) is not installed: run `make k8s-tools`")
    directory.mkdir(parents=True, exist_ok=True)
    small, dns = directory / "busybox.tar", directory / "coredns.tar"
    links = {f"/bin/{applet}": "busybox" for applet in APPLETS}
    sleep = ["/bin/sleep", "2147483647"]
    write_image(small, BUSYBOX_IMAGE, {"/bin/busybox": Path(busybox)}, links=links, entry=sleep)
    write_image(dns, COREDNS_IMAGE, {"/coredns": Path(tool("coredns"))}, links={}, entry=["/coredns"])
    return [small, dns]
