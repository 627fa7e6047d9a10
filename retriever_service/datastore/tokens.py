"""How token ids are stored: two bytes where the vocabulary allows it, four beyond.

In memory a missing token is `PAD` (-1); stored, it is the greatest value of the type.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dresd.draft_tree import PAD

TokenDtype = Literal["uint16", "uint32"]

_UINT16_PAD = 65_535


def token_dtype(vocab_size: int) -> TokenDtype:
    """The type that holds every id below `vocab_size` and the padding beside them."""
    return "uint16" if vocab_size <= _UINT16_PAD else "uint32"


def pack(tokens: NDArray[np.integer[Any]], dtype: TokenDtype) -> NDArray[Any]:
    """Token ids or `PAD` as stored."""
    return np.where(tokens == PAD, np.iinfo(dtype).max, tokens).astype(dtype)


def unpack(stored: NDArray[Any]) -> NDArray[np.int32]:
    """Token ids or `PAD` of what was stored."""
    tokens: NDArray[np.int32] = stored.astype(np.int32)
    tokens[stored == np.iinfo(stored.dtype).max] = PAD
    return tokens
