"""Files of a run: laid out before it, quotas while it runs, brought back after it."""

from __future__ import annotations

from pathlib import Path

import pytest
from areal_judge.sandbox.host.runner import Sandbox, SandboxRefusalError
from areal_judge.sandbox.values import Ending, ImageCommand, Limits, ProgramRun, PythonScript

pytestmark = [pytest.mark.component, pytest.mark.asyncio(loop_scope="module")]

LIMITS = Limits(wall_s=20, cpu_s=10)


async def test_files_are_laid_out_below_the_working_directory(namespaced: Sandbox) -> None:
    source = "import os\nprint(open('a.txt').read(), open('d/e/b.txt').read(), sorted(os.listdir('.')))"
    ended = await namespaced.run(
        ProgramRun(PythonScript(source), files={"a.txt": b"A", "d/e/b.txt": b"B"}, limits=LIMITS)
    )
    assert ended.stdout == b"A B ['a.txt', 'd']\n"


async def test_modules_beside_a_script_can_be_imported(namespaced: Sandbox) -> None:
    ended = await namespaced.run(ProgramRun(PythonScript("import other; print(other.x)"), files={"other.py": b"x = 5"}))
    assert ended.stdout == b"5\n"


async def test_only_named_files_are_executable(namespaced: Sandbox) -> None:
    files = {"yes": b"#!/bin/sh\necho ran", "no": b"#!/bin/sh\necho ran"}
    ended = await namespaced.run(ProgramRun(ImageCommand(("./yes",)), files=files, executable=("yes",), limits=LIMITS))
    assert ended.stdout == b"ran\n"
    refused = await namespaced.run(ProgramRun(ImageCommand(("./no",)), files=files, executable=("yes",), limits=LIMITS))
    assert refused.exit_code == 127


async def test_kept_files_come_back(namespaced: Sandbox) -> None:
    source = "import os\nos.mkdir('d')\nopen('a', 'w').write('1')\nopen('d/b', 'wb').write(bytes(10 ** 6))"
    ended = await namespaced.run(ProgramRun(PythonScript(source), keep=("a", "d/b", "missing"), limits=LIMITS))
    assert dict(ended.files) == {"a": b"1", "d/b": bytes(10**6)}


async def test_kept_files_come_back_from_a_killed_run(namespaced: Sandbox) -> None:
    source = "open('a', 'w').write('1')\nwhile True: pass"
    ended = await namespaced.run(ProgramRun(PythonScript(source), keep=("a",), limits=Limits(wall_s=1.0)))
    assert (ended.ending, dict(ended.files)) == (Ending.WALL_LIMIT, {"a": b"1"})


async def test_nothing_is_brought_back_through_a_link_or_from_what_is_no_file(namespaced: Sandbox) -> None:
    source = """
import os
os.symlink('/etc/passwd', 'link')
os.symlink('/etc', 'dir')
os.symlink('/proc/1/environ', 'proc')
os.mkfifo('fifo')
os.mkdir('directory')
open('secret', 'w').write('x'); os.chmod('secret', 0)
"""
    keep = ("link", "dir/passwd", "proc", "fifo", "directory", "secret")
    ended = await namespaced.run(ProgramRun(PythonScript(source), keep=keep, limits=LIMITS))
    assert ended.clean, ended.stderr
    assert dict(ended.files) == {}


async def test_what_is_too_large_to_keep_stays(namespaced: Sandbox) -> None:
    source = "for name in 'ab': open(name, 'w').truncate(3 << 19)"
    limits = Limits(wall_s=20, cpu_s=10, disk_bytes=2 << 20)
    ended = await namespaced.run(ProgramRun(PythonScript(source), keep=("a", "b"), limits=limits))
    assert {name: len(data) for name, data in ended.files.items()} == {"a": 3 << 19}


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "", "a//b", "."])
async def test_paths_outside_the_scratch_are_refused(namespaced: Sandbox, path: str) -> None:
    with pytest.raises(SandboxRefusalError):
        await namespaced.run(ProgramRun(PythonScript("pass"), files={path: b""}))
    with pytest.raises(SandboxRefusalError):
        await namespaced.run(ProgramRun(PythonScript("pass"), keep=(path,)))


async def test_files_larger_than_the_disk_are_refused(namespaced: Sandbox) -> None:
    with pytest.raises(SandboxRefusalError, match="disk limit"):
        await namespaced.run(ProgramRun(PythonScript("pass"), files={"a": bytes(4096)}, limits=Limits(disk_bytes=1024)))


