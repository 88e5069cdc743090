"""What kernels do, by their names."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matrices import every_third
from random_inputs import examples
from shared_data import shared, unpacked
from tables import Rows

from annot.analyze.kernel_names import (
    KernelClass,
    by_class,
    classify,
    layer_kernels,
    layer_names,
    patterns,
    with_classes,
)
from annot.attribution.attribute import attribute
from annot.attribution.layer_tables import by_layer
from annot.read.formats import load

ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, {}, std::array<char*, 2ul> >(int, {})"
FOREACH = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::TensorListMetadata<4>, {}>({})"
CUTLASS = "void cutlass::Kernel2<{0}>({0}::Params)"

# Name, kind, library, whether it computes on Tensor Cores (None: the name does not show it).
NAMES = [
    # Matrix products of NVIDIA, from Maxwell to Blackwell.
    ("maxwell_sgemm_128x64_nn", "gemm", "cuBLAS", False),
    ("maxwell_fp16_sgemm_fp16_128x32_nn", "gemm", "cuBLAS", False),
    ("volta_sgemm_64x32_sliced1x4_nn", "gemm", "cuBLAS", False),
    ("volta_h884gemm_64x64_ldg8_nn", "gemm", "cuBLAS", True),
    ("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_tn", "gemm", "cuBLAS", True),
    ("turing_h1688gemm_128x64_ldg8_stages_32x1_tn", "gemm", "cuBLAS", True),
    ("turing_fp16_s1688gemm_fp16_128x128_ldg8_relu_f2f_tn", "gemm", "cuBLAS", True),
    ("turing_s8_i8816gemm_s8_128x64_ldg16_relu_stages_64x1_tn", "gemm", "cuBLAS", True),
    ("ampere_sgemm_128x64_tn", "gemm", "cuBLAS", False),
    ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_32x6_nn", "gemm", "cuBLAS", True),
    ("ampere_fp16_s1688gemm_fp16_64x64_sliced1x2_ldg8_f2f_tn", "gemm", "cuBLAS", True),
    ("ampere_h16816gemm_256x128_ldg8_stages_32x3_tn", "gemm", "cuBLAS", True),
    ("ampere_d884gemm_64x64_nn", "gemm", "cuBLAS", True),
    ("ampere_dgemm_64x64_nn", "gemm", "cuBLAS", False),
    ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4_execute_kernel__5x_"
     "cublas", "gemm", "cuBLAS", False),
    ("sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x32_stage4_warpsize2x2x1_tensor16x8x16_execute_kernel__5x_"
     "cublas", "gemm", "cuBLAS", True),
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_"
     "cublas", "gemm", "cuBLAS", True),
    ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN", "gemm", "cuBLASLt", True),
    ("nvjet_sm100_hsh_128x256_64x6_2x1_2cta_v_bz_TNT", "gemm", "cuBLASLt", True),
    ("void cublasLt::splitKreduce_kernel<32, 16, int, float>(cublasLt::cublasSplitKParams<float>)", "gemm", "cuBLASLt",
     False),
    ("void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 2, 2, false, false, cublasGemvParams<int> >"
     "(float)", "gemm", "cuBLAS", False),
    ("void gemmSN_TN_kernel<float, 128, 16, 2, 4, 8, 9, false>(cublasGemmSmallNParams<float>)", "gemm",
     "cuBLAS", False),
    ("void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensor<float const>, float> >(float)", "gemm", "cuBLAS",
     False),
    (CUTLASS.format("cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8"), "gemm", "CUTLASS", True),
    (CUTLASS.format("cutlass_80_wmma_tensorop_f16_s161616gemm_f16_32x32_64x2_tn_align8"), "gemm", "CUTLASS", True),
    (CUTLASS.format("cutlass_80_simt_sgemm_128x32_8x5_nn_align1"), "gemm", "CUTLASS", False),
    ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int>, cutlass::gemm::"
     "collective::CollectiveMma<MainloopSm90TmaGmmaWarpSpecialized<4>, cute::TiledMMA<cute::MMA_Atom<cute::SM90_"
     "64x128x16_F32BF16BF16_SS> > > > >(T1::Params)", "gemm", "CUTLASS", True),
    # Convolutions.
    ("maxwell_scudnn_128x64_relu_interior_nn", "convolution", "cuDNN", False),
    ("maxwell_scudnn_winograd_128x128_ldg1_ldg4_tile148n_nt", "convolution", "cuDNN", False),
    ("volta_fp16_s884cudnn_fp16_256x64_ldg8_relu_f2f_exp_small_nhwc_tn_v1", "convolution", "cuDNN", True),
    ("volta_s884cudnn_fp16_256x128_ldg8_wgrad_idx_exp_interior_nhwc_nt_v1", "convolution", "cuDNN", True),
    ("turing_fp16_s1688cudnn_fp16_128x128_ldg8_wgrad_idx_exp_interior_nhwc_nt_v1", "convolution", "cuDNN", True),
    ("ampere_scudnn_128x128_stridedB_splitK_interior_nn_v1", "convolution", "cuDNN", False),
    ("sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_stage4_warpsize2x2x1_g1_"
     "tensor16x8x16_kernel_cudnn", "convolution", "cuDNN", True),
    ("sm90_xmma_dgrad_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_warpgroupsize1x1x1_g1_execute_"
     "segment_k_off_kernel__5x_cudnn", "convolution", "cuDNN", True),
    ("void cutlass_cudnn_infer::Kernel<cutlass_tensorop_s1688fprop_optimized_tf32_128x128_16x4_nhwc_align4>(T1)",
     "convolution", "cuDNN", True),
    ("void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, false, true, true>(int, int)", "convolution",
     "cuDNN", False),
    ("void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(cudnn::WinogradDataParams)", "convolution",
     "cuDNN", False),
    ("void fft2d_r2c_32x32<float, false, 0u, false>(float2*, float const*, cudnn::reduced_divisor, bool)",
     "convolution",
     "cuDNN", False),
    ("ampere_gcgemm_64x64_nt", "convolution", "cuDNN", False),
    ("void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3, float, int>(at::GenericPacked)",
     "convolution", "PyTorch", False),
    ("void at::native::im2col_kernel<float>(long, float const*)", "convolution", "PyTorch", False),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_6x128x128x64_4x1x1_cga1x1x1_kernel0_0",
     "attention", "cuDNN", True),
    ("void cudnn::fusion::compute_dot_do_o_specialized<true, 64>(void const*)", "attention", "cuDNN", False),
    ("void cudnn::fusion::convert_dq_to_16bits<true>(void const*)", "attention", "cuDNN", False),
    # Attention.
    ("void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::bfloat16_t> >(T1)",
     "attention", "FlashAttention", True),
    ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64> >(T1)",
     "attention", "FlashAttention", True),
    ("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2> > > >("
     "T1)", "attention", "FlashAttention", True),
    ("fmha_cutlassF_f16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel)", "attention", "CUTLASS", True),
    ("fmha_cutlassB_f32_aligned_64x64_k64_sm80(PyTorchMemEffAttention::AttentionBackwardKernel)", "attention",
     "CUTLASS",
     True),
    ("fmha_cutlassF_f32_aligned_64x64_rf_sm75(PyTorchMemEffAttention::AttentionKernel)", "attention", "CUTLASS", False),
    ("void vllm::paged_attention_v1_kernel<unsigned short, 128, 16, 128>(unsigned short*)", "attention", "vLLM", None),
    # TensorRT.
    ("trt_volta_h884cudnn_256x64_ldg8_relu_exp_small_nhwc_tn_v1", "convolution", "TensorRT", True),
    ("trt_ampere_scudnn_128x32_relu_small_nn_v1", "convolution", "TensorRT", False),
    ("void genericReformat::copyVectorizedKernel<double, float, __half, true, true, 1>(unsigned int)", "copy",
     "TensorRT",
     False),
    ("__myl_AddCast_0xb1_myl", "other", "TensorRT", None),
    # Triton, by what inductor calls its kernels.
    ("triton_poi_fused_add_relu_0", "elementwise", "Triton", False),
    ("triton_poi_fused__to_copy_3", "copy", "Triton", False),
    ("triton_red_fused_sum_1", "reduction", "Triton", False),
    ("triton_per_fused_native_layer_norm_2", "normalisation", "Triton", False),
    ("triton_per_fused__softmax_4", "softmax", "Triton", False),
    ("triton_tem_fused_addmm_relu_5", "gemm", "Triton", None),
    ("triton_tem_fused_convolution_7", "convolution", "Triton", None),
    ("triton_tem_fused_flex_attention_6", "attention", "Triton", None),
    ("triton__0d1d2d3d", "other", "Triton", None),
    # ROCm.
    ("Cijk_Ailk_Bljk_SB_MT128x64x16_MI32x32x2x1_SN_1LDSB0_AMAS3", "gemm", "rocBLAS", True),
    ("Cijk_Ailk_Bljk_SB_MT64x64x8_SE_APM1_AF0EM1_TT4_4_VAW1_WG16_16_1", "gemm", "rocBLAS", False),
    ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt256x128x32_wt32x32x8_ws2x1", "convolution", "MIOpen", True),
    ("miopenSp3AsmConv_v30_3_1_gfx9_fp32_f2x3_stride1", "convolution", "MIOpen", False),
    ("MIOpenBatchNormFwdTrainSpatial.kd", "normalisation", "MIOpen", False),
    ("void ck_tile::kentry<256, 2, ck_tile::FmhaFwdKernel<ck_tile::FmhaFwdKernelTilePartitioner> >(T1)", "attention",
     "Composable Kernel", None),
    ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", "collective", "NCCL", False),
    # Experts, and names that show neither dtype nor unit.
    ("aiter_fused_moe_kernel_bf16", "gemm", "AITER", None),
    ("fused_moe_kernel", "gemm", "", None),
    ("attn_fwd.kd", "attention", "", None),
    ("bwd_kernel_dk_dv.kd", "attention", "", None),
    ("Cijk_B_PostGSU2", "gemm", "rocBLAS", False),
    ("void cutlass::gemm_nn_128x128<float>(float*, float*)", "gemm", "CUTLASS", None),
    # What PyTorch does itself.
    (ELEMENTWISE.format("at::native::CUDAFunctor_add<float>", "T2"), "elementwise", "PyTorch", False),
    (ELEMENTWISE.format("at::native::FillFunctor<float>", "T2"), "copy", "PyTorch", False),
    (ELEMENTWISE.format("at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}", "T2"),
     "copy", "PyTorch", False),
    ("void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<at::native::direct_copy_kernel_cuda(at::"
     "TensorIteratorBase&)> >(int)", "copy", "PyTorch", False),
    ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float> > >(T3)",
     "reduction",
     "PyTorch", False),
    ("void at::native::(anonymous namespace)::max_pool_forward_nchw<float, float>(int)", "reduction", "PyTorch", False),
    ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)", "normalisation",
     "PyTorch", False),
    ("void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernel<float, float>(long)", "normalisation",
     "PyTorch", False),
    ("void cudnn::bn_fw_tr_1C11_singleread<float, 512, true, 1, 2, 0>(cudnn::bn_fw_tr_1C11_args<float>)",
     "normalisation", "cuDNN", False),
    ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true, false>(float*)", "softmax",
     "PyTorch", False),
    ("void at::native::(anonymous namespace)::indexSelectLargeIndex<float, long, unsigned int, 2, 2, -2, true>(T1)",
     "embedding", "PyTorch", False),
    ("void at::native::(anonymous namespace)::embedding_backward_feature_kernel<float, float, long>(long*)",
     "embedding",
     "PyTorch", False),
    ("void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*)", "embedding", "PyTorch", False),
    ("void rotary_embedding_kernel<c10::BFloat16, true>(long const*)", "elementwise", "PyTorch", False),
    ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2, 128, 1>(float*)", "copy",
     "PyTorch", False),
    ("void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float, float, unsigned int, 1, 4, bool>(T1)",
     "random", "PyTorch", False),
    ("void at::native::distribution_elementwise_grid_stride_kernel<float, 4, normal_and_transform>(T1)", "random",
     "PyTorch", False),
    (FOREACH.format("at::native::FusedAdamMathFunctor<float, 4>, float const*", "T1"), "optimizer", "PyTorch", False),
    (FOREACH.format("at::native::LpNormFunctor<float, 2>", "T1"), "reduction", "PyTorch", False),
    (FOREACH.format("at::native::CopyFunctor<int, long, 2, 1, 1>", "T1"), "copy", "PyTorch", False),
    ("void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<int>(int*)", "reduction", "PyTorch", False),
    # Others.
    ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float>(long)", "optimizer", "Apex",
     False),
    ("void Eigen::internal::EigenMetaKernel<Eigen::TensorEvaluator<int> >(int)", "elementwise", "TensorFlow", False),
    ("loop_add_fusion_12", "elementwise", "XLA", False),
    ("void thrust::cuda_cub::core::_kernel_agent<T1>(int)", "other", "Thrust", None),
    ("(copy HtoD)", "copy", "", False),
    ("(memset)", "copy", "", False),
    ("CUDA graph 4", "other", "", None),
    ("saxpy(double *, double *, double *, double, int)", "elementwise", "", False),
    ("", "other", "", None),
]  # fmt: skip

UNKNOWN = {
    "CUDA graph 4", "[kernel.kallsyms]", "__missing__", "kernelA(float *, int)", "kernelB(float *, int)",
    "kernelC(float *, int)", "triton__0d1d23d", "triton__0d1d2d", "triton__0d1d2d3d", "triton__0d1d2d3d4d5d",
    "triton__0d1d2d3d4d5d6d", "triton__0d1d2d3d4d5d6d7d8d9d10d11d12d13d14",
}  # fmt: skip
"""The kernels in the real profiles whose names do not tell what they do."""

REAL = [
    "kineto/hta_alexnet_a100_cupti_sass_flops.json.gz", "kineto/hta_alexnet_a100_train.json.gz",
    "kineto/hta_oldcat_Kernel_Runtime.json.gz", "kineto/hta_recsys_a100_cudagraph.json.gz",
    "kineto/hta_resnet_ddp_a100_fwdbwd_gua.json.gz", "kineto/kineto_2021_resnet50_v100_oldcats_seq.json.gz",
    "kineto/tracelens_h100_bert_small_nnmodule.json.gz", "kineto/tracelens_mi300_resnet18_train_nnmodule_seq.json.gz",
    "kineto/tracelens_mi300_sglang_decode_graph_exec.json.gz", "ncu/leleucas_bert_attention_torch_a100.csv",
    "nsys/athrun_lm_attn_windows.2026.2.sqlite.gz", "nsys/ginda_mfu_2gpu_before.2026.2.sqlite.gz",
    "nsys/jsun_lm_fwd_bwd.2025.1.sqlite.gz", "nsys/zx_lm_fwd_nvtx.2024.6.sqlite.gz",
    "nsys/zx_lm_compile_graphtrace_no_nvtx.2024.6.sqlite.gz", "xplane/tf_bert_gpu8_multi_worker.xplane.pb",
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind", "library", "tensor_cores"), NAMES)
def test_known_names(name: str, kind: str, library: str, tensor_cores: bool | None) -> None:
    """Names of each generation and library have the class that was written down by hand."""
    assert classify(name) == KernelClass(kind, library, tensor_cores)


def _kinds() -> set[str]:
    return {"other", *(rule.kind for rule in patterns().rules)}


def test_every_kind_is_known_by_a_name() -> None:
    """The table above has a name of each kind."""
    assert {kind for _, kind, _, _ in NAMES} == _kinds()


def test_kinds_have_words() -> None:
    """Sentences name each kind but collectives, which are a part of the step of their own, and unknown kernels."""
    assert patterns().words.keys() | {"collective", "other"} == _kinds()


def test_names_keep_their_type() -> None:
    """Categories stay categories, which take much less memory than texts, and have the classes of their texts."""
    texts = pl.DataFrame({"name": ["ampere_sgemm", None, "(memset)", "ampere_sgemm"]})
    categories = with_classes(texts.cast(pl.Categorical))
    assert categories["name"].dtype == pl.Categorical
    assert categories.cast({"name": pl.String}).equals(with_classes(texts))


@settings(max_examples=examples(100), deadline=None)
@given(st.text() | st.text(alphabet="_<>():sgem mwinograd0123456789xcutlass", min_size=1000, max_size=9000))
def test_any_text_has_a_class(name: str) -> None:
    """No name raises, however long or strange."""
    assert classify(name).kind in _kinds()


@pytest.mark.parametrize("name", every_third(REAL))
def test_names_in_real_profiles(name: str, tmp_path: Path) -> None:
    """Of all names in the real profiles only those have no class that do not tell."""
    path = unpacked(name, tmp_path) if name.startswith("nsys") else shared(name)
    names = load(path).kernels["name"].unique()
    assert {one for one in names if classify(one).kind == "other"} <= UNKNOWN


def test_tensor_cores_in_real_profiles() -> None:
    """In fp32 without TF32 no kernel computes on Tensor Cores; with TF32 the convolutions do."""
    v100 = load(shared("kineto/kineto_2021_resnet50_v100_oldcats_seq.json.gz")).kernels["name"].unique()
    assert not any(classify(name).tensor_cores for name in v100)
    a100 = load(shared("kineto/hta_resnet_ddp_a100_fwdbwd_gua.json.gz")).kernels["name"].unique()
    assert {classify(name).kind for name in a100 if classify(name).tensor_cores} == {"convolution", "gemm"}


def _profile() -> Rows:
    rows = Rows().range("fc Linear [4,8]f32 |fwd", 0, 100).range("bn BatchNorm1d [4,8]f32 |fwd", 200, 300)
    rows.kernel(10, (1000, 1070), name="ampere_sgemm_128x64_tn")
    rows.kernel(20, (1070, 1090), name=ELEMENTWISE.format("at::native::CUDAFunctor_add<float>", "T2"))
    rows.kernel(30, (1090, 1100), name="never seen")
    rows.kernel(210, (1100, 1130), name="void cudnn::bn_fw_tr_1C11_singleread<float>(float)")
    return rows.kernel(400, (1130, 1135), name="ampere_sgemm_128x64_tn")


def test_what_lies_outside_matrix_products() -> None:
    """Each layer's own time is that of matrix products and what else, by kind; columns sum to it exactly."""
    attribution = attribute(_profile().build())
    rows = {row["layer"]: row for row in layer_kernels(attribution).to_dicts()}
    assert rows["fc"] == {
        "layer": "fc", "module": "Linear", "phase": "forward", "gpu_self_ns": 100, "matrix_ns": 70, "outside_ns": 30,
        "outside": "elementwise 20 ns, other 10 ns", "gemm_ns": 70, "normalisation_ns": 0, "elementwise_ns": 20,
        "other_ns": 10,
    }  # fmt: skip
    assert (rows["bn"]["matrix_ns"], rows["bn"]["outside"]) == (0, "normalisation 30 ns")


