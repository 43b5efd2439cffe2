"""What pods of `helm test` run: the check of the network between two pods, and of a GPU by a driver's library."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from areal.plan.roles import free_ports
from chart.chart_rendering import ROOT

CHECKS = ROOT / "charts" / "areal" / "files" / "checks"
HALF = 1 << 20

DRIVER = r"""
#include <stdlib.h>
#include <string.h>
static int number(const char *name, int otherwise) { char *text = getenv(name); return text ? atoi(text) : otherwise; }
int cuInit(unsigned flags) { return number("INIT", 0); }
int cuDriverGetVersion(int *version) { *version = number("VERSION", 13000); return 0; }
int cuDeviceGetCount(int *count) { *count = number("COUNT", 2); return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDeviceGetName(char *name, int length, int device) { strncpy(name, "A card", length); return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)1; return 0; }
int cuCtxSetCurrent(void *context) { return context == (void *)1 ? 0 : 201; }
int cuMemGetInfo_v2(size_t *free, size_t *total) { *free = 3UL << 30; *total = 4UL << 30; return 0; }
int cuMemAlloc_v2(unsigned long long *place, size_t bytes) {
    *place = 7;
    return bytes == 256UL << 20 ? number("ALLOC", 0) : 1;
}
int cuMemFree_v2(unsigned long long place) { return place == 7 ? 0 : 1; }
int cuDevicePrimaryCtxRelease_v2(int device) { return 0; }
int cuGetErrorString(int code, const char **text) {
    *text = code == 2 ? "out of memory" : "no device";
    return 0;
}
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with the driver's calls, whose answers are in the environment."""
    if (compiler := shutil.which("gcc")) is None:
        pytest.skip("no C compiler")
    place = tmp_path_factory.mktemp("driver")
    (place / "driver.c").write_text(DRIVER)
    library = place / "libcuda.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", library, place / "driver.c"], check=True, timeout=60)
    return library


def gpu(library: Path | str, *arguments: str, **answers: str) -> tuple[int, str]:
    command = [sys.executable, str(CHECKS / "check_gpu.py"), f"--library={library}", *arguments]
    ended = subprocess.run(command, env={**os.environ, **answers}, capture_output=True, text=True, timeout=60)
    assert ended.stderr == ""
    return ended.returncode, ended.stdout


def test_a_gpu_is_told_with_its_driver_and_memory(driver: Path) -> None:
    code, said = gpu(driver)
    assert code == 0
    assert said.splitlines() == [
        "driver for CUDA 13.0", "GPU 0: A card, 3.0 of 4.0 GiB free", "GPU 1: A card, 3.0 of 4.0 GiB free",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({"VERSION": "12040"}, "the driver is for CUDA 12.4, the images need 13: install driver 580 or newer"),
        ({"COUNT": "0"}, "0 of 1 GPUs are visible in the pod"),
        ({"INIT": "100"}, "cuInit answers 100: no device"),
        ({"ALLOC": "2"}, "cuMemAlloc_v2 answers 2: out of memory"),
    ],
)
def test_what_is_wrong_with_a_gpu_is_said_in_a_line(driver: Path, answers: dict[str, str], said: str) -> None:
    code, output = gpu(driver, **answers)
    assert code == 1
    assert output.splitlines()[-1] == said


def test_a_pod_without_the_driver_s_library_says_who_puts_it_there() -> None:
    code, said = gpu("libnowhere.so.1")
    assert code == 1
    assert "the driver's library isn't in the pod" in said
    assert "container runtime" in said


def network(index: int, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(CHECKS / "check_network.py"), *arguments]
    environment = {**os.environ, "JOB_COMPLETION_INDEX": str(index)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = process.communicate(timeout=90)
    return process.returncode, said


def test_two_pods_reach_each_other_also_after_somebody_hung_up() -> None:
    [port] = free_ports(1)
    first = network(0, "--service=localhost", "--host=127.0.0.1", f"--port={port}")
    for _ in range(300):
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as scanned:
                scanned.sendall(b"0" * HALF)
            break
        except ConnectionRefusedError:
            assert first.poll() is None
    second = network(1, "--service=localhost", f"--port={port}")
    assert ended(first) == (0, "pod 0 took 16 MiB from 127.0.0.1\n")
    code, said = ended(second)
    assert code == 0
    assert said.startswith("pod 1 reached localhost: ")


def test_a_name_that_nobody_knows_is_the_name_server_s_and_a_closed_port_the_other_s() -> None:
    [port] = free_ports(1)
    unknown = ended(network(1, "--service=pod.invalid", f"--port={port}", "--deadline-s=1"))
    assert unknown == (
        1,
        "pod 1 could not send to pod.invalid: no name server knows pod.invalid: look at the cluster's DNS\n",
    )
    code, said = ended(network(1, "--service=127.0.0.1", f"--port={port}", "--deadline-s=1"))
    assert (code, "Connection refused" in said) == (1, True)


def test_a_pod_that_nobody_reaches_says_what_may_be_in_the_way() -> None:
    [port] = free_ports(1)
    code, said = ended(network(0, "--service=localhost", "--host=127.0.0.1", f"--port={port}", "--deadline-s=1"))
    assert (code, said.startswith("nobody reached pod 0: NetworkPolicies")) == (1, True)
