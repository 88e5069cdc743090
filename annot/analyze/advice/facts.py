"""Facts of a run that the rules of advice and the verdict read, computed once and on demand.

The shares from which something is worth a sentence stand here too, so that all rules weigh alike.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeAlias

import polars as pl

from annot.analyze.advice.operator_causes import Operator
from annot.analyze.advice.texts import texts
from annot.analyze.cpu_parts import IDLE, layers_of_parts
from annot.analyze.gpu_activities import idle_calls, idle_of_nodes, sums_by_layer
from annot.analyze.hardware_counters import default_peaks
from annot.analyze.kernel_names import MATRIX, classify, with_classes
from annot.analyze.peaks import Peaks
from annot.analyze.roofline import operator_table, precision_of, step_batches, under_roof
from annot.analyze.run_summary import busy_times, step_time, step_work
from annot.analyze.step_parts import StepInputs, step_inputs
from annot.analyze.tensor_cores import matrix_units
from annot.attribution.attribute import Attribution, known
from annot.attribution.gpu_time import REASONS, UNATTRIBUTED
from annot.attribution.layer_tables import LAYER_PHASES, NO_OPERATION, by_layer
from annot.attribution.steps import fetches, steady_steps
from annot.attribution.summary import by_step, step_statistics
from annot.labels.foreign import serving_engine
from annot.labels.layer_path import with_parent
from annot.labels.tag import COMPILED, Tag, parse

LEAST_SHARE: Final = 0.1
"""Share of the step from which a part of it is worth other code, such as a fused layer. The verdict names no smaller
part."""
LEAST_CHANGE: Final = 0.05
"""Share of the step from which a part is worth a change of a few lines. The verdict names no smaller layer."""
LEAST_SETTING: Final = 0.03
"""Share of the step from which a part is worth a setting that does not change results, such as a fused optimizer."""
LEAST_ON_CPU: Final = 0.2
"""Share of the step from which a part is worth advice without a GPU, where each part of a step is work of the CPU."""
_HOST_COPIES: Final = ("(copy HtoD)", "(copy DtoH)")
_LOWEST_RIDGE: Final = {"f32": 10.0, "f64": 4.0}
_LOWEST_TENSOR_RIDGE: Final = 125.0
"""FLOPs per byte at which the devices with the relatively fastest memory become compute-bound: 16 bits on Tensor Cores,
V100 (125 TFLOP/s and 0.9 TB/s: 139) and A100 with 80 GB (312 and 2.04: 153); float32, A100 (19.5 and 2.04: 9.6)."""


def _operators_of(attribution: Attribution, wall_ns: int, peaks: Peaks) -> list[Operator]:
    """Return the operators with GPU time in the steps, the longest first; none without GPU activities.

    Args:
        attribution: the profile.
        wall_ns: step time, summed over devices, in ns.
        peaks: peaks of the device.
    """
    rows = _timed(attribution, peaks)
    devices, units = attribution.meta.get("devices") or (), matrix_units(attribution.meta)
    counts = {device.get("numSms", device.get("smCount")) for device in devices}
    count = counts.pop() if len(counts) == 1 else None
    processors = count if isinstance(count, int) and count > 0 else None
    operators = []
    for row in rows.iter_rows(named=True):
        flops, moved = (None if row[of] is None else row[of] / max(row["calls"], 1) for of in ("flops", "bytes"))
        tag = parse(row["call"]) if row["call"] else None
        operators.append(
            Operator(
                group=row["group"],
                name=row["op"],
                tag=tag,
                share=row["wall_ns"] / wall_ns,
                kernels=tuple(row["kernels"]),
                flops=flops,
                bytes=moved,
                roof_share=row["roof_share"],
                ridge=_ridge(peaks, row["precision"]),
                processors=processors,
                device=peaks.device,
                units=units,
                multiplies=row["matrix_ns"] / row["wall_ns"],
                from_host=row["host_ns"] / row["wall_ns"],
            )
        )
    return operators


def _timed(attribution: Attribution, peaks: Peaks) -> pl.DataFrame:
    """The rows of `OperatorTable` with wall_ns (in the steps), kernels (names, longest first) and their roofline."""
    table = operator_table(attribution)
    work = step_work(attribution, table.groups) if table.rows.height else None
    if work is None:
        return table.rows
    work = with_classes(work).sort("wall_ns", "name", descending=[True, False])
    work = work.group_by(group="node", maintain_order=True).agg(
        pl.col("wall_ns").sum(),
        kernels=pl.col("name").filter("kernel"),
        matrix_ns=pl.col("wall_ns").filter("kernel", pl.col("kind").is_in([*MATRIX, "other"])).sum(),
        host_ns=pl.col("wall_ns").filter(pl.col("name").is_in(_HOST_COPIES)).sum(),
    )
    times = table.kernels.group_by("group").agg(time_ns=pl.col("gpu_ns").sum())
    rows = table.rows.filter(~pl.col("op").is_in([NO_OPERATION, UNATTRIBUTED]))
    rows = rows.join(work, on="group").join(times, on="group").filter(pl.col("wall_ns") > 0)
    matrix = [
        next((name for name in names if classify(name).kind in MATRIX), None) for names in rows["kernels"].to_list()
    ]
    precisions = [precision_of(name, shapes) for name, shapes in zip(matrix, rows["inputs"], strict=True)]
    moved = pl.col("bytes_read") + pl.col("bytes_written")
    rows = rows.with_columns(pl.Series("precision", precisions, pl.String), bytes=moved)
    return under_roof(rows.sort("wall_ns", "group", descending=[True, False]), peaks)


def _ridge(peaks: Peaks, precision: str | None) -> float:
    name, _, tensor = (precision or "f32").partition(" ")
    peak = peaks.of(name, tensor_cores=bool(tensor))
    if peak and peaks.bandwidth:
        return peak / peaks.bandwidth
    return _LOWEST_RIDGE.get(name, _LOWEST_TENSOR_RIDGE)


PRODUCTS: Final = ("aten::matmul", "aten::bmm", "aten::baddbmm", "aten::einsum")
SOFTMAX: Final = ("aten::softmax", "aten::_softmax")
_OTHER_LAYERS: Final = (
    r"^aten::(?:linear|addmm|mm|conv|_?convolution|layer_norm|native_layer_norm|batch_norm|embedding|scaled_dot)"
)
_LAUNCH: Final = re.compile(r"(?i)launch(?!HostFunc)")
_MOST_LAUNCHES: Final = 4
"""Launches per kernel: the runtime and the driver may each record one. A capture into a CUDA graph has hundreds."""
_ITERATOR: Final = r"_(MultiProcessing|SingleProcess)DataLoaderIter\b"
"""Name of the iterator of a DataLoader in the ranges of torch.profiler, which differs with worker processes."""
_SUFFIXES: Final = (".json", ".json.gz", ".sqlite", ".nsys-rep")
_COMPILED: Final = rf"CompiledFxGraph|Torch-Compiled Region|CompiledFunction|\b{COMPILED}#"
"""Ranges around the graphs of torch.compile, of PyTorch and of annot."""
_OF_INDUCTOR: Final = r"^triton_(?:poi|red|per|tem|for|mm)_"
"""Kernels that Inductor generates: pointwise, reductions, persistent reductions, templates and foreach."""
_LEAST_IDLE: Final = 0.1
"""Fraction of the idle time from which a layer is named as a place of it."""
_OF_FRAMEWORKS: Final = ("kineto", "xplane")
"""Formats that only frameworks write."""
_FRAMEWORK_KERNELS: Final = (
    r"(?i)\bat::|\bc10|torch|triton|elementwise_kernel|cudnn|tensorflow|eigen|xla|fusion|vllm|flash|onnx|trt"
)
"""Kernels of deep learning: those of frameworks, and of libraries that only they call."""
_BACKWARD: Final = r"(?i)backward|[._]bwd|[dw]grad"
"""Names of kernels that a backward pass runs."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A suggested change.

    Args:
        rule: name of the rule.
        advice: the change, as a sentence.
        evidence: the numbers of the profile that support it, as a sentence without its full stop.
        code: code to write or command to run.
        saves: upper bound of the step time that the change saves, 0 to 1 of the wall-clock time of the steps without
            warm-up; see `annot.analyze.step_parts.step_inputs`. 0: the change saves no time, but shows where time goes.
            Without a roof the bound is the time of what changes; if that is the whole step (1), reports call the saving
            unknown. `annot.analyze.advice.advise` sorts by it.
        layers: the affected layers, longest first; empty: the whole run.
        changes: names of the changes that realize the advice, for `annot try`, see `annot.changes.registry`.
    """

    rule: str
    advice: str
    evidence: str
    code: str
    saves: float
    layers: list[str] = field(default_factory=list)
    changes: tuple[str, ...] = ()

    @classmethod
    def of(cls, rule: str, evidence: str, saves: float, layers: Sequence[str] = (), **values: object) -> Advice:
        """Return an advice with the texts of its rule, in which `values` replace the fields in braces."""
        text = texts().pytorch[rule].filled(**values)
        return cls(rule, text.advice, evidence, text.code, saves, [*layers], text.changes)


@dataclass(frozen=True, slots=True)
class Loader:
    """What a profile shows of a DataLoader.

    Args:
        workers: number of its worker processes; None: unknown.
        some: whether it has worker processes, also of unknown number.
        persistent: whether the workers are known to live on between epochs.
        pinned: whether it is known to copy batches to pinned memory.
        datasets: classes of datasets, each with file and line of its method that loads samples, if known.
    """

    workers: int | None
    some: bool
    persistent: bool
    pinned: bool
    datasets: tuple[str, ...] = ()


class Facts:
    """Quantities of one profile for the advice rules.

    Args:
        attribution: the profile.
        folds: path of the fold of each repeated layer, by layer and class, as tables show it; None: by the numbers in
            paths.
    """

    def __init__(self, attribution: Attribution, folds: Mapping[tuple[str, str], str] | None = None) -> None:
        self.attribution, self.folds = attribution, folds

    @cached_property
    def on_device(self) -> bool:
        """Whether the steps contain GPU activities with known times, and the profile those of most launches.

        A capture into a CUDA graph launches kernels that do not run.
        """
        if self.attribution.device_busy.is_empty():
            return False
        kernels = int(self.attribution.nodes["kernels"].sum())
        launches = sum(count for name, count in self.api_calls.items() if _LAUNCH.search(name))
        return bool(self.work["wall_ns"].sum() > 0) and launches <= _MOST_LAUNCHES * (
            kernels + self.attribution.left_out
        )

    @property
    def is_time_known(self) -> bool:
        """Whether the profile shows what the devices or processes do in the steps, or has no times."""
        return self.on_device or self.on_cpu or not self.wall_ns

    @property
    def on_cpu(self) -> bool:
        """Whether the run uses no device: no GPU activity, no launch, and no device that annot does not support."""
        launches = any(_LAUNCH.search(name) for name in self.api_calls)
        return not (self.on_device or self.other_devices or launches or self.attribution.device_busy.height)

    @property
    def other_devices(self) -> dict[str, int]:
        """Number of events of each device that annot does not support; see `annot.profile`."""
        return dict(self.attribution.meta.get("other_devices") or {})

    @cached_property
    def api_calls(self) -> Counter[str]:
        """Number of calls of each API function of the device, in the whole run."""
        counts: Counter[str] = Counter()
        source = self.attribution.source
        for block in source.launch_blocks() if source is not None else ():
            if "name" in block.columns:  # files that are read in blocks for a table of layers skip the names
                names = block.drop_nulls("name").group_by("name").len()
                counts.update(dict(zip(names["name"].cast(pl.String), names["len"], strict=True)))
        return counts

    @cached_property
    def in_keras(self) -> bool:
        """Whether layers are those of Keras or TensorFlow: paths joined by /, with a class or in an XPlane file."""
        of_model = self.layers.filter(pl.col("phase").is_in(LAYER_PHASES))
        paths = of_model.filter(pl.col("layer").str.contains("/", literal=True))
        classes = paths.filter(pl.col("module") != "").height > 0
        return classes or (paths.height > 0 and self.attribution.meta.get("format") == "xplane")

    @cached_property
    def in_cuda(self) -> bool:
        """Whether the program runs kernels, and neither layers, phases nor kernels show a framework."""
        kernels = self.attribution.names.filter("kernel")["name"].cast(pl.String)
        if kernels.is_empty() or self.attribution.meta.get("format") in _OF_FRAMEWORKS or not self.compilable:
            return False
        of_model = (pl.col("module") != "") & (pl.col("layer") != UNATTRIBUTED) | pl.col("phase").is_in(LAYER_PHASES)
        return not (kernels.str.contains(_FRAMEWORK_KERNELS).any() or self.layers.filter(of_model).height)

    @cached_property
    def layers(self) -> pl.DataFrame:
        """The table of `annot.attribution.by_layer`."""
        return by_layer(self.attribution)

    @cached_property
    def model_class(self) -> str:
        """Class of the model; empty: unknown, or several models."""
        models = self.layers.filter(pl.col("layer") == "", pl.col("module") != "", pl.col("phase").is_in(LAYER_PHASES))
        classes = models["module"].unique().to_list()
        return str(classes[0]) if len(classes) == 1 else ""

    def where(self, layers: Sequence[str]) -> list[str]:
        """Return the names of layers in reports: the class of the model is before a number, or its own after it."""
        modules = dict(self.layers.select("layer", "module").iter_rows())
        names = [with_parent(layer, self.model_class) for layer in layers]
        return [f"{name} {modules.get(name, '')}".strip() if name.isdecimal() else name for name in names]

    @cached_property
    def steps(self) -> pl.DataFrame:
        """The rows of `all_steps` that `annot.attribution.steps.steady_steps` returns."""
        return steady_steps(self.all_steps)

    @cached_property
    def all_steps(self) -> pl.DataFrame:
        """The table of `annot.attribution.by_step`."""
        return by_step(self.attribution)

    @cached_property
    def step_lengths(self) -> dict[str, Any] | None:
        """The result of `annot.attribution.summary.step_statistics`; None: no steps, or no CPU times."""
        return step_statistics(self.all_steps) if known(self.attribution.meta) else None

    @cached_property
    def parts(self) -> StepInputs:
        """The result of `annot.analyze.step_parts.step_inputs`."""
        return step_inputs(self.attribution)

    @cached_property
    def step_time(self) -> pl.DataFrame:
        """The table of `annot.analyze.run_summary.step_time`."""
        return step_time(self.attribution)

    @cached_property
    def devices(self) -> int:
        """Number of devices with step time, and of processes without a device."""
        return self.step_time.select("process", "device").n_unique() if self.step_time.height else 0

    @cached_property
    def busy(self) -> pl.DataFrame:
        """The table of `annot.analyze.run_summary.busy_times`."""
        return busy_times(self.step_time)

    @cached_property
    def shares(self) -> dict[str, float]:
        """Fraction of step time (0 to 1) of each share of `annot.analyze.run_summary.step_time`."""
        sums = self.step_time.group_by("share").agg(pl.col("ns").sum())
        return defaultdict(float, {share: ns / self.wall_ns for share, ns in sums.iter_rows() if self.wall_ns})

    @cached_property
    def cpu_layers(self) -> pl.DataFrame:
        """The table of `annot.analyze.cpu_parts.layers_of_parts`."""
        return layers_of_parts(self.attribution)

    @cached_property
    def cpu(self) -> dict[str, int | str]:
        """Threads, cores, ranks and backend (see `annot.labels.marks`) of the process that trains; empty: unknown."""
        return dict(self._process_fact("cpu", {}))

    def _process_fact(self, name: str, unknown: Any) -> Any:
        """A fact of the first process with step time for which it is known."""
        trains = set(self.parts.windows["process"])
        processes = self.attribution.meta.get("processes") or ()
        return next((entry[name] for entry in processes if name in entry and entry["process"] in trains), unknown)

    @cached_property
    def processes(self) -> int:
        """Number of processes with step time."""
        return self.parts.windows["process"].n_unique()

    def name_of(self, process: int | None) -> str:
        """Return a process in words: its rank, or its process id."""
        facts = {entry["process"]: entry for entry in self.attribution.meta.get("processes") or ()}.get(process, {})
        return f"rank {facts['rank']}" if facts.get("rank") is not None else f"process {facts.get('pid', process)}"

    @cached_property
    def ranked(self) -> bool:
        """Whether the ranks of all these processes are known."""
        processes = self.attribution.meta.get("processes") or ()
        ranks = {entry["process"] for entry in processes if entry.get("rank") is not None}
        return ranks.issuperset(self.parts.windows["process"])

    @property
    def ranks_command(self) -> str:
        """The command that compares the ranks in this profile, or in the profiles of a run with one for each rank."""
        if self.processes > 1:
            return f"annot report {self.source} --by-process"
        suffix = "".join(Path(str(self.attribution.meta.get("source") or "")).suffixes[-2:])
        return f"annot report 'run_rank*{suffix if suffix in _SUFFIXES else '.sqlite'}'"

    @cached_property
    def has_backward(self) -> bool | None:
        """Whether ranges or kernels are those of a backward pass; None: no range has a phase of a model."""
        phases = set(self.attribution.forest.labels["phase"])
        if "backward" in phases or self.work["name"].str.contains(_BACKWARD).any():
            return True
        return False if "forward" in phases else None

    @property
    def compilable(self) -> bool:
        """Whether the user can compile the model: it is not compiled yet, and no serving engine runs it."""
        return not (self.is_compiled or self.engine)

    @cached_property
    def is_compiled(self) -> bool:
        """Whether torch.compile compiled the model: ranges of its graphs, or kernels that Inductor generates."""
        ranges = self.attribution.whole.labels["text"].str.contains(_COMPILED).any()
        return bool(ranges) or self.work["name"].str.contains(_OF_INDUCTOR).any()

    @cached_property
    def engine(self) -> str:
        """Name of the serving engine that runs the model, by the ranges of its steps; empty: none."""
        texts = self.attribution.whole.labels["text"].unique()
        return next((engine for text in texts if (engine := serving_engine(text))), "")

    @cached_property
    def loader(self) -> Loader:
        """The DataLoader for which the run waits."""
        labels = self.attribution.whole.labels
        seen = labels.filter(fetches(labels))["number"].n_unique()
        loaders = self._process_fact("loaders", [])
        iterators = labels["text"].str.extract(_ITERATOR).drop_nulls().to_list()
        workers = seen or max((loader["workers"] for loader in loaders), default=None)
        if workers is None and iterators and "MultiProcessing" not in iterators:
            workers = 0
        return Loader(
            workers,
            some=bool(workers) or "MultiProcessing" in iterators,
            persistent=bool(loaders) and all(loader["persistent"] for loader in loaders),
            pinned=bool(loaders) and all(loader["pinned"] for loader in loaders),
            datasets=tuple(
                dict.fromkeys(f"{loader['dataset']} ({loader['source']})" for loader in loaders if "source" in loader)
            ),
        )

    @cached_property
    def idle(self) -> dict[str, float]:
        """Fraction of step time (0 to 1) of each part of `annot.analyze.cpu_parts.IDLE`."""
        return {cause: self.shares[cause] for cause in IDLE}

    @cached_property
    def idle_calls(self) -> pl.DataFrame:
        """The table of `annot.analyze.gpu_activities.idle_calls`."""
        return idle_calls(self.attribution)

    @cached_property
    def wall_ns(self) -> int:
        """Step time in ns, summed over devices."""
        devices = self.step_time.unique(["process", "device"])
        return int(devices["wall_ns"].sum())

    @cached_property
    def work(self) -> pl.DataFrame:
        """GPU activities of the steps.

        Columns: layer, module, phase, name, calls, wall_ns, kernel, pinned, kind, library, matrix, tensor (null:
        unknown).
        """
        rows = step_work(self.attribution)
        kinds = with_classes(rows).rename({"tensor_cores": "tensor"})
        layers = self.attribution.forest.layers_of_nodes()[rows["node"]]
        return kinds.drop("node").hstack(layers).with_columns(matrix=pl.col("kind").is_in(MATRIX))

    @cached_property
    def operators(self) -> list[Operator]:
        """The operators with GPU time, the longest first; see `annot.analyze.advice.facts`."""
        return _operators_of(self.attribution, self.wall_ns, self.peaks) if self.on_device else []

    @cached_property
    def eager_attention(self) -> list[Operator]:
        """The operators of attention in eager operations; none if they take less than `LEAST_SHARE` of a step."""
        groups = self._attention_in_pieces()
        operators = [operator for operator in self.operators if operator.group in groups]
        return operators if sum(operator.share for operator in operators) >= LEAST_SHARE else []

    def _attention_in_pieces(self) -> set[int]:
        """The groups of the operators that compute attention one after the other."""
        table, name = operator_table(self.attribution), pl.col("op")
        if not table.rows["op"].is_in(SOFTMAX).any():
            return set()
        kinds = table.rows.select(
            pl.col("group").alias("of"),
            product=name.is_in(PRODUCTS),
            softmax=name.is_in(SOFTMAX),
            other=name.str.contains(_OTHER_LAYERS),
        )
        tree = self.attribution.forest.tree.select("thread", "start", of=table.groups).join(kinds, on="of")
        tree = tree.filter(pl.any_horizontal("product", "softmax", "other")).sort(
            "thread", "start", maintain_order=True
        )
        # Operators that an operator of the same group calls stand beside it.
        tree = tree.filter((pl.col("of") != pl.col("of").shift(1)).fill_null(True))
        around = [pl.col(of).shift(by).over("thread").alias(f"{of}{by}") for of in ("product", "of") for by in (1, -1)]
        rows = tree.with_columns(around).filter("softmax", "product1", "product-1")
        return {int(group) for column in ("of", "of1", "of-1") for group in rows[column].unique()}

    def kernels_of(self, operators: Sequence[Operator]) -> list[str]:
        """Return the names of kernels that only these operators run."""
        others = {name for operator in self.operators if operator not in operators for name in operator.kernels}
        return [name for operator in operators for name in operator.kernels if name not in others]

    @property
    def time(self) -> str:
        """The whole of the shares in words: step time, or the run in a profile without steps."""
        return "step time" if self.steps.height else "the run"

    @property
    def source(self) -> str:
        """Path of the profile as an argument of a command."""
        return shlex.quote(str(self.attribution.meta.get("source") or "PROFILE"))

    def share(self, predicate: pl.Expr) -> float:
        """Return the fraction of step time (0 to 1) that the rows of `work` matching a predicate take."""
        return float(self.work.filter(predicate)["wall_ns"].sum() / self.wall_ns) if self.wall_ns else 0.0

    def share_of_layers(self, layers: Sequence[str]) -> float:
        """Return the fraction of step time (0 to 1) of layers, without those inside them and without the optimizer."""
        named = pl.col("layer").is_in(layers)
        if self.on_device:
            return self.share(named & (pl.col("phase") != "optimizer"))
        times = self.cpu_layers.filter(named, pl.col("part") != "optimizer")
        return float(times["ns"].sum() / self.wall_ns) if self.on_cpu and self.wall_ns else 0.0

    def calls(self, predicate: pl.Expr) -> float:
        """Return the number of matching GPU activities per step, or in the whole run without steps."""
        return float(self.work.filter(predicate)["calls"].sum() / max(self.steps.height, 1))

    def layers_of(self, predicate: pl.Expr) -> list[str]:
        """Return the layers with the most time in the rows of `work` matching a predicate."""
        rows = self.work.filter(predicate & (pl.col("layer") != "") & ~pl.col("layer").str.starts_with("("))
        sums = rows.group_by("layer").agg(pl.col("wall_ns").sum())
        return sums.sort("wall_ns", "layer", descending=[True, False])["layer"].head(5).to_list()

    @cached_property
    def idle_layers(self) -> list[str]:
        """The layers with the most idle time before their GPU activities, at least 10 % of the idle time of all."""
        nodes = idle_of_nodes(self.attribution)
        if nodes is None:
            return []
        idle = sums_by_layer(self.attribution, nodes)
        named = idle.filter((pl.col("layer") != "") & ~pl.col("layer").str.starts_with("("))
        named = named.filter(pl.col("gpu_idle_ns") >= _LEAST_IDLE * int(nodes["gpu_idle_ns"].sum()))
        order = named.sort("gpu_idle_ns", "layer", descending=[True, False])["layer"]
        return order.unique(maintain_order=True).head(5).to_list()

    @cached_property
    def mean_kernel_ns(self) -> float:
        """Mean duration of a kernel in the steps, in ns."""
        kernels = self.work.filter("kernel")
        return int(kernels["wall_ns"].sum()) / max(int(kernels["calls"].sum()), 1)

    @cached_property
    def graphs(self) -> bool:
        """Whether the run launches CUDA graphs."""
        return any("GraphLaunch" in name for name in self.api_calls)

    @cached_property
    def peaks(self) -> Peaks:
        """Peaks of the busiest device; without FLOP/s if they are unknown."""
        return default_peaks(self.attribution)

    @cached_property
    def batch(self) -> int | None:
        """The most frequent batch size of the steps, by the labels of layers; None: unknown."""
        sizes = [size for _, size in step_batches(self.attribution)]
        return max(set(sizes), key=sizes.count, default=None)

    @cached_property
    def tags(self) -> dict[str, list[Tag]]:
        """Parsed labels of the forward ranges of each layer."""
        texts = self.attribution.forest.labels.filter(pl.col("phase") == "forward")["text"]
        tags: dict[str, list[Tag]] = {}
        for text in texts:
            if (tag := parse(text)) is not None and tag.tensors:
                tags.setdefault(tag.layer, []).append(tag)
        return tags


OUTSIDE_RANGES: Final = (pl.col("layer") == UNATTRIBUTED) & (pl.col("module") == REASONS[0])
"""Whether GPU activities were launched by recorded calls outside any range."""

Rule: TypeAlias = Callable[[Facts], Advice | None]
