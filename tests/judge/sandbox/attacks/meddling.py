"""Attacks that change what is outside the run, outlive it, or gain rights: signals, traces, leftovers, the kernel."""

from __future__ import annotations

from sandbox.attacks.isolation_attack import RAW, isolation
from sandbox.attacks.table import Attack, Seen

MEDDLING: tuple[Attack, ...] = (
    isolation(
        "signals_the_service", "a process outside gets a signal", Seen.VICTIM, ("namespaces", "landlock", "user"), """
import os, signal
for pid in (T["victim"], T["service"]):
    for number in (signal.SIGUSR1, signal.SIGKILL if pid == T["victim"] else signal.SIGUSR1):
        for way in (os.kill, lambda p, n: os.killpg(os.getpgid(p), n),
                    lambda p, n: signal.pidfd_send_signal(os.pidfd_open(p), n)):
            try:
                way(pid, number)
                print("sent", pid, number)
            except OSError as error:
                print(error)
"""),
    isolation(
        "signals_everybody", "every process that a user may signal gets one", Seen.VICTIM,
        ("namespaces", "landlock", "user"), """
import os, signal
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
for target in (-1, 0, -os.getppid()):
    try:
        os.kill(target, signal.SIGUSR1)
    except OSError as error:
        print(error)
"""),
    isolation(
        "kills_its_parent", "what made the run is ended", Seen.VICTIM, ("namespaces", "landlock", "user"), """
import os, signal
for number in (signal.SIGUSR1, signal.SIGSTOP, signal.SIGKILL):
    for pid in (os.getppid(), T["victim"]):
        try:
            if pid > 1:
                os.kill(pid, number)
        except OSError as error:
            print(error)
"""),
    isolation(
        "has_the_kernel_signal_others", "a process is named that the kernel signals when a descriptor is ready",
        Seen.REACHED, ("seccomp",), RAW + """
import fcntl
for pid in (T["victim"], T["service"], os.getppid(), os.getpid()):
    reader, writer = os.pipe()
    word("F_SETOWN", *call(72, reader, fcntl.F_SETOWN, pid))
    word("F_SETSIG", *call(72, reader, 10, 9))
    word("F_SETOWN_EX", *call(72, reader, 15, ctypes.byref((ctypes.c_int * 2)(1, pid))))
    word("FIOSETOWN", *call(16, reader, 0x8901, ctypes.byref(ctypes.c_int(pid))))
"""),
    isolation(
        "changes_metadata", "mode, times or attributes of a file outside are changed", Seen.REACHED,
        ("private_root", "seccomp"), """
import os
file = T["file_of_service"]
for act in (lambda: os.chmod(file, 0o600), lambda: os.utime(file), lambda: os.chown(file, os.getuid(), -1),
            lambda: os.setxattr(file, "user.areal", b"mark")):
    try:
        act()
        print("REACHED", act)
    except OSError as error:
        print(error)
"""),
    isolation(
        "watches_what_others_do", "use of a file that everybody reads is seen, or what of it is in memory",
        Seen.REACHED, ("seccomp",), RAW + """
word("inotify_init1", *call(294, 0))
file = os.open(os.__file__, os.O_RDONLY)
try:
    os.preadv(file, [bytearray(1)], 0, os.RWF_NOWAIT)
    print("REACHED preadv2")
except OSError as error:
    print(error)
"""),
    isolation(
        "traces_a_process", "a process outside is traced or frozen", Seen.VICTIM,
        ("seccomp", "namespaces", "user"), RAW + """
for request in (16, 0x4206):  # attach, seize
    for pid in (T["victim"], T["service"]):
        if pid == T["service"] and request == 16:
            continue
        print(call(101, request, pid, 0, 0))
import time
time.sleep(0.3)
"""),
    isolation(
        "reads_memory_of_a_process", "memory of a process outside is read", Seen.SECRET,
        ("seccomp", "namespaces", "user"), RAW + """
class Span(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))
buffer = ctypes.create_string_buffer(256)
local, remote = Span(ctypes.addressof(buffer), 256), Span(T["victim_address"], 256)
print(call(310, T["victim"], ctypes.byref(local), 1, ctypes.byref(remote), 1, 0), buffer.raw)
try:
    with open(f"/proc/{T['victim']}/mem", "rb", 0) as memory:
        memory.seek(T["victim_address"])
        print(memory.read(256))
except OSError as error:
    print(error)
"""),
    isolation(
        "writes_memory_of_a_process", "memory of a process outside is changed", Seen.VICTIM,
        ("seccomp", "namespaces", "user"), RAW + """
class Span(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))
buffer = ctypes.create_string_buffer(b"overwritten")
local, remote = Span(ctypes.addressof(buffer), 11), Span(T["victim_address"], 11)
print(call(311, T["victim"], ctypes.byref(local), 1, ctypes.byref(remote), 1, 0))
try:
    with open(f"/proc/{T['victim']}/mem", "r+b", 0) as memory:
        memory.seek(T["victim_address"])
        memory.write(b"overwritten")
except OSError as error:
    print(error)
"""),
    isolation(
        "makes_namespaces", "a run gets namespaces, and with them capabilities, of its own", Seen.REACHED,
        ("seccomp",), RAW + """
if libc.unshare(0x10000000) == 0:
    print("REACHED user namespace", flush=True)
for name, flags in (("mount", 0x20000), ("net", 0x40000000), ("pid", 0x20000000), ("ipc", 0x08000000)):
    if libc.unshare(flags) == 0:
        print("REACHED namespace", name)
result, error = call(56, 0x10000000 | 17, 0, 0, 0, 0)
if result == 0:
    os._exit(0)
if result > 0:
    print("REACHED clone with a user namespace")
arguments = (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, 17)
result, error = call(435, arguments, 88)
if result == 0:
    os._exit(0)
if result > 0:
    print("REACHED clone3 with a user namespace")
"""),
    isolation(
        "mounts", "a run changes mounts or roots", Seen.REACHED, ("seccomp",), RAW + """
word("mount", *call(165, b"none", b"/tmp", b"tmpfs", 0, 0))
word("umount2", *call(166, b"/tmp", 2))
word("pivot_root", *call(155, b".", b"."))
word("chroot", *call(161, b"."))
word("fsopen", *call(430, b"tmpfs", 0))
word("open_tree", *call(428, -100, b"/", 1))
word("mount_setattr", *call(442, -100, b"/", 0, 0, 0))
word("setns", *call(308, 0, 0))
word("open_by_handle_at", *call(304, 0, 0, 0))
word("name_to_handle_at", *call(303, -100, b"/", 0, 0, 0))
word("swapon", *call(167, b"/tmp/x", 0))
word("quotactl", *call(179, 0, 0, 0, 0))
"""),
    isolation(
        "leaves_a_daemon", "a process of the run outlives it", Seen.SURVIVOR, ("namespaces", "seccomp", "kill_all"), """
import os, ctypes, time
def name(): ctypes.CDLL(None).prctl(15, T["mark"].encode()[:15], 0, 0, 0)
try:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            name()
            for fd in range(0, 64):
                try: os.close(fd)
                except OSError: pass
            time.sleep(9)
        os._exit(0)
except OSError as error:
    print(error)
"""),
    isolation(
        "holds_its_pipes", "a process that holds standard output keeps the service waiting", Seen.LATE,
        ("namespaces", "seccomp", "kill_all"), """
import os, time, ctypes
try:
    if os.fork() == 0:
        os.setsid()
        ctypes.CDLL(None).prctl(15, T["mark"].encode()[:15], 0, 0, 0)
        time.sleep(9)
        os._exit(0)
except OSError as error:
    print(error)
print("done", flush=True)
os._exit(0)
"""),
    isolation(
        "leaves_shared_memory", "System V memory, semaphores or queues outlive the run", Seen.LEFTOVER,
        ("seccomp", "namespaces"), RAW + """
key = T["ipc_key"]
word("shmget", *call(29, key, 4096, 0o1666))
word("semget", *call(64, key, 1, 0o1666))
word("msgget", *call(68, key, 0o1666))
"""),
    isolation(
        "leaves_files", "files outlive the run", Seen.LEFTOVER, ("private_root", "landlock"), """
import os
for place in ("/tmp", "/dev/shm", "/var/tmp", "/run", T["queues"], "/", "/box", ".", os.path.dirname(os.__file__),
              os.path.expanduser("~"), T["open_directory"]):
    try:
        open(f"{place}/{T['mark']}", "w").write("left behind")
        print("wrote", place)
    except OSError as error:
        print(error)
try:
    os.link(T["canary"], f"{T['open_directory']}/{T['mark']}")
except OSError as error:
    print(error)
"""),
    isolation(
        "leaves_a_message_queue", "a POSIX message queue outlives the run", Seen.LEFTOVER,
        ("seccomp", "namespaces"), RAW + """
print(call(240, T["mark"].encode(), os.O_CREAT | os.O_RDWR, 0o666, 0))
"""),
    isolation(
        "looks_for_other_runs", "files, input or memory of a run beside it are read", Seen.SECRET,
        ("namespaces", "landlock", "user"), """
import os
places = ["/tmp", "/dev/shm", "/box", "/var/tmp", "/", T["open_directory"]]
for pid in [p for p in os.listdir("/proc") if p.isdigit()]:
    places += [f"/proc/{pid}/cwd", f"/proc/{pid}/root/tmp", f"/proc/{pid}/root/box", f"/proc/{pid}/fd"]
for place in places:
    try:
        names = os.listdir(place)
    except OSError:
        continue
    for name in names:
        try:
            path = f"{place}/{name}"
            if os.path.isfile(path) and os.path.getsize(path) < 100000:
                print(path, open(path, "rb").read())
        except OSError:
            pass
"""),
    isolation(
        "makes_others_die_first", "the score by which the kernel chooses whom to end is changed", Seen.VICTIM,
        ("namespaces", "landlock", "user"), """
for pid in (T["victim"], "self"):
    for value in ("-1000", "900"):
        try:
            with open(f"/proc/{pid}/oom_score_adj", "w") as file:
                file.write(value)
        except OSError as error:
            print(error)
"""),
    isolation(
        "reaches_the_kernel", "parts of the kernel that programs here never need can be reached", Seen.REACHED,
        ("seccomp",), RAW + """
zero = ctypes.create_string_buffer(256)
for name, number, arguments in (
    ("bpf", 321, (0, zero, 16)), ("perf_event_open", 298, (zero, 0, -1, -1, 0)), ("io_uring_setup", 425, (1, zero)),
    ("io_uring_enter", 426, (0, 0, 0, 0, 0)), ("add_key", 248, (b"user", b"x", b"y", 1, -3)),
    ("keyctl", 250, (0, -3, 0)), ("request_key", 249, (b"user", b"x", 0, -3)), ("userfaultfd", 323, (1,)),
    ("memfd_secret", 447, (0,)), ("kcmp", 312, (os.getpid(), os.getpid(), 0, 0, 0)), ("modify_ldt", 154, (0, zero, 16)),
    ("seccomp", 317, (1, 0, zero)), ("fanotify_init", 300, (0, 0)), ("init_module", 175, (zero, 0, zero)),
    ("finit_module", 313, (-1, zero, 0)), ("kexec_load", 246, (0, 0, 0, 0)), ("syslog", 103, (3, zero, 16)),
    ("acct", 163, (0,)), ("io_setup", 206, (1, zero)), ("vmsplice", 278, (-1, 0, 0, 0)), ("iopl", 172, (3,)),
    ("move_pages", 279, (0, 0, 0, 0, 0, 0)), ("process_madvise", 440, (-1, 0, 0, 0, 0)),
    ("pidfd_getfd", 438, (-1, 0, 0)), ("lookup_dcookie", 212, (0, zero, 16)), ("uselib", 134, (b"/x",)),
    ("clock_settime", 227, (0, zero)), ("sethostname", 170, (T["mark"].encode(), 8)), ("personality", 135, (0x40000,)),
    ("reboot", 169, (0, 0, 0, 0)), ("ustat", 136, (0, zero)), ("sysfs", 139, (3,)), ("cachestat", 451, (-1, 0, 0, 0)),
    ("beyond every table", 600, ()),
):
    word(name, *call(number, *arguments))
"""),
    isolation(
        "keeps_a_key", "a key outlives the run in its user's keyring", Seen.REACHED, ("seccomp",), RAW + """
for ring in (-4, -5, -3, -2):
    word("add_key", *call(248, b"user", T["mark"].encode(), b"message", 7, ring))
"""),
    isolation(
        "locks_a_file_that_everybody_reads", "a lock on a shared file carries a message to other runs", Seen.LOCK,
        ("seccomp",), """
import fcntl, os, struct, time
with open(T["shared_file"], "rb") as file:
    for way in (lambda: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB),
                lambda: fcntl.fcntl(file, fcntl.F_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 0, 1, 0)),
                lambda: fcntl.fcntl(file, 37, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 0, 1, 0)),
                lambda: fcntl.fcntl(file, 1024, fcntl.F_RDLCK)):
        try:
            way()
        except OSError as error:
            print(error)
    time.sleep(0.8)
"""),
    isolation(
        "runs_a_setuid_program", "a program with the setuid bit gives its rights to the run", Seen.REACHED,
        ("no_new_privileges", "private_root", "seccomp"), """
import glob, os, subprocess
for path in ("/usr/bin/su", "/usr/bin/newgrp", "/usr/bin/passwd", "/usr/bin/mount"):
    try:
        process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        print(error)
        continue
    for _ in range(200):
        try:
            status = open(f"/proc/{process.pid}/status").read()
        except OSError:
            break
        users = next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1:]
        if users[1] == "0" and os.getuid() != 0:
            print("REACHED root by", path, users)
            break
    process.kill()
"""),
    isolation(
        "raises_its_priority", "a run takes the processor from others", Seen.REACHED, ("seccomp", "user"), RAW + """
word("setpriority", *call(141, 0, 0, -10))
word("setpriority of the user", *call(141, 2, 0, 19))
word("sched_setscheduler", *call(144, 0, 1, ctypes.byref(ctypes.c_int(1))))
word("ioprio_set", *call(251, 1, 0, 1 << 13))
"""),
    isolation(
        "raises_its_limits", "a run gets more than its limits, or changes those of others", Seen.REACHED,
        ("rlimits", "seccomp", "user", "namespaces"), """
import resource
for name in ("RLIMIT_CPU", "RLIMIT_NOFILE", "RLIMIT_FSIZE", "RLIMIT_CORE"):
    number = getattr(resource, name)
    soft, hard = resource.getrlimit(number)
    if hard == resource.RLIM_INFINITY:
        print("REACHED no limit", name)
        continue
    try:
        resource.setrlimit(number, (hard + 1, hard + 1))
        print("REACHED", name)
    except (OSError, ValueError):
        pass
try:
    resource.prlimit(T["victim"], resource.RLIMIT_NOFILE, (3, 3))
    print("REACHED prlimit of another process")
except OSError:
    pass
"""),
    isolation(
        "opens_the_kernels_settings", "settings of the machine can be opened for writing", Seen.REACHED,
        ("private_root", "landlock", "user"), """
import glob, os
for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/dev/kmsg",
             "/dev/mem", "/proc/sys/vm/drop_caches", *glob.glob("/sys/fs/cgroup/*/release_agent")):
    try:  # opened only: what is written there would change the machine
        os.close(os.open(path, os.O_WRONLY))
        print("REACHED", path)
    except OSError as error:
        print(error)
"""),
    isolation(
        "keeps_a_link", "the service follows a link that the run made", Seen.SECRET, ("private_root",), """
import os
try:
    os.symlink(T["canary"], "kept")
    os.symlink("/proc/1/root" + T["canary"], "kept2")
    os.mkfifo("kept3")
    os.mkdir("kept4")
    os.symlink("../../.." + T["canary"], "kept4/inside")
    os.link(T["canary"], "kept5")
except OSError as error:
    print(error)
""", keep=("kept", "kept2", "kept3", "kept4/inside", "kept5")),
    isolation(
        "talks_to_what_made_it", "frames on a descriptor of the runner's change what the run is said to have done",
        Seen.ENDING, ("descriptors",), """
import os, socket, json
for fd in range(3, 256):
    try:
        os.set_blocking(fd, False)
    except OSError:
        continue
    for data in (b'{"ready": true}', b'{"ending": "exited", "exit_code": 0}', b'{"ended": 0}', bytes(64), b"x" * 70000):
        for way in (lambda: os.write(fd, data), lambda: socket.socket(fileno=os.dup(fd)).send(data)):
            try:
                way()
            except (OSError, ValueError):
                pass
os._exit(7)
""", never_clean=True),
)  # fmt: skip
