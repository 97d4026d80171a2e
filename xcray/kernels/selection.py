"""Selection of the k-th smallest value."""

from __future__ import annotations

from xcray.arrays import Float64
from xcray.kernels.inner import inner


@inner()
def kth_smallest(values: Float64, k: int) -> float:
    """Return the value of rank k, from 0; reorders `values`, which contain no NaN.

    Hoare's selection (CACM 4, 1961, algorithm 65); `np.partition` takes ten times as long to
    compile.
    """
    low, high = 0, len(values) - 1
    while low < high:
        pivot = values[(low + high) >> 1]
        left, right = low, high
        while left <= right:
            while values[left] < pivot:
                left += 1
            while pivot < values[right]:
                right -= 1
            if left <= right:
                values[left], values[right] = values[right], values[left]
                left += 1
                right -= 1
        if k <= right:
            high = right
        elif k >= left:
            low = left
        else:
            break
    value: float = values[k]
    return value
