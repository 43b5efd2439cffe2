"""Redis of a run: its configuration (durable, bounded, never evicting, for its logins only), its ACL, a role's login.

The ACL rules are those of three logins. User code runs beside a worker's login, so that one writes sample keys and
nothing else: it can neither close a group nor publish it nor free it, by command or by script (Redis checks what a
script calls, too). A login is an address and the password file of the job's own Redis, or the URL file of another.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

from areal import tls
from areal.errors import ConfigError
from areal.plan.resolved import ResolvedJob

_OVERHEAD = 1.5  # keys, indexes and fragmentation beside the payloads that the budget counts
_FLOOR_BYTES = 64 << 20


@dataclass(frozen=True)
class RedisPlaces:
    """Where a Redis listens and keeps its files."""

    bind: str
    port: int
    directory: Path
    aclfile: Path
    certificates: Path | None = None  # the directory of its certificate; None: it speaks no TLS


def redis_conf(resolved: ResolvedJob) -> str:
    """The text of redis.conf of a run on this machine."""
    layout = resolved.layout
    port = resolved.ports_of("redis", 0)["main"]
    places = RedisPlaces(resolved.bind, port, layout.redis, layout.redis_acl, tls.tls_dir())
    return redis_text(resolved.spec.replay.budget_bytes, places)


def redis_text(budget_bytes: float, places: RedisPlaces) -> str:
    """The text of redis.conf.

    The budget is kept by the controller's admission; maxmemory stands above it and only catches a leak, since with
    `noeviction` a full Redis refuses writes instead of losing samples.
    """
    maxmemory = max(int(budget_bytes * _OVERHEAD), _FLOOR_BYTES)
    settings = [
        ("bind", places.bind),
        ("protected-mode", "yes"),
        ("port", str(places.port)),
        ("dir", _quoted(places.directory)),
        ("aclfile", _quoted(places.aclfile)),
        ("daemonize", "no"),
        ("appendonly", "yes"),
        ("appendfsync", "everysec"),  # a lost last second is regenerated; the ledger is built for that
        ("aof-use-rdb-preamble", "yes"),
        ("save", '""'),
        ("maxmemory", str(maxmemory)),
        ("maxmemory-policy", "noeviction"),
        ("tcp-keepalive", "30"),
        ("timeout", "0"),
        ("loglevel", "notice"),
        ("logfile", '""'),
    ]
    if (own := places.certificates) is not None:
        settings += [("port", "0"), ("tls-port", str(places.port)), ("tls-auth-clients", "yes")]  # the last port counts
        files = {"ca-cert": tls.CA_FILE, "cert": tls.CERTIFICATE_FILE, "key": tls.KEY_FILE}
        settings += [(f"tls-{kind}-file", _quoted(own / file)) for kind, file in files.items()]
    return "".join(f"{name} {value}\n" for name, value in settings)


def redis_acl(resolved: ResolvedJob, passwords: Mapping[str, str], *, by_tls: bool = False) -> str:
    """The text of the access rules: who may touch which keys."""
    return acl_file(resolved.uid, cast("Mapping[User, str]", passwords), by_tls=by_tls)


def _quoted(path: Path) -> str:
    text = str(path)
    if "\n" in text or "\r" in text:
        raise ConfigError(
            f"the run directory {text!r} has a line break in its name", fix="Choose another run directory."
        )
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@dataclass(frozen=True)
class RedisLogin:
    """How a client of the ledger connects. `address` is `host:port`, or a URL that holds the login."""

    address: str = field(repr=False)
    username: str | None = None
    password: str | None = field(default=None, repr=False)


def login_of(resolved: ResolvedJob, user: "User") -> RedisLogin:
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


User = Literal["controller", "trainer", "worker"]

OWNER_COMMANDS = "-@all +@connection +@read +@write +@scripting +@stream -@dangerous -@pubsub +info"
"""All that reads and writes keys; nothing that configures, flushes or lists the server."""

WORKER_COMMANDS = "-@all +ping +hello +auth +info +hset +hget +hmget +hexists +eval +evalsha"
"""What `add_sample` calls, and how it is called. A sample can't be deleted."""

_DEFAULT = "user default off resetpass ~* &* +@all"
"""Off: nobody can log in as it. Redis plays its append-only file back as this user, and asks each call of a script
again: without these rights it leaves out what a script wrote, and forgets closed groups, fences and the watermark."""


def rules(job: str, user: User, password: str) -> str:
    """One user's rules, as `ACL SETUSER` takes them, with the password as its SHA-256."""
    if not password:
        raise ConfigError(
            f"the replay store's user {user} has an empty password", fix="write one into its password file"
        )
    secret = "#" + hashlib.sha256(password.encode()).hexdigest()
    tag = f"{{{job}}}"
    if user == "worker":
        keys = f"~{tag}:s:* %R~{tag}:meta %R~{tag}:closed"
        commands = WORKER_COMMANDS
    else:
        keys, commands = f"~{tag}:*", OWNER_COMMANDS
    return f"on {secret} resetchannels {keys} {commands}"


def acl_file(job: str, passwords: Mapping[User, str], *, by_tls: bool = False) -> str:
    """The text of an ACL file: these users, and no default one. With TLS the controller may renew the certificate."""
    lines = [_DEFAULT]
    lines += [f"user {user} {rules(job, user, password)}" for user, password in passwords.items()]
    if by_tls:
        lines = [f"{line} +config|set" if line.startswith("user controller ") else line for line in lines]
    return "\n".join(lines) + "\n"
