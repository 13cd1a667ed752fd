"""ULIDs: ids of publishes, runs, edges and nodes without a key.

A ULID is 26 characters of Crockford's base 32: 10 for the time in ms since the epoch, 16 for 80
random bits. All randomness comes from the operating system: Spark forks its Python workers, and a
generator that was seeded before the fork would hand the same ids to every worker.
"""

from __future__ import annotations

import os
import time

import pyarrow as pa

from omnigraph_spark.errors import OptionError

_ALPHABET = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_TIME_CHARACTERS = 10
_LENGTH = 26
_MAX_PER_CALL = (2**31 - 1) // _LENGTH


def new_ulid() -> str:
    """Return one ULID of now; driver and executors."""
    return _spelled((_now_ms() << 80) | int.from_bytes(os.urandom(10), "big"))


def ulid_from(time_ms: int, random_bits: bytes) -> str:
    """Return the ULID of a time and the first 80 of the given bits.

    The same input gives the same id, so that several processes can name one thing without talking
    to each other.
    """
    return _spelled((time_ms << 80) | int.from_bytes(random_bits[:10], "big"))


def ulids(count: int) -> pa.Array:
    """Return `count` unique ULIDs, ascending, as a utf8 array without nulls.

    Runs on executors, once per batch. Within a call the random part counts on from a random start
    of 79 bits, so two calls in one millisecond meet with a chance of about count / 2^79.

    Raises:
        OptionError: `count` is negative, or more than one Arrow array of 32-bit offsets can hold.
    """
    if not 0 <= count <= _MAX_PER_CALL:
        raise OptionError("Too many ids asked for at once", expected=_MAX_PER_CALL, found=count)
    import numpy as np

    random_bits = os.urandom(10)
    high = int.from_bytes(random_bits[:2], "big")
    # The top bit is left out, so that counting on never carries into the high part.
    start = int.from_bytes(random_bits[2:], "big") >> 1
    low = np.uint64(start) + np.arange(count, dtype=np.uint64)
    alphabet = np.frombuffer(_ALPHABET, dtype=np.uint8)
    characters = np.empty((count, _LENGTH), dtype=np.uint8)
    prefix = ((_now_ms() << 16) | high) << 64
    for position in range(_LENGTH):
        shift = 5 * (_LENGTH - 1 - position)
        if shift >= 64:
            characters[:, position] = _ALPHABET[(prefix >> shift) & 31]
        else:
            digits = (low >> np.uint64(shift)) & np.uint64(31)
            # One character holds bits of both halves.
            digits |= np.uint64((prefix >> shift) & 31)
            characters[:, position] = alphabet[digits.astype(np.intp)]
    offsets = np.arange(0, (count + 1) * _LENGTH, _LENGTH, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.utf8(), count, [None, pa.py_buffer(offsets), pa.py_buffer(characters)]
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _spelled(value: int) -> str:
    return "".join(
        chr(_ALPHABET[(value >> (5 * position)) & 31]) for position in reversed(range(_LENGTH))
    )
