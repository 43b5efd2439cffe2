"""The configuration files of containerd, CNI, gVisor, kubelet and kube-proxy on the test node.

Pure: a `Layout` in, text out. What a machine without CAP_SYS_RESOURCE, or with cgroup v1, needs is here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

NODE = "node-0"
NODE_ADDRESS = "10.77.0.1"
GATEWAY = "10.77.0.254"  # nobody answers there; a default route makes service addresses routable
POD_RANGE = "10.244.0.0/24"
DNS_ADDRESS = "10.96.0.10"
DNS_DOMAIN = "cluster.local"
PAUSE_IMAGE = "areal.test/busybox:1"  # its entry point sleeps, which is all a sandbox container has to do


@dataclass(frozen=True)
class Layout:
    """Where the node keeps its things; `/run` is the node's own (see `mounts`)."""

    directory: Path
    tools: Path
    runc: str
    cni: str
    cgroup: str  # below every controller's root

    @property
    def socket(self) -> Path:
        """containerd's."""
        return Path("/run/areal-containerd.sock")

    def path(self, name: str) -> str:
        """A file or folder of the node."""
        return str(self.directory / name)


def containerd(layout: Layout) -> str:
    """containerd with runc, and gVisor as the handler `runsc`."""
    return f"""
version = 3
root = "{layout.path("containerd")}"
state = "/run/areal-containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.nri.v1.nri", "io.containerd.tracing.processor.v1.otlp",
]
[grpc]
address = "{layout.socket}"
[ttrpc]
address = "{layout.socket}.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
path = "{layout.path("opt")}"
[plugins."io.containerd.cri.v1.images"]
snapshotter = "overlayfs"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE_IMAGE}"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true  # lowering it needs CAP_SYS_RESOURCE, which not every machine grants
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{layout.cni}"]
conf_dir = "{layout.path("cni")}"
[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{layout.runc}"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runsc]
runtime_type = "io.containerd.runsc.v1"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runsc.options]
TypeUrl = "io.containerd.runsc.v1.options"
ConfigPath = "{layout.path("runsc.toml")}"
"""


def runsc(layout: Layout) -> str:
    """gVisor without hardware virtualisation."""
    return f"""
binary_name = "{layout.tools / "runsc"}"
[runsc_config]
platform = "systrap"
network = "sandbox"
ignore-cgroups = "true"
"""


def cni(layout: Layout) -> str:
    """A point-to-point link a pod: every packet between pods is routed by the node, where policies can see it."""
    ipam = {
        "type": "host-local",
        "dataDir": layout.path("addresses"),
        "ranges": [[{"subnet": POD_RANGE}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    plugins: list[dict[str, Any]] = [
        {"type": "ptp", "ipMasq": False, "mtu": 1500, "ipam": ipam},
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ]
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": plugins})


def kubelet(layout: Layout, authority: str, certificate: str, key: str) -> str:
    """kubelet: cgroupfs below the node's own cgroup, pods that know the cluster's DNS only."""
    return yaml.safe_dump(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": NODE_ADDRESS,
            "healthzPort": 0,
            "containerRuntimeEndpoint": f"unix://{layout.socket}",
            "imageServiceEndpoint": f"unix://{layout.socket}",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": authority},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": certificate,
            "tlsPrivateKeyFile": key,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{layout.cgroup}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "clusterDNS": [DNS_ADDRESS],
            "clusterDomain": DNS_DOMAIN,
            "resolvConf": "/dev/null",
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "hairpinMode": "none",
            "maxPods": 60,
            "podLogsDir": layout.path("pod-logs"),
            "volumePluginDir": layout.path("volume-plugins"),
            "nodeStatusUpdateFrequency": "5s",
            "syncFrequency": "10s",
            "registryPullQPS": 0,
            "kubeAPIQPS": 100,
            "kubeAPIBurst": 200,
        }
    )


def kube_proxy(kubeconfig: Path) -> str:
    """kube-proxy with iptables; it keeps its hands off the machine's connection table."""
    return yaml.safe_dump(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "bindAddress": NODE_ADDRESS,
            "healthzBindAddress": "127.0.0.1:10256",
            "metricsBindAddress": "127.0.0.1:10249",
            "clientConnection": {"kubeconfig": str(kubeconfig)},
            "clusterCIDR": POD_RANGE,
            "hostnameOverride": NODE,
            "mode": "iptables",
            "iptables": {"minSyncPeriod": "0s"},
            "conntrack": {"maxPerCore": 0, "tcpCloseWaitTimeout": "0s", "tcpEstablishedTimeout": "0s"},
        }
    )
