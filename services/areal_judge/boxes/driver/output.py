"""Bounded buffer for a command's output: beginning and end stay, the middle is left out. Pure."""

from __future__ import annotations


class HeadAndTail:
    """Keeps the first half and the last half of `most_bytes`."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._head_bytes = (most_bytes + 1) // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.left_out = 0

    def add(self, data: bytes) -> None:
        """What came next."""
        room = self._head_bytes - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        over = len(self._tail) - (self._most - self._head_bytes)
        if over > 0:
            del self._tail[:over]
            self.left_out += over

    def bytes(self) -> bytes:
        """All that was kept; a line says where something was left out."""
        gap = f"\n[… {self.left_out} bytes left out …]\n".encode() if self.left_out else b""
        return bytes(self._head) + gap + bytes(self._tail)
