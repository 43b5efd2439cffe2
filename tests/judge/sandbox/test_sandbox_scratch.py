"""When a scratch is new: after every kind of change, and never without one. In mounts that are a child's own."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from areal_judge.sandbox.cell import scratch
from areal_judge.sandbox.cell.confinement import Confinement
from areal_judge.sandbox.cell.means import Means
from areal_judge.sandbox.cell.messages import CellShape
from areal_judge.sandbox.cell.place import CellPlace
from areal_judge.sandbox.cell.scratch import Scratch, look, settle, shows_every_change
from areal_judge.sandbox.kernel import calls as kernel
from areal_judge.sandbox.kernel import mounts
from areal_judge.sandbox.values import ALL_LAYERS
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.component

SHAPE = CellShape(False, False, 1 << 20, 64)
PLACES = ("/box", "/tmp", "/dev/shm")


def inside(act: Callable[[], Any]) -> Any:
    """What the act gives in a private root that only it has."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if kernel.capabilities() >> kernel.CAP_SYS_ADMIN & 1:
                kernel.unshare(kernel.CLONE_NEWNS)
            else:
                kernel.enter_user_namespace(kernel.CLONE_NEWNS)
            mounts.enter_private_root((), os.getuid(), proc=False)
            said = (True, act())
        except BaseException:
            said = (False, traceback.format_exc())
        os.write(writer, pickle.dumps(said))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        data = file.read()
    os.waitpid(child, 0)
    worked, found = pickle.loads(data)
    assert worked, found
    return found


def place(shows_changes: bool = True) -> CellPlace:
    means = Means(namespaces=True, count_inodes=True, shows_changes=shows_changes)
    return CellPlace(SHAPE, os.getuid(), means, ALL_LAYERS, Confinement(means, ALL_LAYERS, False), None, ())


def with_file(path: str) -> None:
    with open(f"{path}/x", "w") as file:
        file.write("left")


def and_removed(make: Callable[[str], object], remove: Callable[[str], object]) -> Callable[[str], None]:
    def change(path: str) -> None:
        make(f"{path}/x")
        remove(f"{path}/x")

    return change


def mode_and_back(path: str) -> None:
    os.chmod(path, 0o777)
    os.chmod(path, 0o700)


def owner_and_back(path: str) -> None:
    os.chown(path, -1, os.stat(path).st_gid)


def times_and_back(path: str) -> None:
    before = os.stat(path)
    os.utime(path, ns=(1, 1))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def attribute_and_back(path: str) -> None:
    os.setxattr(path, "user.left", b"x")
    os.removexattr(path, "user.left")


def open_and_removed(path: str) -> None:
    os.open(f"{path}/x", os.O_CREAT | os.O_RDWR)
    os.unlink(f"{path}/x")


CHANGES: dict[str, Callable[[str], None]] = {
    "a file": with_file,
    "a file that was removed": and_removed(lambda path: os.close(os.open(path, os.O_CREAT)), os.unlink),
    "a file that is open": open_and_removed,
    "a directory": lambda path: os.mkdir(f"{path}/x"),
    "a directory that was removed": and_removed(os.mkdir, os.rmdir),
    "a link that was removed": and_removed(lambda path: os.symlink("a", path), os.unlink),
    "a pipe that was removed": and_removed(os.mkfifo, os.unlink),
    "a mode": lambda path: os.chmod(path, 0o1777),
    "a mode set back": mode_and_back,
    "an owner set to itself": owner_and_back,
    "times": lambda path: os.utime(path, (1, 1)),
    "times set back": times_and_back,
    "an attribute": lambda path: os.setxattr(path, "user.left", b"x"),
    "an attribute that was removed": attribute_and_back,
}
LOOKS: dict[str, Callable[[str], object]] = {
    "a list": os.listdir,
    "status": os.stat,
    "attributes": os.listxattr,
    "room": os.statvfs,
    "a working directory": os.chdir,
    "rights": lambda path: os.access(path, os.W_OK),
    "a file that is not there": lambda path: os.path.exists(f"{path}/x"),
    "an open directory": lambda path: os.open(path, os.O_RDONLY),
}


def renewed(acts_in_order: Sequence[tuple[str, Callable[[str], object]]]) -> bool:
    """Whether the scratch is another after these. An act that this kernel doesn't know leaves a file instead."""
    made = Scratch(place())
    made.provide(SHAPE)
    held = os.open("/box", os.O_PATH)  # keeps its numbers from being given again
    settle(made.changed_ns)
    for where, act in acts_in_order:
        try:
            act(where)
        except (FileExistsError, IsADirectoryError):
            continue  # an act before it left that name, and so has changed the place
        except OSError as error:
            if error.errno != errno.ENOTSUP:
                raise
            with_file(where)
    made.review()
    made.renew()
    made.provide(SHAPE)
    empty = all(os.listdir(path) == [] and os.listxattr(path) == [] for path in PLACES)
    modes = {os.stat(path).st_mode & 0o7777 for path in PLACES}
    assert (empty, modes) == (True, {0o700})
    return not os.path.samestat(os.fstat(held), os.stat("/box"))


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("name", CHANGES)
def test_after_a_change_the_scratch_is_new(name: str, where: str) -> None:
    assert inside(lambda: renewed([(where, CHANGES[name])]))


@pytest.mark.parametrize("name", LOOKS)
def test_after_a_look_it_is_the_same(name: str) -> None:
    assert not inside(lambda: renewed([(where, LOOKS[name]) for where in PLACES]))


