"""What the node's cluster holds before the first test: cluster DNS and a RuntimeClass for gVisor."""

from __future__ import annotations

from typing import Any

from node.harness.configs import DNS_ADDRESS, DNS_DOMAIN

COREDNS_IMAGE = "areal.test/coredns:1"
GVISOR = "gvisor"
COREFILE = f"""
.:53 {{
    errors
    ready :8181
    kubernetes {DNS_DOMAIN} {{
        pods insecure
        ttl 1
    }}
}}
"""


def runtime_class() -> dict[str, Any]:
    """Pods that name it run in gVisor."""
    return {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": GVISOR}, "handler": "runsc"}


def dns() -> list[dict[str, Any]]:
    """CoreDNS where clusters have it, a Deployment behind the Service kube-dns, so that policies can name it."""
    labels = {"k8s-app": "kube-dns"}
    meta = {"namespace": "kube-system", "labels": labels}
    rules = [
        {"apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "coredns"}
    account = {"kind": "ServiceAccount", "name": "coredns", "namespace": "kube-system"}
    ports = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]
    container = {
        "name": "coredns",
        "image": COREDNS_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["/coredns", "-conf", "/etc/coredns/Corefile"],
        "ports": [{"name": p["name"], "containerPort": p["port"], "protocol": p["protocol"]} for p in ports],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
        },
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns"}],
    }
    pod = {
        "serviceAccountName": "coredns",
        "dnsPolicy": "Default",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": "coredns"}}],
    }
    template = {"metadata": {"labels": labels}, "spec": pod}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "coredns", **meta}},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "coredns"},
            "rules": rules,
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "coredns"},
            "roleRef": role,
            "subjects": [account],
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "coredns", **meta},
            "data": {"Corefile": COREFILE},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns", **meta},
            "spec": {"clusterIP": DNS_ADDRESS, "selector": labels, "ports": ports},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "coredns", **meta},
            "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
        },
    ]