@pytest.mark.parametrize("place", [".", "/tmp", "/dev/shm"])
async def test_a_full_disk_is_said_so(namespaced: Sandbox, place: str) -> None:
    source = f"f = open('{place}/big', 'wb')\nwhile True: f.write(bytes(1 << 20))"
    ended = await namespaced.run(
        ProgramRun(PythonScript(source), limits=Limits(wall_s=20, cpu_s=10, disk_bytes=8 << 20))
    )
    assert ended.ending is Ending.DISK_LIMIT


async def test_all_places_to_write_share_one_quota(namespaced: Sandbox) -> None:
    source = "for place in ('.', '/tmp', '/dev/shm'): open(place + '/f', 'wb').write(bytes(3 << 20))"
    ended = await namespaced.run(
        ProgramRun(PythonScript(source), limits=Limits(wall_s=20, cpu_s=10, disk_bytes=8 << 20))
    )
    assert ended.ending is Ending.DISK_LIMIT


async def test_names_run_out_too(namespaced: Sandbox) -> None:
    if not any(probe.name == "quota_inodes" and probe.held for probe in namespaced.powers.probes):
        pytest.skip("this kernel counts no inodes")
    source = "for n in range(10 ** 6): open(f'f{n}', 'w').close()"
    ended = await namespaced.run(ProgramRun(PythonScript(source), limits=Limits(wall_s=20, cpu_s=10, inodes=500)))
    assert ended.ending is Ending.DISK_LIMIT


async def test_a_program_may_clean_up_after_a_full_disk(namespaced: Sandbox) -> None:
    source = "import os\ntry: open('f', 'wb').write(bytes(64 << 20))\nexcept OSError: os.unlink('f'); print('fine')"
    ended = await namespaced.run(
        ProgramRun(PythonScript(source), limits=Limits(wall_s=20, cpu_s=10, disk_bytes=8 << 20))
    )
    assert (ended.clean, ended.stdout) == (True, b"fine\n")


async def test_a_scratch_that_is_not_writable_can_be_read_only(namespaced: Sandbox) -> None:
    source = """
print(open('a').read())
import os
for act in (lambda: open('b', 'w'), lambda: open('a', 'w'), lambda: os.mkdir('d'), lambda: os.unlink('a'),
            lambda: open('/tmp/x', 'w'), lambda: os.rename('a', 'c'), lambda: os.truncate('a', 0)):
    try: act()
    except OSError: print('no')
"""
    ended = await namespaced.run(ProgramRun(PythonScript(source), files={"a": b"A"}, writable=False, limits=LIMITS))
    assert ended.stdout == b"A\n" + b"no\n" * 7


async def test_a_directory_tree_too_deep_to_walk_harms_nobody(namespaced: Sandbox) -> None:
    source = "import os\nfor _ in range(3000):\n    os.mkdir('d'); os.chdir('d')\nprint('deep')"
    limits = Limits(wall_s=20, cpu_s=10)
    ended = await namespaced.run(ProgramRun(PythonScript(source), keep=("d/d/d/x",), limits=limits))
    assert (ended.clean, ended.stdout) == (True, b"deep\n")
    again = await namespaced.run(ProgramRun(PythonScript("import os; print(os.listdir('.'))")))
    assert again.stdout == b"[]\n"


async def test_nothing_of_a_run_is_there_for_the_next(namespaced: Sandbox) -> None:
    write = "for place in ('.', '/tmp', '/dev/shm'): open(place + '/left', 'w').write('x')"
    assert (await namespaced.run(ProgramRun(PythonScript(write), limits=LIMITS))).clean
    look = "import os\nprint([os.listdir(place) for place in ('.', '/tmp', '/dev/shm')])"
    for _ in range(4):
        assert (await namespaced.run(ProgramRun(PythonScript(look), limits=LIMITS))).stdout == b"[[], [], []]\n"


async def test_the_rest_of_the_file_system_is_read_only_and_not_the_machines(
    namespaced: Sandbox, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hidden")
    source = f"""
import os
for path in ({str(secret)!r}, '/etc/shadow', '/root/.ssh', '/var', '/home', '/sys/kernel', '/.old'):
    if os.path.exists(path): print('sees', path)
for path in ('/x', '/usr/x', '/etc/x', '/dev/x', '/proc/self/oom_score_adj', '/box/../x'):
    try: open(path, 'w'); print('writes', path)
    except OSError: pass
"""
    ended = await namespaced.run(ProgramRun(PythonScript(source), limits=LIMITS))
    assert (ended.clean, ended.stdout) == (True, b""), ended.stderr


async def test_temporary_files_work(namespaced: Sandbox) -> None:
    source = "import tempfile\nwith tempfile.TemporaryDirectory() as d: open(d + '/x', 'w').write('1'); print('fine')"
    assert (await namespaced.run(ProgramRun(PythonScript(source), limits=LIMITS))).stdout == b"fine\n"
