r"""Regular expressions that classify kernels by name; the first match wins.

The head of a name is the part before the first ``<`` or ``(``; the body is the whole name. Kernels with one purpose
show it in the head. Kernels that take the operation as a template argument (``elementwise_kernel``,
``reduce_kernel``, ``cutlass::Kernel``) show it in the body only, which also contains types such as ``Tensor``.

To classify a new name, add an alternative to the rule of its kind, and add the name to the table in the tests.
"""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias

__all__ = ["KINDS", "LIBRARIES", "OTHER_UNITS", "RULES", "TENSOR_CORES", "Kind"]

Kind: TypeAlias = Literal[
    "gemm", "convolution", "attention", "elementwise", "reduction", "normalisation", "softmax", "embedding", "copy",
    "random", "optimizer", "collective", "other",
]  # fmt: skip

KINDS: Final[dict[Kind, str]] = {
    "gemm": "matrix-matrix and matrix-vector multiplications, also of experts, with split-K sums and epilogues",
    "convolution": "convolutions by any method (implicit GEMM, Winograd, FFT), with their preparation kernels",
    "attention": "fused attention",
    "elementwise": "elementwise operations: arithmetic, activations, casts within arithmetic, quantization",
    "reduction": "sums, means, maxima, pooling, losses, scans and sorts",
    "normalisation": "batch, layer, group, instance and RMS norm",
    "softmax": "softmax and operations fused with it",
    "embedding": "lookups by index: embeddings, gathers and scatters, and their gradients",
    "copy": "copies, casts, memory fills and layout conversions",
    "random": "random number generation and dropout",
    "optimizer": "parameter updates, and multi-tensor functions that optimizers use",
    "collective": "communication between devices",
    "other": "unknown names",
}
"""Kinds of kernels and their descriptions."""

_HEAD: Final = "head"
_BODY: Final = "body"


def _rule(kind: Kind, where: str, *alternatives: str) -> tuple[Kind, bool, re.Pattern[str]]:
    return kind, where == _HEAD, re.compile("|".join(alternatives))


