"""The inverted lists of a memory-mapped index as arrays that compiled code scans: the codes, and what they stand for.

Knows FAISS's codecs and how it lays out lists on disk; searches nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import faiss
import numpy as np
from numpy.typing import NDArray

from retriever_service.datastore.codecs import FaissIndex
from retriever_service.datastore.scanning import FLAT, PQ, SQ4, SQ8

_ID_BYTES = 8
"""FAISS writes a list's codes and behind them as many ids; ids are rows in order here, so nobody reads them."""


@dataclass(frozen=True, slots=True)
class CodedLists:
    """All lists of one index; the arrays are those of its memory map.

    Attributes:
        index: holds the memory map.
        content: uint8, every list's codes, each list followed by 8 bytes an entry.
        rows: int64 [lists + 1], where each list's rows begin.
        code_size: bytes of a code.
        codec: one of `scanning`'s.
        low, step: float32 [dims], of scalar codes: c stands for low + c * step.
        centers: float32 [pieces, 256, dims a piece], of a product quantiser's codes; empty for others.
    """

    index: FaissIndex
    content: NDArray[np.uint8]
    rows: NDArray[np.int64]
    code_size: int
    codec: int
    low: NDArray[np.float32]
    step: NDArray[np.float32]
    centers: NDArray[np.float32]

    @classmethod
    def of(cls, index: FaissIndex, rows: NDArray[np.int64]) -> CodedLists:
        """Those of an index from `codecs.map_index` that `codecs.matches`; `rows` as above.

        Raises:
            ValueError: its lists do not lie in order.
        """
        inverted = faiss.downcast_InvertedLists(index.invlists)
        stride = index.code_size + _ID_BYTES
        filled = np.flatnonzero(np.diff(rows))
        begins = [int(inverted.get_codes(number)) for number in filled[[0, -1]].tolist()]
        if begins[1] - begins[0] != (rows[filled[-1]] - rows[filled[0]]) * stride:
            raise ValueError("lists do not lie in order")
        content = faiss.rev_swig_ptr(inverted.get_codes(int(filled[0])), int(rows[-1]) * stride)
        codec, low, step, centers = _meaning(index)
        return cls(index, content, rows, index.code_size, codec, low, step, centers)


def _meaning(index: FaissIndex) -> tuple[int, NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    nothing, no_centers = np.zeros(0, np.float32), np.zeros((0, 0, 0), np.float32)
    if isinstance(index, faiss.IndexIVFFlat):
        return FLAT, nothing, nothing, no_centers
    if isinstance(index, faiss.IndexIVFPQ):
        shape = (index.pq.M, index.pq.ksub, index.pq.dsub)
        centers: NDArray[np.float32] = faiss.vector_to_array(index.pq.centroids).reshape(shape)
        return PQ, nothing, nothing, centers
    is_8_bit = index.sq.qtype == faiss.ScalarQuantizer.QT_8bit
    least, width = faiss.vector_to_array(index.sq.trained).reshape(2, index.d)
    step = (width / (255.0 if is_8_bit else 15.0)).astype(np.float32)
    # FAISS decodes to the middle of a code's range.
    return SQ8 if is_8_bit else SQ4, (least + step / 2).astype(np.float32), step, no_centers
