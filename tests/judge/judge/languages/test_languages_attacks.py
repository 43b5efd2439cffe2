"""Programs of every language that attack the machine: what they were after is looked at from outside."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
import pytest_asyncio
from areal_judge.judge.languages.preparation import PreparedFiles
from areal_judge.sandbox.host.runner import Sandbox
from areal_judge.sandbox.values import DEFAULT_LIMITS
from judge.languages.conftest import Start

pytestmark = [pytest.mark.component, pytest.mark.nightly, pytest.mark.asyncio(loop_scope="module")]
LIMITS = replace(DEFAULT_LIMITS, wall_s=8.0, cpu_s=1.0, memory_bytes=256 << 20)
BRIEF = replace(LIMITS, wall_s=1.5)  # for programs that only wait to be ended
SECRET = "areal-canary-902b11"


@pytest.fixture(scope="module")
def canary() -> Iterator[Path]:
    path = Path("/var/tmp") / f"areal-canary-run-{os.getpid()}"
    path.write_text(SECRET)
    path.chmod(0o666)
    yield path
    path.unlink()


class Listener:
    """A service on loopback that counts its visitors."""

    def __init__(self) -> None:
        self.visitors = 0
        self.port = 0

    async def hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.visitors += 1
        writer.close()


@pytest_asyncio.fixture(loop_scope="module")
async def listener() -> AsyncIterator[Listener]:
    made = Listener()
    server = await asyncio.start_server(made.hear, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    yield made
    server.close()
    await server.wait_closed()


@pytest.fixture
def victim() -> Iterator[psutil.Process]:
    """A process outside, of the very user that cells have where they have their own."""
    user = 200000 if os.geteuid() == 0 else None
    argv = ["/bin/sleep", "120"]
    with subprocess.Popen(argv, user=user, start_new_session=True) as process:
        yield psutil.Process(process.pid)
        process.kill()


@pytest.fixture
def mark() -> str:
    return f"areal-mark-{uuid4().hex[:12]}"


def marked(mark: str) -> list[int]:
    """Processes anywhere on the machine that carry the mark."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "name"]):
        words = " ".join([*(process.info["cmdline"] or []), process.info["name"] or ""])
        if mark in words and process.info["pid"] != os.getpid():
            found.append(process.info["pid"])
    return found


READERS = {
    "c": """#include <stdio.h>
int main(void) {{ int c; FILE *f = fopen("{path}", "r"); while (f && (c = getc(f)) > 0) putchar(c); }}""",
    "cpp": '#include <fstream>\n#include <iostream>\nint main() {{ std::cout << std::ifstream("{path}").rdbuf(); }}',
    "javascript": 'console.log(require("fs").readFileSync("{path}", "utf8"));',
    "bash": 'cat "{path}"; echo "$(<"{path}")"; echo owned > "{path}"',
    "java": "class M {{ public static void main(String[] a) throws Exception {{ System.out.println("
    'java.nio.file.Files.readString(java.nio.file.Path.of("{path}"))); }} }}',
    "go": 'package main\nimport ("fmt"; "os")\nfunc main() {{ b, _ := os.ReadFile("{path}"); fmt.Println(string(b)) }}',
    "rust": 'fn main() {{ println!("{{:?}}", std::fs::read_to_string("{path}")); }}',
}


@pytest.mark.parametrize("language", READERS)
async def test_no_program_reads_or_writes_a_file_of_the_machine(start: Start, canary: Path, language: str) -> None:
    ended = await start(language, READERS[language].format(path=canary), limits=LIMITS)
    assert SECRET.encode() not in ended.stdout + ended.stderr
    assert canary.read_text() == SECRET  # noqa: ASYNC240


VISITORS = {
    "c": """#include <arpa/inet.h>
#include <sys/socket.h>
int main(void) {{
    struct sockaddr_in there = {{AF_INET, htons({port}), {{htonl(0x7f000001)}}}};
    return connect(socket(AF_INET, SOCK_STREAM, 0), (struct sockaddr *)&there, sizeof there);
}}""",
    "javascript": 'require("net").connect({port}, "127.0.0.1").on("error", (e) => console.log(e.code));',
    "bash": "exec 3<>/dev/tcp/127.0.0.1/{port}; echo hello >&3",
    "java": """class M {{ public static void main(String[] a) throws Exception {{
  new java.net.Socket("127.0.0.1", {port}); }} }}""",
    "go": """package main
import "syscall"
func main() {{
    s, _ := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
    println(syscall.Connect(s, &syscall.SockaddrInet4{{Port: {port}, Addr: [4]byte{{127, 0, 0, 1}}}}))
}}""",
    "rust": 'fn main() {{ println!("{{:?}}", std::net::TcpStream::connect("127.0.0.1:{port}").is_ok()); }}',
}


@pytest.mark.parametrize("language", VISITORS)
async def test_no_program_reaches_a_service_of_the_machine(start: Start, listener: Listener, language: str) -> None:
    ended = await start(language, VISITORS[language].format(port=listener.port), limits=LIMITS)
    await asyncio.open_connection("127.0.0.1", listener.port)  # the listener does hear
    async with asyncio.timeout(5):
        while listener.visitors == 0:  # noqa: ASYNC110  (counted by the server's own task)
            await asyncio.sleep(0.01)
    assert listener.visitors == 1, ended


