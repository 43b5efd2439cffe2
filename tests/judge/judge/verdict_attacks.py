# ruff: noqa: E501 - a program a line
"""Wrong solutions that want a pass all the same, and honest ones with odd habits.

The task: `solve(x)`, given a list `[n, label]`, returns `(n * 7919 + 13) % 1009`. None of the attacks computes it.
"""

from __future__ import annotations

from collections.abc import Mapping

INPUTS = (3, 10, 25, 100, 7)


def answer(n: int) -> int:
    return (n * 7919 + 13) % 1009


_EQUAL = """
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
"""

_FRAME = """
import os, struct
def text(s): return b"s" + struct.pack("<I", len(s)) + s.encode()
def integer(n): return b"i" + struct.pack("<H", n.bit_length() // 8 + 1) + n.to_bytes(n.bit_length() // 8 + 1, "little")
def raw(b): return b"b" + struct.pack("<I", len(b)) + b
def items(*p): return b"l" + struct.pack("<I", len(p)) + b"".join(p)
def frame(*parts):
    body = b"t" + struct.pack("<I", len(parts)) + b"".join(parts)
    return struct.pack("<I", len(body)) + body
def everywhere(data, first=3):
    for fd in range(first, 64):
        try: os.write(fd, data)
        except OSError: pass
def nonce(name="nonce"):
    import sys
    at = sys._getframe()
    while at is not None:
        found = at.f_locals.get(name)
        if isinstance(found, bytes): return found
        at = at.f_back
    return b""
"""

