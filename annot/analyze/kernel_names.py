"""Kind of operation, library, use of Tensor Cores and short name of a kernel, from its name.

The rules are regular expressions; the first match wins. The head of a name is the part before the first ``<`` or
``(``; the body is the whole name. Kernels with one purpose show it in the head. Kernels that take the operation as a
template argument (``elementwise_kernel``, ``reduce_kernel``, ``cutlass::Kernel``) show it in the body only, which also
contains types such as ``Tensor``. The rules are in ``kernel_names.toml``. To classify a new name, add an alternative to
the rule of its kind, and add the name to the table in the tests.

A short name has the kernel and the operation in its template arguments, without namespaces and types.
``void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<…MulFunctor<float>>, …>(…)`` becomes
``elementwise MulFunctor``. Names without template arguments, as of cuBLAS, cuDNN, Triton and NCCL, stay as they are:
they contain tile, dtype and layout. Of mangled names (``_ZN…``), annot uses the identifiers.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Final

import msgspec
import polars as pl

from annot.attribution.attribute import Attribution
from annot.attribution.gpu_time import UNATTRIBUTED
from annot.attribution.layer_tables import by_layer
from annot.attribution.nesting import KEY
from annot.util.packaged_tables import packaged_table

MATRIX: Final = ("gemm", "convolution", "attention")
"""Kinds of kernels that multiply matrices."""

_LONGEST: Final = 4096  # longer names only continue with template arguments
_ANONYMOUS: Final = ("(anonymous namespace)::", "<unnamed>::")


class _Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names of one kind. The pattern applies to the head of a name, or with `body` to the whole name."""

    kind: str
    pattern: re.Pattern[str]
    body: bool = False


