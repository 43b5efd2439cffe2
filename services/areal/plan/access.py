"""MethodAccess tokens of a job: one for each role that calls others, and which methods of which server each opens.

Owns the files of an access directory, which is `access/` of a run directory, or in a pod what it mounts of the job's
Secret: `token.<caller>`, the digests of all tokens, and the key of agents' sessions. A server reads digests only. Which
methods a caller may call is in the table of callers. A job that an older version made has one token, and keeps it.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from areal.errors import ConfigError
from areal.method_access import MethodAccess, digest, one_token
from areal.plan.callers import LAUNCHER_METHODS, SERVER_METHODS, Outsider
from areal.plan.cluster_names import DIGESTS_KEY, SESSION_KEY, Role, token_key
from areal.plan.resolved import ResolvedJob
from areal.plan.role_specs import ROLE_SPECS, spec_of


def callers() -> list[str]:
    """Who has a token: the operator (on one machine the command line), and each role that calls another."""
    return sorted({f"{Outsider.OPERATOR}", *(f"{role}" for role, row in ROLE_SPECS.items() if row.calls_others)})


def may_call(callee: Role) -> dict[str, frozenset[str]]:
    """Paths of the methods that each caller may call on a role's servers, its launcher among them."""
    found = {f"{Outsider.OPERATOR}": {*LAUNCHER_METHODS, *SERVER_METHODS}}
    for caller in spec_of(callee).called_by:
        if caller.methods:
            found.setdefault(f"{caller.who}", set()).update(caller.methods)
    return {who: frozenset(map(_path, methods)) for who, methods in found.items()}


def _path(method: str) -> str:
    return f"/{method}" if method.startswith("grpc.") else f"/areal.v1.{method}"


def secret_keys() -> list[str]:
    """Files of random secrets; the digests are made of them."""
    return [*map(token_key, callers()), SESSION_KEY]


def digests_text(secrets: Mapping[str, str]) -> str:
    """The file of digests, from the values of `secret_keys`."""
    return json.dumps({who: digest(secrets[token_key(who)]) for who in callers()}, indent=1)


def access_of(job: ResolvedJob, callee: Role) -> MethodAccess:
    """Whom a role's servers let in, and to what. Raises ConfigError when the digests can't be read."""
    file = job.access / DIGESTS_KEY
    if not file.exists() and job.token_path.exists():
        return one_token(_read([job.token_path]))
    try:
        known = {str(value): str(who) for who, value in json.loads(_read([file])).items()}
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"{file} holds no digests: {error}", fix="remove it and start the run again") from error
    return MethodAccess(known, may_call(callee))


def token_of(job: ResolvedJob, caller: Role | Outsider) -> str:
    """The token with which a role, or the operator, calls others. Raises ConfigError when it can't be read."""
    return token_in(job.access, job.token_path, caller)


def token_in(access: Path, one: Path, caller: Role | Outsider) -> str:
    """As `token_of`, in an access directory; `one` is where an older version kept the token of all."""
    return _read([access / token_key(caller), one])


def session_key_of(job: ResolvedJob) -> str:
    """The secret of workers and gateways from which the keys of agents' sessions are made. Raises ConfigError."""
    return _read([job.access / SESSION_KEY, job.token_path])


def _read(places: Iterable[Path]) -> str:
    """The text of the first of these files that is there."""
    first, *others = places
    path = next((place for place in (first, *others) if place.exists()), first)
    try:
        text = path.read_text().strip()
    except OSError as error:
        raise ConfigError(
            f"can't read the secret {path}: {error.strerror}", fix="start the run with `areal run`, which makes it"
        ) from error
    if not text:
        raise ConfigError(f"the secret file {path} is empty", fix="remove the file and start the run again")
    return text
