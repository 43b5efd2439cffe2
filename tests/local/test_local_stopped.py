"""Which role's family holds a stopped process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from areal.local.stopped import stopped

SLEEPS = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_a_stopped_child_is_found_below_its_root():
    with subprocess.Popen(SLEEPS) as child:
        try:
            assert stopped({os.getpid(), child.pid}) == {}
            child.send_signal(signal.SIGSTOP)
            os.waitpid(child.pid, os.WUNTRACED)
            assert stopped({os.getpid()}) == {os.getpid(): child.pid}
            assert stopped({os.getpid(), child.pid}) == {child.pid: child.pid}
            assert stopped({1 << 30}) == {}
        finally:
            child.kill()


def test_a_process_that_ends_meanwhile_is_passed_over(tmp_path):
    (tmp_path / "12").mkdir()
    (tmp_path / "13").mkdir()
    (tmp_path / "13" / "stat").write_text("13 (a) name) T 7 0")
    assert stopped({7, 12}, tmp_path) == {7: 13}
