"""Resources of the Kubernetes API that are used here, and their URL paths."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from areal.errors import BugError

Json = dict[str, Any]
Key = tuple[str, str]  # namespace ("" where there is none), name


@dataclass(frozen=True)
class Resource:
    """One resource of the API. `group` is "" for the core group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """As objects write it: `v1`, `apps/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
        """The URL path of the collection, of one object or of its subresource. No namespace means all of them."""
        parts = [f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"]
        if self.namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        parts += [quote(part, safe="") for part in (name, subresource) if part]
        return "/".join(parts)


RLJOBS = Resource("areal.dev", "v1alpha1", "rljobs", "RLJob")
RUNTIMES = Resource("areal.dev", "v1alpha1", "rlruntimes", "RLRuntime")
CLUSTER_RUNTIMES = Resource("areal.dev", "v1alpha1", "clusterrlruntimes", "ClusterRLRuntime", namespaced=False)
PODS = Resource("", "v1", "pods", "Pod")
SERVICES = Resource("", "v1", "services", "Service")
CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap")
SECRETS = Resource("", "v1", "secrets", "Secret")
PVCS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
STATEFULSETS = Resource("apps", "v1", "statefulsets", "StatefulSet")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
JOBS = Resource("batch", "v1", "jobs", "Job")
PDBS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
CLAIM_TEMPLATES = Resource("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate")
EVENTS = Resource("events.k8s.io", "v1", "events", "Event")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
CERTIFICATES = Resource("cert-manager.io", "v1", "certificates", "Certificate")
CERTIFICATE_REQUESTS = Resource("cert-manager.io", "v1", "certificaterequests", "CertificateRequest")
_KUEUE = "kueue.x-k8s.io", "v1beta2"
WORKLOADS = Resource(*_KUEUE, "workloads", "Workload")
FLAVORS = Resource(*_KUEUE, "resourceflavors", "ResourceFlavor", namespaced=False)
QUEUE_PRIORITIES = Resource(*_KUEUE, "workloadpriorityclasses", "WorkloadPriorityClass", namespaced=False)
POD_GROUPS = Resource("scheduling.k8s.io", "v1alpha2", "podgroups", "PodGroup")
PRIORITIES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)

_BY_KIND = {(one.api_version, one.kind): one for one in [*globals().values()] if isinstance(one, Resource)}


def resource_of(obj: Mapping[str, Any]) -> Resource:
    """The resource of an object, by its apiVersion and kind."""
    named = (obj.get("apiVersion", ""), obj.get("kind", ""))
    found = _BY_KIND.get(named)
    if found is None:
        raise BugError(f"no resource is known for apiVersion {named[0]!r}, kind {named[1]!r}")
    return found


def key_of(obj: Mapping[str, Any]) -> Key:
    """Namespace and name of an object."""
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]
