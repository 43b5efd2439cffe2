"""Attacks on isolation: reading, reaching, signalling and outliving what is outside the run."""

from __future__ import annotations

from areal.reward.sandbox.values import Limits
from reward.attacks.table import Attack, Category, Seen

_SHORT = Limits(wall_s=2.0, cpu_s=1.0, processes=8, memory_bytes=256 << 20)
_RAW = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *arguments)
    return result, ctypes.get_errno()
def word(name, result, error):
    if result >= 0 or error not in (errno.EPERM, errno.ENOSYS, errno.EACCES, errno.EAGAIN):
        print("REACHED", name, result, error, flush=True)
"""


def _of(
    name: str, must_not: str, seen: Seen, layers: tuple[str, ...], source: str, *, limits: Limits = _SHORT,
    keep: tuple[str, ...] = (), never_clean: bool = False,
) -> Attack:  # fmt: skip
    return Attack(
        name, Category.ISOLATION, must_not, seen, layers, source, limits=limits, several=True, keep=keep,
        never_clean=never_clean,
    )  # fmt: skip


ISOLATION: tuple[Attack, ...] = (
    _of(
        "reads_a_file_of_the_machine", "a file outside is read", Seen.SECRET, ("private_root", "landlock"), """
import os
for path in (T["canary"], "/proc/self/root" + T["canary"], "/proc/self/cwd/../../../../../.." + T["canary"]):
    for way in (lambda: open(path).read(), lambda: os.read(os.open(path, os.O_RDONLY | os.O_NOATIME), 999).decode(),
                lambda: os.read(os.open(os.path.basename(path), os.O_RDONLY, dir_fd=os.open(os.path.dirname(path),
                                os.O_PATH)), 999).decode()):
        try:
            print(way())
        except Exception as error:
            print(type(error).__name__)
"""),
    _of(
        "reads_a_file_through_another_process", "a file outside is read through /proc", Seen.SECRET,
        ("namespaces", "landlock"), """
import os
for pid in [1, os.getppid(), T["service"], T["victim"], *[p for p in os.listdir("/proc") if p.isdigit()]]:
    for place in ("root", "cwd", "fd/0", "fd/3", "fd/4", "fd/5", "fd/6"):
        try:
            path = f"/proc/{pid}/{place}"
            if place in ("root", "cwd"):
                path += T["canary"] if place == "root" else "/canary"
            with open(path, "rb") as file:
                print(file.read(4096))
        except Exception:
            pass
"""),
    _of(
        "reads_a_file_of_root", "a file that only the service may read is read", Seen.SECRET,
        ("user", "private_root", "landlock"), """
import os
for back in (lambda: os.setuid(0), lambda: os.seteuid(0), lambda: os.setresuid(0, 0, 0), lambda: os.setgid(0)):
    try:
        back()
    except OSError:
        pass
try:
    print(open(T["canary_of_root"]).read())
except OSError as error:
    print(error)
"""),
    _of(
        "prints_its_environment", "the service's environment is in the run", Seen.SECRET, ("environment",), """
import os
print(dict(os.environ))
try:
    print(open("/proc/self/environ").read())
except OSError as error:
    print(error)
import ctypes
environ = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
index = 0
while environ and environ[index]:
    print(environ[index])
    index += 1
"""),
    _of(
        "reads_environments_of_others", "the service's environment is read through /proc", Seen.SECRET,
        ("namespaces", "landlock"), """
import os
pids = {1, os.getppid(), T["service"], T["victim"]} | {int(p) for p in os.listdir("/proc") if p.isdigit()}
for pid in pids:
    for name in ("environ", "cmdline", "maps", "auxv"):
        try:
            print(pid, name, open(f"/proc/{pid}/{name}", "rb").read(100000))
        except OSError:
            pass
"""),
    _of(
        "guesses_process_numbers", "arguments of processes outside are read without listing /proc", Seen.SECRET,
        ("namespaces", "landlock"), """
for pid in range(1, 2000):
    try:
        print(open(f"/proc/{pid}/cmdline", "rb").read(), open(f"/proc/{pid}/task/{pid}/environ", "rb").read())
    except OSError:
        pass
"""),
    _of(
        "searches_its_own_memory", "what the service knows is in the memory that a run inherits", Seen.SECRET,
        ("environment",), """
import re
try:
    maps = open("/proc/self/maps").read().splitlines()
    memory = open("/proc/self/mem", "rb", 0)
except OSError as error:
    print(error)
    maps = []
for line in maps:
    span, rights = line.split()[:2]
    start, end = (int(part, 16) for part in span.split("-"))
    if rights[0] != "r" or end - start > 200 << 20:
        continue
    try:
        memory.seek(start)
        for found in re.findall(rb"areal-secret-[0-9a-f]{8,}", memory.read(end - start)):
            print(found)
    except (OSError, OverflowError, ValueError):
        pass
import gc
for thing in gc.get_objects():
    if isinstance(thing, dict):
        for value in list(thing.values()):
            if isinstance(value, (str, bytes)) and len(value) < 9999 and "areal-secret-" in str(value)[:9999]:
                print(value)
"""),
    _of(
        "uses_inherited_descriptors", "a descriptor of the service's is open in the run", Seen.SECRET,
        ("descriptors",), """
