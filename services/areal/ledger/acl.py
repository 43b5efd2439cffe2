"""Redis ACL rules of the three logins.

Owns the access rules of the three logins. User code runs beside a worker's login, so that one writes sample keys and
nothing else: it can neither close a group nor publish it nor free it, by command or by script (Redis checks what a
script calls, too).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Literal

from areal.errors import ConfigError

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


def acl_file(job: str, passwords: Mapping[User, str]) -> str:
    """The text of an ACL file: these users, and no default one."""
    lines = [_DEFAULT]
    lines += [f"user {user} {rules(job, user, password)}" for user, password in passwords.items()]
    return "\n".join(lines) + "\n"
