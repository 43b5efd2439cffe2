"""What commands of one box share, and what each of them can't take from the next."""

from __future__ import annotations

import pytest
from areal.clients.boxes import Box, BoxClient, BoxLimits
from areal.values.boxes import CommandEnding

pytestmark = [pytest.mark.component, pytest.mark.asyncio(loop_scope="module")]
LONG_S = 120.0  # no test waits for it


async def test_a_shell_keeps_directory_variables_and_functions(box: Box) -> None:
    first = await box.bash(
        'mkdir -p a && cd a && export OUT=1 && inner=2; f() { echo "f $1"; }; declare -A m; m[k]=3', timeout_s=LONG_S
    )
    assert (first.code, first.output, first.state_lost) == (0, b"", False)
    second = await box.bash('echo "$PWD $OUT $inner ${m[k]}"; f 4; false', timeout_s=LONG_S)
    assert (second.ending, second.code) == (CommandEnding.EXITED, 1)
    assert second.output == b"/box/a 1 2 3\nf 4\n"


async def test_an_interpreter_keeps_names_and_shows_a_last_value(box: Box) -> None:
    await box.python("import math\nx = 20", timeout_s=LONG_S)
    shown = await box.python("x += 1\nprint('said')\nmath.floor(x / 2)", timeout_s=LONG_S)
    assert (shown.code, shown.output) == (0, b"said\n10\n")


async def test_an_exception_is_shown_without_our_frames_and_costs_nothing(box: Box) -> None:
    await box.python("kept = 5", timeout_s=LONG_S)
    failed = await box.python("def g():\n    return 1 / 0\ng()", timeout_s=LONG_S)
    assert failed.code == 1
    assert b"ZeroDivisionError" in failed.output
    assert b"return 1 / 0" in failed.output
    assert b"interpreter.py" not in failed.output
    assert (await box.python("def broken(:", timeout_s=LONG_S)).output.count(b"File") == 1
    assert (await box.python("raise SystemExit(7)", timeout_s=LONG_S)).code == 7
    assert (await box.python("kept", timeout_s=LONG_S)).output == b"5\n"


async def test_shell_and_interpreter_share_files(box: Box) -> None:
    await box.write("pkg/one.py", "value = 41\n")
    changed = await box.bash("sed -i s/41/42/ pkg/one.py && python3 -c 'import pkg.one; print(pkg.one.value)'",
                             timeout_s=LONG_S)  # fmt: skip
    assert changed.output == b"42\n"
    assert (await box.python("import pkg.one; pkg.one.value", timeout_s=LONG_S)).output == b"42\n"
    assert await box.read("pkg/one.py") == b"value = 42\n"


async def test_files_that_can_t_be_had_are_refused_in_words(box: Box) -> None:
    await box.bash("mkfifo pipe; mkdir dir", timeout_s=LONG_S)
    for path, words in (("none", "No such file"), ("dir", "regular"), ("pipe", "regular"), ("/dev/zero", "regular")):
        with pytest.raises(FileNotFoundError, match=words):
            await box.read(path)
    await box.write("long", b"x" * 100)
    with pytest.raises(FileNotFoundError, match="longer than 99 bytes"):
        await box.read("long", most_bytes=99)
    with pytest.raises(OSError, match=r"Permission denied|Read-only"):
        await box.write("/usr/bin/mine", b"")


async def test_a_command_past_its_time_ends_and_the_next_has_directory_and_exports(box: Box) -> None:
    await box.bash("mkdir -p deep && cd deep && export KEPT=1", timeout_s=LONG_S)
    late = await box.bash("echo begun; sleep 1000 & sleep 1000", timeout_s=1.0)
    assert late.ending is CommandEnding.TIME_LIMIT
    assert late.output == b"begun\n"
    assert late.state_lost
    after = await box.bash("echo $PWD $KEPT; pgrep -c sleep", timeout_s=LONG_S)
    assert after.output == b"/box/deep 1\n0\n"


async def test_an_interrupted_interpreter_keeps_its_state(box: Box) -> None:
    await box.python("kept = 'still'", timeout_s=LONG_S)
    late = await box.python("while True:\n    pass", timeout_s=1.0)
    assert late.ending is CommandEnding.TIME_LIMIT
    assert not late.state_lost
    assert (await box.python("kept", timeout_s=LONG_S)).output == b"'still'\n"


