"""Operations per clock cycle of a multiprocessor, and data sheet values of devices.

Rates are dense floating-point operations (two per multiply-add) with 32-bit accumulation. Rates outside Tensor Cores
are twice the results per clock cycle in the table "Throughput of Native Arithmetic Instructions" of the CUDA C++
Programming Guide (12.9) and of the Best Practices Guide (13.4; 12.0 and 12.1 share a column). Rates of Tensor Cores
are those per multiprocessor in NVIDIA's architecture white papers (Volta V1.1, Turing, A100 V1.0, GA102 V2, H100 V1.04,
Ada V2.1, Blackwell RTX V1.1); they equal the data sheet peak divided by multiprocessors and boost clock. Rates of AMD
devices are from the CDNA 3 white paper and the data sheets of the Instinct accelerators.

Publications on newer devices are incomplete; unpublished rates are left out:

    8.7   Orin: 16 multiprocessors of 128 cores and 4 Tensor Cores reach 5.3 TFLOP/s in FP32 and 170 sparse INT8 TOP/s
          at 1.3 GHz (Jetson AGX Orin Series Technical Brief); FP16 is half of INT8, as in all of Ampere.
    10.0  B200: 9 PFLOP/s in FP4, 4.5 in FP6 and FP8 (DGX B200 data sheet).
    10.3  GB300: 15 PFLOP/s in NVFP4 on 160 multiprocessors of 128 cores (NVIDIA's blog "Inside NVIDIA Blackwell
          Ultra"), 5 in FP8 and FP6, 2.5 in FP16, 1.25 in TF32, 0.08 in FP32 (GB300 NVL72 specifications); FP64 is a
          64th of FP32. B300: 4.5 PFLOP/s in FP8 (DGX B300 data sheet), which determines its clock.
    11.0  Thor: 2,070 sparse FP4 TFLOP/s on 20 multiprocessors of 128 cores at 1.57 GHz (Jetson Thor), FP8 is
          half and FP16 a quarter of FP4.
    12.0  FP4 is twice FP8 (RTX 5090: 3,352 sparse TFLOP/s); a GeForce runs it at the full rate.
    12.1  DGX Spark: 1 PFLOP/s of sparse FP4 on 48 multiprocessors; the rest as 12.0, which shares its instructions.
    MI350 256 compute units at 2.4 (MI355X) and 2.2 GHz: 2.5 PFLOP/s in FP16, 5 in FP8, 10.1 in FP6 and FP4, 157.3
          TFLOP/s in FP32, 8 TB/s (AMD Instinct MI355X specifications); TF32 is unsupported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["GEFORCE", "NVIDIA", "Sheet", "sheet_of"]

_PASCAL_100: Final = {"f64": 64, "f32": 128, "f16": 256}
_VOLTA: Final = {"f64": 64, "f32": 128, "f16": 256, "f16 tensor": 1024}
_AMPERE_100: Final = {
    "f64": 64, "f32": 128, "f16": 512, "bf16": 256, "f64 tensor": 128, "tf32 tensor": 1024, "f16 tensor": 2048,
    "bf16 tensor": 2048,
}  # fmt: skip
_AMPERE_102: Final = {
    "f64": 4, "f32": 256, "f16": 256, "bf16": 256, "tf32 tensor": 512, "f16 tensor": 1024, "bf16 tensor": 1024,
}  # fmt: skip
_ADA: Final = {**_AMPERE_102, "f8 tensor": 2048}
_HOPPER: Final = {
    "f64": 128, "f32": 256, "f16": 512, "bf16": 512, "f64 tensor": 256, "tf32 tensor": 2048, "f16 tensor": 4096,
    "bf16 tensor": 4096, "f8 tensor": 8192,
}  # fmt: skip
_BLACKWELL_100: Final = {
    "f64": 128, "f32": 256, "f16": 512, "bf16": 512, "f64 tensor": 128, "tf32 tensor": 4096, "f16 tensor": 8192,
    "bf16 tensor": 8192, "f8 tensor": 16384, "f6 tensor": 16384, "f4 tensor": 32768,
}  # fmt: skip
_BLACKWELL_103: Final = {
    "f64": 4, "f32": 256, "tf32 tensor": 4096, "f16 tensor": 8192, "bf16 tensor": 8192, "f8 tensor": 16384,
    "f6 tensor": 16384, "f4 tensor": 49152,
}  # fmt: skip
_BLACKWELL_120: Final = {**_ADA, "f4 tensor": 4096}

NVIDIA: Final[Mapping[tuple[int, int], Mapping[str, int]]] = {
    (5, 0): {"f64": 8, "f32": 256},
    (5, 2): {"f64": 8, "f32": 256},
    (6, 0): _PASCAL_100,
    (6, 1): {"f64": 8, "f32": 256, "f16": 4},
    (7, 0): _VOLTA,
    (7, 5): {"f64": 4, "f32": 128, "f16": 256, "f16 tensor": 1024},
    (8, 0): _AMPERE_100,
    (8, 6): _AMPERE_102,
    (8, 7): {"f32": 256, "f16 tensor": 2048},
    (8, 9): _ADA,
    (9, 0): _HOPPER,
    (10, 0): _BLACKWELL_100,
    (10, 3): _BLACKWELL_103,
    (11, 0): {"f32": 256, "f16 tensor": 8192, "bf16 tensor": 8192, "f8 tensor": 16384, "f4 tensor": 32768},
    (12, 0): _BLACKWELL_120,
    (12, 1): _BLACKWELL_120,
}
"""Operations per clock cycle of a multiprocessor, by compute capability and precision."""

GEFORCE: Final = 2
"""Tensor Cores of a GeForce accumulate in 32 bits at 1/2 of the rate of a professional card with the same chip."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """Memory bandwidth (bytes/s) and boost clock (Hz) in the data sheet of a device.

    Devices whose peaks do not follow from clock and multiprocessors have the peak FLOP/s by precision instead.
    """

    bandwidth: float
    clock: float | None = None
    flops: Mapping[str, float] | None = None


_CDNA3: Final = {
    "f64": 81.7e12, "f32": 163.4e12, "f64 tensor": 163.4e12, "f32 tensor": 163.4e12, "tf32 tensor": 653.7e12,
    "f16 tensor": 1307.4e12, "bf16 tensor": 1307.4e12, "f8 tensor": 2614.9e12,
}  # fmt: skip
_CDNA2: Final = {
    "f64": 47.9e12, "f32": 47.9e12, "f64 tensor": 95.7e12, "f32 tensor": 95.7e12, "f16 tensor": 383e12,
    "bf16 tensor": 383e12,
}  # fmt: skip

_CDNA4: Final = {
    "f32": 157.3e12, "f16 tensor": 2516.6e12, "bf16 tensor": 2516.6e12, "f8 tensor": 5033.2e12, "f6 tensor": 10066.3e12,
    "f4 tensor": 10066.3e12,
}  # fmt: skip

# The first matching pattern wins.
_SHEETS: Final[tuple[tuple[str, Sheet], ...]] = (
    (r"Instinct MI355X", Sheet(8.0e12, flops=_CDNA4)),
    (r"Instinct MI350X", Sheet(8.0e12, flops={name: peak * 2.2 / 2.4 for name, peak in _CDNA4.items()})),
    (r"Instinct MI325", Sheet(6.0e12, flops=_CDNA3)),
    (r"Instinct MI300X", Sheet(5.3e12, flops=_CDNA3)),
    (r"Instinct MI250X", Sheet(3.2768e12, flops=_CDNA2)),
    (r"\bGB300\b", Sheet(8.0e12, 1.907e9)),
    (r"\bB300\b", Sheet(8.0e12, 1.85e9)),
    (r"\bGB10\b", Sheet(0.273e12, 2.418e9)),
    (r"\bB200\b", Sheet(8.0e12, 1.85e9)),
    (r"\bH200\b", Sheet(4.8e12, 1.83e9)),
    (r"\bH100 PCIe", Sheet(2.039e12, 1.755e9)),
    (r"\bH100 NVL", Sheet(3.938e12, 1.785e9)),
    (r"\bH100\b.*HBM3", Sheet(3.352e12, 1.83e9)),
    (r"\bA100.*80GB PCIe|\bA100 80GB PCIe", Sheet(1.935e12, 1.41e9)),
    (r"\bA100.*80GB", Sheet(2.039e12, 1.41e9)),
    (r"\bA100\b", Sheet(1.555e12, 1.41e9)),
    (r"\bV100S\b", Sheet(1.134e12, 1.597e9)),
    (r"\bV100\b.*PCIE", Sheet(0.9e12, 1.38e9)),
    (r"\bV100\b", Sheet(0.9e12, 1.53e9)),
    (r"\bL40S\b", Sheet(0.864e12, 2.52e9)),
    (r"\bL4\b", Sheet(0.3e12, 2.04e9)),
    (r"\bA40\b", Sheet(0.696e12, 1.74e9)),
    (r"\bA10\b", Sheet(0.6e12, 1.695e9)),
    (r"\bT4\b", Sheet(0.32e12, 1.59e9)),
    (r"Tesla P4\b", Sheet(0.192e12, 1.063e9)),
    (r"\bP100\b.*SXM2|\bP100-SXM2", Sheet(0.732e12, 1.48e9)),
    (r"RTX 4090\b(?! Laptop| D)", Sheet(1.008e12, 2.52e9)),
    (r"RTX 3090\b(?! Ti)", Sheet(0.936e12, 1.695e9)),
)


def sheet_of(name: str) -> Sheet | None:
    """Return the data sheet values of a device by the name that the driver reports; None: not in the table."""
    return next((sheet for pattern, sheet in _SHEETS if re.search(pattern, name)), None)
