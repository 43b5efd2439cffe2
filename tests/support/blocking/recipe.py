"""A recipe whose functions wait for a lock that nobody opens, for as long as a file next to STALL_FLAG is there."""

import os
import threading

LOCK = threading.Lock()
LOCK.acquire()


def deadlock(where):
    while os.path.exists(f"{os.environ['STALL_FLAG']}.{where}"):
        if LOCK.acquire(timeout=0.05):
            raise AssertionError("nobody opens it")


def reward(prompt, completions, prompt_ids, completion_ids, *, answer, **row):
    deadlock("reward")
    return float(completions.strip() == answer)


def compute_advantages(batch):
    deadlock("advantages")
    return batch.rewards - batch.rewards.mean()
