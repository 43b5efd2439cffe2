"""Capabilities of the machine for making cells, found by trying. Values only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Means:
    """How this machine does each step. Found once by a zygote, in the place where its cells will be."""

    namespaces: bool = False  # of mounts and processes at least
    more_namespaces: int = 0  # flags of those that a cell gets beside these
    own_user: bool = False  # a uid a slot
    proc: bool = False  # a fresh /proc can be mounted
    count_inodes: bool = False  # tmpfs knows nr_inodes
    return_to_pid_namespace: bool = False  # setns back after a fork; otherwise a shim forks twice
    user_namespace: bool = False  # made by an ordinary user: no other uid, capabilities only inside
    own_tasks: bool = False  # in a user namespace of its own, a program's tasks are counted apart from its neighbours'
    bounding: bool = False  # CAP_SETPCAP: capabilities can be given up for good
    sealed_ipc: bool = False  # an ipc namespace can be told to hold nothing; otherwise each program gets a new one
    shows_changes: bool = False  # directories tell every change in them, so an untouched scratch can serve again
    landlock_abi: int = 0
    limits: tuple[int, ...] = ()  # kinds of rlimits that can be set
    seccomp: bool = True
