"""The name of a policy: how many batches made it, and under which trainer fence.

Versions repeat after a crash, policies never do. Owns parsing, order and the name of a version's directory.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from areal.errors import DataError

_TEXT = re.compile(r"(-1|0|[1-9][0-9]*)\.f(0|[1-9][0-9]*)")
_DIRECTORY = re.compile(r"v([0-9]{8,})\.f(0|[1-9][0-9]*)")


@dataclass(frozen=True)
class PolicyId:
    """`"43.f7"`: version 43, made under trainer fence 7. Version −1 is a server that holds nothing.

    Ordered by (fence, version): what a living trainer publishes supersedes everything of an older fence, also after a
    rollback to an earlier version.
    """

    version: int
    fence: int

    def __post_init__(self) -> None:
        if self.version < -1 or self.fence < 0:
            raise ValueError(f"no policy has version {self.version} and fence {self.fence}")

    @classmethod
    def parse(cls, text: str) -> "PolicyId":
        """Read `"<version>.f<fence>"`; raises DataError for anything else."""
        if (match := _TEXT.fullmatch(text)) is None:
            raise DataError(f"{text!r} is no policy id", fix="Write it as <version>.f<fence>, for example 43.f7.")
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def from_directory(cls, name: str) -> "PolicyId | None":
        """The policy of a version's directory name; None when the name is none of ours."""
        match = _DIRECTORY.fullmatch(name)
        return cls(int(match[1]), int(match[2])) if match else None

    @property
    def directory(self) -> str:
        """`v00000043.f7`: sorts by version within a fence when listed."""
        return f"v{self.version:08d}.f{self.fence}"

    def __str__(self) -> str:
        return f"{self.version}.f{self.fence}"

    def __lt__(self, other: "PolicyId") -> bool:
        return (self.fence, self.version) < (other.fence, other.version)

    def __le__(self, other: "PolicyId") -> bool:
        return self == other or self < other

    def __gt__(self, other: "PolicyId") -> bool:
        return other < self

    def __ge__(self, other: "PolicyId") -> bool:
        return other <= self


@lru_cache(1024)  # spans of one policy come by the thousand
def version_of(policy_id: str) -> int:
    """The version in `"43.f7"`; raises DataError for what is no PolicyId."""
    return PolicyId.parse(policy_id).version


NOTHING = PolicyId(-1, 0)
"""What a server holds before its first version."""
