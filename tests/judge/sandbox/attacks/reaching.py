"""Attacks that read or reach what is outside the run: files, secrets, other runs, the network."""

from __future__ import annotations

from sandbox.attacks.isolation_attack import RAW, isolation
from sandbox.attacks.table import Attack, Seen

REACHING: tuple[Attack, ...] = (
    isolation(
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
    isolation(
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
    isolation(
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
    isolation(
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
    isolation(
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
    isolation(
        "guesses_process_numbers", "arguments of processes outside are read without listing /proc", Seen.SECRET,
        ("namespaces", "landlock"), """
for pid in range(1, 2000):
    try:
        print(open(f"/proc/{pid}/cmdline", "rb").read(), open(f"/proc/{pid}/task/{pid}/environ", "rb").read())
    except OSError:
        pass
"""),
    isolation(
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
    isolation(
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
    isolation(
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
    isolation(
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
    isolation(
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
    isolation(
        "opens_strange_sockets", "sockets of other families can be made", Seen.REACHED, ("seccomp",), RAW + """
import socket
for family in (16, 17, 38, 40, 31, 29, 15, 44, 41, 21):  # netlink, packet, alg, vsock, bluetooth, can, key, xdp, …
    for kind in (socket.SOCK_RAW, socket.SOCK_DGRAM, socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        try:
            socket.socket(family, kind).close()
            print("REACHED family", family)
        except OSError:
            pass
"""),
)  # fmt: skip