@settings(max_examples=60)
@example([("/box", "a directory"), ("/box", "a file")])
@given(st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from([*CHANGES, *LOOKS])), max_size=6))
def test_it_is_new_exactly_when_something_was_changed(sequence: list[tuple[str, str]]) -> None:
    acts_in_order = [(where, {**CHANGES, **LOOKS}[name]) for where, name in sequence]
    assert inside(lambda: renewed(acts_in_order)) == any(name in CHANGES for _, name in sequence)


def test_another_shape_gets_a_scratch_of_its_own() -> None:
    def act() -> list[tuple[int, int]]:
        made = Scratch(place())
        found = []
        for shape in (SHAPE, SHAPE._replace(disk_bytes=2 << 20), SHAPE._replace(inodes=99), SHAPE):
            made.provide(shape)
            room = os.statvfs("/tmp")
            found.append((room.f_blocks * room.f_frsize, room.f_files))
            made.review()
            made.renew()
        return found

    first, larger, more, again = inside(act)
    assert (first[0], larger[0], more[0]) == (1 << 20, 2 << 20, 1 << 20)
    assert more[1] - first[1] == 99 - 64
    assert again == first


def test_where_directories_do_not_tell_it_is_always_new() -> None:
    def act() -> bool:
        made = Scratch(place(shows_changes=False))
        made.provide(SHAPE)
        held = os.open("/box", os.O_PATH)
        made.review()
        made.renew()
        made.provide(SHAPE)
        return os.path.samestat(os.fstat(held), os.stat("/box"))

    assert not inside(act)


def test_a_full_scratch_is_said_to_be() -> None:
    def act() -> list[bool]:
        made = Scratch(place())
        found = []
        for fill in (_fill_room, _fill_names, with_file):
            made.provide(SHAPE)
            with contextlib.suppress(OSError):
                fill("/dev/shm")
            found.append(made.review())
            made.renew()
        return found

    assert inside(act) == [True, True, False]


def _fill_room(path: str) -> None:
    with open(f"{path}/x", "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def _fill_names(path: str) -> None:
    for number in range(1000):
        os.close(os.open(f"{path}/{number}", os.O_CREAT))


def test_a_program_begins_when_a_change_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = [100, 100, 104]
    slept: list[float] = []
    monkeypatch.setattr(scratch.time, "clock_gettime_ns", lambda clock: ticks.pop(0))
    monkeypatch.setattr(scratch.time, "sleep", slept.append)
    settle(100)
    assert (ticks, len(slept)) == ([], 2)


@pytest.mark.parametrize("set_back_s", [1, 3600])
def test_a_clock_that_was_set_back_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, set_back_s: int) -> None:
    made = 10**18
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) > 3:
            pytest.fail("it waits for the clock to come again")

    monkeypatch.setattr(scratch.time, "clock_gettime_ns", lambda clock: made - set_back_s * 10**9)
    monkeypatch.setattr(scratch.time, "sleep", sleep)
    settle(made)
    assert slept == []


def test_each_change_right_after_a_program_begins_shows() -> None:
    def act() -> list[bool]:
        return [renewed([("/box", CHANGES["a file that was removed"])]) for _ in range(40)]

    assert all(inside(act))


def without(*fields: int) -> Callable[[Sequence[str]], Any]:
    """A look that leaves out fields of a directory."""

    def blind(directories: Sequence[str]) -> Any:
        *seen, room = look(directories)
        return (*(tuple(0 if at in fields else value for at, value in enumerate(one)) for one in seen), room)

    return blind


_CTIME = 1
_ONLY_BY_TIMES = {"a file that was removed", "a directory that was removed", "a mode set back", "times"}


def test_directories_of_this_kernel_show_every_change() -> None:
    def act() -> str:
        try:
            shows_every_change("/tmp")
        except OSError as error:
            return str(error)
        return "every change shows"

    assert inside(act) == "every change shows"


def winners() -> set[str]:
    """Changes after which the scratch is taken for untouched."""

    def wins(name: str) -> bool:
        made = Scratch(place())
        made.provide(SHAPE)
        held = os.open("/box", os.O_PATH)
        settle(made.changed_ns)
        with contextlib.suppress(OSError):
            CHANGES[name]("/box")
        made.review()
        made.renew()
        made.provide(SHAPE)
        return os.path.samestat(os.fstat(held), os.stat("/box"))

    known = [name for name in CHANGES if "attribute" not in name]  # not every kernel has them here
    return {name for name in known if inside(lambda name=name: wins(name))}  # type: ignore[misc]


@pytest.mark.parametrize("fields", [(), (0, 2, 3, 4)], ids=["everything", "times-and-room"])
def test_change_times_tell_everything(monkeypatch: pytest.MonkeyPatch, fields: tuple[int, ...]) -> None:
    monkeypatch.setattr(scratch, "look", without(*fields))
    assert winners() == set()
    inside(lambda: shows_every_change("/tmp"))


def test_without_change_times_something_can_be_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "look", without(_CTIME))
    monkeypatch.setattr(scratch, "settle", lambda changed_ns: None)
    assert winners() >= _ONLY_BY_TIMES
    with pytest.raises(AssertionError, match="does not show"):
        inside(lambda: shows_every_change("/tmp"))


def test_without_a_look_at_modes_and_times_a_mode_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "look", without(_CTIME, 2))
    assert "a mode" in winners()


def test_without_a_look_at_room_and_times_a_file_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "look", lambda directories: (*without(_CTIME)(directories)[:-1], (1, 1, 1, 1)))
    assert "a file" in winners()
