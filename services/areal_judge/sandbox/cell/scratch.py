"""The scratch of a cell: one tmpfs behind its working directory, /tmp and /dev/shm, and the rules over it.

Owns when it is new. A program that wants to write gets an empty one: either mounted for it, or one that the programs
before it left exactly as it was made. Every change of a directory moves its change time, which no program can set; so
an untouched scratch shows, at the price of a few looks, that nothing can have been left in it.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

from areal_judge.sandbox.cell.messages import CellShape
from areal_judge.sandbox.cell.place import CellPlace
from areal_judge.sandbox.kernel import calls as kernel
from areal_judge.sandbox.kernel import landlock, mounts

_CLOCK_OF_CHANGES = 5  # CLOCK_REALTIME_COARSE: what change times are taken from, at the coarsest
_LONGEST_TICK_NS = 100_000_000  # 10 ms is the longest that kernels have
_Look = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Rules:
    """Rulesets of one scratch, as descriptors."""

    writable: int
    read_only: int

    def close(self) -> None:
        for descriptor in (self.writable, self.read_only):
            os.close(descriptor)


def look(directories: Sequence[str]) -> _Look:
    """Everything of these directories that a program in them can change."""
    seen = [(at.st_ino, at.st_ctime_ns, at.st_mode, at.st_nlink, at.st_uid) for at in map(os.stat, directories)]
    room = os.statvfs(directories[0])
    return (*seen, (room.f_blocks, room.f_bavail, room.f_files, room.f_favail))


class Scratch:
    """The scratches of one cell, one after the other. Its mounts are in the cell's own mount namespace."""

    def __init__(self, place: CellPlace) -> None:
        self._place = place
        apart = place.means.own_user and place.layers.user
        self.owner = place.uid if apart else os.geteuid()
        self._group = place.uid if apart else os.getegid()
        self._shape: CellShape | None = None
        self._made: _Look = ()
        self._left: _Look = ()
        self.changed_ns = 0
        self.box = "/"
        self.rules: Rules | None = None

    def provide(self, shape: CellShape) -> None:
        """Has an empty scratch of this shape ready. Raises OSError."""
        if self._shape != shape:
            self._mount(shape)

    def review(self) -> bool:
        """Looks at what a program left, when nothing of it is alive: whether there is no room, or no names, left."""
        self._left = look(self._directories)
        blocks, free, names, free_names = self._left[-1]
        return (blocks > 0 and free == 0) or (names > 0 and free_names == 0)

    def renew(self) -> None:
        """After the review: unmounts what the program may have changed."""
        if not (self._place.means.shows_changes and self._left == self._made):
            self._unmount()
        self._left = ()  # the next program is forked with this object in its memory

    def _mount(self, shape: CellShape) -> None:
        self._unmount()
        place, means = self._place, self._place.means
        options = mounts.tmpfs_options(
            shape.disk_bytes, shape.inodes, quotas=place.layers.quotas, count_inodes=means.count_inodes
        )
        owner = (self.owner, self._group)
        self._directories = mounts.make_scratch(
            options, owner, execute=shape.execute, private_root=place.layers.private_root
        )
        self.box = self._directories[0]
        self._shape = shape
        if place.held:
            self.rules = self._rulesets(shape)
        self._made = look(self._directories)
        self.changed_ns = max(at[1] for at in self._made[:-1])

    def _unmount(self) -> None:
        if self._shape is None:
            return
        if self.rules is not None:
            self.rules.close()
            self.rules = None
        self._shape = None
        mounts.remove_scratch(self._directories)

    def _rulesets(self, shape: CellShape) -> Rules:
        abi = self._place.means.landlock_abi
        run = landlock.EXECUTE if shape.execute else 0
        devices = landlock.READ_FILE | landlock.WRITE_FILE
        everywhere = [landlock.PathRule("/", landlock.READ | run)]
        everywhere += [landlock.PathRule(f"/dev/{name}", devices) for name in ("null", "zero", "full")]
        write = landlock.writing(abi) | run
        writable = [landlock.PathRule(path, write) for path in (self.box, "/tmp", "/dev/shm")]
        return Rules(landlock.ruleset([*everywhere, *writable], abi), landlock.ruleset(everywhere, abi))


def settle(changed_ns: int) -> None:
    """Waits until a change would show beside one of that time: at most one tick of the clock.

    Where the clock was set back meanwhile, a change shows by an earlier time.
    """
    while 0 <= changed_ns - time.clock_gettime_ns(_CLOCK_OF_CHANGES) < _LONGEST_TICK_NS:
        time.sleep(0.001)


def shows_every_change(directory: str) -> None:
    """Raises OSError unless each way to change a directory of a tmpfs mounted here shows. Leaves it mounted."""
    kernel.mount("tmpfs", directory, "tmpfs", mounts.SCRATCH_FLAGS, "size=64k")
    inside = f"{directory}/a"
    os.mkdir(inside)

    def made_and_removed() -> None:
        os.close(os.open(f"{inside}/b", os.O_CREAT | os.O_WRONLY))
        os.unlink(f"{inside}/b")

    def directory_made_and_removed() -> None:
        os.mkdir(f"{inside}/b")
        os.rmdir(f"{inside}/b")

    def link_made_and_removed() -> None:
        os.symlink("b", f"{inside}/b")
        os.unlink(f"{inside}/b")

    def mode_changed_and_restored() -> None:
        os.chmod(inside, 0o700)
        os.chmod(inside, 0o755)

    changes = (
        made_and_removed, directory_made_and_removed, link_made_and_removed,
        mode_changed_and_restored,
        lambda: os.utime(inside, ns=(1, 1)),
        lambda: os.setxattr(inside, "user.left", b"x"),
    )  # fmt: skip
    for change in changes:
        made = look([inside])
        settle(made[0][1])
        try:
            change()
        except OSError as error:
            if error.errno != errno.ENOTSUP:
                raise
            continue  # no such attributes here
        if look([inside]) == made:
            raise OSError("a change of a directory does not show")
