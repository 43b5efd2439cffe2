"""Texts that a model could write to whoever looks at them."""

from __future__ import annotations

HOSTILE = [
    b"<script>alert(1)</script>",
    b'"><img src=x onerror=alert(1)>',
    b"\x1b[2J\x1b[31mred\x00\x07",
    "\u202egnp.exe\u2066\u200bhidden".encode(),
    b"\xff\xfe\xc3\x28 broken",
    b"{{ 7 * 7 }}{% raw %}",
    b"a" * 1_000_000,
]
"""Scripts, markup, terminal codes, direction marks, broken UTF-8, templates, a line of a megabyte."""

SPOKEN = {
    "gsm8k": ("A robe takes 2 bolts of blue fiber and half that much white fiber.", "2/2=<<2/2=1>>1\n#### 3", "bolts"),
    "messages": (
        "<|im_start|>system\nYou are a tutor.<|im_end|>\n<|im_start|>user\nWhat is 6·7?<|im_end|>\n"
        "<|im_start|>assistant\n",
        "42<|im_end|>\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\nYes, quite sure.<|im_end|>",
        '"quite sure"',
    ),
    "tool calls": (
        '<tools>\n{"type": "function", "function": {"name": "get_weather", "parameters": {}}}\n</tools>',
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Łódź"}}\n</tool_call>\n'
        '<tool_response>{"temp": 3}</tool_response>\nIt is cold.',
        'get_weather "city Łódź"',
    ),
    "right to left": ("ما هو حاصل ضرب ٦ في ٧؟", "الإجابة هي \u202e٤٢\u202c \u2066hidden\u2069", "الإجابة"),
    "chinese": ("六乘以七等于多少？", "答案是四十二。", "四十二"),
    "thai and emoji": ("หกคูณเจ็ดเท่ากับเท่าไร", "คำตอบคือ ๔๒ 👩‍👩‍👧‍👦🎉", "คำตอบ"),
    "long": ("Think.", "thinking " * 12_000 + "finally 42", '"finally 42"'),
    "script": (
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(1)></dd></article><script>alert(2)</script>{{ 7 * 7 }}',
        "onerror",
    ),
    "terminal": ("\x1b[31mred", "\x1b[2J\x00\x07 done", "done"),
}
"""Question, answer and a search that finds them: of public data sets' shapes, other scripts, and hostile ones."""
