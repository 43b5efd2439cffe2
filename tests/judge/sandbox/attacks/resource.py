"""Attacks on resources: time, memory, disk, output, processes, descriptors, and the patience of whoever cleans up."""

from __future__ import annotations

from areal_judge.sandbox.values import Ending, Limits
from sandbox.attacks.table import ANY_BOUND, TIME, Attack, Category, Seen

_MEMORY = 192 << 20
_LIMITS = Limits(
    wall_s=1.5, cpu_s=1.0, memory_bytes=_MEMORY, output_bytes=256 << 10, stderr_bytes=16 << 10, disk_bytes=8 << 20,
    inodes=256, processes=8, open_files=64, stack_bytes=8 << 20,
)  # fmt: skip
_SLOW = Limits(
    wall_s=3.0, cpu_s=2.5, memory_bytes=_MEMORY, output_bytes=256 << 10, disk_bytes=8 << 20, inodes=256, processes=8,
)  # fmt: skip


def _of(
    name: str, must_not: str, seen: Seen, layers: tuple[str, ...], source: str, *, limits: Limits = _LIMITS,
    endings: frozenset[Ending] = ANY_BOUND, several: bool = True, stdin: bytes = b"",
    bound_bytes: int = 0, never_clean: bool = False,
) -> Attack:  # fmt: skip
    return Attack(
        name, Category.RESOURCE, must_not, seen, layers, source, endings=endings, limits=limits, several=several,
        stdin=stdin, bound_bytes=bound_bytes, never_clean=never_clean,
    )  # fmt: skip


