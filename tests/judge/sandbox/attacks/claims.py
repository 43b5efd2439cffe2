"""What the sandbox claims, and the attacks that each claim has to withstand."""

from __future__ import annotations

from dataclasses import dataclass

from sandbox.attacks.besetting import BESETTING
from sandbox.attacks.meddling import MEDDLING
from sandbox.attacks.native import NATIVE
from sandbox.attacks.reaching import REACHING
from sandbox.attacks.resource import RESOURCE
from sandbox.attacks.table import Attack

ATTACKS: dict[str, Attack] = {attack.name: attack for attack in (*REACHING, *MEDDLING, *BESETTING, *RESOURCE, *NATIVE)}


@dataclass(frozen=True)
class Claim:
    """One claim. Those about refusals, verdicts and reports have tests instead of attacks."""

    number: int
    text: str
    attacks: tuple[str, ...]


CLAIMS: tuple[Claim, ...] = (
    Claim(1, "no run reads files of the machine, the service's environment, or other runs", (
        "reads_a_file_of_the_machine", "reads_a_file_through_another_process", "reads_a_file_of_root",
        "prints_its_environment", "reads_environments_of_others", "guesses_process_numbers",
        "searches_its_own_memory", "uses_inherited_descriptors", "looks_for_other_runs", "keeps_a_link",
        "compiles_in_a_file_of_the_machine", "includes_a_file_of_the_machine", "reads_a_file_from_javascript",
    )),
    Claim(2, "no network, loopback, vsock and abstract sockets included", (
        "connects_to_loopback", "connects_to_an_abstract_socket", "connects_to_a_socket_file",
        "opens_strange_sockets", "calls_by_the_old_gate", "calls_by_the_x32_gate", "runs_code_that_it_wrote",
        "makes_a_socket_by_itself", "connects_from_javascript",
    )),
    Claim(3, "no signal, trace or memory access outside the run, no way to more rights", (
        "signals_the_service", "signals_everybody", "kills_its_parent", "traces_a_process",
        "reads_memory_of_a_process", "writes_memory_of_a_process", "makes_others_die_first", "makes_namespaces",
        "mounts", "reaches_the_kernel", "raises_its_priority", "raises_its_limits", "runs_a_setuid_program",
        "opens_the_kernels_settings", "gains_by_a_setuid_program", "signals_the_first_process",
        "has_its_death_signalled", "opens_the_first_process", "traces_the_first_process", "enters_the_first_process",
        "sets_its_cells_sysctls", "finds_the_lines_of_its_cell",
        "has_the_kernel_signal_others", "watches_what_others_do",
    )),
    Claim(4, "wall and processor time, memory, disk, inodes, output, processes and descriptors are bounded", (
        "spins", "sleeps", "stops_itself", "ignores_signals", "catches_every_exception", "computes_in_one_call",
        "prints_a_huge_number", "matches_for_ever", "spins_in_many_threads", "takes_much_memory",
        "takes_memory_again_and_again", "takes_memory_in_children", "takes_shared_memory", "fills_pipes",
        "unpacks_a_bomb", "forks_without_end", "forks_in_every_child", "starts_threads_without_end",
        "starts_small_threads", "fills_the_disk", "fills_the_inodes", "makes_a_sparse_file",
        "floods_standard_output", "floods_standard_error", "opens_files_without_end", "recurses_without_end",
        "sets_timers_without_end", "locks_memory", "includes_an_endless_file", "compiles_for_ever",
        "links_a_huge_program", "forks_in_c", "multiplies_in_the_shell", "spins_in_c",
    )),
    Claim(5, "nothing survives a run: processes, files, their metadata, IPC, keyrings, locks", (
        "leaves_a_daemon", "leaves_files", "leaves_shared_memory", "leaves_a_message_queue", "keeps_a_key",
        "locks_a_file_that_everybody_reads", "leaves_a_daemon_in_c", "works_in_the_shells_background",
        "forks_when_it_has_ended", "leaves_memory_that_nobody_has", "changes_metadata",
    )),
    Claim(6, "the judge never hangs, crashes, or follows paths that a run made", (
        "holds_its_pipes", "talks_to_what_made_it", "prints_slowly", "never_reads_its_input",
        "closes_its_output_and_goes_on", "makes_a_deep_tree", "crashes", "smashes_its_stack",
        "leaves_zombies_in_heaps", "has_the_first_process_ended_for_memory", "keeps_all_that_fits",
    )),
)  # fmt: skip
