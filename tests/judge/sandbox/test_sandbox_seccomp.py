"""The assembled filter, run by a small interpreter of classic BPF: what each call gets, on both processors."""

from __future__ import annotations

import errno
import itertools
import struct

import pytest
from areal_judge.sandbox.kernel.bpf import ALLOW
from areal_judge.sandbox.kernel.seccomp import (
    AUDIT_ARCH,
    ERRNO,
    KILL_PROCESS,
    METADATA,
    NEWEST,
    REFUSED,
    SUCCEED,
    X32_BIT,
    Policy,
    number,
    program,
)

MACHINES = ("x86_64", "aarch64")
POLICIES = tuple(Policy(fork, execute) for fork, execute in itertools.product((False, True), repeat=2))
_INSTRUCTION = struct.Struct("=HBBI")
_MOST_INSTRUCTIONS = 4096  # the kernel's bound
EPERM = ERRNO | errno.EPERM
EAGAIN = ERRNO | errno.EAGAIN
ENOTTY = ERRNO | errno.ENOTTY
ENOSYS = ERRNO | errno.ENOSYS
EOPNOTSUPP = ERRNO | errno.EOPNOTSUPP


def decide(filtered: bytes, machine: str, call: int, *arguments: int, arch: int | None = None) -> int:
    """What the kernel would do: the semantics of seccomp's classic BPF over `struct seccomp_data`."""
    words = (*arguments, *[0] * (6 - len(arguments)))
    data = struct.pack("<IIQ6Q", call, AUDIT_ARCH[machine] if arch is None else arch, 0, *words)
    code = list(_INSTRUCTION.iter_unpack(filtered))
    at, accumulator = 0, 0
    while True:
        operation, true, false, operand = code[at]
        at += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, operand)
        elif operation == 0x54:
            accumulator &= operand
        elif operation == 0x06:
            return int(operand)
        elif operation == 0x05:
            at += operand
        else:
            holds = {
                0x15: accumulator == operand,
                0x25: accumulator > operand,
                0x35: accumulator >= operand,
                0x45: bool(accumulator & operand),
            }[operation]
            at += true if holds else false


def of(name: str, machine: str) -> int:
    found = number(name, machine)
    assert found is not None
    return found


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_path_ends_in_an_action_and_fits_the_kernels_bound(machine: str, policy: Policy) -> None:
    filtered = program(policy, machine)
    assert len(filtered) // 8 <= _MOST_INSTRUCTIONS
    for call in (*range(NEWEST + 2), X32_BIT, 0xFFFFFFFF):
        for argument in (0, 1, 2, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF):
            action = decide(filtered, machine, call, *[argument] * 6)
            assert action & 0xFFFF0000 in (ALLOW, ERRNO, KILL_PROCESS)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("policy", POLICIES)
def test_what_reaches_outside_is_refused_whatever_else_a_run_may(machine: str, policy: Policy) -> None:
    filtered = program(policy, machine)
    for name in itertools.chain.from_iterable(REFUSED.values()):
        found = number(name, machine)
        if found is not None:
            assert decide(filtered, machine, found) == EPERM, name


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_of_another_processor_end_the_process(machine: str) -> None:
    filtered = program(Policy(True, True), machine)
    for arch in (0x40000003, 0x40000028, *(one for one in AUDIT_ARCH.values() if one != AUDIT_ARCH[machine])):
        assert decide(filtered, machine, 0, arch=arch) == KILL_PROCESS


def test_calls_of_the_x32_table_do_not_exist() -> None:
    filtered = program(Policy(True, True), "x86_64")
    for call in (X32_BIT, X32_BIT | of("execve", "x86_64"), X32_BIT | 520):
        assert decide(filtered, "x86_64", call) == ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_newer_than_the_table_do_not_exist(machine: str) -> None:
    assert decide(program(Policy(True, True), machine), machine, NEWEST + 1) == ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
