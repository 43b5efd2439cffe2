"""A rank that trains nothing: prints who it is, and ends. `python -m support.show_rank [CODE]`."""

from __future__ import annotations

import os
import sys

words = " ".join(os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"))
os.write(1, f"{words}\n".encode())  # at once: ranks share the pipe
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 and os.environ["RANK"] == "3" else 0)
