"""Programs that try to leave something for the next in their cell, and the one that looks for it.

What they leave holds MARK wherever it can. The finder says everything that a program can see of where it runs and that
must be the same for each; it names neither MARK nor what it looks for in one piece, so that it doesn't find itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from areal_judge.sandbox.values import Limits, ProgramRun, PythonScript

MARK = "left-by-another-run"
LONG = Limits(wall_s=20, cpu_s=10)
SEVERAL = Limits(wall_s=20, cpu_s=10, processes=8)
SHORT = Limits(wall_s=0.4, cpu_s=5, processes=8)
CELL = "import os; print(os.readlink('/proc/self/ns/pid'), os.getuid(), flush=True)\n"
"""First line of what each program prints: which cell it is in."""


@dataclass(frozen=True)
class Leaver:
    """One program."""

    name: str
    source: str
    limits: Limits = LONG
    changes: Mapping[str, object] = field(default_factory=dict)  # of its Run
    in_kernel: bool = False  # what it leaves is memory of the kernel's: its cell may have to end

    @property
    def run(self) -> ProgramRun:
        source = f"{CELL}MARK = {MARK!r}\n{self.source}\nprint('done', flush=True)"
        return ProgramRun(PythonScript(source), limits=self.limits, **self.changes)  # type: ignore[arg-type]


def finder(limits: Limits = LONG) -> ProgramRun:
    return ProgramRun(PythonScript(CELL + _FINDER), limits=limits)


_PLACES = "for place in ('/box', '/tmp', '/dev/shm'):\n    "

LEAVERS = (
    Leaver("files", _PLACES + "open(f'{place}/{MARK}', 'w').write(MARK)"),
    Leaver("hidden files", _PLACES + "open(f'{place}/.{MARK}', 'w').write(MARK)"),
    Leaver("a file that was removed", _PLACES + "open(f'{place}/x', 'w').write(MARK); os.unlink(f'{place}/x')"),
    Leaver("an open file without a name", """
file = open('x', 'w+'); file.write(MARK * 1000); file.flush(); os.unlink('x')
"""),
    Leaver("a mapped file without a name", """
import mmap
file = open('x', 'w+b'); file.truncate(1 << 20); area = mmap.mmap(file.fileno(), 1 << 20); area[:19] = MARK.encode()
os.unlink('x')
"""),
    Leaver("modes", _PLACES + "os.chmod(place, 0o1777)"),
    Leaver("a mode set back", _PLACES + "os.chmod(place, 0o777); os.chmod(place, 0o700)"),
    Leaver("no rights to its directory", "os.chmod('/box', 0)"),
    Leaver("attributes", _PLACES + "os.setxattr(place, 'user.left', MARK.encode())"),
    Leaver("attributes that were removed", _PLACES + """
    os.setxattr(place, 'user.left', MARK.encode()); os.removexattr(place, 'user.left')
"""),
    Leaver("a list of access", """
import struct
acl = struct.pack('<I', 2) + b''.join(struct.pack('<HHI', *entry) for entry in (
    (1, 7, 0xffffffff), (2, 7, os.getuid()), (4, 7, 0xffffffff), (16, 7, 0xffffffff), (32, 7, 0xffffffff)))
for place in ('/box', '/tmp', '/dev/shm'):
    for kind in ('system.posix_acl_access', 'system.posix_acl_default'):
        try: os.setxattr(place, kind, acl)
        except OSError as error: print(error)
"""),
    Leaver("flags of a directory", """
import fcntl, struct
for place in ('/box', '/tmp', '/dev/shm'):
    at = os.open(place, os.O_RDONLY)
    try: fcntl.ioctl(at, 0x40086602, struct.pack('l', 0x40 | 0x80))  # no dump, no atime
    except OSError as error: print(error)
"""),
    Leaver("times", _PLACES + "os.utime(place, (1, 1))"),
    Leaver("a directory", "os.makedirs(f'/tmp/{MARK}/a/b')"),
    Leaver("a directory that was removed", _PLACES + "os.mkdir(f'{place}/d'); os.rmdir(f'{place}/d')"),
    Leaver("links", _PLACES + """
    os.symlink('/etc/passwd', f'{place}/{MARK}'); open(f'{place}/x', 'w').close()
    os.link(f'{place}/x', f'{place}/y')
"""),
    Leaver("a pipe with a name", "os.mkfifo(f'/tmp/{MARK}')"),
    Leaver("renamed files", "open('x', 'w').close(); os.rename('x', MARK); os.rename(MARK, 'x')"),
    Leaver("nameless files", """
for _ in range(40):
    try: os.close(os.open('/box', os.O_TMPFILE | os.O_RDWR))
    except OSError as error: print(error); break
"""),
    Leaver("a full disk", """
import errno
try:
    with open(f'/dev/shm/{MARK}', 'wb', buffering=0) as file:
        while True: file.write(bytes(1 << 20))
