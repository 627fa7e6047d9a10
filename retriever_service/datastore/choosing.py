"""Which inverted lists a query scans, compiled. Takes arrays only; what they mean is said in `layout`."""

from __future__ import annotations

import numpy as np

from dresd.compiled import njit


@njit
def choose(offsets, centroid_offsets, centroids, keys, places, nprobe):
    """See `layout.TokenLists.choose`; centroids are float16 seen as uint16, which compiled code has no type for."""
    most = 0
    for place in places:
        lists = offsets[place + 1] - offsets[place]
        most = max(most, min(lists, nprobe) if nprobe > 0 else lists)
    chosen = np.full((len(places), most), -1, np.int64)
    for query in range(len(places)):
        place = places[query]
        first, lists = offsets[place], offsets[place + 1] - offsets[place]
        if nprobe == 0 or lists <= nprobe:
            for nth in range(lists):
                chosen[query, nth] = first + nth
            continue
        begin = centroid_offsets[place]
        similarities = _similarities(centroids[begin : begin + lists], keys[query])
        least = np.partition(similarities, lists - nprobe)[lists - nprobe]
        equals = nprobe
        for similarity in similarities:
            equals -= similarity > least
        count = 0
        for nth in range(lists):
            if similarities[nth] == least:
                equals -= 1
                if equals < 0:
                    continue
            elif not similarities[nth] > least:
                continue
            chosen[query, count] = first + nth
            count += 1
    return chosen


@njit(fastmath={"reassoc", "contract"})
def _similarities(halves, key):
    """float32 [m]: the inner products of some float16 rows, seen as uint16, with a key."""
    lists, dims = halves.shape
    bits = np.empty(dims, np.uint32)
    numbers = bits.view(np.float32)
    scale = np.float32(2.0**112)  # between the exponents' biases
    products = np.empty(lists, np.float32)
    for row in range(lists):
        for dim in range(dims):
            half = np.uint32(halves[row, dim])
            bits[dim] = ((half & np.uint32(0x8000)) << np.uint32(16)) | ((half & np.uint32(0x7FFF)) << np.uint32(13))
        total = np.float32(0.0)
        for dim in range(dims):
            total += numbers[dim] * scale * key[dim]
        products[row] = total
    return products
