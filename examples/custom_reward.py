"""A graded reward: half for the right digits, half for the right places, a little off for each surplus character.

    areal run examples/custom_reward.yaml

Needs the quickstart's data and model (`make quickstart` makes both). Graded rewards tell answers of a group apart that
are all wrong, so a group teaches something before its first right answer. Whatever this function raises costs that
group only, and its traceback is in the log; it must return one finite number.
"""

from collections import Counter


def reward(prompt, completions, prompt_ids, completion_ids, *, answer, **row):
    """A score between 0 and 1; `answer` is a column of the dataset's row."""
    found = completions.strip()
    if found == answer:
        return 1.0
    right_digits = sum((Counter(found) & Counter(answer)).values()) / len(answer)
    right_places = sum(mine == theirs for mine, theirs in zip(found, answer, strict=False)) / len(answer)
    surplus = max(0, len(found) - len(answer))
    return max(0.0, 0.4 * right_digits + 0.4 * right_places - 0.1 * surplus)