except OSError as error: assert error.errno in (errno.ENOSPC, errno.EFBIG)
""", limits=Limits(wall_s=20, cpu_s=10, disk_bytes=4 << 20)),
    Leaver("no names left", """
try:
    for number in range(10000): open(f'{MARK}{number}', 'w').close()
except OSError as error: print(error)
""", limits=Limits(wall_s=20, cpu_s=10, inodes=100)),
    Leaver("its files kept", f"open('kept', 'w').write({MARK!r} * 9000)", changes={"keep": ("kept", MARK)}),
    Leaver("files that it was given", "open('given').read()", changes={"files": {f"{MARK}/b": b"x", "given": b"y"}}),
    Leaver("lower limits", """
import resource
for kind in range(16):
    # no time at all would end it at the next tick of the clock
    least = {resource.RLIMIT_CPU: 1}.get(kind, 0)
    try: resource.setrlimit(kind, (10, 10) if kind == 7 else (least, resource.getrlimit(kind)[1]))
    except (OSError, ValueError): pass
"""),
    Leaver("its environment", "os.environ.clear(); os.environ[MARK] = MARK; os.umask(0o777); os.chdir('/usr')"),
    Leaver("handlers", """
import signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN if number % 2 else print)
    except (OSError, ValueError): pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
os.kill(os.getpid(), signal.SIGUSR1)
"""),
    Leaver("timers", """
import ctypes, signal
for kind in range(3): signal.setitimer(kind, 100, 100)
signal.alarm(100)
for _ in range(50): ctypes.CDLL(None).timer_create(1, None, ctypes.byref(ctypes.c_void_p()))
"""),
    Leaver("low priority", "os.nice(19); os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"),
    Leaver("a score and a slack", """
import ctypes
ctypes.CDLL(None).prctl(29, 10 ** 9, 0, 0, 0)
for path in ('/proc/self/oom_score_adj', '/proc/1/oom_score_adj', '/proc/self/timerslack_ns'):
    try: open(path, 'w').write('1000')
    except OSError as error: print(error)
"""),
    Leaver("threads", """
import threading, time
threading.stack_size(1 << 16)
for _ in range(20): threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
"""),
    Leaver("many numbers of processes", """
import threading
for _ in range(300):
    thread = threading.Thread(target=int); thread.start(); thread.join()
"""),
    Leaver("a daemon", """
import time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(100)
    os._exit(0)
os.wait()
""", limits=SEVERAL),
    Leaver("orphans with signals of their own", """