RULES: Final[tuple[tuple[Kind, bool, re.Pattern[str]], ...]] = (
    _rule(
        "collective", _HEAD,
        r"(?:^|[\s:_])(?:nccl|rccl|msccl|nvshmem|deep_?ep)",
        r"(?i:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)",
        r"cross_device_reduce", r"multimem_", r"userbuffers",
    ),
    # TorchInductor names a fused kernel by its loop type, followed by the fused operations.
    _rule("convolution", _HEAD, r"^triton_(?:tem|mm|poi|red|per)\w*_convolution(?!_backward_sum)"),
    _rule("attention", _HEAD, r"^triton_tem\w*attention", r"^_?(?:attn_(?:fwd|bwd)|bwd_(?:kernel_)?d[kq])\w*"),
    _rule("gemm", _HEAD, r"^triton_(?:tem|mm)", r"^triton_\w*?_(?:addmm|bmm|baddbmm)_\d+$"),
    _rule("softmax", _HEAD, r"^triton_(?:red|per)\w*softmax"),
    _rule("normalisation", _HEAD, r"^triton_(?:red|per)\w*(?:layer|batch|group|rms)_?norm"),
    _rule("reduction", _HEAD, r"^triton_(?:red|per|spl)_"),
    _rule("random", _HEAD, r"^triton_poi\w*(?:dropout|rand|bernoulli)"),
    _rule("embedding", _HEAD, r"^triton_poi\w*embedding"),
    _rule("copy", _HEAD, r"^triton_poi_fused_(?:_to_copy|clone|cat|copy|permute|t|transpose|view)*_?\d*$"),
    _rule("elementwise", _HEAD, r"^triton_(?:poi|for)_"),
    # Fused operations come before the operations that they contain.
    _rule(
        "attention", _HEAD,
        r"(?i:flash_(?:fwd|bwd|attn|attention)|fmha|paged_attention|_sdpa_|multi_?head_attention|mha_|attention)",
        r"(?i:flashinfer\w*(?:prefill|decode)|Batch(?:Prefill|Decode)With|mla_(?:fwd|decode|kernel)|merge_attn)",
        r"(?:^|::)compute_attn|_mla_|mha$",
    ),
    _rule("attention", _BODY, r"[Ff]lash_?(?:Attn|attn)(?:Fwd|Bwd|_fwd|_bwd)", r"(?i:Fmha(?:Fwd|Bwd)\w*Kernel|fmha::)"),
    _rule("convolution", _BODY, r"(?i:implicit_?gemm)"),
    _rule(
        "embedding", _HEAD,
        r"(?i:(?<!rotary_)(?<!pos_)(?<!position_)embedding)",
        r"indexSelect|indexing_backward|indexAdd|indexFunc|indexCopy|index_elementwise",
        r"index_put|scatter|gather(?!ed_gemm)", r"GatherV?\d?Op|GatherNd|ScatterNd|UnsortedSegment", r"pooled_embs",
        r"linearize_index|bounds_check_indices|bucketize_sparse|permute_2D",
    ),
    _rule("softmax", _HEAD, r"(?i:soft_?max)"),
    _rule(
        "normalisation", _HEAD,
        r"(?i:(?:layer|batch|group|instance|rms)_?norm)", r"::bn_(?:fw|bw)|^bn_(?:fw|bw)",
        r"cuApplyLayerNorm|ln_(?:fwd|bwd)",
        r"RowwiseMoments|ComputeInternalGradients|GammaBetaBackward|ComputeFusedParams|cuCompute(?:Part)?Grad",
        r"(?i:fused_?add_?(?:rms)?norm|norm_?quant|qk_?norm|lrn_?(?:fwd|bwd|forward|backward|kernel))",
    ),
    _rule("normalisation", _BODY,
    r"batch_norm_(?:update|calc|elementwise|transform|collect|backward)|LayerNorm|RMSNorm"),
    _rule("random", _HEAD, r"(?i:dropout|philox|curand|randperm|bernoulli|multinomial|rand_?int|random(?!access))"),
    _rule("random", _HEAD, r"distribution_(?:elementwise|nullary)|_rng_|^rng_|gen_sequenced|generate_seed"),
    _rule(
        "copy", _HEAD,
        r"(?i:nchw_?to_?nhwc|nhwc_?to_?nchw|nchw2nhwc|nhwc2nchw|transpose|(?<!implicit_)permut(?!ohedral))",
        r"CatArray|genericReformat|reformat|tensorTransform|(?i:memcpy|memset|copy(?!right))",
        r"tensor_?reorder|pack_weight",
        r"(?i:fill_?(?:kernel|functor)|store_kvcache|reshape_and_cache|concat|split_?with_?sizes|(?:^|_)pad(?:ding)?_)",
        r"set_mla_kv|write_req_to_token|kv_indices|flip_kernel|roll_cuda|tril|triu|Im2[Cc]olPack|PadInput",
    ),
    _rule(
        "convolution", _HEAD,
        r"(?i:[sh]?cudnn_(?:\d+x\d+|winograd)|conv(?!ert|ol_precision))",
        r"(?i:fprop|dgrad|wgrad|winograd|im2col|col2im|vol2col)",
        r"gcgemm|igemm_(?:fwd|bwd|wrw)|implicit_gemm|[sh]cudnn|\d+cudnn_", r"compute\w*OffsetsKernel", r"[Mm]iopenSp3",
        r"gfx\w+_f\dx\d|Sp3Asm|Kernel2?D?Depthwise|[Dd]epthwise",
    ),
    _rule("convolution", _BODY, r"cutlass.*\d(?:fprop|dgrad|wgrad)", r"cudnn::reduced_divisor"),
    _rule("convolution", _BODY, r"cutlass_cudnn\w*.*(?:reduction|ReduceSplitK)"),
    _rule(
        "gemm", _HEAD,
        r"(?i:gemm|gemv|nvjet|matmul|splitK_?reduce)", r"^Cijk_|epilogue::impl|cublasLt::",
        r"dot_kernel|(?:^|_)dot(?:_|$)",
        r"(?:^|_)(?:sy|he)r2?k|trs[mv]|ger_kernel|(?:^|[_:])addmm",
        r"(?i:wvSplitK|LLGemm|marlin|awq_|gptq|_mm_kernel|dotprod)",
        r"(?i:(?:fused|grouped|batched)_?moe|fmoe|moe_?(?:gemm|ffn|kernel|stage|mlp)|fused_experts)",
        r"cutlass_\d+_\w*tensorop|RNN_blockPersist|[Pp]ersistRNN",
    ),
    _rule("gemm", _BODY, r"^(?:void )?cutlass\w*::.*(?i:gemm)", r"cutlass_\d+_\w+gemm", r"GemmUniversal|GridwiseGemm"),
    _rule("optimizer", _BODY, r"(?i:multi_tensor_apply.*(?:adam|sgd|lamb|lion|adagrad|rmsprop|momentum|muon))"),
    _rule("copy", _BODY, r"multi_tensor_apply.*(?:CopyFunctor|native::Copy<)"),
    _rule("reduction", _BODY, r"multi_tensor_apply.*(?:L2Norm|LpNorm|LpMax|L1Norm|MaxNorm)"),
    _rule(
        "optimizer", _HEAD,
        r"multi_tensor_apply|foreach_",
        r"(?i:(?:^|[_:])(?:fused)?_?(?:adam|sgd|lamb|lion|adagrad|rmsprop|adafactor|muon))",
        r"(?i:Apply(?:Adam|Momentum|GradientDescent|RMSProp|Adagrad)|lars_)",
        r"(?i:l[ae]mb_?(?:kernel|stage)|non_finite_check)",
    ),
    _rule("copy", _BODY, r"(?i:(?:\w_|direct_|load_)copy_kernel|copy_device_to_device|FillFunctor|CopyOp|copy_cast)"),
    _rule("random", _BODY, r"(?i:uniform_and_transform|normal_and_transform|PhiloxRandom|bernoulli_|curand)"),
    _rule("elementwise", _HEAD, r"(?i:elementwise|elemWise)", r"updateGradInput|_backward_elementwise"),
    _rule(
        "reduction", _HEAD,
        r"(?i:reduce|reduction|(?:^|[_:])(?:arg)?(?:max|min|sum|mean|prod|var|std)_(?:kernel|reduc|cuda))",
        r"softplus_sum",
        r"(?i:pool(?!ed_embs))",
        r"(?i:sort|top_?k|histogram|unique|cumsum|cumprod|scan|compact|partition|prefix|kthvalue)",
        r"(?i:nll_?loss|NLLCriterion|_loss_|cross_entropy|_norm_kernel|norm_two|searchsorted|bitonic|mode_kernel|nonzero)",
        r"rocprim|segment_|find_long_segments|bincount|renorm|ArgMax|argmax",
    ),
    _rule("reduction", _BODY, r"cub::Device(?:Reduce|Scan|Select|Segmented|Radix|Merge|Partition)|rocprim::"),
    _rule(
        "elementwise", _HEAD,
        r"(?i:pointwise|activation|relu|gelu|silu|swish|swiglu|sigmoid|tanh|act_and_mul|elt_?wise)", r"EigenMetaKernel",
        r"(?i:rotary|rope(?![a-z])|quant|bias|scale|clamp|saxpy|axpy|axpby|addcmul|lerp|where|mask|arange|range_kernel)",
        r"SubTensorOp|Op[1-5]dTensor|OpTensor|op_tensor|op_generic|AddBias|(?:^|::|_)(?:add|sub|mul|div|cast|exp|pow)(?:_|$)",
        r"(?i:gated|residual|scal_kernel|^(?:loop|wrapped)_\w+|(?:^|_)fusion(?:_\d+)?$|_fusion(?:_\d+)?$|resolve_future)",
        r"upsample|interpol|resize|grid_sampl|thrust::cuda_cub::for_each|transform_kernel|^void thrust.*transform",
    ),
)  # fmt: skip
"""Kind, whether the pattern applies to the head only, and pattern."""

