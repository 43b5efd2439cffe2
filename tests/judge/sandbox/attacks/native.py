"""Attacks by compilers and by programs that are no Python: they need a tier that executes."""

from __future__ import annotations

from areal_judge.sandbox.values import Ending, Limits
from sandbox.attacks.table import ANY_BOUND, TIME, Attack, Category, Seen

_LIMITS = Limits(
    wall_s=6.0, cpu_s=4.0, memory_bytes=512 << 20, output_bytes=256 << 10, disk_bytes=32 << 20, inodes=512,
    processes=32, open_files=128,
)  # fmt: skip
_SHORT = Limits(
    wall_s=3.0, cpu_s=1.5, memory_bytes=256 << 20, output_bytes=256 << 10, disk_bytes=16 << 20, inodes=512,
    processes=16, open_files=128,
)  # fmt: skip
_BUILD = "gcc -O0 -w -o attack attack.c && exec ./attack"


def _c(
    name: str, must_not: str, seen: Seen, layers: tuple[str, ...], source: str, *, command: str = _BUILD,
    endings: frozenset[Ending] = ANY_BOUND, limits: Limits = _LIMITS,
) -> Attack:  # fmt: skip
    return Attack(
        name, Category.NATIVE, must_not, seen, layers, source, endings=endings, limits=limits, several=True,
        file="attack.c", command=command, tool="gcc",
    )  # fmt: skip


def _tool(
    tool: str, name: str, must_not: str, seen: Seen, layers: tuple[str, ...], source: str, *, file: str, command: str,
    endings: frozenset[Ending] = ANY_BOUND, limits: Limits = _SHORT,
) -> Attack:  # fmt: skip
    return Attack(
        name, Category.NATIVE, must_not, seen, layers, source, endings=endings, limits=limits, several=True,
        file=file, command=command, tool=tool,
    )  # fmt: skip


