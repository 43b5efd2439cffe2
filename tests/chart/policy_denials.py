"""Published admission policies on a real API server, and which of our objects they would deny, by dry runs.

Every policy is bound to warn, so that one request tells of all that deny an object. An API server cuts warnings short
at 4,096 characters, so policies are asked in rounds: an object's label says whose turn it is.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from areal_operator.operator.children import JobBlueprint, access_secret, finish_job, foundation, prepare_job, workloads
from areal_operator.operator.refusals import trial_pod
from chart.chart_release import namespace_object
from kube.harness.client import Client, Refused
from kube.harness.processes import eventually

Object = dict[str, Any]
Denials = dict[str, set[str]]

POLICIES = Path(__file__).parent / "policies"
MAKERS = ("Deployment", "StatefulSet", "Job")
_API = "admissionregistration.k8s.io/v1"
_ROUND, _AT_ONCE = "policy-round", 36
_SAID = re.compile(r"ValidatingAdmissionPolicy '([^']+)' with binding '[^']+': ")
_ROLES = ("areal.dev/role", "app.kubernetes.io/component")


def published(name: str) -> list[Object]:
    """The objects of a file of published policies."""
    return list(yaml.load_all((POLICIES / name).read_text(encoding="utf-8"), Loader=yaml.CSafeLoader))


def objects_of(w: JobBlueprint) -> list[Object]:
    """Every object that the operator makes of a job, with the pods that it tries and those that controllers make."""
    made = [*foundation(w), access_secret(w), prepare_job(w), *workloads(w), finish_job(w)]
    tried = [trial_pod(each, own_account=False) for each in made if each["kind"] in MAKERS]
    return [*with_pods(made), *tried]


def with_pods(objects: Iterable[Object]) -> list[Object]:
    """The objects, and a pod of each that makes pods, as its controller names it."""
    found = []
    for each in objects:
        found.append(each)
        if each["kind"] in MAKERS:
            pod = trial_pod(each, own_account=True)
            found.append({**pod, "metadata": {**pod["metadata"], "name": f"{each['metadata']['name']}-0"}})
    return found


def subject(found: Object) -> str:
    """Whose object it is: the role or component of pods and their makers, with the kind before it of all others."""
    labels = found["metadata"].get("labels", {})
    who = next((labels[key] for key in _ROLES if key in labels), found["metadata"]["name"])
    return who if found["kind"] in (*MAKERS, "Pod") else f"{found['kind']} {who}"


class PolicyGround:
    """Policies in force on a control plane; made by `enforced`."""

    def __init__(self, admin: Client, rounds: int) -> None:
        self._admin = admin
        self._rounds = rounds

    def denials(self, objects: Iterable[Object]) -> Denials:
        """The subjects that each policy denies. An object that the server itself refuses is an AssertionError."""
        found: Denials = {}
        for each in objects:
            if each["apiVersion"].startswith("monitoring.coreos.com") or each["kind"] == "CustomResourceDefinition":
                continue
            self._give_account(each)
            for turn in range(self._rounds):
                for policy in warned(self._admin, each, turn):
                    found.setdefault(policy, set()).add(subject(each))
        return found

    def _give_account(self, found: Object) -> None:
        """Make the account of a pod, without which no policy is asked about it."""
        name = found.get("spec", {}).get("serviceAccountName") if found["kind"] == "Pod" else None
        if name:
            metadata = {"name": name, "namespace": found["metadata"]["namespace"]}
            self._admin.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})


def warned(admin: Client, found: Object, turn: int) -> list[str]:
    """The policies of a round that deny an object."""
    metadata = found["metadata"]
    sent = {**found, "metadata": {**metadata, "labels": {**metadata.get("labels", {}), _ROUND: f"{turn}"}}}
    path = admin.path(found["apiVersion"], found["kind"], metadata.get("namespace", ""), metadata["name"])
    query = {"fieldManager": "tests", "force": "true", "dryRun": "All"}
    headers = {"content-type": "application/apply-patch+yaml"}
    answer = admin.send("PATCH", path, content=json.dumps(sent), params=query, headers=headers)
    said = answer.headers.get_list("warning")
    assert sum(map(len, said)) < 3800, f"{subject(found)}: more warnings than a server sends"
    return [match[1] for match in map(_SAID.search, said) if match]


@contextlib.contextmanager
def enforced(admin: Client, namespaces: Iterable[str], *files: str) -> Iterator[PolicyGround]:
    """The policies of some files, and namespaces for our objects, while it lasts."""
    objects = [each for name in files for each in published(name)]
    policies = [each for each in objects if each["kind"] == "ValidatingAdmissionPolicy"]
    rest = [each for each in objects if each not in policies]
    params = next((each for each in rest if each["kind"] == "ControlConfiguration"), None)
    made = [namespace_object(name) for name in namespaces]
    for each in made:
        admin.apply(each)
    try:
        for each in rest:
            eventually(partial(_applied, admin, each), f"{each['kind']} is served")
            made.append(each)
        for index, policy in enumerate([*policies, _canary(params)]):
            binding = _binding(policy, f"{index // _AT_ONCE}")
            for each in (policy, binding):
                admin.apply(each)
                made.append(each)
        last = len(policies) // _AT_ONCE
        probe = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "canary", "namespace": "default"}}
        eventually(lambda: warned(admin, probe, last), "the policies are in force", timeout_s=60)
        yield PolicyGround(admin, last + 1)
    finally:
        for each in reversed(made):
            admin.delete(each)


def _applied(admin: Client, found: Object) -> bool:
    """True once the server takes it: a kind that was just defined isn't served at once."""
    try:
        return bool(admin.apply(found))
    except Refused as refused:
        if refused.code != 404:
            raise
        return False


def _canary(params: Object | None) -> Object:
    """A policy that denies one ConfigMap: it comes last, so the others are in force once it is."""
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}]
    kind = {"paramKind": {name: params[name] for name in ("apiVersion", "kind")}} if params else {}
    spec = {
        **kind, "matchConstraints": {"resourceRules": rules},
        "validations": [{"expression": "object.metadata.name != 'canary'"}],
    }  # fmt: skip
    return {"apiVersion": _API, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "canary"}, "spec": spec}


def _binding(policy: Object, turn: str) -> Object:
    name = policy["metadata"]["name"]
    spec = {
        "policyName": name, "validationActions": ["Warn"],
        "matchResources": {"objectSelector": {"matchLabels": {_ROUND: turn}}},
    }  # fmt: skip
    if "paramKind" in policy["spec"]:
        spec["paramRef"] = {"name": "basic-control-configuration", "parameterNotFoundAction": "Deny"}
    return {"apiVersion": _API, "kind": f"{policy['kind']}Binding", "metadata": {"name": name}, "spec": spec}