TENSOR_CORES: Final = re.compile(
    "|".join((
        # Instruction shapes: volta_h884gemm, ampere_fp16_s16816gemm, turing_int8_i8816cudnn, ampere_d884gemm.
        r"(?<![a-zA-Z0-9])[cdhisz]?(?:884|1688|8816|8832|88128|16816|16832|16864|168128|168256|161616|81632|32816)"
        r"(?=gemm|cudnn|fprop|dgrad|wgrad|bgrad|conv|xor|and|_|[a-z]*gemm|tf32|complex)",
        r"(?<![a-zA-Z])(?:[hidq]mma|[wx]?gmma|wmma)(?![a-z])|_wgmma|utc[hiqo]?mma|tcgen05",
        r"(?<![a-zA-Z])(?:wmma_|bs)?tensorop(?![a-z])|OpClass(?:Wmma)?TensorOp|OpClassBlockScaledTensorOp",
        r"_tensor\d+x\d+x\d+|warpgroupsize\d|nvjet_",
        # CUTLASS attention: half precision since Volta, single precision since Ampere.
        r"fmha_cutlass[FB]_(?:bf16|f16)_\w*sm(?:[7-9]\d|1\d\d)|fmha_cutlass[FB]_f32_\w*sm(?:[89]\d|1\d\d)",
        r"flash_(?:fwd|bwd)(?!_(?:dot|convert|combine|splitkv_combine))\w*kernel(?!_(?:combine|dot))|FlashAttn(?:Fwd|Bwd)Sm",
        r"fmha_v2_flash|cutlass::fmha::kernel|sm(?:[89]\d|1\d\d)_\w*(?:gmma|umma)|MMA_(?:\d+x|SM)|SM\d+_\d+x\d+x\d+",
        # AMD Matrix Cores.
        r"mfma|_MI\d+x\d+x\d+|xdl(?:ops)?(?![a-z])|igemm_\w+_gtcx|wmma_cshuffle",
    ))
)  # fmt: skip
"""Names of kernels that compute on Tensor Cores (AMD: Matrix Cores)."""