def test_clone_makes_threads_always_processes_where_asked_and_namespaces_never(machine: str) -> None:
    clone, thread, process = of("clone", machine), 0x003D0F00, 0x01200011
    one, many = program(Policy(), machine), program(Policy(fork=True), machine)
    assert decide(one, machine, clone, thread) == ALLOW
    assert decide(one, machine, clone, process) == EAGAIN
    assert decide(many, machine, clone, process) == ALLOW
    for flag in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert decide(many, machine, clone, process | flag) == EPERM
        assert decide(one, machine, clone, thread | flag) == EPERM
    assert decide(many, machine, of("clone3", machine)) == ENOSYS


def test_fork_and_vfork_follow_the_policy() -> None:
    for name in ("fork", "vfork"):
        call = of(name, "x86_64")
        assert decide(program(Policy(), "x86_64"), "x86_64", call) == EAGAIN
        assert decide(program(Policy(fork=True), "x86_64"), "x86_64", call) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_exec_follows_the_policy(machine: str) -> None:
    for name in ("execve", "execveat"):
        assert decide(program(Policy(), machine), machine, of(name, machine)) == EPERM
        assert decide(program(Policy(execute=True), machine), machine, of(name, machine)) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_only_connected_pairs_of_sockets_can_be_made(machine: str) -> None:
    filtered, pair = program(Policy(), machine), of("socketpair", machine)
    stream, datagram, raw, sequential = 1, 2, 3, 5
    for flags in (0, 0o2000000, 0o4000):
        assert decide(filtered, machine, pair, 1, stream | flags) == ALLOW
        assert decide(filtered, machine, pair, 1, sequential | flags) == ALLOW
        assert decide(filtered, machine, pair, 1, datagram | flags) == EPERM
        assert decide(filtered, machine, pair, 1, raw | flags) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_sending_needs_no_address(machine: str) -> None:
    filtered, sendto = program(Policy(), machine), of("sendto", machine)
    assert decide(filtered, machine, sendto, 3, 1, 1, 0, 0, 0) == ALLOW
    for address in (0x7FFF0000, 0x7FFF00000000, 1):
        assert decide(filtered, machine, sendto, 3, 1, 1, 0, address, 16) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_arguments_that_reach_others_are_refused(machine: str) -> None:
    filtered = program(Policy(), machine)
    refused = [
        ("ioctl", 0, 0x5412), ("ioctl", 0, 0x541C), ("fcntl", 3, 1024), ("prctl", 1, 0), ("prctl", 22, 2),
        ("prlimit64", 1, 0), ("sched_setaffinity", 1), ("setpriority", 0, 1), ("setpriority", 2, 0),
        ("mknodat", -100 & 0xFFFFFFFF, 0, 0x2000), ("mknodat", 0, 0, 0x6000), ("mknodat", 0, 0, 0xC000),
    ]  # fmt: skip
    allowed = [
        ("ioctl", 0, 0x5401), ("fcntl", 3, 1), ("fcntl", 3, 1030), ("prctl", 15, 0), ("prlimit64", 0, 7),
        ("sched_setaffinity", 0), ("setpriority", 0, 0), ("mknodat", 0, 0, 0x1000 | 0o600), ("mknodat", 0, 0, 0o600),
    ]  # fmt: skip
    for name, *arguments in refused:
        assert decide(filtered, machine, of(name, machine), *arguments) == EPERM, (name, arguments)
    for name, *arguments in allowed:
        assert decide(filtered, machine, of(name, machine), *arguments) == ALLOW, (name, arguments)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("machine", MACHINES)
