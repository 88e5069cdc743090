"""Relative differences of losses that count as rounding, from the unit roundoff of the number formats.

The unit roundoff u of a format is half the distance from 1 to the next number: 2^-p for p bits of significand. The
relative error of n roundings one after another grows with n in the worst case and with sqrt(n) for errors that are as
often up as down (Higham and Mary, SIAM J. Sci. Comput. 41, 2019).
"""

from __future__ import annotations

import math
from typing import Final

_FLOAT32: Final = 2.0**-24
_BFLOAT16: Final = 2.0**-8
_TEN_BITS: Final = 2.0**-11
"""Unit roundoff of float16, and of TF32, which has as many bits of significand."""
_SUMMANDS: Final = 2**20
"""Numbers in a sum of float32 whose order differs, such as those of a mean over a batch of activations."""
_ROUNDINGS: Final = 2**6
"""Layers one after another, each of which rounds its inputs to 16 bits or TF32 and sums in float32."""

REORDERED: Final = math.sqrt(_SUMMANDS) * _FLOAT32
"""Sums of float32 in another order: 6e-5."""
IN_TEN_BITS: Final = math.sqrt(_ROUNDINGS) * _TEN_BITS
"""Inputs of matrix multiplications in float16 or TF32: 0.4 %."""
IN_BFLOAT16: Final = math.sqrt(_ROUNDINGS) * _BFLOAT16
"""Inputs of matrix multiplications in bfloat16: 3 %."""
