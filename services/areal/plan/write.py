"""Writer of a run directory: secrets, Redis' files, the recipe's copy, and the resolved job last.

A directory without `resolved.json` was never a run: whatever fails before that, starting again is possible.
"""

import secrets
from pathlib import Path

from areal.errors import InfraError
from areal.files import write_atomically
from areal.plan.access import digests_text, secret_keys
from areal.plan.cluster_names import DIGESTS_KEY
from areal.plan.layout import RunLayout
from areal.plan.redis_conf import redis_acl, redis_conf
from areal.plan.resolved import ResolvedJob
from areal.plan.role_specs import redis_logins
from areal.tls import tls_dir

_SECRET_BYTES = 32


def write_run(resolved: ResolvedJob, *, recipe: Path | None = None) -> ResolvedJob:
    """Write everything that roles need before they start. Secrets that exist are kept, so that a run can be resumed.

    `recipe` is the user's file, copied to where the resolved job says. Raises InfraError when the disk refuses.
    """
    layout = resolved.layout
    try:
        make_directories(layout)
        _write_access(layout)
        if resolved.endpoints.redis is not None:
            _write_redis(resolved)
        if recipe is not None and resolved.recipe_path is not None:
            write_atomically(resolved.recipe_path, recipe.read_bytes())
        resolved.save()
    except OSError as error:
        raise InfraError(
            f"the run directory {resolved.run_dir} can't be written: {error}",
            fix="Free space there, or choose another one with --run-dir.",
        ) from error
    return resolved


def _write_access(layout: RunLayout) -> None:
    layout.access.mkdir(exist_ok=True)
    layout.access.chmod(0o700)
    made = {key: secret_in(layout.access / key) for key in secret_keys()}
    write_atomically(layout.access / DIGESTS_KEY, digests_text(made).encode(), private=True)


def _write_redis(resolved: ResolvedJob) -> None:
    layout = resolved.layout
    layout.redis.mkdir(exist_ok=True)
    layout.redis.chmod(0o700)
    passwords = {user: secret_in(Path(resolved.redis_users[user])) for user in redis_logins().values()}
    acl = redis_acl(resolved, passwords, by_tls=tls_dir() is not None)
    write_atomically(layout.redis_acl, acl.encode(), private=True)
    write_atomically(layout.redis_conf, redis_conf(resolved).encode(), private=True)


def make_directories(layout: RunLayout) -> None:
    """Everything that roles expect to be there when they start. Raises OSError."""
    for directory in (
        layout.logs, layout.weights, layout.checkpoints, layout.fences, layout.journal.parent, layout.evidence,
        layout.trajectories, layout.recording, layout.tokens, layout.tensorboard,
    ):  # fmt: skip
        directory.mkdir(parents=True, exist_ok=True)


def secret_in(path: Path) -> str:
    """The secret in a file; made, with mode 0600, when there is none."""
    if path.exists():
        path.chmod(0o600)
        if kept := path.read_text(encoding="ascii").strip():
            return kept
    made = secrets.token_urlsafe(_SECRET_BYTES)
    write_atomically(path, made.encode(), private=True)
    return made