import os, socket
for fd in range(3, 1024):
    try:
        os.fstat(fd)
    except OSError:
        continue
    for way in (lambda: os.pread(fd, 4096, 0), lambda: os.listdir(fd),
                lambda: open(os.open("canary", os.O_RDONLY, dir_fd=fd)).read()):
        try:
            print(fd, way())
        except (OSError, ValueError):
            pass
"""),
    _of(
        "connects_to_loopback", "a service on loopback has a visitor", Seen.CONNECTION, ("network", "seccomp"), """
import socket
for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"), (socket.AF_INET, "0.0.0.0")):
    try:
        with socket.socket(family) as one:
            one.settimeout(0.5)
            one.connect((host, T["tcp_port"]))
            one.sendall(b"hello")
    except OSError as error:
        print(error)
try:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.sendto(b"hello", ("127.0.0.1", T["udp_port"]))
except OSError as error:
    print(error)
"""),
    _of(
        "connects_to_an_abstract_socket", "an abstract socket has a visitor", Seen.CONNECTION,
        ("network", "seccomp", "landlock"), """
import socket
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    try:
        with socket.socket(socket.AF_UNIX, kind) as one:
            one.connect("\\0" + T["abstract_stream" if kind == socket.SOCK_STREAM else "abstract_datagram"])
            one.send(b"hello")
    except OSError as error:
        print(error)
try:  # a pair can be sent anywhere
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    left.sendto(b"hello", "\\0" + T["abstract_datagram"])
except OSError as error:
    print(error)
"""),
    _of(
        "connects_to_a_socket_file", "a socket in the file system has a visitor", Seen.CONNECTION,
        ("private_root", "seccomp"), """
import socket
for make in (lambda: socket.socket(socket.AF_UNIX), lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)[0]):
    try:
        with make() as one:
            one.connect(T["socket_file"])
            one.sendall(b"hello")
    except OSError as error:
        print(error)
try:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    left.sendto(b"hello", T["socket_file_datagram"])
except OSError as error:
    print(error)
"""),
    _of(
        "opens_strange_sockets", "sockets of other families can be made", Seen.REACHED, ("seccomp",), _RAW + """
import socket
for family in (16, 17, 38, 40, 31, 29, 15, 44, 41, 21):  # netlink, packet, alg, vsock, bluetooth, can, key, xdp, …
    for kind in (socket.SOCK_RAW, socket.SOCK_DGRAM, socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        try:
            socket.socket(family, kind).close()
            print("REACHED family", family)
        except OSError:
            pass
"""),
    _of(
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
    _of(
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
    _of(
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
    _of(
        "traces_a_process", "a process outside is traced or frozen", Seen.VICTIM,
        ("seccomp", "namespaces", "user"), _RAW + """
for request in (16, 0x4206):  # attach, seize
    for pid in (T["victim"], T["service"]):
        if pid == T["service"] and request == 16:
            continue
        print(call(101, request, pid, 0, 0))
import time
time.sleep(0.3)
"""),
    _of(
        "reads_memory_of_a_process", "memory of a process outside is read", Seen.SECRET,
        ("seccomp", "namespaces", "user"), _RAW + """
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
    _of(
        "writes_memory_of_a_process", "memory of a process outside is changed", Seen.VICTIM,
        ("seccomp", "namespaces", "user"), _RAW + """
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
    _of(
        "makes_namespaces", "a run gets namespaces, and with them capabilities, of its own", Seen.REACHED,
        ("seccomp",), _RAW + """
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
    _of(
        "mounts", "a run changes mounts or roots", Seen.REACHED, ("seccomp",), _RAW + """
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
    _of(
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
    _of(
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
    _of(
        "leaves_shared_memory", "System V memory, semaphores or queues outlive the run", Seen.LEFTOVER,
        ("seccomp", "namespaces"), _RAW + """
key = T["ipc_key"]
word("shmget", *call(29, key, 4096, 0o1666))
word("semget", *call(64, key, 1, 0o1666))
word("msgget", *call(68, key, 0o1666))
"""),
    _of(
        "leaves_files", "files outlive the run", Seen.LEFTOVER, ("private_root", "landlock"), """
import os
for place in ("/tmp", "/dev/shm", "/var/tmp", "/run", "/dev/mqueue", "/", "/box", ".", os.path.dirname(os.__file__),
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
    _of(
        "leaves_a_message_queue", "a POSIX message queue outlives the run", Seen.LEFTOVER,
        ("seccomp", "namespaces"), _RAW + """
print(call(240, T["mark"].encode(), os.O_CREAT | os.O_RDWR, 0o666, 0))
"""),
    _of(
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
    _of(
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
    _of(
        "reaches_the_kernel", "parts of the kernel that programs here never need can be reached", Seen.REACHED,
        ("seccomp",), _RAW + """
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
    _of(
        "keeps_a_key", "a key outlives the run in its user's keyring", Seen.REACHED, ("seccomp",), _RAW + """
for ring in (-4, -5, -3, -2):
    word("add_key", *call(248, b"user", T["mark"].encode(), b"message", 7, ring))
"""),
    _of(
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
    _of(
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
    _of(
        "raises_its_priority", "a run takes the processor from others", Seen.REACHED, ("seccomp", "user"), _RAW + """
word("setpriority", *call(141, 0, 0, -10))
word("setpriority of the user", *call(141, 2, 0, 19))
word("sched_setscheduler", *call(144, 0, 1, ctypes.byref(ctypes.c_int(1))))
word("ioprio_set", *call(251, 1, 0, 1 << 13))
"""),
    _of(
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
    _of(
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
    _of(
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
    _of(
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
