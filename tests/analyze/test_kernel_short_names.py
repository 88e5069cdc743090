"""Short names of kernels, and that no two kernels of a profile share one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matrices import every_third
from random_inputs import examples
from shared_data import shared, shared_names, unpacked
from tables import Rows

from annot.analyze.kernel_names import short_name, short_names
from annot.attribution.attribute import attribute
from annot.read.formats import load
from annot.report.views import find_view

ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, {}, std::array<char*, 2ul> >(int, {})"
FOREACH = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::TensorListMetadata<4>, {}>({})"
CUTLASS = "void cutlass::Kernel2<{0}>({0}::Params)"
NSIGHT = [name for name in shared_names("nsys", ".sqlite.gz") if "no_cuda" not in name]
MUL = "at::native::BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >"
NSYS = (
    "void at::native::elementwise_kernel<(int)128, (int)2, void at::native::gpu_kernel_impl_nocast<{}>"
    "(at::TensorIteratorBase &, const T1 &)::[lambda(int) (instance 1)]>(int, T3)"
)
PLAIN = (
    "ampere_sgemm_128x64_tn", "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN", "triton_poi_fused_add_relu_0",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_"
    "cublas", "(copy HtoD)", "(memset)", "CUDA graph 4", "[kernel.kallsyms]", "loop_add_fusion_12", "",
)  # fmt: skip
SHORT = [
    (ELEMENTWISE.format(MUL, "T2"), "elementwise MulFunctor"),
    (NSYS.format(MUL), "elementwise MulFunctor"),
    (ELEMENTWISE.format("at::native::CUDAFunctor_add<float>", "T2"), "elementwise CUDAFunctor_add"),
    (NSYS.format("at::native::<unnamed>::where_kernel_impl(at::TensorIterator &)::[lambda() (instance 1)]::operator ()"
                 "() const::[lambda(bool, float, float) (instance 1)]"), "elementwise where"),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::exp_kernel_cuda(at::TensorIteratorBase&)::{lambda()"
     "#2}::operator()() const::{lambda(float)#1}, std::array<char*, 2ul> >(int, T2)", "elementwise exp"),
    ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float, at::native::"
     "sum_functor<float, float, float>::operator()(at::TensorIterator&)::{lambda(float, float)#1}>, int> >(T3)",
     "reduce sum"),
    (FOREACH.format("at::native::BinaryOpScalarFunctor<float, 1, 1, 0>, std::multiplies<float>, float", "T1"),
     "multi_tensor_apply BinaryOpScalarFunctor multiplies"),
    ("void at::native::(anonymous namespace)::cunn_SoftMaxBackward<4, float, float, float, at::native::(anonymous "
     "namespace)::LogSoftMaxBackwardEpilogue>(T2)", "cunn_SoftMaxBackward LogSoftMaxBackwardEpilogue"),
    (CUTLASS.format("cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8"),
     "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8"),
    ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int>, cutlass::gemm::"
     "collective::CollectiveMma<MainloopSm90TmaGmmaWarpSpecialized<4>, cute::TiledMMA<cute::MMA_Atom<cute::SM90_"
     "64x128x16_F32BF16BF16_SS> > > > >(T1::Params)", "GemmUniversal SM90_64x128x16_F32BF16BF16_SS"),
    ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 96, 4, false, false, cutlass"
     "::bfloat16_t> >(T1)", "flash_fwd_kernel hdim64 128x96 bfloat16"),
    ("void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)128, (int)128, (int)64, (int)4, (bool)0, (bool)0, "
     "cutlass::half_t> >(T1)", "flash_fwd_kernel hdim128 128x64 half"),
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
     "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
    ("Cijk_Ailk_Bljk_SB_MT128x64x16_MI32x32x2x1_SN_1LDSB0_AMAS3", "Cijk_Ailk_Bljk_SB_MT128x64x16_MI32x32x2x1"),
    ("void epilogue::impl::globalKernel<float, 2>(int)", "epilogue::impl::globalKernel"),
    ("std::enable_if<(4 < 5), void>::type cub::DeviceScanKernel<int>(int)", "DeviceScanKernel"),
    ("saxpy(double *, double *, int)", "saxpy"),
    ("_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_",
     "elementwise CUDAFunctor_add"),
    ("_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_4PipeEDF16bEEEvv", "Rmsnorm2dFwd"),
    ("_Z5saxpyPdS_i", "saxpy"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "short"), [*SHORT, *((name, name) for name in PLAIN)])
def test_known_names(name: str, short: str) -> None:
    """Kernels keep their operation, tile, dtype and layout; names without arguments stay as they are."""
    assert short_name(name) == short


def test_kernels_with_the_same_short_name_differ() -> None:
    """What only some of the kernels have stands in brackets, and a number where nothing else differs."""
    adds = [ELEMENTWISE.format(f"at::native::CUDAFunctor_add<{dtype}>", "T2") for dtype in ("float", "c10::Half")]
    add = NSYS.format("at::native::CUDAFunctor_add<float>")
    assert short_names(adds) == {
        adds[0]: "elementwise CUDAFunctor_add (float)", adds[1]: "elementwise CUDAFunctor_add (Half)",
    }  # fmt: skip
    assert short_names([add, adds[0]])[adds[0]] == "elementwise CUDAFunctor_add (vectorized)"
    assert set(short_names(["void f<1, 2>(int)", "void f<2, 1>(int)"]).values()) == {"f", "f #2"}


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.text(alphabet="_Z<>():&, {}#[]at12xk::", max_size=60) | st.text(max_size=20), max_size=12))
def test_any_names_get_different_short_names(names: list[str]) -> None:
    """No name raises, and the names of a profile stay as many as they are, in any order."""
    found = short_names(names)
    assert set(found) == set(names)
    assert len(set(found.values())) == len(found)
    assert short_names(reversed(names)) == found


def test_deep_and_long_names_are_quick_enough() -> None:
    """Nested templates need no deep recursion, and many alike names no comparison of each with each."""
    assert short_name("void f<" + "A<" * 5000 + ">" * 5000 + ">(int)").startswith("f")
    assert len(set(short_names(f"void f<{number}, {-number}>(int)" for number in range(3000)).values())) == 3000


@pytest.mark.parametrize("name", every_third([*NSIGHT, *shared_names("kineto", ".json.gz")]))
def test_names_in_real_profiles(name: str, tmp_path: Path) -> None:
    """In each real profile, short names are distinct, shorter, and without namespaces, types and parameters."""
    path = unpacked(name, tmp_path) if name.startswith("nsys") else shared(name)
    kernels = {one for one in load(path).kernels["name"] if one}
    found = short_names(kernels)
    assert set(found) == kernels
    assert len(set(found.values())) == len(kernels)
    for whole, short in found.items():
        assert len(short) <= max(len(whole), 24)
        assert len(short) < 160 or short == whole
        assert not re.search(r"at::native|anonymous|unnamed|lambda|<", short) or short == whole


def test_kernel_table_has_both_names() -> None:
    """Files have the whole and the short name; it is the same whichever rows remain."""
    names = [ELEMENTWISE.format(f"at::native::CUDAFunctor_add<{dtype}>", "T2") for dtype in ("float", "c10::Half")]
    rows = Rows().range("fc Linear [4,8]f32 |fwd", 0, 100)
    for number, name in enumerate(names):
        rows.kernel(10 + number, (1000 + 100 * number, 1050 + 100 * number - number), name=name)
    table = find_view("kernel").rows(attribute(rows.build()))
    assert table.select("name", "short").rows() == [
        (names[0], "elementwise CUDAFunctor_add (float)"), (names[1], "elementwise CUDAFunctor_add (Half)"),
    ]  # fmt: skip
