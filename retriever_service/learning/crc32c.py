"""CRC-32C (Castagnoli), compiled: the checksum of what a log holds. Takes bytes as arrays only."""

from __future__ import annotations

import numpy as np

from dresd.compiled import njit

_POLYNOMIAL = 0x82F63B78
"""Reversed."""


def _table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1).astype(np.uint32)
    return table


_TABLE = _table()


def crc32c(content: bytes) -> int:
    """Of some bytes."""
    return int(_crc(np.frombuffer(content, np.uint8), _TABLE))


@njit
def _crc(content, table):
    crc = np.uint32(0xFFFFFFFF)
    for byte in content:
        crc = table[(crc ^ byte) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    return crc ^ np.uint32(0xFFFFFFFF)