def test_no_process_is_named_whom_the_kernel_signals(machine: str, policy: Policy) -> None:
    filtered = program(policy, machine)
    for command in (8, 10, 15):  # F_SETOWN, F_SETSIG, F_SETOWN_EX
        assert decide(filtered, machine, of("fcntl", machine), 3, command, 1) == EPERM
    for command in (0x8901, 0x8902):  # FIOSETOWN, SIOCSPGRP
        assert decide(filtered, machine, of("ioctl", machine), 3, command) == EPERM
    assert decide(filtered, machine, of("getsockopt", machine), 3, 1, 77) == EPERM
    assert decide(filtered, machine, of("setsockopt", machine), 3, 1, 76) == EPERM
    assert decide(filtered, machine, of("getsockopt", machine), 3, 1, 3) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_metadata_of_files_changes_only_behind_a_private_root(machine: str) -> None:
    ioctl = of("ioctl", machine)
    kept, private = program(Policy(), machine), program(Policy(metadata=True), machine)
    for name in METADATA:
        if (call := number(name, machine)) is not None:
            assert decide(kept, machine, call) == EPERM, name
            assert decide(private, machine, call) == ALLOW, name
    for command in (0x40086602, 0x401C5820, 0x40286685):  # flags, project, verity: all by a descriptor that only reads
        assert decide(kept, machine, ioctl, 3, command) == ENOTTY
        assert decide(private, machine, ioctl, 3, command) == ALLOW
    for command in (0x5401, 0x541B, 0x5421):  # is it a terminal, how much is there, non-blocking
        assert decide(kept, machine, ioctl, 3, command) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_what_of_a_file_is_in_memory_is_neither_told_nor_changed(machine: str) -> None:
    kept, private = program(Policy(), machine), program(Policy(metadata=True), machine)
    for filtered in (kept, private):
        assert decide(filtered, machine, of("preadv2", machine), 3, 1, 1, 0, 0, 8) == EOPNOTSUPP
        assert decide(filtered, machine, of("preadv2", machine), 3, 1, 1, 0, 0, 0) == ALLOW
        assert decide(filtered, machine, of("fadvise64", machine), 3, 0, 0, 4) == SUCCEED
        assert decide(filtered, machine, of("fadvise64", machine), 3, 0, 0, 2) == ALLOW
    assert decide(kept, machine, of("mincore", machine)) == EPERM
    assert decide(private, machine, of("mincore", machine)) == ALLOW
    for advice in (20, 21):
        assert decide(kept, machine, of("madvise", machine), 1, 4096, advice) == EPERM
    assert decide(kept, machine, of("madvise", machine), 1, 4096, 4) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_file_locks_carry_no_messages_between_runs(machine: str) -> None:
    fcntl = of("fcntl", machine)
    for command in (6, 7, 37, 38):
        assert decide(program(Policy(), machine), machine, fcntl, 3, command) == SUCCEED
        assert decide(program(Policy(fork=True), machine), machine, fcntl, 3, command) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_files_have_names(machine: str) -> None:
    filtered = program(Policy(fork=True, execute=True), machine)
    nameless, directory, create = 0x400000, 0x10000, 0o100
    for name, *before in (("open", 0), ("openat", -100 & 0xFFFFFFFF, 0)):
        if number(name, machine) is None:
            continue
        for flags in (nameless, nameless | directory | 2, nameless | 1):
            assert decide(filtered, machine, of(name, machine), *before, flags) == EOPNOTSUPP
        for flags in (0, directory, create | 2):
            assert decide(filtered, machine, of(name, machine), *before, flags) == ALLOW
    assert decide(filtered, machine, of("openat2", machine)) == ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
def test_signals_go_to_one_process_where_landlock_can_not_scope_them(machine: str) -> None:
    filtered = program(Policy(only_signal=1234), machine)
    for name in ("kill", "tgkill"):
        assert decide(filtered, machine, of(name, machine), 1234, 9) == ALLOW
        for other in (1, 0, 0xFFFFFFFF, 1235):
            assert decide(filtered, machine, of(name, machine), other, 9) == EPERM
    assert decide(filtered, machine, of("tkill", machine), 1234, 9) == EPERM
    assert decide(program(Policy(), machine), machine, of("kill", machine), 1, 9) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_what_ordinary_programs_need_is_allowed(machine: str) -> None:
    filtered = program(Policy(), machine)
    named = {of(name, machine) for names in REFUSED.values() for name in names if number(name, machine) is not None}
    # read, write, mmap, futex, openat, exit_group, getrandom, clock_gettime
    common = {"x86_64": (0, 1, 9, 202, 257, 231, 318, 228), "aarch64": (63, 64, 222, 98, 56, 94, 278, 113)}
    for call in common[machine]:
        assert call not in named
        assert decide(filtered, machine, call, 1, 2, 3, 4, 5, 6) == ALLOW