OTHER_UNITS: Final = re.compile(
    "|".join((
        # cuBLAS, cuDNN and CUTLASS name float32 and float64 kernels by a letter, and kernels of ordinary cores by simt.
        r"(?:^|_)[scdzh](?:gemm|cudnn)(?![a-z])|_simt_|_ffma|(?:^|_)gcgemm|fft",
        r"_f32f32_f32f32_f32_(?!\w*tf32)",
        r"(?i:gemv|gemmsn|gemmk1|dot_?kernel|winograd|depthwise|im2col|col2im|vol2col|naive_conv|direct_?conv)",
        r"implicit_convolve_sgemm|conv2d_grouped_direct|compute\w*OffsetsKernel|[dw]grad_(?:alg\d_)?engine|reduce_wgrad",
        # Sums after a matrix multiplication.
        r"(?i:split_?k_?reduce|reduce_?split_?k)|PostGSU|epilogue::impl|flash_\w*(?:combine|dot_do_o|convert)",
        r"fmha_cutlass[FB]_f32_\w*sm(?:[5-7]\d)|miopenSp3|gfx\w+_f\dx\d",
        # Tensile names the matrix instruction (MI), if the kernel uses one.
        r"^Cijk_(?!\w*_(?:MI\d|WMMA))\w*_MT\d",
    ))
)  # fmt: skip
"""Names of kernels of matrix multiplications that do not compute on Tensor Cores."""