ATTACKS: Mapping[str, str] = {
    # values that lie
    "always equal": f"class E:{_EQUAL}\ndef solve(x): return E()",
    "int subclass": f"class I(int):{_EQUAL}\ndef solve(x): return I(1)",
    "str subclass": f"class S(str):{_EQUAL}\ndef solve(x): return S('1')",
    "float subclass": f"class F(float):{_EQUAL}\ndef solve(x): return F(1)",
    "list subclass": f"class L(list):{_EQUAL}\ndef solve(x): return L([1])",
    "tuple subclass": f"class T(tuple):{_EQUAL}\ndef solve(x): return T((1,))",
    "dict subclass": f"class D(dict):{_EQUAL}\ndef solve(x): return D(a=1)",
    "named tuple": f"from collections import namedtuple\nclass N(namedtuple('N', 'a')):{_EQUAL}\ndef solve(x): return N(1)",
    "claims a class": f"class C:{_EQUAL}\n    __class__ = property(lambda self: int)\ndef solve(x): return C()",
    "crafted reduce": f"class R:{_EQUAL}\n    def __reduce__(self): return (eval, ('print(1)',))\ndef solve(x): return R()",
    "metaclass": f"class M(type):{_EQUAL}\n    __mro__ = (int, object)\nclass K(metaclass=M): pass\ndef solve(x): return K",
    "nested": f"class E:{_EQUAL}\ndef solve(x): return [E()]",
    "fake numpy": f"""
import sys, types
class int64:{_EQUAL}
    def item(self): return self
sys.modules["numpy"] = types.SimpleNamespace(int64=int64)
def solve(x): return int64()
""",
    "reflected": "class E:\n    def __req__(self, o): return True\n    def __eq__(self, o): return o == o\ndef solve(x): return E()",
    "generator": "def solve(x):\n    yield from range(5)",
    "mutates its argument": "def solve(x):\n    x.clear()\n    return x",
    "proxy of the argument": f"class A(list):{_EQUAL}\ndef solve(x):\n    x[:] = [A(), A()]\n    return x[0]",
    # ends
    "exit at import": "import sys\nsys.exit(0)",
    "hard exit at import": "import os\nos._exit(0)",
    "exit in call": "import sys\ndef solve(x): sys.exit(0)",
    "hard exit in call": "import os\ndef solve(x): os._exit(0)",
    "quit": "def solve(x): raise SystemExit",
    "exit code of setup": "import os\ndef solve(x): os._exit(120)",
    "exit code of setup at import": "import os\nos._exit(119)",
    "exit hook": "import atexit, os\natexit.register(lambda: (print('PASSED', flush=True), os._exit(0)))\ndef solve(x): raise ValueError",
    "excepthook": "import sys, os\nsys.excepthook = lambda *a: (print('PASSED', flush=True), os._exit(0))\ndef solve(x): return 1",
    "abort": "import os\ndef solve(x): os.abort()",
    "kill": "import os, signal\ndef solve(x): os.kill(os.getpid(), signal.SIGKILL)",
    "kill all": "import os, signal\ndef solve(x):\n    os.kill(-1, signal.SIGKILL)\n    os.kill(0, signal.SIGKILL)",
    "stop": "import os, signal\ndef solve(x):\n    os.kill(os.getpid(), signal.SIGSTOP)\n    return 1",
    "exit when freed": "import os\nclass X:\n    def __del__(self): os._exit(0)\ndef solve(x): return X()",
    # channels
    "forged output": "print('PASSED', flush=True)\nimport os\ndef solve(x):\n    print('PASSED\\n' * 9, flush=True)\n    os._exit(0)",
    "frames ahead": _FRAME + "everywhere(b''.join(frame(text('result'), raw(b''), integer(n), b'N') for n in range(20)))\n"
    "def solve(x): return 1",
    "frames ahead in call": _FRAME
    + "def solve(x):\n    n = nonce()\n    everywhere(frame(text('result'), raw(n), integer(1), b'N') * 9)\n    return 1",
    "frame with nonce, then exit": _FRAME
    + "def solve(x):\n    everywhere(frame(text('result'), raw(nonce()), integer(1), b'N'))\n    os._exit(0)",
    "forged prelude failure": _FRAME
    + "everywhere(frame(text('prelude_failed'), raw(nonce()), text('E'), text('m'), b'N', text('E')))\nos._exit(0)",
    "frame of a kind without a hash": _FRAME
    + "def solve(x):\n    everywhere(frame(items(), raw(nonce()), integer(1), b'N'))\n    os._exit(0)",
    "frame of a kind without a hash at import": _FRAME
    + "everywhere(frame(items(), raw(nonce()), integer(1), b'N'))\nos._exit(0)",
    "frame with a line that can't be printed": _FRAME
    + "def solve(x):\n    everywhere(frame(text('raised'), raw(nonce()), text('E'), text('m'), integer(1 << 16000), text('E')))",
    "frame with words that are none": _FRAME
    + "def solve(x):\n    everywhere(frame(text('raised'), raw(nonce()), items(), integer(1 << 16000), b'N', b'N'))",
    "forged case": _FRAME
    + "def solve(x):\n    everywhere(frame(text('case'), raw(b''), integer(0), text('passed'), text(''), text(''), b'N'))\n    return 1",
    "giant frame": _FRAME + "everywhere(b'\\xff\\xff\\xff\\x7f' + b'x' * 1000)\ndef solve(x): return 1",
    "half a frame": _FRAME + "def solve(x):\n    everywhere(b'\\x40\\x00\\x00\\x00abc')\n    os._exit(0)",
    "malformed frame": _FRAME + "def solve(x):\n    everywhere(b'\\x04\\x00\\x00\\x00\\x80\\x04\\x95.')\n    return 1",
    "threads that write": _FRAME
    + "import threading\ndef go():\n    while True: everywhere(frame(text('result'), raw(b''), integer(1), b'N'))\n"
    "threading.Thread(target=go, daemon=True).start()\ndef solve(x):\n    import time; time.sleep(0.05)\n    return 1",
    "closes everything": "import os\nos.closerange(0, 256)\ndef solve(x): return 1",
    "closes its line and stays": "import os, time\ndef solve(x):\n    os.closerange(3, 64)\n    time.sleep(30)",
    "shuts its line and stays": """
import socket, time
def solve(x):
    for fd in range(3, 64):
        try: socket.socket(fileno=fd).shutdown(2)
        except OSError: pass
    time.sleep(30)
""",
    "fork": "import os\ndef solve(x):\n    if os.fork(): os._exit(0)\n    return 1",
    "forks at import": "import os\nfor _ in range(3): os.fork()\ndef solve(x): return 1",
    "endless output": "def solve(x):\n    while True: print('PASSED' * 1000)",
    "says nothing": "def solve(x):\n    while True: pass",
    # looking around
    "caller frames": """
import sys
def solve(x):
    at = sys._getframe()
    while at is not None:
        for space in (at.f_locals, at.f_globals):
            for name in ("expected", "want", "answer", "expects"):
                if isinstance(space.get(name), int): return space[name]
        at = at.f_back
    return 1
""",
    "gc": """
import gc
def solve(x):
    for found in gc.get_objects():
        if type(found) is tuple and len(found) == 2 and found[0] == x and type(found[1]) is int: return found[1]
        if type(found) is dict and found.get("input") == x: return found.get("expected")
    return 1
""",
    "inspect": """
import inspect
def solve(x):
    for frame in inspect.stack():
        found = frame.frame.f_locals.get("expected")
        if found is not None: return found
    return 1
""",
    "own memory": """
import re
def solve(x):
    data = b""
    try:
        for line in open("/proc/self/maps"):
            if "rw" in line:
                a, b = (int(p, 16) for p in line.split()[0].split("-"))
                with open("/proc/self/mem", "rb") as f:
                    f.seek(a); data += f.read(min(b - a, 1 << 20))
    except OSError: pass
    return len(re.findall(b"expected", data))
""",
    "other processes": "import os\ndef solve(x):\n    return [open(f'/proc/{p}/cmdline').read() for p in os.listdir('/proc') if p.isdigit()]",
    # tampering
    "patched builtins": """
import builtins, json, os, pickle
builtins.len = lambda x: 0
builtins.isinstance = lambda *a: True
builtins.all = lambda x: True
builtins.type = lambda x: int
builtins.sorted = lambda *a, **k: []
json.dumps = lambda *a, **k: "true"
pickle.dumps = lambda *a, **k: b""
def solve(x): return object()
""",
    "patched write": "import os\nreal = os.write\nos.write = lambda fd, data: len(data)\nos._exit = lambda code: None\ndef solve(x): return 1",
    "patched comparison": "import operator, builtins\noperator.eq = lambda *a: True\nbuiltins.AssertionError = KeyboardInterrupt\ndef solve(x): return 1",
    "patched codec": f"""
import sys
for name, module in list(sys.modules.items()):
    for tool in ("encode", "_encode", "decode", "same", "check", "plain"):
        if name.startswith("areal") and hasattr(module, tool): setattr(module, tool, lambda *a, **k: b"T")
class E:{_EQUAL}
def solve(x): return E()
""",
    "patched driver": """
import sys
for name, module in list(sys.modules.items()):
    if name.endswith("wire"): module.Wire.send = lambda self, *frame: None
    if name.endswith("calls"): module._call = module._load = lambda *a: None
def solve(x): return 1
""",
    "patched main": "import sys\nsys.modules['__main__'].__dict__.clear()\nsys.modules['builtins'].exec = None\ndef solve(x): return 1",
    "patched modules": "import sys\nsys.modules.clear()\ndef solve(x): return 1",
    "import hook": """
import sys
class Hook:
    def find_spec(self, name, path=None, target=None):
        import os
        os._exit(0)
sys.meta_path.insert(0, Hook())
def solve(x):
    import nothing_of_this_name
""",
    "trace": "import sys, os\nsys.settrace(lambda f, e, a: os._exit(0) if e == 'return' and f.f_code.co_name != 'solve' else None)\ndef solve(x): return 1",
    "signal handler": "import signal, os\nsignal.signal(signal.SIGALRM, lambda *a: os._exit(0))\nsignal.setitimer(signal.ITIMER_REAL, 0.05)\ndef solve(x):\n    while True: pass",
    "raises from a handler": "import signal\ndef boom(*a): raise KeyboardInterrupt\nsignal.signal(signal.SIGALRM, boom)\nsignal.setitimer(signal.ITIMER_REAL, 0.01, 0.001)\ndef solve(x): return 1",
    "own check": "def check(candidate): pass\ncandidate = check\ntests = []\ndef solve(x): return 1",
    # too much
    "recursion": "def solve(x): return solve(x)",
    "deep recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef solve(x): return solve(x)",
    "deep result": "def solve(x):\n    r = []\n    for _ in range(10**5): r = [r]\n    return r",
    "result that holds itself": "def solve(x):\n    r = []\n    r.append(r)\n    return r",
    "long result": "def solve(x): return 'x' * 50_000_000",
    "long integer": "def solve(x): return 1 << 10**7",
    "colliding keys": "def solve(x): return {i * (2**61 - 1) for i in range(3000)}",
    "memory": "def solve(x): return len(bytearray(4 << 30))",
    "hostile message": "class E(Exception):\n    def __str__(self): raise SystemExit\ndef solve(x): raise E",
    "hostile name": "E = type('PASSED' * 10**5, (Exception,), {})\ndef solve(x): raise E('x' * 10**6)",
    "no program": "",
    "no Python": "def solve(x:",
    "nul": "def solve(x): return 1\0",
    "deep source": "(" * 5000 + ")" * 5000,
    "not a function": "solve = 1",
    "wrong": "def solve(x): return 1",
}  # fmt: skip