def test_times_by_class() -> None:
    """A row per class, the longest first, that add up to all device time; what is in no range is in no layer."""
    attribution = attribute(_profile().build())
    rows = by_class(attribution)
    assert rows.row(0, named=True) == {
        "kind": "gemm", "library": "cuBLAS", "tensor_cores": False, "names": 1, "calls": 2, "gpu_ns": 75, "layers": 1,
    }  # fmt: skip
    assert rows["gpu_ns"].sum() == 135
    assert rows["kind"].to_list() == ["gemm", "normalisation", "elementwise", "other"]


@pytest.mark.parametrize("name", every_third(REAL))
def test_sums_of_real_profiles(name: str, tmp_path: Path) -> None:
    """Whatever the profile, classes and layers have all of its device time."""
    path = unpacked(name, tmp_path) if name.startswith("nsys") else shared(name)
    attribution = attribute(load(path))
    whole = attribution.nodes["gpu_self_ns"].sum()
    assert by_class(attribution)["gpu_ns"].sum() == layer_names(attribution)["gpu_ns"].sum() == whole
    rows = layer_kernels(attribution)
    assert rows["gpu_self_ns"].equals(by_layer(attribution)["gpu_self_ns"])
    kinds = rows.select(pl.sum_horizontal(rows.columns[7:] or [pl.lit(0)])).to_series()
    assert kinds.to_list() == rows["gpu_self_ns"].to_list()
