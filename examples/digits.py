"""The quickstart's recipe: 1.0 when the digits are sorted, else 0.0.

areal run examples/quickstart.yaml
"""


def reward(prompt, completions, prompt_ids, completion_ids, *, answer, **row):
    """`answer` is the row's column: "3142=" has "1234"."""
    return float(completions.strip() == answer)