class _Patterns(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of ``kernel_names.toml``, which explains them."""

    tensor_cores: re.Pattern[str]
    other_units: re.Pattern[str]
    rules: list[_Rule]
    libraries: dict[str, re.Pattern[str]]
    words: dict[str, str]


@functools.cache
def patterns() -> _Patterns:
    """Return the patterns of names. To compile them takes longer than a report without kernels."""
    return packaged_table("annot.analyze", "kernel_names.toml", _Patterns, lambda names: re.compile("|".join(names)))


@dataclass(frozen=True, slots=True)
class KernelClass:
    """Classification of a kernel by its name.

    Args:
        kind: kind of its operation, one of ``kernel_names.toml``; "other" for unknown names.
        library: library of the kernel, such as "cuDNN"; empty: unknown.
        tensor_cores: whether it computes on Tensor Cores (AMD: Matrix Cores); None: the name does not show it, as for
            matrix multiplications of Triton.
    """

    kind: str
    library: str
    tensor_cores: bool | None


@functools.lru_cache(maxsize=1 << 16)
def classify(name: str) -> KernelClass:
    """Return the classification of a kernel name.

    Args:
        name: kernel name of a profiler, demangled or not; copies and memsets are named as in
            `annot.profile.copies_as_work`.

    Example:
        >>> classify("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x3_tn")
        KernelClass(kind='gemm', library='cuBLAS', tensor_cores=True)
        >>> classify("(memset)").kind, classify("never seen").kind
        ('copy', 'other')
    """
    if name.startswith(("(copy ", "(memset")):
        return KernelClass("copy", "", False)
    if not name:
        return KernelClass("other", "", None)
    text = name[:_LONGEST]
    for namespace in _ANONYMOUS:
        text = text.replace(namespace, "")
    text = text.removeprefix("void ")
    head = text.partition("<")[0].partition("(")[0]
    names = patterns()
    kind = next((rule.kind for rule in names.rules if rule.pattern.search(text if rule.body else head)), "other")
    library = _library(head)
    if library in ("", "CUTLASS"):  # the library of an instantiated template shows in its arguments
        library = _library(text)
    if kind not in (*MATRIX, "other"):
        return KernelClass(kind, library, False)
    if names.tensor_cores.search(text):
        return KernelClass(kind, library, True)
    return KernelClass(kind, library, False if names.other_units.search(text) else None)


def _library(text: str) -> str:
    return next((library for library, pattern in patterns().libraries.items() if pattern.search(text)), "")


def with_classes(names: pl.DataFrame) -> pl.DataFrame:
    """Add kind, library (String) and tensor_cores (Boolean, null: unknown) to a table with the column `name`.

    Names as `pl.Categorical` stay so: as texts, those of a million kernels take hundreds of megabytes.
    """
    distinct = names["name"].unique()
    rows = [astuple(classify(name or "")) for name in distinct.cast(pl.String)]
    schema = {"kind": pl.String, "library": pl.String, "tensor_cores": pl.Boolean}
    classes = pl.DataFrame(rows, schema=schema, orient="row").with_columns(distinct)
    return names.join(classes, on="name", how="left", nulls_equal=True, maintain_order="left")


def layer_names(attribution: Attribution) -> pl.DataFrame:
    """Return a row per layer and name of the GPU activities that the layer itself launches.

    Returns:
        layer, module, phase, name, kernel (false: a copy or memset), calls, gpu_ns, kind, library, tensor_cores.
    """
    names = attribution.names.select(pl.col("name").cast(pl.String), "kernel", "calls", "gpu_ns")
    rows = attribution.forest.layers_of_nodes()[attribution.names["node"]].hstack(names)
    sums = rows.group_by(*KEY, "name", "kernel", maintain_order=True).agg(pl.col("calls", "gpu_ns").sum())
    return with_classes(sums)


def by_class(attribution: Attribution) -> pl.DataFrame:
    """Return a row per class of kernels, the longest first.

    Returns:
        kind, library, tensor_cores (null: the names do not show it), names (number of distinct kernel names), calls,
        gpu_ns, layers (number of distinct layers that launch them). The times add up to the total GPU time.
    """
    names = pl.col("name").n_unique().cast(pl.Int64).alias("names")
    layers = pl.col("layer").filter(pl.col("layer") != UNATTRIBUTED).n_unique().cast(pl.Int64).alias("layers")
    groups = layer_names(attribution).group_by("kind", "library", "tensor_cores")
    rows = groups.agg(names, pl.col("calls", "gpu_ns").sum(), layers)
    return rows.sort("gpu_ns", "kind", "library", "tensor_cores", descending=[True, False, False, True])


def layer_kernels(attribution: Attribution) -> pl.DataFrame:
    """Return the GPU self time of each layer by kind of kernel, split at matrix multiplications.

    Returns:
        layer, module, phase, as in `annot.attribution.by_layer`; gpu_self_ns; matrix_ns: the part in kernels of
        `MATRIX`; outside_ns: the rest; outside: kinds and their times, the longest first, as ``elementwise 1200 ns``;
        and a column for each kind that occurs, such as gemm_ns; these add up to gpu_self_ns.

    Example:
        >>> from annot.attribution.attribute import attribute
        >>> from annot.profile import Profile
        >>> layer_kernels(attribute(Profile.build({}))).columns[:5]
        ['layer', 'module', 'phase', 'gpu_self_ns', 'matrix_ns']
    """
    kinds = layer_names(attribution).group_by(*KEY, "kind").agg(pl.col("gpu_ns").sum())
    longest = kinds.group_by("kind").agg(pl.col("gpu_ns").sum()).sort("gpu_ns", "kind", descending=[True, False])
    columns = {f"{kind}_ns": pl.col("gpu_ns").filter(pl.col("kind") == kind).sum() for kind in longest["kind"]}
    is_matrix = pl.col("kind").is_in(MATRIX)
    sums = kinds.group_by(KEY).agg(pl.col("gpu_ns").filter(is_matrix).sum().alias("matrix_ns"), **columns)
    others = kinds.filter(~is_matrix & (pl.col("gpu_ns") > 0)).sort("gpu_ns", "kind", descending=[True, False])
    text = pl.format("{} {} ns", "kind", "gpu_ns").str.join(", ").alias("outside")
    texts = others.group_by(*KEY, maintain_order=True).agg(text)
    rows = by_layer(attribution).select(*KEY, "gpu_self_ns")
    for table in (sums, texts):
        rows = rows.join(table, on=KEY, how="left", maintain_order="left")
    rows = rows.with_columns(pl.selectors.ends_with("_ns").fill_null(0), pl.col("outside").fill_null(""))
    outside_ns = (pl.col("gpu_self_ns") - pl.col("matrix_ns")).alias("outside_ns")
    return rows.select(*KEY, "gpu_self_ns", "matrix_ns", outside_ns, "outside", *columns)


_MOST: Final = 2
"""Operations, and words that distinguish a name from others, per short name."""
_NOISE: Final = re.compile(
    r"\(anonymous namespace\)::|<unnamed>::|\((?:unsigned )?(?:bool|char|short|int|long|long long)\)(?=-?\d)"
    r"|[\[{]lambda\([^()]*\)(?:#\d+| \(instance \d+\))[\]}]| \[clone [^\]]*\]|\.kd$"
)
_OPERATOR: Final = re.compile(r"\boperator ?\(\)")
_CLOSING: Final = {">": "<", ")": "(", "]": "[", "}": "{"}
_FAMILY: Final = re.compile(
    r"(?:(?:vectorized|templated|unrolled|legacy|aligned)_)*(elementwise|index_elementwise)_kernel\w*|(reduce)_kernel\w*"
    r"|(multi_tensor_apply)_kernel|_?(scatter_gather)_elementwise_kernel|(distribution)_(?:elementwise|nullary)\w*"
    r"|(EigenMetaKernel)|(transform)_kernel_impl|(index_put|index)_kernel"
)
"""Kernels that take their operation as a template argument, and their short names."""
_UNSPECIFIC: Final = frozenset({"Kernel", "Kernel2", "device_kernel", "kentry", "kernel_agent", "_kernel_agent"})
"""Kernels whose operation is the name."""
_VAGUE: Final = frozenset({"kernel", "globalKernel", "run", "main"})
"""Functions that only their namespaces tell apart."""
_PASSES_ON: Final = re.compile(
    r"gpu_\w*kernel\w*|[AB]?(?:Unary|Binary)Functor|ReduceOp|func_wrapper_t|TensorEvaluator|Tensor(?:Assign|Cwise\w*)Op"
    r"|enable_sm\w+|ParallelForAgent|unary_transform_f|binary_transform_f|AgentWrapper"
)
"""Templates whose arguments contain the operation."""
_TYPE: Final = re.compile(
    r"void|bool|char|short|int|long|float|double|unsigned|signed|const|true|false|auto|half|Half|BFloat16|complex|nullptr"
    r"|\w*(?:_t|float16|float8\w*|half2?|bfloat162?)|Float\w+|T\d*|u?int\d*"
    r"|\w*(?:Params\w*|Metadata|Args|Accessor\w*|Iterator\w*|Calculator|Policy\w*|Loader?|Storer?|WithCast|WithoutCast"
    r"|Array|array|Type|Traits|traits|Layout|Shape|Stride|Map|Config|Tensor|tuple|pair|constant|sequence)"
)
_OPERATION: Final = re.compile(r"\w*(?:Functor|Epilogue|Ops?|_op|_functor|[Kk]ernel\w*|Sm\d+)")
"""Operations in the arguments of kernels that are not of a family."""
_ENDING: Final = re.compile(r"_(?:kernel_cuda|kernel_impl|kernel_cuda_impl|cuda_kernel|kernel|cuda|functor|cuda_out)$")
_FLASH: Final = re.compile(r"Flash_\wwd_kernel_traits<(\d+), ?(\d+), ?(\d+)[^>]*?(?:::)(\w+?)(?:_t)?\b")
_ATOM: Final = re.compile(r"SM\d+_\d+x\d+x\d+_\w+")
_TILE: Final = re.compile(r"(Cijk_\w+?_MT\w+?_MI\w+?|Cijk_\w+?_MT\w+?)_(?!MI)\w+")
_LITERAL: Final = re.compile(r"L[a-z](n?\d+)E|[ST][0-9A-Z]*_|DF\d+[b_]?")
_LENGTH: Final = re.compile(r"\d{1,4}")
_WORD: Final = re.compile(r"[A-Za-z_]\w*|\d+")

_Segment = tuple[str, list[str]]


@functools.lru_cache(maxsize=1 << 16)
def short_name(name: str) -> str:
    """Return the short name of a kernel. Different kernels can have the same; see `short_names`.

    Args:
        name: kernel name of a profiler, demangled or not; copies and memsets keep their names.

    Example:
        >>> short_name("void at::native::reduce_kernel<512, ReduceOp<float, at::native::MeanOps<float>>>(T3)")
        'reduce MeanOps'
        >>> short_name("ampere_sgemm_128x64_tn")
        'ampere_sgemm_128x64_tn'
    """
    text = _plain(name)
    if not text or text[0] in "([" or not ("<" in text or "(" in text):
        return _TILE.sub(r"\1", text) or name
    word, arguments = _named(text)
    if not word:
        return name
    if word in _VAGUE:
        word = "::".join(text.removeprefix("void ").partition("<")[0].partition("(")[0].split("::")[-3:])
    family = _FAMILY.fullmatch(word)
    candidates = dict.fromkeys(filter(None, map(_operation, arguments)))
    specific = family is not None or word in _UNSPECIFIC
    most = _MOST if "multi_tensor" in word else 1
    operations = [operation for operation in candidates if specific or _OPERATION.fullmatch(operation)][:most]
    heads = [next(filter(None, family.groups()))] if family else [] if word in _UNSPECIFIC and operations else [word]
    return " ".join((*heads, *(_ENDING.sub("", operation) or operation for operation in operations), *_details(text)))


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Return a different short name for each of the kernels of a profile.

    Kernels with the same short name also get words that only some of them have in brackets, or a number.

    Example:
        >>> list(short_names(["void copy<float>(float*)", "void copy<double>(double*)"]).values())
        ['copy (double)', 'copy (float)']
    """
    groups: dict[str, list[str]] = {}
    for name in sorted(set(names)):
        groups.setdefault(short_name(name), []).append(name)
    taken: dict[str, str] = {short: same[0] for short, same in groups.items() if len(same) == 1}
    for short, same in groups.items():
        if len(same) > 1:
            _tell_apart(short, same, taken)
    return {name: short for short, name in taken.items()}


def with_short_names(rows: pl.DataFrame, among: Attribution | pl.Series) -> pl.DataFrame:
    """Add the column `short` to rows with the column `name`: short names among those of a profile, or of a column."""
    every = among if isinstance(among, pl.Series) else among.names["name"]
    names = short_names(every.unique().cast(pl.String).drop_nulls())
    name = pl.col("name").cast(pl.String)
    return rows.with_columns(name.replace_strict(list(names), list(names.values()), default=name).alias("short"))


def _plain(name: str) -> str:
    """Return a name without lambdas, casts and anonymous namespaces. A mangled name becomes ``name<identifiers>``."""
    text = name[:_LONGEST]
    if text.startswith("_Z"):
        text = _demangled(text)
    return _OPERATOR.sub("operator", _NOISE.sub("", text)).strip()


def _demangled(name: str) -> str:
    """Return the function of a mangled name with the names and numbers in its arguments.

    Only identifiers, after their lengths, and literals are read: ``_ZN2at4copyINS0_3OneELi4EEEvv`` becomes
    ``at::copy<One, 4>``.
    """
    words: list[str] = []
    at, joins = 2, False  # `joins`: the next identifier continues a qualified name
    while at < len(name):
        if literal := _LITERAL.match(name, at):
            words += filter(None, [literal[1]])
            at, joins = literal.end(), False
        elif length := _LENGTH.match(name, at):
            at = length.end() + int(length[0])
            word = name[length.end() : at]
            words[-1:] = [f"{words[-1]}::{word}"] if joins else [*words[-1:], word]
            joins = True
        else:
            joins = joins and name[at] == "L"  # internal linkage
            at += 1
    return f"{words[0]}<{', '.join(words[1:])}>" if words else name


def _named(text: str) -> _Segment:
    """Return the last identifier of a function or type before its parameters, and its template arguments."""
    segments: list[_Segment] = [("", [])]
    start = at = 0
    while at <= len(text):
        end = text[at : at + 1]
        if end in "< (,:" or not end:  # "" too: the end of the text
            if start < at:
                segments.append((text[start:at].strip("&* "), []))
            if end == "<":
                inside, at = _arguments(text, at + 1)
                segments[-1] = (segments[-1][0], inside)
                start = at
                continue
            if end == " ":
                segments = [segments[-1]] if text[at + 1 : at + 2] in "*&" else [("", [])]
            elif end == "(":
                break
            start = at + 1
        at += 1
    names = (segment for segment in reversed(segments) if segment[0] not in ("", "operator", "lambda", "type", "const"))
    return next(names, ("", []))


def _arguments(text: str, start: int) -> tuple[list[str], int]:
    """Return the template arguments from a position after ``<``, and the position after the matching ``>``."""
    arguments: list[str] = []
    begin, opened = start, ["<"]
    for at in range(start, len(text)):
        char = text[at]
        if char in "<([{":
            opened.append(char)
        elif char in _CLOSING and _CLOSING[char] in opened:
            while opened.pop() != _CLOSING[char]:
                pass
            if not opened:
                return [*arguments, text[begin:at].strip()], at + 1
        elif char == "," and len(opened) == 1:
            arguments.append(text[begin:at].strip())
            begin = at + 1
    return [*arguments, text[begin:].strip()], len(text)


def _operation(argument: str, depth: int = 8) -> str | None:
    """Return the operation that a template argument names, or None for a number or a type."""
    word, inside = _named(argument)
    if not depth or not word or word[0].isdigit() or word[0] == "-":
        return None
    if _PASSES_ON.fullmatch(word):
        return next(filter(None, (_operation(inner, depth - 1) for inner in inside)), word)
    return None if _TYPE.fullmatch(word) else word


def _details(text: str) -> Sequence[str]:
    """Return head size, tile and dtype of FlashAttention, or the instruction of CUTLASS 3."""
    if flash := _FLASH.search(text):
        return (f"hdim{flash[1]}", f"{flash[2]}x{flash[3]}", flash[4])
    atom = _ATOM.search(text)
    return (atom[0],) if atom else ()


def _tell_apart(short: str, names: Sequence[str], taken: dict[str, str]) -> None:
    """Add different short names of some kernels with the same short name to `taken`, which maps them to the names."""
    words = {name: list(dict.fromkeys(_words(name))) for name in names}
    counts = Counter(word for distinct in words.values() for word in distinct)
    own = {name: [word for word in distinct if counts[word] < len(names)] for name, distinct in words.items()}
    plain = {name: sum(not word.isdigit() for word in distinct) for name, distinct in own.items()}
    for place, name in enumerate(sorted(names, key=lambda name: (plain[name], name)), 1):
        rare = sorted(own[name], key=lambda word: (word.isdigit(), counts[word]))
        first = 1 if rare and not rare[0].isdigit() else 0
        beside = (" ".join(word for word in own[name] if word in rare[:most]) for most in range(first, _MOST + 2))
        labels = (f"{short} ({words})" if words else short for words in beside)
        numbered = (f"{short} #{number}" for number in itertools.count(max(place, 2)))
        taken[next(label for label in itertools.chain(labels, numbered) if label not in taken)] = name


def _words(name: str) -> Iterable[str]:
    """Yield the words of a name without its parameters that may distinguish it from others."""
    text = _plain(name)
    if _TILE.match(text):
        yield from text.split("_")
        return
    word, arguments = _named(text)
    for identifier in (word, *arguments):
        for token in _WORD.findall(identifier):
            plain = re.sub(r"_?(?:elementwise_)?kernel$", "", token)
            if plain and not _HIDDEN.fullmatch(plain):
                yield plain


_HIDDEN: Final = re.compile(
    r"at|c10|native|std|void|const|operator|gpu_\w*|array|char|TensorIterator\w*|T\d+|detail|binary_internal"
)
