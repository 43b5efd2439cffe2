"""Redis login of a role: address and password file of the job's own Redis, or the URL file of another."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from areal.errors import ConfigError
from areal.ledger.acl import User
from areal.plan.resolved import ResolvedJob


@dataclass(frozen=True)
class RedisLogin:
    """How a client of the ledger connects. `address` is `host:port`, or a URL that holds the login."""

    address: str = field(repr=False)
    username: str | None = None
    password: str | None = field(default=None, repr=False)


def login_of(resolved: ResolvedJob, user: User) -> RedisLogin:
    """The login of `user`. Raises ConfigError when its file can't be read."""
    if user in resolved.redis_urls:
        return RedisLogin(_read(resolved.redis_urls[user]))
    if resolved.endpoints.redis is None:
        raise ConfigError("the job names neither a Redis of its own nor another one's URLs", fix="start the run anew")
    if user not in resolved.redis_users:
        return RedisLogin(resolved.endpoints.redis)
    return RedisLogin(resolved.endpoints.redis, user, _read(resolved.redis_users[user]))


def _read(path: Path) -> str:
    """A secret from its file."""
    try:
        text = path.read_text().strip()
    except OSError as error:
        raise ConfigError(
            f"can't read {path}: {error.strerror}", fix="start the run with `areal run`, or look at the job's Secret"
        ) from error
    if not text:
        raise ConfigError(f"{path} is empty", fix="write the secret into it and start the role again")
    return text
