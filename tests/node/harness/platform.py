"""The project on the node as a user installs it: the chart with its values for a cluster of CPUs, in a namespace.

What differs from a user's installation is said in `values`: images of this checkout, and the environment of a
job's pods from a volume. The operator's image has its own, as users build it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml
from kube.harness.client import Object
from kube.harness.processes import eventually
from kube.harness.tools import ROOT
from node.harness.builds import Builder
from node.harness.environment import MOUNT
from node.harness.node import ENVIRONMENT_CLAIM, Node

NAMESPACE = "areal-system"
RELEASE = "areal"
CHART = ROOT / "charts" / "areal"
CPU_VALUES = CHART / "ci" / "cpu-values.yaml"
SGLANG_RUNTIME = "cpu-sglang"
AREAL = [sys.executable, "-m", "areal.cli.main"]


def values(builder: Builder) -> Object:
    """The tests' own values, over the chart's for CPUs."""
    volumes = [{"name": "env", "persistentVolumeClaim": {"claimName": ENVIRONMENT_CLAIM, "readOnly": True}}]
    places = [{"name": "env", "mountPath": str(MOUNT), "readOnly": True}]
    everybody = {"volumes": volumes, "volumeMounts": places}
    defaults: Object = yaml.safe_load((CHART / "values.yaml").read_text())
    cpu: Object = yaml.safe_load(CPU_VALUES.read_text())
    small: dict[str, Any] = cpu["runtimes"]["definitions"]["areal-cpu"]["roles"]
    images: dict[str, Any] = defaults["runtimes"]["definitions"]["areal-cpu"]["roles"]
    roles = {role: {**block, "image": images[role]["image"]} for role, block in small.items()}
    # stock SGLang needs more memory than the embedded engine, and shares this machine's two cores with everybody
    sglang = {"image": "sglang", "resources": {"requests": {"cpu": "50m"}, "limits": {"memory": "6Gi"}}}
    return {
        "global": {"imageRegistry": builder.registry},
        "jobsPage": {"extraVolumes": volumes, "extraVolumeMounts": places},
        "tests": {"volume": {"enabled": True}},
        "runtimes": {
            "definitions": {
                "areal-cpu": {"all": everybody},
                SGLANG_RUNTIME: {
                    "description": "Stock SGLang on CPUs",
                    "all": everybody,
                    "roles": {**roles, "generation": sglang},
                },
            }
        },
    }


def install(node: Node, builder: Builder, directory: Path) -> None:
    """`helm install`, until the operator is ready."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    metadata = {"name": NAMESPACE, "labels": labels}
    node.admin.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    node.mount_environment(NAMESPACE)
    ours = directory / "values.yaml"
    ours.write_text(yaml.safe_dump(values(builder)))
    files = [f"--values={CPU_VALUES}", f"--values={ours}"]
    node.helm("install", RELEASE, str(CHART), *files, "--wait", "--timeout=120s", namespace=NAMESPACE, timeout_s=150)


def await_ownership(node: Node) -> None:
    """Returns when the API server has noticed that RLJobs can own things: it looks for new kinds every half minute.

    Asked as the operator: who may do everything is not asked what an owner is.
    """
    owner = {"apiVersion": "areal.dev/v1alpha1", "kind": "RLJob", "name": "owner", "uid": "0", "controller": True}
    metadata = {"namespace": NAMESPACE, "name": "owned", "ownerReferences": [{**owner, "blockOwnerDeletion": True}]}
    owned = json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    operator = f"--as=system:serviceaccount:{NAMESPACE}:{RELEASE}-operator"

    def noticed() -> bool:
        said = node.kubectl("create", "--dry-run=server", operator, "-f", "-", stdin=owned, check=False)
        assert said.returncode == 0, said.stderr
        return True

    eventually(noticed, "the API server knows the kind RLJob", timeout_s=60, every_s=0.5)