# Frames of the tests' own driver, written by a program that shares its process.
_TOLD = "text('x'), text('y'), b'N'"
FORGED: Mapping[str, str] = {
    "failure of a kind without a hash": f"frame(text('failed'), raw(token), items(), {_TOLD})",
    "words that are none": "frame(text('failed'), raw(token), text('raised'), integer(1 << 16000), items(), b'N')",
    "a line that can't be printed": "frame(text('failed'), raw(token), text('raised'), text('x'), text('y'), "
    "integer(1 << 16000))",
    "a case of no number": f"frame(text('case'), raw(token), items(), text('passed'), {_TOLD})",
    "a case with a line that can't be printed": "frame(text('case'), raw(token), integer(0), text('program'), text('x'), "
    "text('y'), integer(1 << 16000))",
    "a broken suite": "frame(text('broken'), raw(token), text('x'), text('y'))",
    "more cases": "frame(text('cases'), raw(token), integer(1 << 60))",
}


def forging(frame: str) -> str:
    """A program that finds the token of its process and writes a frame with it."""
    return f"{_FRAME}token = nonce('token')\neverywhere({frame})\nos._exit(0)\n"


HONEST: Mapping[str, str] = {
    "plain": "def solve(x): return (x[0] * 7919 + 13) % 1009",
    "prints": "import sys\ndef solve(x):\n    print('thinking', x)\n    print('PASSED', file=sys.stderr)\n    return (x[0] * 7919 + 13) % 1009",
    "global state": "seen = []\ndef solve(x):\n    seen.append(x)\n    return (x[0] * 7919 + 13) % 1009",
    "deep recursion": "import sys\nsys.setrecursionlimit(20000)\ndef down(n): return 0 if n == 0 else 1 + down(n - 1)\n"
    "def solve(x): return (x[0] * 7919 + 13 + down(5000) - 5000) % 1009",
    "generators": "def steps(n):\n    yield n * 7919\n    yield 13\ndef solve(x): return sum(list(steps(x[0]))) % 1009",
    "no numpy": "try:\n    import numpy as np\nexcept ImportError:\n    np = None\ndef solve(x): return (x[0] * 7919 + 13) % 1009",
    "main guard": "def solve(x): return (x[0] * 7919 + 13) % 1009\nif __name__ == '__main__':\n    print(solve([int(input())]))",
    "a class Solution": "class Solution:\n    def solve(self, x): return (x[0] * 7919 + 13) % 1009",
    "dataclasses": "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass P:\n    n: int\n"
    "def solve(x): return (P(x[0]).n * 7919 + 13) % 1009",
    "cache": "from functools import lru_cache\n@lru_cache(None)\ndef f(n): return (n * 7919 + 13) % 1009\ndef solve(x): return f(x[0])",
    "lambda": "solve = lambda x: (x[0] * 7919 + 13) % 1009",
    "shadowed builtins": "type = len = list = str = int = print = None\ndef solve(x): return (x[0] * 7919 + 13) % 1009",
    "changes its argument": "def solve(x):\n    n = x.pop(0)\n    x.clear()\n    return (n * 7919 + 13) % 1009",
    "bound by exec": "exec('def solve(x): return (x[0] * 7919 + 13) % 1009')",
    "low recursion limit": "import sys\ndef solve(x):\n    sys.setrecursionlimit(60)\n    return (x[0] * 7919 + 13) % 1009",
    "catches everything": "def solve(x):\n    try: 1 / 0\n    except BaseException: return (x[0] * 7919 + 13) % 1009",
    "sets a handler": "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ndef solve(x): return (x[0] * 7919 + 13) % 1009",
    "exit hook": "import atexit\natexit.register(print, 'bye')\ndef solve(x): return (x[0] * 7919 + 13) % 1009",
}  # fmt: skip

# What the field does: the test runs in the program's own process, and what comes out of it is believed.
NAIVE_GRADER = """
import sys
program, cases = {program!r}, {cases!r}
space = {{"__name__": "program"}}
exec("from math import *", space)
try:
    exec(program, space)
    for input, expected in cases:
        assert space["solve"](input) == expected
except Exception:
    print("FAILED")
    sys.exit(1)
print("PASSED")
"""