import ctypes, signal, time
libc = ctypes.CDLL(None)
for parent in (0, 0x8000):  # its own children, and its parent's
    for number in (0, signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if libc.syscall(56, parent | number, 0, 0, 0, 0) == 0:
            time.sleep(0.01 if parent else 100)
            os._exit(0)
time.sleep(0.1)
""", limits=SEVERAL),
    Leaver("children that die when it dies", """
import ctypes, signal, time
for number in (1, 2, 15, 9):
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(1, number, 0, 0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(100)
""", limits=SEVERAL),
    Leaver("stopped children", """
import signal, time
for _ in range(4):
    child = os.fork()
    if child == 0: time.sleep(100)
    os.kill(child, signal.SIGSTOP)
""", limits=SEVERAL),
    Leaver("dead children", """
for _ in range(200):
    if os.fork() == 0:
        if os.fork() == 0: os._exit(0)
        os._exit(0)
    os.wait()
for _ in range(6):
    if os.fork() == 0: os._exit(0)
""", limits=SEVERAL),
    Leaver("processes that fork for ever", """
import time
for _ in range(3):
    try: child = os.fork()
    except OSError: break  # those that fork have taken all the room
    if child == 0:
        while True:
            try:
                if os.fork(): os._exit(0)
            except OSError: pass
time.sleep(0.1)
""", limits=SEVERAL),
    Leaver("a bomb that is ended", "while True:\n    try: os.fork()\n    except OSError: pass", limits=SHORT),
    Leaver("a spinning program that is ended", "open(MARK, 'w').write(MARK)\nwhile True: pass", limits=SHORT),
    Leaver("too much output", "while True: print(MARK * 1000)"),
    Leaver("too much memory", "open(MARK, 'w').write(MARK)\nx = bytearray(10 ** 10)", limits=LONG),
    Leaver("a crash", "import ctypes; open(MARK, 'w').write(MARK); ctypes.string_at(1)"),
    Leaver("a changed library", """
import builtins, gc, json, random, sys, decimal, locale, warnings
builtins.print_, builtins.open, builtins.len = print, None, lambda _: 0
json.loads = json.dumps = None
sys.modules[MARK] = sys; sys.path.insert(0, MARK); sys.setrecursionlimit(50); sys.setswitchinterval(5)
gc.disable(); gc.set_threshold(1); gc.unfreeze(); random.seed(1); decimal.getcontext().prec = 2
warnings.simplefilter('error'); os._exit_ = os._exit; sys.set_int_max_str_digits(0)
"""),
    Leaver("objects of the ipc namespace", """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for number, arguments in ((29, (77, 4096, 0o1666)), (64, (77, 1, 0o1666)), (68, (77, 0o1666)),
                          (29, (0, 4096, 0o600)), (240, (MARK.encode(), 0o102, 0o666, 0))):
    print(libc.syscall(number, *arguments), ctypes.get_errno())
"""),
    Leaver("keys", """
import ctypes
for ring in (-2, -3, -4, -5):
    print(ctypes.CDLL(None).syscall(248, b'user', MARK.encode(), b'x', 1, ring))
"""),
    Leaver("locks", """
import fcntl
file = open(os.__file__, 'rb')
for way in (fcntl.flock, fcntl.lockf):
    try: way(file, fcntl.LOCK_SH)
    except OSError as error: print(error)
"""),
    Leaver("a host name", "try:\n    __import__('socket').sethostname(MARK)\nexcept OSError as error: print(error)"),
    Leaver("files in flight", """
import socket
big = os.open('big', os.O_CREAT | os.O_RDWR)
for part in range(24): os.pwrite(big, bytes(1 << 20), part << 20)
left, right = socket.socketpair()
other, another = socket.socketpair()
socket.send_fds(left, [b'x'], [big, right.fileno(), other.fileno()])
socket.send_fds(other, [b'x'], [left.fileno(), another.fileno()])
""", in_kernel=True),
    Leaver("names that the kernel keeps", """
new = os.urandom(8).hex()
for number in range(30000):
    try: os.stat(f'/usr/lib/{number}{new}{"n" * 180}')
    except OSError: pass
""", in_kernel=True),
)  # fmt: skip

_FINDER = """
import sys
names = sorted(sys.modules)
import builtins, ctypes, gc, hashlib, json, random, resource, signal, threading, time, decimal, warnings
seen = {'modules': hashlib.sha256(' '.join(names).encode()).hexdigest()}
for place in ('/box', '/tmp', '/dev/shm'):
    at, room = os.stat(place), os.statvfs(place)
    seen[place] = [sorted(os.listdir(place)), at.st_mode, at.st_nlink, at.st_uid == os.getuid(),
                   at.st_gid == os.getgid(), at.st_size, at.st_ino,
                   os.listxattr(place), at.st_mtime > 2, room.f_bavail, room.f_favail]
seen['self'] = [os.getpid(), os.getppid(), os.getpgrp() == os.getsid(0), os.getcwd(), os.umask(0o22)]
seen['environment'] = sorted(os.environ.items())
seen['numbers'] = sorted(name for name in os.listdir('/proc') if name.isdigit())
seen['threads'] = [threading.active_count(), len(os.listdir('/proc/self/task'))]
seen['limits'] = [resource.getrlimit(kind) for kind in range(16) if kind != resource.RLIMIT_NPROC]
seen['priority'] = [os.getpriority(0, 0), os.sched_getscheduler(0), sorted(os.sched_getaffinity(0)),
                    ctypes.CDLL(None).prctl(30, 0, 0, 0, 0), open('/proc/self/oom_score_adj').read()]
seen['signals'] = [str(signal.getsignal(number)) for number in signal.valid_signals()]
seen['signals'] += [line for line in open('/proc/self/status') if line[:3] in ('Sig', 'Shd', 'Cap', 'NoN', 'Sec')]
seen['timers'] = [signal.getitimer(kind) for kind in range(3)]
seen['descriptors'] = [number for number in range(200) if os.path.lexists(f'/proc/self/fd/{number}')]
seen['children'] = list(resource.getrusage(resource.RUSAGE_CHILDREN)[:3])
seen['ipc'] = [len(open(f'/proc/sysvipc/{kind}').readlines()) for kind in ('shm', 'sem', 'msg')]
seen['host'] = os.uname().nodename
seen['mounts'] = sorted(line.split()[4:6] for line in open('/proc/self/mountinfo'))
seen['shared'] = [line for line in open('/proc/self/maps') if line.split()[1] in ('rw-s', '-w-s', 'rwxs')]
seen['library'] = [sorted(vars(builtins)), open.__name__, len('abc'), sorted(vars(os)), sys.path[1:],
                   sys.getrecursionlimit(), sys.getswitchinterval(), gc.isenabled(), gc.get_threshold(),
                   len(warnings.filters), decimal.getcontext().prec, sys.get_int_max_str_digits(),
                   json.dumps(json.loads('[1]'))]
open('/box/x', 'w').close()
seen['number of a file'] = os.stat('/box/x').st_ino
os.unlink('/box/x')
frames, frame = [], sys._getframe()
while frame:
    if 'child' in frame.f_locals: frames.append([frame.f_code.co_name, sorted(frame.f_locals)])
    frame = frame.f_back
seen['frames'] = frames
print(json.dumps([seen, random.random()]))
"""
