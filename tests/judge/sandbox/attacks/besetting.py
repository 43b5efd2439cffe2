"""Attacks on the first process of a cell, which serves one program after the other, and on what comes after."""

from __future__ import annotations

from areal_judge.sandbox.values import Limits
from sandbox.attacks.isolation_attack import RAW, isolation
from sandbox.attacks.table import Attack, Category, Seen

_MUCH = Limits(wall_s=3.0, cpu_s=2.0, processes=12, memory_bytes=160 << 20, disk_bytes=150 << 20)

BESETTING: tuple[Attack, ...] = (
    isolation(
        "signals_the_first_process", "the first process of a cell gets a signal", Seen.REACHED,
        ("landlock", "user"), RAW + """
import signal, time
for number in range(1, 65):
    ways = [lambda: os.kill(1, number), lambda: call(200, 1, number), lambda: call(234, 1, 1, number),
            lambda: call(129, 1, number, ctypes.create_string_buffer(128))]
    for way in ways:
        try:
            result = way()
            if result is None or result[0] >= 0:
                print("REACHED signal", number, flush=True)
        except OSError as error:
            print(number, error)
print(call(434, 1, 0), call(424, 1, 9, 0, 0))
time.sleep(0.1)
""", limits=Limits(wall_s=3.0, cpu_s=2.0, processes=8)),
    isolation(
        "has_its_death_signalled", "the first process of a cell is sent signals by the kernel", Seen.ENDING, ("user",),
        RAW + """
import signal, time
for flags in (0, 0x8000):  # children of this process, and of its parent
    for number in (0, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL, signal.SIGSTOP):
        if call(56, flags | number, 0, 0, 0, 0)[0] == 0:
            libc.prctl(1, number, 0, 0, 0)
            time.sleep(0.02 if flags else 5)
            os._exit(0)
read, write = os.pipe()
import fcntl
for owner in (1, -1):
    try:
        fcntl.fcntl(read, fcntl.F_SETOWN, owner)
        fcntl.fcntl(read, 10, signal.SIGINT)
        fcntl.fcntl(read, fcntl.F_SETFL, os.O_ASYNC)
        os.write(write, b"x")
    except OSError as error:
        print(error)
time.sleep(0.1)
os._exit(7)
""", never_clean=True),
    isolation(
        "opens_the_first_process", "files of the first process of a cell are opened", Seen.REACHED,
        ("landlock", "user", "namespaces"), """
import os
names = ["mem", "environ", "maps", "smaps", "stack", "syscall", "io", "auxv", "exe", "root/box", "cwd/box", "pagemap",
         "personality", "timers", "map_files", "fd/3", "fd/4", "fdinfo/3", "task/1/mem", "mountinfo", "stat", "status"]
names += [f"ns/{kind}" for kind in ("mnt", "pid", "ipc", "net", "uts", "user", "cgroup")]
for name in names:
    try:
        os.close(os.open(f"/proc/1/{name}", os.O_RDONLY | os.O_NONBLOCK))
        print("REACHED", name)
    except OSError as error:
        print(error)
for name in ("mem", "oom_score_adj", "oom_adj", "clear_refs", "uid_map", "gid_map", "setgroups", "comm", "attr/current",
             "timerslack_ns", "coredump_filter", "loginuid", "autogroup", "make-it-fail", "sched"):
    try:
        os.close(os.open(f"/proc/1/{name}", os.O_WRONLY))
        print("REACHED for writing", name)
    except OSError as error:
        print(error)
"""),
    isolation(
        "traces_the_first_process", "the first process of a cell is traced, read, slowed or limited", Seen.REACHED,
        ("seccomp", "user"), RAW + """
room = ctypes.create_string_buffer(4096)
word("attach", *call(101, 16, 1, 0, 0))
word("seize", *call(101, 0x4206, 1, 0, 0))
word("read", *call(310, 1, room, 1, room, 1, 0))
word("write", *call(311, 1, room, 1, room, 1, 0))
word("kcmp", *call(312, 1, os.getpid(), 0, 0, 0))
word("pidfd_open", *call(434, 1, 0))
word("pidfd_getfd", *call(438, 3, 3, 0))
word("process_madvise", *call(440, 3, room, 1, 21, 0))
word("process_mrelease", *call(448, 3, 0))
word("move_pages", *call(279, 1, 0, 0, 0, 0, 0))
word("migrate_pages", *call(256, 1, 64, room, room))
word("limits", *call(302, 1, 7, room, 0))
word("affinity", *call(203, 1, 8, b"\\1" + bytes(7)))
word("nice", *call(141, 0, 1, 19))
word("scheduler", *call(144, 1, 5, room))
word("attributes", *call(314, 1, room, 0))
word("ioprio", *call(251, 1, 1, 0x6000))
"""),
    isolation(
        "enters_the_first_process", "the namespaces or mounts of a cell are entered or changed", Seen.REACHED,
        ("seccomp", "user"), RAW + """
for kind in ("mnt", "pid", "ipc", "net", "uts", "user", "cgroup", "time"):
    for number in (1, "self"):
        try:
            opened = os.open(f"/proc/{number}/ns/{kind}", os.O_RDONLY)
        except OSError:
            opened = 0
        word(f"setns {kind} of {number}", *call(308, opened, 0))
for flags in (32, 32 | 4096, 4096, 1 << 18, 1 << 20, 8192):
    for path in (b"/", b"/box", b"/tmp", b"/proc", b"/dev/shm"):
        word(f"mount {path} {flags}", *call(165, b"none", path, b"tmpfs", flags, b"size=1g"))
for path in (b"/box", b"/tmp", b"/proc", b"/dev/shm", b"/"):
    word(f"umount {path}", *call(166, path, 2))
    word(f"attributes of {path}", *call(442, -100, path, 0, bytes(32), 32))
"""),
    isolation(
        "sets_its_cells_sysctls", "settings of a cell's namespaces are opened for writing", Seen.REACHED,
        ("landlock", "user"), """
import os
for base, _, names in os.walk("/proc/sys"):
    for name in names:
        try:  # opened only
            os.close(os.open(f"{base}/{name}", os.O_WRONLY))
            print("REACHED", f"{base}/{name}")
        except OSError:
            pass
print(os.path.isdir("/sys/fs/cgroup"))
""", limits=Limits(wall_s=10.0, cpu_s=6.0, processes=8)),
    isolation(
        "finds_the_lines_of_its_cell", "a descriptor of what made the run is open, or its lines can be had again",
        Seen.REACHED, ("descriptors",), """
import gc, os, socket
for number in [*range(3, 4096), 65535, 1048575]:
    try:
        os.fstat(number)
        print("REACHED descriptor", number)
    except OSError:
        pass
gc.unfreeze()
for found in gc.get_objects():
    if isinstance(found, socket.socket) and found.fileno() >= 0:
        try:
            os.fstat(found.fileno())
            print("REACHED", found)
        except OSError:
            pass
"""),
    isolation(
        "forks_when_it_has_ended", "processes that fork for ever outlive their run", Seen.SURVIVOR,
        ("namespaces", "seccomp", "kill_all"), """
import os, ctypes, time
ctypes.CDLL(None).prctl(15, T["mark"].encode()[:15], 0, 0, 0)
for _ in range(3):
    try:
        if os.fork() == 0:
            os.setsid()
            while True:
                try:
                    if os.fork():
                        os._exit(0)
                except OSError:
                    pass
    except OSError as error:
        print(error)
time.sleep(0.2)
os._exit(0)
"""),
    isolation(
        "leaves_zombies_in_heaps", "dead processes keep the first process of a cell from the next run", Seen.LATE,
        ("rlimits", "cgroup"), """
import os, time
until = time.monotonic() + 0.8
while time.monotonic() < until:
    try:
        if os.fork() == 0:
            for _ in range(6):
                if os.fork() == 0:
                    os._exit(0)
            os._exit(0)
        if os.getpid() % 2:
            os.wait()
    except OSError:
        time.sleep(0.001)
"""),
    Attack(
        "has_the_first_process_ended_for_memory", Category.ISOLATION,
        "a run that takes all memory outside its own processes is put down to the machine", Seen.ENDING,
        ("cgroup", "rlimits"), """
import os, time
held = []
def fill():
    for place in ("/dev/shm", "/tmp"):
        try:
            with open(f"{place}/{os.getpid()}", "wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 20))
        except OSError:
            pass
    while True:
        try:
            file = os.memfd_create("x")
            held.append(file)
            while True:
                os.write(file, bytes(1 << 20))
        except OSError:
            return
for _ in range(3):
    try:
        if os.fork() == 0:
            fill()
            time.sleep(5)
    except OSError:
        break
fill()
os._exit(7)
""", limits=_MUCH, several=True, never_clean=True, keep=("kept",)),
    Attack(
        "leaves_memory_that_nobody_has", Category.ISOLATION, "memory in flight is taken from the next run", Seen.ENDING,
        ("cgroup",), """
import os, socket
left, right = socket.socketpair()
try:
    file = os.memfd_create("x")
    for part in range(140):
        os.pwrite(file, bytes(1 << 20), part << 20)
    socket.send_fds(left, [b"x"], [file, right.fileno(), left.fileno()])
except OSError as error:
    print(error)
os._exit(7)
""", limits=_MUCH, several=True, never_clean=True),
    Attack(
        "keeps_all_that_fits", Category.ISOLATION, "files to keep hold up the first process of a cell", Seen.LATE,
        ("quotas", "rlimits"), """
import os
for name in ("a", "b", "c", "kept"):
    try:
        with open(name, "wb", buffering=0) as file:
            while True:
                file.write(b"x" * (1 << 16))
    except OSError as error:
        print(error)
""", limits=Limits(wall_s=3.0, cpu_s=2.0, disk_bytes=6 << 20), several=True,
        keep=("a", "b", "c", "kept", *(f"none{number}" for number in range(500))),
    ),
)  # fmt: skip
