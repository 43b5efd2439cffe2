"""Mounts of a cell: a private read-only root made once a zygote, a scratch of its own made once a cell.

Owns the list of what is visible: system directories and the interpreter, read-only, a few files of /etc, five devices.
Everything runs in a mount namespace of the zygote's or of the cell's; the machine's own mounts are never changed.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable

from areal_judge.sandbox.kernel import calls as kernel

BOX = "/box"
_SCRATCH = "/.scratch"
_BELOW_TMP = "/.below-tmp"  # what is readable below /tmp, where each cell has a directory of its own
_STAGES = ("/mnt", "/media", "/srv", "/opt", "/tmp")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "timezone", "mime.types")
_ETC_PREFIXES = ("java", "openjdk")
_LIBRARIES = ("/usr/lib", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_PASSWD = "root:x:0:0::/:/usr/sbin/nologin\nrunner:x:{uid}:{uid}::/box:/bin/sh\n"
_SHOWN_AT = {"box": BOX, "tmp": "/tmp", "shm": "/dev/shm"}  # directories of a scratch
_ROOT_BYTES = 1 << 20  # of the private root itself: names and a few lines
_MS_RELATIME = 1 << 21
SCRATCH_FLAGS = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOATIME  # whether it was only read must not show
_KEPT_FLAGS = {
    2: kernel.MS_NOSUID, 4: kernel.MS_NODEV, 8: kernel.MS_NOEXEC, 1024: kernel.MS_NOATIME, 2048: 2048,
    4096: _MS_RELATIME,
}  # fmt: skip


def interpreter_paths() -> tuple[str, ...]:
    """Directories that hold this interpreter and its standard library."""
    prefixes = (sys.base_prefix, sys.base_exec_prefix)
    return tuple(sorted({prefix for prefix in prefixes if prefix not in ("/usr", "/")}))


def library_paths() -> tuple[str, ...]:
    """What a process of a warm interpreter may still read: its library and what that loads."""
    libraries = {os.path.join(prefix, "lib") for prefix in (sys.base_prefix, sys.base_exec_prefix)}
    return (*sorted(libraries), *_LIBRARIES)


def _read_only(path: str) -> None:
    flags = kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
    held = os.statvfs(path).f_flag  # an ordinary user may not take flags away
    for seen, kept in _KEPT_FLAGS.items():
        if held & seen:
            flags |= kept
    kernel.mount("none", path, flags=flags)


def _bind(source: str, target: str, *, devices: bool = False) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        _write(target, "")
    kernel.mount(source, target, flags=kernel.MS_BIND)
    if not devices:
        _read_only(target)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _etc() -> Iterable[str]:
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir("/etc")):
            if name in _ETC or name.startswith(_ETC_PREFIXES):
                yield name


def enter_private_root(readable: Iterable[str], uid: int, *, proc: bool) -> None:
    """Makes the root of all cells and moves the calling process into it. Needs a mount namespace of its own."""
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    stage = next(path for path in _STAGES if os.path.isdir(path))
    kernel.mount("tmpfs", stage, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, f"size={_ROOT_BYTES},mode=0755")
    for path in _SYSTEM:
        if os.path.islink(path):
            os.symlink(os.readlink(path), stage + path)
        elif os.path.isdir(path):
            _bind(path, stage + path)
    for path in dict.fromkeys((*interpreter_paths(), *readable)):
        if os.path.exists(path) and not any(path.startswith(system + "/") for system in _SYSTEM):
            _bind(path, f"{stage}{_BELOW_TMP}{path.removeprefix('/tmp')}" if path.startswith("/tmp/") else stage + path)
    os.makedirs(f"{stage}/etc", exist_ok=True)
    for name in _etc():
        source = os.path.realpath(f"/etc/{name}") if name == "localtime" else f"/etc/{name}"
        if os.path.exists(source):
            _bind(source, f"{stage}/etc/{name}")
    _write(f"{stage}/etc/passwd", _PASSWD.format(uid=uid))
    _write(f"{stage}/etc/group", f"root:x:0:\nrunner:x:{uid}:\n")
    _write(f"{stage}/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n")
    for name in ("dev/shm", "proc", "tmp", BOX[1:], _SCRATCH[1:], ".old"):
        os.makedirs(f"{stage}/{name}", exist_ok=True)
    for name in _DEVICES:
        if os.path.exists(f"/dev/{name}"):
            _bind(f"/dev/{name}", f"{stage}/dev/{name}", devices=True)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"{stage}/dev/{name}")
    if proc:
        mount_proc(f"{stage}/proc")
    os.chdir(stage)
    kernel.pivot_root(".", ".old")
    os.chdir("/")
    kernel.umount("/.old")
    os.rmdir("/.old")
    _read_only("/")


def mount_proc(path: str = "/proc") -> None:
    """A /proc of the calling process's own pid namespace, without processes that the reader may not trace."""
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    try:
        kernel.mount("proc", path, "proc", flags, "hidepid=2")
    except OSError:  # another kernel's /proc may not know how
        kernel.mount("proc", path, "proc", flags)


def tmpfs_options(disk_bytes: int, inodes: int, *, quotas: bool, count_inodes: bool) -> str:
    """Options of a scratch. A page more than asked, since directories take some."""
    options = ["mode=0755"]
    if quotas:
        options.append(f"size={max(disk_bytes, 4096)}")
        if count_inodes:
            below = len(os.listdir(_BELOW_TMP)) if os.path.isdir(_BELOW_TMP) else 0
            options.append(f"nr_inodes={max(inodes, 8) + 4 + below}")  # its root and the directories below
    return ",".join(options)


def box(private_root: bool) -> str:
    """A program's working directory."""
    return BOX if private_root else "/tmp"


def make_scratch(options: str, owner: tuple[int, int], *, execute: bool, private_root: bool) -> tuple[str, ...]:
    """Mounts a scratch over the working directory, /tmp and /dev/shm, one quota for all; their paths."""
    flags = SCRATCH_FLAGS if execute else SCRATCH_FLAGS | kernel.MS_NOEXEC
    if not private_root:
        kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
        kernel.mount("tmpfs", "/tmp", "tmpfs", flags, options)
        os.chown("/tmp", *owner)
        os.chmod("/tmp", 0o700)
        return ("/tmp",)
    kernel.mount("tmpfs", _SCRATCH, "tmpfs", flags, options)
    below = os.listdir(_BELOW_TMP) if os.path.isdir(_BELOW_TMP) else []
    for name, target in _SHOWN_AT.items():
        os.mkdir(f"{_SCRATCH}/{name}", 0o700)
        kernel.mount(f"{_SCRATCH}/{name}", target, flags=kernel.MS_BIND)
    kernel.umount(_SCRATCH)
    for name in below:
        os.mkdir(f"/tmp/{name}")
        kernel.mount(f"{_BELOW_TMP}/{name}", f"/tmp/{name}", flags=kernel.MS_BIND | kernel.MS_REC)
    for target in _SHOWN_AT.values():
        os.chown(target, *owner)
    return tuple(_SHOWN_AT.values())


def remove_scratch(directories: Iterable[str]) -> None:
    """Unmounts a scratch, and with it what is in it."""
    for directory in directories:
        kernel.umount(directory)
