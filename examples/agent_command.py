"""An agent that is a program of its own, here without any package; one in another language does the same.

It is started once for each episode: it finds the model by OPENAI_BASE_URL and OPENAI_API_KEY, reads its dataset row
from standard input, and prints its reward as its last word.
"""

import json
import os
import sys
import urllib.request

row = json.load(sys.stdin)
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps({"model": "policy", "messages": [{"role": "user", "content": row["prompt"]}]}).encode(),
    {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
)
answer = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
print(f"{row['prompt']} {answer!r}")
print(1.0 if answer.strip() == row["answer"] else 0.0)