KILLERS = {
    "c": "#include <signal.h>\nint main(void) {{ for (int i = 1; i < 9; i++) kill(-1, 9); kill({pid}, 9); return 0; }}",
    "bash": "kill -9 {pid}; kill -9 -1",
    "javascript": "try {{ process.kill({pid}, 9) }} catch (e) {{ console.log(e.code) }}\nprocess.kill(-1, 9);",
    "go": 'package main\nimport "syscall"\nfunc main() {{ syscall.Kill({pid}, 9); syscall.Kill(-1, 9) }}',
    "ptrace": "#include <sys/ptrace.h>\nint main(void) {{ return !ptrace(PTRACE_ATTACH, {pid}, 0, 0); }}",
}


@pytest.mark.parametrize("name", KILLERS)
async def test_no_program_ends_or_stops_a_process_outside(
    start: Start, cells: Sandbox, victim: psutil.Process, name: str
) -> None:
    language = "c" if name == "ptrace" else name
    restarts = cells.counters().zygote_restarts
    await start(language, KILLERS[name].format(pid=victim.pid), limits=LIMITS)
    assert victim.status() == psutil.STATUS_SLEEPING
    assert cells.counters().zygote_restarts == restarts
    assert (await start("python", "print(1)")).stdout == b"1\n"


BREEDERS = {
    "c": """#include <unistd.h>
#include <sys/prctl.h>
int main(void) {{ prctl(PR_SET_NAME, "{name}"); for (int i = 0; i < 1000; i++) fork(); sleep(60); }}""",
    "bash": ":() {{ : | : & }}; : & for i in $(seq 50); do (exec -a {mark} sleep 60) & done; wait",
    "javascript": """const {{ spawn }} = require("child_process");
for (let i = 0; i < 100; i++) {{
  const how = {{ argv0: "{mark}", detached: true, stdio: "ignore" }};
  try {{ spawn("/bin/sleep", ["60"], how).on("error", () => 0).unref(); }} catch (e) {{}}
}}""",
    "java": """class M {{ public static void main(String[] a) throws Exception {{
  for (int i = 0; i < 100; i++) try {{ new ProcessBuilder("/bin/sh", "-c", "exec -a {mark} sleep 60").start(); }}
  catch (Exception e) {{}} }} }}""",
    "go": """package main
import ("os/exec"; "syscall")
func main() {{ for i := 0; i < 100; i++ {{
  c := exec.Command("/bin/sleep", "60"); c.Args[0] = "{mark}"
  c.SysProcAttr = &syscall.SysProcAttr{{Setsid: true}}; c.Start() }} }}""",
}


@pytest.mark.parametrize("language", BREEDERS)
async def test_nothing_that_a_program_started_outlives_it(start: Start, mark: str, language: str) -> None:
    began = time.monotonic()
    source = BREEDERS[language].format(mark=mark, name=mark[-15:])
    ended = await start(language, source, limits=BRIEF)
    assert marked(mark[-15:]) == []
    assert time.monotonic() - began < 60, ended
    assert (await start("python", "print(1)")).stdout == b"1\n"


CROWDS = {
    "java": "class M { public static void main(String[] a) { for (;;) new Thread(() -> { try { Thread.sleep(60000); }"
    " catch (Exception e) { } }).start(); } }",
    "rust": "fn main() { loop { std::thread::Builder::new().spawn(|| std::thread::sleep("
    "std::time::Duration::from_secs(60))).unwrap(); } }",
    "javascript": 'const { Worker } = require("worker_threads");\n'
    'for (let i = 0; i < 500; i++) new Worker("setInterval(() => 0, 1000)", { eval: true });',
}


@pytest.mark.parametrize("language", CROWDS)
async def test_threads_without_end_are_bounded(start: Start, language: str) -> None:
    peak = 0
    before = psutil.pids()

    async def watch() -> None:
        nonlocal peak
        while True:
            threads = 0
            for pid in set(psutil.pids()) - set(before):
                with contextlib.suppress(psutil.Error):
                    threads = max(threads, psutil.Process(pid).num_threads())
            peak = max(peak, threads)
            await asyncio.sleep(0.05)

    watching = asyncio.ensure_future(watch())
    try:
        ended = await start(language, CROWDS[language], limits=BRIEF)
    finally:
        watching.cancel()
    assert not ended.clean, ended
    assert peak <= 100


async def test_a_program_sees_nothing_of_the_services_environment(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AREAL_CANARY", SECRET)
    ended = await start("bash", "env; cat /proc/*/environ | tr '\\0' '\\n'", limits=LIMITS)
    assert b"LANG=C.UTF-8" in ended.stdout
    assert SECRET.encode() not in ended.stdout


async def test_a_program_can_not_change_what_others_compile_with(start: Start, store: PreparedFiles) -> None:
    place = store.path
    before = sorted(path.name for path in place.iterdir())
    source = f"rm -rf {place}/* ; touch {place}/x; for d in {place}/*; do echo > $d/importcfg; done; ls {place}"
    ended = await start("bash", source, limits=LIMITS)
    assert ended.stdout, "the store can't even be seen"
    assert sorted(path.name for path in place.iterdir()) == before
    assert all((path / ".done").exists() for path in place.iterdir())