RESOURCE: tuple[Attack, ...] = (
    _of("spins", "processor time is taken without end", Seen.ENDING, ("rlimits", "kill_all"), "while True: pass\n",
        endings=frozenset({Ending.CPU_LIMIT}), limits=Limits(wall_s=40.0, cpu_s=1.0)),
    _of("sleeps", "a run that does nothing is waited for", Seen.ENDING, ("kill_all",), """
import time
while True:
    time.sleep(60)
""", endings=frozenset({Ending.WALL_LIMIT})),
    _of("stops_itself", "a stopped process is waited for", Seen.LATE, ("kill_all",), """
import os, signal
os.kill(os.getpid(), signal.SIGSTOP)
import time; time.sleep(60)
"""),
    _of("ignores_signals", "a run that ignores what it is told goes on", Seen.ENDING, ("rlimits", "kill_all"), """
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True: pass
""", endings=TIME),
    _of("catches_every_exception", "a run that catches what it can goes on", Seen.ENDING, ("rlimits", "kill_all"), """
import sys
def again():
    while True:
        try:
            while True: pass
        except BaseException:
            continue
again()
""", endings=TIME),
    _of("computes_in_one_call", "a call that never returns to the interpreter goes on", Seen.ENDING,
        ("rlimits", "kill_all"), "x = 7 ** (10 ** 9)\n", endings=TIME | {Ending.MEMORY_LIMIT, Ending.EXITED}),
    _of("prints_a_huge_number", "turning a number into text takes for ever", Seen.LATE, ("rlimits", "kill_all"), """
import sys
sys.set_int_max_str_digits(0)
print(len(str(3 ** (1 << 22))))
"""),
    _of("matches_for_ever", "a regular expression backtracks without end", Seen.ENDING, ("rlimits", "kill_all"), """
import re
re.match(r"(a*)*b", "a" * 64)
re.match(r"(x+x+)+y", "x" * 64)
""", endings=TIME),
    _of("spins_in_many_threads", "threads take more processor time", Seen.LATE, ("rlimits", "kill_all"), """
import threading
def spin():
    while True: pass
for _ in range(6):
    try:
        threading.Thread(target=spin, daemon=True).start()
    except RuntimeError:
        break
spin()
"""),
    _of("takes_much_memory", "more memory than allowed is taken", Seen.MEMORY, ("cgroup", "rlimits"), """
held = []
while True:
    try:
        held.append(b"x" * (32 << 20))
    except MemoryError:
        raise
    if len(held) > 60: break
""", limits=_SLOW),
    _of("takes_memory_again_and_again", "refused memory is asked for again", Seen.ENDING, ("rlimits", "cgroup"), """
held = []
size = 64 << 20
while True:
    try:
        held.append(b"x" * size)
    except MemoryError:
        size = max(size // 2, 4096)
""", endings=TIME | {Ending.MEMORY_LIMIT, Ending.SIGNALED}),
    _of("takes_memory_in_children", "children take the limit each", Seen.MEMORY, ("cgroup", "seccomp"), """
import os, time
taken, tell = os.pipe()
for _ in range(7):
    try:
        if os.fork() == 0:
            held = bytearray(150 << 20)
            held[::4096] = b"x" * len(held[::4096])
            os.write(tell, b"x")
            time.sleep(4)
            os._exit(0)
    except OSError as error:
        print(error)
os.close(tell)
for _ in range(3):  # on a busy machine pages come late: two children with theirs are too much
    if not os.read(taken, 1): break
""", limits=_SLOW),
    _of("takes_shared_memory", "memory that no limit of a process counts is taken", Seen.MEMORY,
        ("cgroup", "rlimits"), """
import os, mmap, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
held = []
for _ in range(50):
    try:
        file = os.memfd_create("x")
    except OSError as error:
        print(error)
        break
    held.append(file)
    try:
        for _ in range(64):
            os.write(file, bytes(1 << 20))
    except OSError:
        pass
try:
    area = mmap.mmap(-1, 1 << 30)
    for place in range(0, 1 << 30, 4096):
        area[place] = 1
except (OSError, ValueError) as error:
    print(error)
""", limits=_SLOW),
    _of("fills_pipes", "memory of the kernel is taken by pipes and sockets", Seen.MEMORY, ("rlimits", "cgroup"), """
import os, socket, fcntl
held = []
try:
    while True:
        reader, writer = os.pipe()
        held.append((reader, writer))
        try:
            fcntl.fcntl(writer, 1031, 1 << 20)
        except OSError:
            pass
        os.set_blocking(writer, False)
        try:
            while True: os.write(writer, bytes(65536))
        except BlockingIOError:
            pass
except OSError as error:
    print(error)
try:
    while True:
        left, right = socket.socketpair()
        held.append((left, right))
        left.setblocking(False)
        try:
            while True: left.send(bytes(65536))
        except BlockingIOError:
            pass
except OSError as error:
    print(error)
"""),
    _of("unpacks_a_bomb", "little text becomes more memory than allowed", Seen.MEMORY, ("rlimits", "cgroup"), """
import zlib
piece = zlib.compress(bytes(64 << 20), 9)
held = [zlib.decompress(piece) for _ in range(40)]
""", limits=_SLOW),
    _of("forks_without_end", "processes above the limit are made", Seen.SURVIVOR, ("cgroup", "seccomp", "rlimits"), """
import os, ctypes
ctypes.CDLL(None).prctl(15, T["mark"].encode()[:15], 0, 0, 0)
made = 0
for _ in range(300):
    try:
        if os.fork() == 0:
            import time; time.sleep(3); os._exit(0)
        made += 1
    except OSError:
        break
print("FORKED", made, flush=True)
"""),
    _of("forks_in_every_child", "every child forks again", Seen.SURVIVOR, ("cgroup", "seccomp", "rlimits"), """
import os, ctypes, time
ctypes.CDLL(None).prctl(15, T["mark"].encode()[:15], 0, 0, 0)
until = time.monotonic() + 0.7
while time.monotonic() < until:
    try:
        os.fork()
    except OSError:
        time.sleep(0.01)
"""),
    _of("starts_threads_without_end", "threads above the limit are made", Seen.LATE, ("cgroup", "rlimits"), """
import threading, time
count = 0
try:
    while count < 3000:
        threading.Thread(target=time.sleep, args=(5,), daemon=True).start()
        count += 1
except (RuntimeError, MemoryError):
    pass
print("THREADS", count, flush=True)
"""),
    _of("starts_small_threads", "threads with little memory each are made above the limit", Seen.LATE,
        ("cgroup", "rlimits"), """
import threading, time
threading.stack_size(32768)
count = 0
try:
    while count < 5000:
        threading.Thread(target=time.sleep, args=(0.5,), daemon=True).start()
        count += 1
except (RuntimeError, MemoryError):
    pass
print("THREADS", count, flush=True)
import os; os._exit(0)
"""),
    _of("fills_the_disk", "more is written than the quota", Seen.MEMORY, ("quotas", "landlock", "private_root"), """
import os
written = 0
for place in (".", "/tmp", "/dev/shm", "/var/tmp", T["open_directory"]):
    for number in range(40):
        try:
            with open(f"{place}/{T['mark']}-{number}", "wb", buffering=0) as file:
                for _ in range(4):
                    written += file.write(bytes(1 << 20))
        except OSError:
            break
print("WROTE", written >> 20, flush=True)
""", bound_bytes=8 << 20),
    _of("fills_the_inodes", "more files are made than the quota", Seen.REACHED,
        ("quotas", "landlock", "private_root"), """
made = 0
for place in (".", "/tmp", "/dev/shm", "/var/tmp", T["open_directory"]):
    try:
        for number in range(3000):
            open(f"{place}/{T['mark']}-{number}", "w").close()
            made += 1
    except OSError:
        pass
print("REACHED" if made > 300 else "held", made, flush=True)
"""),
    _of("makes_a_deep_tree", "directories too deep to remove are left", Seen.LEFTOVER, ("quotas", "namespaces"), """
import os
depth = 0
try:
    os.mkdir(T["mark"])
    os.chdir(T["mark"])
    while depth < 4000:
        os.mkdir("d" * 200)
        os.chdir("d" * 200)
        depth += 1
except OSError as error:
    print(error)
print("DEPTH", depth, flush=True)
"""),
    _of("makes_a_sparse_file", "a file of a terabyte is brought back", Seen.MEMORY, ("rlimits", "quotas"), """
import os
try:
    with open("kept", "wb") as file:
        os.truncate(file.fileno(), 1 << 40)
except OSError as error:
    print(error)
"""),
    _of("floods_standard_output", "more is printed than the cap, and kept", Seen.ENDING, ("kill_all",), """
import os
line = b"x" * 65536
while True:
    os.write(1, line)
""", endings=frozenset({Ending.OUTPUT_LIMIT})),
    _of("floods_standard_error", "more is printed than the cap, and kept", Seen.ENDING, ("kill_all",), """
import os
line = b"x" * 65536
for _ in range(400):
    os.write(2, line)
while True: pass
""", endings=TIME),
    _of("prints_slowly", "a run that prints a little at a time is waited for", Seen.ENDING, ("kill_all",), """
import time
while True:
    print(".", end="", flush=True)
    time.sleep(0.02)
""", endings=TIME),
    _of("never_reads_its_input", "the service blocks on input that nobody reads", Seen.LATE, ("kill_all",), """
import time
time.sleep(0.2)
""", stdin=b"x" * (3 << 20)),
    _of("closes_its_output_and_goes_on", "a run without an output is taken for ended", Seen.ENDING, ("kill_all",), """
import os
for fd in (0, 1, 2):
    os.close(fd)
while True: pass
""", endings=TIME),
    _of("opens_files_without_end", "descriptors above the limit are opened", Seen.ENDING, ("rlimits",), """
import os
held = []
try:
    while len(held) < 5000:
        held.append(os.dup(0))
except OSError as error:
    os.write(1, str(error).encode())
    os._exit(5)
os._exit(0)
""", never_clean=True),
    _of("recurses_without_end", "a deep stack takes down more than the run", Seen.ENDING, ("rlimits",), """
import sys
sys.setrecursionlimit(10 ** 9)
def deeper(n): return deeper(n + 1) + 1
class Odd:
    def __repr__(self): return repr(self)
try:
    repr(Odd())
except BaseException:
    pass
deeper(0)
""", endings=frozenset({Ending.SIGNALED, Ending.EXITED, Ending.MEMORY_LIMIT, *TIME}), limits=_SLOW),
    _of("crashes", "a crash leaves a core file or is taken for the sandbox's fault", Seen.ENDING, ("rlimits",), """
import ctypes, resource
try:
    resource.setrlimit(resource.RLIMIT_CORE, (1 << 30, 1 << 30))
except (OSError, ValueError):
    pass
ctypes.string_at(1)
""", endings=frozenset({Ending.SIGNALED})),
    _of("sets_timers_without_end", "timers and pending signals pile up in the kernel", Seen.LATE, ("rlimits",), """
import ctypes, signal
libc = ctypes.CDLL(None)
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)
timers = 0
place = ctypes.c_void_p()
while timers < 100000 and libc.timer_create(1, None, ctypes.byref(place)) == 0:
    timers += 1
while True: pass
"""),
    _of("locks_memory", "memory is kept from being swapped", Seen.LATE, ("rlimits",), """
import ctypes
libc = ctypes.CDLL(None)
print(libc.mlockall(3))
held = bytearray(100 << 20)
"""),
)  # fmt: skip
