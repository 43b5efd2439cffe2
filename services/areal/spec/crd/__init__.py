"""The custom resource definitions, made from the models and rules of the job file.

Owns what an API server is told: structure, defaults, bounds, rules, what may change, what `kubectl get` shows. Nothing
here is written by hand twice: a field or a rule exists in its model only. `python -m areal.spec.crd` writes the files.
"""

from areal.spec.crd.definition import definitions

__all__ = ["definitions"]