async def test_an_interpreter_that_won_t_stop_is_ended_and_the_shell_is_spared(box: Box) -> None:
    await box.bash("inner=here", timeout_s=LONG_S)
    source = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True:\n    pass"
    late = await box.python(source, timeout_s=1.0)
    assert (late.ending, late.state_lost) == (CommandEnding.TIME_LIMIT, True)
    assert (await box.bash("echo $inner", timeout_s=LONG_S)).output == b"here\n"
    assert (await box.python("1 + 1", timeout_s=LONG_S)).output == b"2\n"


async def test_an_exit_ends_the_shell_with_its_code(box: Box) -> None:
    gone = await box.bash("export KEPT=2; exit 3", timeout_s=LONG_S)
    assert (gone.ending, gone.code, gone.state_lost) == (CommandEnding.EXITED, 3, True)
    killed = await box.bash("kill -9 $$", timeout_s=LONG_S)
    assert (killed.ending, killed.code, killed.state_lost) == (CommandEnding.SIGNALED, 9, True)
    assert (await box.bash("echo again", timeout_s=LONG_S)).output == b"again\n"


@pytest.mark.parametrize("broken", ["echo 'open", "if true", "(", "}", "<<E", 'echo "${"'])
async def test_a_command_that_is_no_bash_costs_no_state(box: Box, broken: str) -> None:
    await box.bash("inner=kept", timeout_s=LONG_S)
    await box.bash(broken, timeout_s=LONG_S)
    after = await box.bash("echo $inner", timeout_s=LONG_S)
    assert after.output == b"kept\n"


async def test_a_command_s_input_is_empty(box: Box) -> None:
    assert (await box.bash("cat; read x; echo $?", timeout_s=LONG_S)).output == b"1\n"
    assert (await box.python("import sys\nsys.stdin.read()", timeout_s=LONG_S)).output == b"''\n"


async def test_what_is_left_in_the_background_keeps_no_command_waiting(box: Box) -> None:
    assert (await box.bash("sleep 1000 & echo on", timeout_s=LONG_S)).output == b"on\n"
    assert (await box.bash("kill %1 && echo off", timeout_s=LONG_S)).output == b"off\n"


async def test_long_output_loses_its_middle(box: Box) -> None:
    said = await box.bash("echo begin; head -c 300000 /dev/zero | tr '\\0' x; echo; echo end", timeout_s=LONG_S,
                          output_bytes=1000)  # fmt: skip
    assert said.output.startswith(b"begin\nxxx")
    assert said.output.endswith(b"xxx\nend\n")
    assert said.left_out_bytes == 300_000 + 11 - 1000
    assert len(said.output) < 1100


async def test_two_boxes_share_nothing(client: BoxClient, box: Box) -> None:
    await box.bash("echo secret > mine; echo secret > /tmp/mine; sleep 1000 &", timeout_s=LONG_S)
    async with client.box(work_s=600) as other:
        seen = await other.bash("ls -A /box /tmp | grep mine; pgrep -c sleep", timeout_s=LONG_S)
    assert seen.output == b"0\n"


async def test_a_box_has_no_network_and_not_the_service_s_environment(box: Box) -> None:
    tried = await box.python("import socket, os\ntry:\n    socket.socket()\nexcept OSError as error:\n    print(error)",
                             timeout_s=LONG_S)  # fmt: skip
    assert b"not permitted" in tried.output
    assert b"TOKEN" not in (await box.bash("env", timeout_s=LONG_S)).output


async def test_limits_hold_over_all_commands_of_a_box(client: BoxClient) -> None:
    limits = BoxLimits(disk_bytes=4 << 20, processes=16)
    async with client.box(work_s=600, limits=limits) as small:
        await small.bash("head -c 3000000 /dev/zero > one", timeout_s=LONG_S)
        full = await small.bash("head -c 3000000 /dev/zero > two", timeout_s=LONG_S)
        assert b"No space left" in full.output
        many = await small.bash("for i in $(seq 40); do sleep 1000 & done; echo made", timeout_s=LONG_S)
        assert b"Resource temporarily unavailable" in many.output