LIBRARIES: Final[tuple[tuple[str, re.Pattern[str]], ...]] = tuple(
    (library, re.compile(pattern))
    for library, pattern in (
        ("NCCL", r"(?:^|[\s:_])(?:nccl|rccl)"),
        ("NVSHMEM", r"nvshmem"),
        ("TensorRT", r"(?:^|[\s:_])trt_|genericReformat|__myl|myelin|nvinfer|cuInt8::|trt::|CUTENSOR_?TRT"),
        ("TensorRT-LLM", r"tensorrt_llm|trtllm"),
        ("Transformer Engine", r"transformer_engine"),
        ("cuDNN", r"cudnn|xmma_new|gcgemm|plicit_convolve_|RNN_blockPersist|elemWiseRNN"),
        ("cuBLASLt", r"cublasLt|nvjet"),
        (
            "cuBLAS",
            r"__5x_cublas|cublas(?:Gemv|SplitK)|(?:kepler|maxwell|pascal|volta|turing|ampere|hopper)_\w*gem[mv]"
            r"|^(?:sm\d+_)?xmma_gemm|sm\d+_xmma_gemm|gemvNSP|gemv2[NT]|gemmSN|gemmk1|magma_sgemmEx|dot_kernel|splitK",
        ),
        ("FlashAttention", r"(?:^|[\s:_])(?:pytorch_)?flash(?:::|_fwd|_bwd|_attn)|FlashAttn"),
        ("FlashInfer", r"(?i)flashinfer"),
        ("Composable Kernel", r"_ZN2ck|(?:^|[\s:])ck(?:_tile)?::"),
        ("AITER", r"aiter"),
        ("hipBLASLt", r"^Cijk_\w*UserArgs|^Cijk_\w*_Bias"),
        ("rocBLAS", r"^Cijk_|rocblas"),
        (
            "MIOpen",
            r"(?i)miopen|igemm_\w+_gtc|^(?:SubTensor|Op\dd?Tensor)|batched_transpose_\d|naive_conv|gfx\w+_f\dx\d",
        ),
        ("rocPRIM", r"rocprim"),
        ("vLLM", r"vllm::|paged_attention|reshape_and_cache"),
        ("SGLang", r"sgl_|sglang"),
        ("FBGEMM", r"fbgemm|split_embedding|pooled_embs|linearize_index|bounds_check_indices"),
        ("Triton", r"^_?triton_|_triton$|_0d1d|^_attn_fwd|^_bwd_d"),
        ("CUTLASS", r"(?:^|[\s:_\d])cutlass(?:_\d|::)|fmha_cutlass"),
        ("Apex", r"apex|cuApplyLayerNorm|cuCompute(?:Part)?Grad|^(?:void )?multi_tensor_apply_kernel<"),
        ("bitsandbytes", r"kOptimizer|kQuantize|kDequantize|kgemm_4bit"),
        ("TensorFlow", r"tensorflow::|^(?:void )?Eigen::|tsl::"),
        (
            "XLA",
            r"^(?:loop|input|wrapped|gemm|triton_gemm|triton_softmax|cudnn)_?\w*(?:fusion|wrapped)|^fusion(?:_\d+)?$",
        ),
        ("PyTorch", r"at::native|at::cuda|at_cuda_detail|c10::|cunn_|_softmax_warp|softmax_warp|at::"),
        ("CUB", r"(?<!cuda_)cub::"),
        ("Thrust", r"thrust::"),
        ("cuFFT", r"cufft|(?:regular|vector|composite)_fft|fft\d+_r2c"),
        ("cuSPARSE", r"cusparse"),
        ("cuSOLVER", r"cusolver|getrf|geqrf|syevj"),
    )
)
"""Libraries and the names of their kernels; the first match wins. PyTorch comes after the libraries that it uses."""
