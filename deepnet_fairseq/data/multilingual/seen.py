"""What has come before, remembered in a bounded amount of memory."""

from __future__ import annotations

from hashlib import blake2b

BITS = 1 << 33  # 1 GiB, at most
BITS_EACH = 20
HASHES = 7


class Seen:
    """A Bloom filter (Bloom, 1970) of about `expected` strings; two hashes give all their places.

    The latter by Kirsch and Mitzenmacher (2006). After n strings a new one counts as seen with probability (1 - exp(-7
    n / bits)) ** 7: below 2e-4 for what is expected, and 1.3e-4 in 1 GiB after 400 million, the size of the largest
    pairs of CCMatrix. At most 1 GiB is taken.
    """

    def __init__(self, expected: int):
        bits = min(BITS, 1 << (BITS_EACH * max(expected, 1000) - 1).bit_length())
        self.mask = bits - 1
        self.memory = bytearray(bits // 8)

    def add(self, text: str) -> bool:
        """Whether `text` is new."""
        digest = blake2b(text.encode(), digest_size=16).digest()
        place, step = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little") | 1
        new = False
        for _ in range(HASHES):
            place = place + step & self.mask
            bit = 1 << (place & 7)
            if not self.memory[place >> 3] & bit:
                new = True
                self.memory[place >> 3] |= bit
        return new
