"""Pod-level refusals: dry runs of pods, because a workload is accepted whatever becomes of its pods.

Owns the pod that is tried for a workload, and which answers of the API server are refusals of it. Quota, Pod Security,
limit ranges and admission policies answer to pods only.
"""

from areal_operator.kube import errors
from areal_operator.kube.resources import PODS, Json
from areal_operator.runtime.api import Api

_NO_ANSWER = (
    "does not support dry run",  # a webhook that is asked about real pods only
    "error looking up service account",  # a namespace that is being filled
)


async def refusal_of_pods(server: Api, workload: Json, *, own_account: bool) -> str:
    """Why the API server would refuse a pod of a StatefulSet, Deployment or Job; empty when it would not.

    Args:
        own_account: the pod's service account exists already; else the namespace's default one stands in for it.
    """
    try:
        await server.create(PODS, trial_pod(workload, own_account=own_account), dry_run=True)
    except errors.AlreadyExistsError:
        return ""
    except (errors.InvalidError, errors.ForbiddenError, errors.NotFoundError, errors.ConflictError) as error:
        if any(words in error.message for words in _NO_ANSWER):
            return ""
        return error.message.partition(": ")[2] or error.message  # without the request that the server answers
    return ""


def trial_pod(workload: Json, *, own_account: bool) -> Json:
    """A pod as the workload's controller would make it, but for its name."""
    template, metadata = workload["spec"]["template"], workload["metadata"]
    spec = dict(template.get("spec", {}))
    if not own_account:
        spec.pop("serviceAccountName", None)
    uid = metadata.get("uid") or metadata["name"]  # one that isn't made yet has none
    maker = {"apiVersion": workload["apiVersion"], "kind": workload["kind"], "name": metadata["name"], "uid": uid}
    named = {"name": f"{metadata['name']}-dry", "namespace": metadata["namespace"]}
    named |= {"ownerReferences": [{**maker, "controller": True}]}  # policies refuse pods that nothing controls
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**template.get("metadata", {}), **named}, "spec": spec}
