"""Numbers of the system calls that the filter names, on both processors. Taken from the kernel's own headers."""

from __future__ import annotations

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32_BIT = 0x40000000
NEWEST = 463  # of the kernel's table when this one was made; what came later is unknown here and is refused

# name: (x86_64, aarch64); -1 where the processor has no such call
_NUMBERS = {
    "_sysctl": (156, -1), "accept": (43, 202), "accept4": (288, 242), "acct": (163, 89), "add_key": (248, 217),
    "adjtimex": (159, 171), "afs_syscall": (183, -1), "bind": (49, 200), "bpf": (321, 280), "chroot": (161, 51),
    "clock_adjtime": (305, 266), "clock_settime": (227, 112), "clone": (56, 220), "clone3": (435, 435),
    "connect": (42, 203), "create_module": (174, -1), "delete_module": (176, 106), "epoll_ctl_old": (214, -1),
    "epoll_wait_old": (215, -1), "execve": (59, 221), "execveat": (322, 281), "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263), "fcntl": (72, 25), "finit_module": (313, 273), "flock": (73, 32), "fork": (57, -1),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fsopen": (430, 430), "fspick": (433, 433),
    "futex_waitv": (449, 449), "get_kernel_syms": (177, -1), "getpmsg": (181, -1), "init_module": (175, 105),
    "io_cancel": (210, 3), "io_destroy": (207, 1), "io_getevents": (208, 4), "io_pgetevents": (333, 292),
    "io_setup": (206, 0), "io_submit": (209, 2), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425), "ioctl": (16, 29), "ioperm": (173, -1), "iopl": (172, -1), "ioprio_set": (251, 30),
    "kcmp": (312, 272), "kexec_file_load": (320, 294), "kexec_load": (246, 104), "keyctl": (250, 219),
    "kill": (62, 129), "landlock_create_ruleset": (444, 444), "listen": (50, 201), "lookup_dcookie": (212, 18),
    "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "migrate_pages": (256, 238), "mknod": (133, -1), "mknodat": (259, 33),
    "modify_ldt": (154, -1), "mount": (165, 40), "mount_setattr": (442, 442), "move_mount": (429, 429),
    "move_pages": (279, 239), "mq_getsetattr": (245, 185), "mq_notify": (244, 184), "mq_open": (240, 180),
    "mq_timedreceive": (243, 183), "mq_timedsend": (242, 182), "mq_unlink": (241, 181), "msgctl": (71, 187),
    "msgget": (68, 186), "msgrcv": (70, 188), "msgsnd": (69, 189), "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42), "open": (2, -1), "openat": (257, 56), "openat2": (437, 437),
    "open_by_handle_at": (304, 265), "open_tree": (428, 428), "perf_event_open": (298, 241),
    "personality": (135, 92), "pidfd_getfd": (438, 438), "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424),
    "pivot_root": (155, 41), "prctl": (157, 167), "prlimit64": (302, 261), "process_madvise": (440, 440),
    "process_mrelease": (448, 448), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "ptrace": (101, 117), "putpmsg": (182, -1), "query_module": (178, -1), "quotactl": (179, 60),
    "quotactl_fd": (443, 443), "reboot": (169, 142), "request_key": (249, 218), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "sched_setaffinity": (203, 122), "sched_setattr": (314, 274),
    "sched_setparam": (142, 118), "sched_setscheduler": (144, 119), "seccomp": (317, 277), "security": (185, -1),
    "semctl": (66, 191), "semget": (64, 190), "semop": (65, 193), "semtimedop": (220, 192), "sendto": (44, 206),
    "set_mempolicy_home_node": (450, 450), "setdomainname": (171, 162), "setfsgid": (123, 152),
    "setfsuid": (122, 151), "setgid": (106, 144), "setgroups": (116, 159), "sethostname": (170, 161),
    "setns": (308, 268), "setpriority": (141, 140), "setregid": (114, 143), "setresgid": (119, 149),
    "setresuid": (117, 147), "setreuid": (113, 145), "settimeofday": (164, 170), "setuid": (105, 146),
    "shmat": (30, 196), "shmctl": (31, 195), "shmdt": (67, 197), "shmget": (29, 194), "socket": (41, 198),
    "socketpair": (53, 199), "swapoff": (168, 225), "swapon": (167, 224), "symlink": (88, -1), "sysfs": (139, -1),
    "syslog": (103, 116), "tgkill": (234, 131), "tkill": (200, 130), "tuxcall": (184, -1), "umount": (166, 39),
    "unshare": (272, 97), "uselib": (134, -1), "userfaultfd": (323, 282), "ustat": (136, -1), "vfork": (58, -1),
    "vhangup": (153, 58), "vmsplice": (278, 75), "vserver": (236, -1),
    "cachestat": (451, 451), "map_shadow_stack": (453, 453), "getsockopt": (55, 209), "setsockopt": (54, 208),
    "chmod": (90, -1), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, -1),
    "fchown": (93, 55), "lchown": (94, -1), "fchownat": (260, 54), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "setxattrat": (463, 463), "removexattr": (197, 14), "lremovexattr": (198, 15),
    "fremovexattr": (199, 16), "utime": (132, -1), "utimes": (235, -1), "futimesat": (261, -1),
    "utimensat": (280, 88), "inotify_init": (253, -1), "inotify_init1": (294, 26), "inotify_add_watch": (254, 27),
    "preadv2": (327, 286), "fadvise64": (221, 223), "madvise": (28, 233), "mincore": (27, 232),
}  # fmt: skip
_COLUMN = {"x86_64": 0, "aarch64": 1}


def number(name: str, machine: str) -> int | None:
    """The call's number on this machine, None where there is no such call. Raises KeyError for a name not listed."""
    found = _NUMBERS[name][_COLUMN[machine]]
    return None if found < 0 else found