NATIVE: tuple[Attack, ...] = (
    _c("compiles_in_a_file_of_the_machine", "a compiler reads a file outside", Seen.SECRET,
       ("private_root", "landlock"), """
#include <stdio.h>
extern const char secret[]; extern const char secret_end[];
__asm__(".data\\nsecret: .incbin \\"@canary@\\"\\nsecret_end: .byte 0\\n");
int main(void) { puts(secret); return 0; }
"""),
    _c("includes_a_file_of_the_machine", "a compiler's message shows a file outside", Seen.SECRET,
       ("private_root", "landlock"), """
#include "@canary@"
int main(void) { return 0; }
"""),
    _c("includes_an_endless_file", "a compiler reads without end", Seen.ENDING, ("rlimits", "cgroup", "kill_all"), """
#include "/dev/zero"
int main(void) { return 0; }
"""),
    _c("compiles_for_ever", "a compiler takes time and memory without end", Seen.LATE,
       ("rlimits", "cgroup", "kill_all"), """
template <int N, int M> struct Deep { static const int v = Deep<N - 1, M>::v + Deep<N - 1, M + N>::v; };
template <int M> struct Deep<0, M> { static const int v = M; };
int main() { return Deep<24, 0>::v; }
""", command="cp attack.c attack.cc && g++ -w -ftemplate-depth=100000 -o attack attack.cc && exec ./attack",
       limits=_SHORT),
    _c("links_a_huge_program", "a program larger than the quota is written", Seen.LATE, ("quotas", "rlimits"), """
char huge[1UL << 30] = {1};
int main(void) { return huge[12345]; }
"""),
    _c("calls_by_the_old_gate", "32-bit system calls pass the filter", Seen.REACHED, ("seccomp",), """
#include <stdio.h>
int main(void) {
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(359), "b"(1), "c"(1), "d"(0) : "memory"); /* socket */
    printf("%s %ld\\n", result >= 0 ? "REACHED" : "no", result);
    return 0;
}
"""),
    _c("calls_by_the_x32_gate", "x32 system calls pass the filter", Seen.REACHED, ("seccomp",), """
#include <stdio.h>
#include <errno.h>
#include <unistd.h>
#include <sys/syscall.h>
int main(void) {
    long result = syscall(0x40000000 | 41, 1, 1, 0);
    printf("%s %ld %d\\n", result >= 0 ? "REACHED" : "no", result, errno);
    return 0;
}
"""),
    _c("makes_a_socket_by_itself", "a service on loopback has a visitor", Seen.CONNECTION, ("network", "seccomp"), """
#include <arpa/inet.h>
#include <sys/socket.h>
#include <stdio.h>
int main(void) {
    struct sockaddr_in there = {AF_INET, htons(@tcp_port@), {htonl(0x7f000001)}};
    int one = socket(AF_INET, SOCK_STREAM, 0);
    printf("%d %d\\n", one, connect(one, (struct sockaddr *)&there, sizeof there));
    return 0;
}
"""),
    _c("forks_in_c", "processes above the limit are made", Seen.SURVIVOR, ("cgroup", "rlimits", "kill_all"), """
#include <unistd.h>
#include <sys/prctl.h>
int main(void) {
    prctl(PR_SET_NAME, "@mark@");
    for (int i = 0; i < 2000; i++) fork();
    sleep(5);
    return 0;
}
""", limits=_SHORT),
    _c("leaves_a_daemon_in_c", "a process of the run outlives it", Seen.SURVIVOR, ("namespaces", "kill_all"), """
#include <unistd.h>
#include <signal.h>
#include <sys/prctl.h>
int main(void) {
    for (int i = 1; i < 65; i++) signal(i, SIG_IGN);
    if (fork() == 0) { setsid(); if (fork() == 0) { prctl(PR_SET_NAME, "@mark@"); for (;;) sleep(20); } }
    return 0;
}
"""),
    _c("smashes_its_stack", "a crash is taken for the sandbox's fault", Seen.ENDING, ("rlimits",), """
int deeper(volatile int n) { volatile char room[4096]; room[0] = n; return deeper(n + 1) + room[0]; }
int main(void) { return deeper(0); }
""", endings=frozenset({Ending.SIGNALED, Ending.EXITED, Ending.MEMORY_LIMIT})),
    _c("runs_code_that_it_wrote", "code made at run time gets past the filter", Seen.REACHED, ("seccomp",), """
#include <sys/mman.h>
#include <string.h>
#include <stdio.h>
int main(void) { /* mov eax, 41; mov edi, 2; mov esi, 1; xor edx, edx; syscall; ret */
    unsigned char code[] = {0xb8, 41, 0, 0, 0, 0xbf, 2, 0, 0, 0, 0xbe, 1, 0, 0, 0, 0x31, 0xd2, 0x0f, 0x05, 0xc3};
    void *place = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(place, code, sizeof code);
    long result = ((long (*)(void))place)();
    printf("%s %ld\\n", result >= 0 ? "REACHED" : "no", result);
    return 0;
}
"""),
    _c("gains_by_a_setuid_program", "a program with the setuid bit gives its rights to the run", Seen.REACHED,
       ("no_new_privileges", "private_root", "user"), """
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
int main(int count, char **words) {
    if (count > 1) { if (geteuid() == 0 && getuid() != 0) puts("REACHED root"); return 0; }
    if (chmod("attack", 04755) == 0 && chown("attack", 0, 0) == 0) { puts("REACHED setuid root"); }
    execl("./attack", "attack", "again", (char *)0);
    return 0;
}
"""),
    _tool("bash", "works_in_the_shells_background", "a job of the shell outlives the run", Seen.SURVIVOR,
          ("namespaces", "kill_all"), """
trap '' TERM HUP INT
(exec -a @mark@ bash -c 'echo -n @mark@ > /proc/self/comm; trap "" TERM HUP; while :; do sleep 1; done') &
disown -a
echo started
""", file="attack.sh", command="exec bash attack.sh"),
    _tool("bash", "multiplies_in_the_shell", "processes above the limit are made", Seen.LATE,
          ("cgroup", "rlimits", "kill_all"), "bomb() { bomb | bomb & }; bomb; sleep 10\n",
          file="attack.sh", command="exec bash attack.sh"),
    _tool("node", "reads_a_file_from_javascript", "a file outside is read", Seen.SECRET,
          ("private_root", "landlock"), """
const fs = require("fs");
for (const path of ["@canary@", "/proc/1/root@canary@", "/proc/@victim@/environ", "/proc/@service@/environ"])
  try { console.log(fs.readFileSync(path, "utf8")); } catch (error) { console.log(error.code); }
console.log(process.env);
""", file="attack.js", command="exec node attack.js", limits=Limits(
              wall_s=6.0, cpu_s=4.0, memory_bytes=768 << 20, disk_bytes=16 << 20, processes=64, open_files=256)),
    _tool("node", "connects_from_javascript", "a service on loopback has a visitor", Seen.CONNECTION,
          ("network", "seccomp"), """
const net = require("net");
const one = net.connect(@tcp_port@, "127.0.0.1", () => { one.write("hello"); one.end(); });
one.on("error", (error) => { console.log(error.code); });
require("child_process").exec("true", (error) => console.log("child", error ? error.code : 0));
setTimeout(() => process.exit(0), 400);
""", file="attack.js", command="exec node attack.js", limits=Limits(
              wall_s=6.0, cpu_s=4.0, memory_bytes=768 << 20, disk_bytes=16 << 20, processes=64, open_files=256)),
    _tool("gcc", "spins_in_c", "processor time is taken without end", Seen.ENDING, ("rlimits", "kill_all"),
          "int main(void) { for (;;); }\n", file="attack.c", command=_BUILD, endings=TIME),
)  # fmt: skip
