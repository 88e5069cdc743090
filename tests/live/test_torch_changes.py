"""Changes of PyTorch programs: each one computes what the same change by hand computes, or says why it is skipped."""

from __future__ import annotations

import os
import re

import pytest
from measured import measured

PROGRAM = """
import contextlib, copy, torch
from torch import nn
torch.set_num_threads(1)
MODEL = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
model = MODEL
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
autocast = contextlib.nullcontext()
class Data(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(6, generator=generator), index % 3
loader = torch.utils.data.DataLoader(Data(), batch_size=8)
# setup
def loss_of(x, y):
    with autocast:
        return nn.functional.cross_entropy(model(x), y)
for _ in range(9):
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        # clip
        optimizer.step()
"""
ATTENTION = """
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inputs, self.outputs = nn.Linear(6, 18), nn.Linear(6, 3)
    def forward(self, x):
        q, k, v = self.inputs(x).reshape(1, 2, -1, 9).chunk(3, -1)
        return self.outputs(nn.functional.scaled_dot_product_attention(q, k, v).reshape(-1, 6))
MODEL = Attention()"""


def edited(*edits: tuple[str, str]) -> str:
    program = PROGRAM
    for before, after in edits:
        assert before in program, before
        program = program.replace(before, after)
    return program


def assert_as_by_hand(program: str, by_hand: str, *changes: str) -> None:
    """Both programs train to the same bits, and otherwise than the program without the change."""
    asked = {"losses": 4, "parameters": True}
    changed, process = measured(program, *changes, **asked)
    expected, _ = measured(by_hand, **asked)
    assert changed.applied.keys() == set(changes), (changed, process.stderr)
    assert None not in changed.losses
    assert (changed.losses, changed.parameters) == (expected.losses, expected.parameters)


def reason(name: str, program: str = PROGRAM) -> str:
    result, process = measured(program, name)
    assert process.returncode == 0, process.stderr
    assert result.applied == {}
    return result.skipped[name]


# ---------------------------------------------------------------- precision

BF16 = ("autocast = contextlib.nullcontext()", "autocast = torch.autocast('cpu', torch.bfloat16)")
FP16 = ("autocast = contextlib.nullcontext()", "autocast = torch.autocast('cpu', torch.float16)")
SCALED = (
    ("# setup", "scaler = torch.amp.GradScaler('cpu')"),
    ("loss.backward()", "scaler.scale(loss).backward()"),
    ("optimizer.step()", "scaler.step(optimizer); scaler.update()"),
)
LARGE = ("model(x), y)", "model(x) * torch.where(torch.arange(8) < 4, 1.0, 3e4)[:, None], y)")
"""An output whose gradient overflows in float16 until the scale has become smaller."""


def test_bf16_covers_model_and_loss() -> None:
    assert_as_by_hand(PROGRAM, edited(BF16), "bf16")
    plain, changed = measured(PROGRAM, losses=4)[0], measured(PROGRAM, "bf16", losses=4)[0]
    assert plain.losses != changed.losses == pytest.approx(plain.losses, rel=0.02)


def test_bf16_is_off_outside_model_and_loss() -> None:
    check = "print('on', torch.is_autocast_enabled('cpu'), torch.is_autocast_cache_enabled())"
    evaluation = "with torch.no_grad():\n            print(model(x).dtype); " + check
    _, process = measured(
        edited(("loss.backward()", f"{check}; loss.backward(); {check}"), ("# clip", evaluation)), "bf16"
    )
    lines = process.stdout.split("\n")[:4]
    assert lines == ["on True True", "on False True", "torch.bfloat16", "on False True"]


def test_a_call_without_gradients_does_not_lose_those_of_a_later_call() -> None:
    """Autocast caches casts of weights: a cast without gradients must not reach the call with gradients."""
    joined = """
first = nn.Linear(6, 6)
def joined(x):
    hidden = first(x)
    with torch.no_grad():
        model(hidden)
    return model(hidden)"""
    check = ("# clip", "assert all(parameter.grad is not None for parameter in MODEL.parameters())")
    result, process = measured(edited(("# setup", joined), ("model(x), y", "joined(x), y"), check), "bf16")
    assert result.error == "", process.stderr
    assert result.applied == {"bf16": "Linear, Sequential"}


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_autocast_is_not_applied_twice(name: str) -> None:
    assert reason(name, edited(BF16)) == "autocast is on already"
    double = edited(
        ("MODEL = nn.S", "torch.set_default_dtype(torch.float64)\nMODEL = nn.S"),
        ("randn(6,", "randn(6, dtype=torch.float64,"),
    )
    assert reason(name, double) == "Sequential has no float32 parameters"


def test_fp16_scales_losses_as_gradscaler() -> None:
    assert_as_by_hand(PROGRAM, edited(FP16, *SCALED), "fp16")


def test_fp16_skips_steps_as_gradscaler() -> None:
    """GradScaler does not call the optimizer then, so that the steps of the two programs differ."""
    show = ("# clip", "print(loss.item())")
    changed, process = measured(edited(LARGE, show), "fp16", keep_going=True)
    _, by_hand = measured(edited(FP16, *SCALED, LARGE, show), keep_going=True)
    assert changed.applied == {"fp16": "Sequential"}
    assert len(process.stdout.split()) == 72
    assert process.stdout == by_hand.stdout


def test_gradients_of_fp16_are_unscaled_where_the_program_clips_them() -> None:
    clip = "nn.utils.clip_grad_norm_(model.parameters(), 0.01)"
    by_hand = edited(FP16, *SCALED, ("# clip", f"scaler.unscale_(optimizer); {clip}"))
    assert_as_by_hand(edited(("# clip", clip)), by_hand, "fp16")


def test_gradients_of_fp16_add_up_over_two_backwards() -> None:
    twice = ("optimizer.zero_grad()", "optimizer.zero_grad(); loss_of(x[:4], y[:4]).backward()")
    scaled = ("optimizer.zero_grad()", "optimizer.zero_grad(); scaler.scale(loss_of(x[:4], y[:4])).backward()")
    assert_as_by_hand(edited(twice), edited(FP16, *SCALED, scaled), "fp16")


@pytest.mark.parametrize("copied", ["", "\noptimizer = copy.copy(optimizer)"])
def test_gradients_of_fp16_are_unscaled_for_parameters_outside_models(copied: str) -> None:
    outside = (
        ("optimizer = ", "factor = nn.Parameter(torch.ones(3))\noptimizer = "),
        ("AdamW(model.parameters(), lr=0.01)", f"SGD([*model.parameters(), factor], lr=0.01){copied}"),
        ("model(x), y", "model(x) * factor, y"),
        ("loss = loss_of(x, y)", "loss_of(x[:4], y[:4]).backward()\n        loss = loss_of(x, y)"),
    )
    scaled = ("loss_of(x[:4], y[:4]).backward()", "scaler.scale(loss_of(x[:4], y[:4])).backward()")
    assert_as_by_hand(edited(*outside), edited(FP16, *SCALED, *outside, scaled), "fp16")


def test_fp16_skips_steps_with_a_closure_whose_gradients_overflow() -> None:
    closure = "optimizer.step(lambda: (optimizer.zero_grad(), loss_of(x, y), loss_of(x, y).backward())[1])"
    program = edited(
        ("        loss = loss_of(x, y)\n        loss.backward()\n", ""), ("optimizer.step()", closure), LARGE
    )
    untouched, _ = measured(edited(("lr=0.01", "lr=0.0"), LARGE), losses=4, parameters=True)
    skipped, process = measured(program, "fp16", losses=4, parameters=True)
    trained, _ = measured(program, "fp16", losses=40, parameters=True, steps=39)
    assert skipped.error == "", process.stderr
    assert skipped.parameters == untouched.parameters != trained.parameters
    assert None not in trained.losses


# ---------------------------------------------------------------- optimizers


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD", "Adagrad"])
def test_fused_optimizers(optimizer: str) -> None:
    plain = ("AdamW(model", f"{optimizer}(model")
    by_hand = ("AdamW(model.parameters(), lr=0.01", f"{optimizer}(model.parameters(), lr=0.01, fused=True")
    assert_as_by_hand(edited(plain), edited(by_hand), "fused")


def test_an_optimizer_with_the_state_of_a_checkpoint_becomes_fused() -> None:
    """The fused implementation needs the step counts in float32."""
    restart = """
loss_of(*next(iter(loader))).backward()
optimizer.step()
other = torch.optim.AdamW(model.parameters(), lr=0.01)
saved = optimizer.state_dict()
for group in saved["param_groups"]:
    group.update(fused=None, foreach=None)
other.load_state_dict(saved)
for state in other.state.values():
    state["step"] = state["step"].double()
optimizer = other
for _ in range(9)"""
    show = ("# clip", "print({state['step'].dtype for state in optimizer.state.values()})")
    result, process = measured(edited(("for _ in range(9)", restart), show), "fused")
    assert process.returncode == 0, process.stderr
    assert process.stdout.split("\n")[:2] == ["{torch.float64}", "{torch.float32}"]
    assert result.applied == {"fused": "AdamW"}


def test_foreach_is_switched_on() -> None:
    by_hand = edited(("lr=0.01", "lr=0.01, foreach=True"))
    assert_as_by_hand(PROGRAM, by_hand, "foreach")


@pytest.mark.parametrize(
    ("name", "optimizer", "expected"),
    [
        ("fused", "torch.optim.RMSprop(model.parameters())", "RMSprop has no argument fused"),
        ("fused", "torch.optim.AdamW(model.parameters(), fused=True)", "AdamW uses it already"),
        ("foreach", "torch.optim.AdamW(model.parameters(), fused=True)", "AdamW is fused"),
        ("foreach", "torch.optim.SparseAdam(model.parameters())", "SparseAdam has no argument foreach"),
        (
            "fused",
            "type('Own', (torch.optim.SGD,), {'step': lambda self, closure=None: None})(model.parameters())",
            "Own has no argument fused",
        ),
    ],
)
def test_optimizers_without_the_argument_are_skipped(name: str, optimizer: str, expected: str) -> None:
    sparse = "for p in model.parameters():\n            p.grad = p.grad.to_sparse()\n        optimizer.step()"
    edits = [("torch.optim.AdamW(model.parameters(), lr=0.01)", optimizer)]
    if "SparseAdam" in optimizer:
        edits.append(("optimizer.step()", sparse))
    assert reason(name, edited(*edits)) == expected


def test_gradients_are_dropped_instead_of_zeroed() -> None:
    zeros = edited(
        ("zero_grad()", "zero_grad(set_to_none=False)"), ("loss = loss", "print(model[0].weight.grad); loss = loss")
    )
    result, process = measured(zeros, "set-to-none")
    assert result.applied == {"set-to-none": "AdamW"}
    assert process.stdout.split() == ["None"] * 4
    assert reason("set-to-none") == "no call of zero_grad keeps the gradients"


# ---------------------------------------------------------------- kernels


def test_channels_last_changes_weights_and_inputs() -> None:
    show = """
def show(module, args):
    print(*(value.is_contiguous(memory_format=torch.channels_last) for value in (module.weight, *args)))
model[0].register_forward_pre_hook(show)"""
    image = "nn.Sequential(nn.Conv2d(3, 4, (1, 2)), nn.ReLU(), nn.Flatten(), nn.Linear(4, 3))"
    program = edited(
        ("MODEL = nn", f"MODEL = {image}; old = nn"),
        ("# setup", show),
        ("model(x), y", "model(x.reshape(-1, 3, 1, 2)), y"),
    )
    result, process = measured(program, "channels-last")
    assert result.applied == {"channels-last": "Sequential"}, process.stderr
    assert process.stdout.split("\n")[0] == "True True"
    assert measured(program)[1].stdout.split("\n")[0] == "False False"
    assert reason("channels-last") == "Sequential has no 2d convolution"


def test_dropout_of_channels_last_tensors_draws_the_masks_of_contiguous_ones() -> None:
    layers = "nn.Conv2d(3, 8, 1), nn.Dropout(), nn.Dropout(0.1, inplace=True), nn.Conv2d(8, 4, (1, 2)), nn.Flatten()"
    program = edited(
        ("MODEL = nn", f"MODEL = nn.Sequential({layers}, nn.Linear(8, 3)); old = nn"),
        ("model(x), y", "model(x.reshape(-1, 3, 1, 2)), y"),
    )
    plain, changed = measured(program, losses=4)[0], measured(program, "channels-last", losses=4)[0]
    assert changed.applied == {"channels-last": "Sequential"}
    assert changed.losses == pytest.approx(plain.losses, rel=1e-5)


def test_attention_uses_the_back_end_of_the_change() -> None:
    attention = edited(("MODEL = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))", ATTENTION))
    show = "print([torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()])"
    program = attention.replace("        q, k, v", f"        {show}\n        q, k, v").replace("# clip", show)
    for name, inside in (("sdpa-math", [False, True]), ("sdpa-flash", [True, False])):
        result, process = measured(program, name)
        assert result.applied == {name: "Attention"}, process.stderr
        assert process.stdout.split("\n")[:2] == [str(inside), "[True, True]"]
    assert reason("sdpa-efficient", attention) == "it needs a GPU"


MODEL = "MODEL = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))"
HEADS = """
class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads, self.outputs = nn.MultiheadAttention(6, 2), nn.Linear(6, 3)
    def forward(self, x):
        return self.outputs(self.heads(x, x, x, need_weights=False)[0])
MODEL = Heads()"""


COMPILED = ("model = MODEL", "model = torch.compile(MODEL, backend='eager')")
PROFILER = ("# clip", "print(__import__('sys').getprofile())")


@pytest.mark.parametrize("edits", [(PROFILER,), (PROFILER, COMPILED)])
@pytest.mark.parametrize("model", [ATTENTION, HEADS])
def test_attention_is_changed_where_a_model_calls_it(model: str, edits: tuple[tuple[str, str], ...]) -> None:
    result, process = measured(edited((MODEL, model), *edits), "sdpa-math")
    assert result.applied.keys() == {"sdpa-math"}, process.stderr
    assert result.recompiled == 0
    assert set(process.stdout.split()) == {"None"}


@pytest.mark.parametrize(
    "edit",
    [
        ("loss = loss_of", "nn.functional.scaled_dot_product_attention(x, x, x); loss = loss_of"),
        (MODEL, HEADS.replace("need_weights=False", "need_weights=True")),
    ],
)
def test_attention_is_not_changed_where_no_model_calls_it(edit: tuple[str, str]) -> None:
    assert reason("sdpa-math", edited(edit, PROFILER)) == "the model calls no scaled_dot_product_attention"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tf32", "the model runs on no GPU"),
        ("cudnn-benchmark", "the model runs on no GPU"),
        ("cuda-graphs", "CUDA graphs need a GPU"),
        ("compile-reduce-overhead", "CUDA graphs need a GPU"),
        ("pinned", "the process has no GPU"),
        ("persistent", "the DataLoader of Data has no workers"),
    ],
)
def test_changes_for_a_gpu_are_skipped_on_a_cpu(name: str, expected: str) -> None:
    assert reason(name) == expected


def test_threads_are_those_of_the_cores() -> None:
    cores = len(os.sched_getaffinity(0))
    threads = 1 if cores > 1 else 2
    program = edited(
        ("set_num_threads(1)", f"set_num_threads({threads})"), ("# clip", "print(torch.get_num_threads())")
    )
    result, process = measured(program, "threads")
    assert process.stdout.split()[0] == str(cores)
    assert result.applied == {"threads": f"{cores} instead of {threads}"}
    assert (
        reason("threads", edited(("set_num_threads(1)", f"set_num_threads({cores})")))
        == f"{cores} threads compute already"
    )


# ---------------------------------------------------------------- data loading


def test_workers_load_the_same_data() -> None:
    show = ("x, y in loader:", "x, y in loader:\n        print(loader.num_workers, loader.persistent_workers)")
    result, process = measured(edited(show), "workers", losses=4, parameters=True)
    plain, _ = measured(PROGRAM, losses=4, parameters=True)
    cores = len(os.sched_getaffinity(0))
    assert result.applied == {"workers": f"the DataLoader of Data: {cores} workers"}
    assert process.stdout.split("\n")[0] == f"{cores} True"
    assert (result.losses, result.parameters) == (plain.losses, plain.parameters)


def test_workers_are_skipped_for_data_that_they_cannot_load() -> None:
    stream = """
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([(torch.ones(6), 1)] * 64)
loader = torch.utils.data.DataLoader(Stream(), batch_size=8)"""
    assert reason("workers", edited(("# setup", stream))) == "each worker would load the whole IterableDataset"
    spawned = """
collate = lambda rows: torch.utils.data.default_collate(rows)
loader = torch.utils.data.DataLoader(Data(), batch_size=8, collate_fn=collate)
torch.multiprocessing.set_start_method("spawn")"""
    assert reason("workers", edited(("# setup", spawned))).startswith("the dataset cannot be pickled: ")


def test_workers_persist() -> None:
    program = edited(
        ("batch_size=8)", "batch_size=32, num_workers=1)"), ("# clip", "print(loader._iterator is not None)")
    )
    result, process = measured(program, "persistent")
    assert result.applied == {"persistent": "the DataLoader of Data"}
    assert process.stdout.split()[0] == "True"


# ---------------------------------------------------------------- compilation

EAGER = ("# setup", "import functools; torch.compile = functools.partial(torch.compile, backend='eager')")
GRAPHS = "print('graphs', torch._dynamo.utils.counters['stats']['unique_graphs'])"
BLOCK = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)
    def forward(self, x): return self.inner(x).relu()
"""


def compiled(name: str, *edits: tuple[str, str]) -> tuple[dict[str, str], list[int]]:
    """Return where a change was applied, and the number of graphs after each step."""
    result, process = measured(edited(("# clip", GRAPHS), EAGER, *edits), name)
    assert result.recompiled == 0, process.stderr
    return result.applied, [int(count) for count in re.findall(r"graphs (\d+)", process.stdout)]


def test_the_model_is_one_compiled_graph() -> None:
    assert compiled("compile") == ({"compile": "Sequential"}, [1] * 4)
    net = ("MODEL = nn.Seq", BLOCK.replace("Linear(6, 6)", "Linear(6, 3)") + "MODEL = Block(); old = nn.Seq")
    assert compiled("compile-max-autotune", net) == ({"compile-max-autotune": "Block"}, [1] * 4)


@pytest.mark.parametrize("name", ["compile", "compile-blocks"])
@pytest.mark.parametrize("before", ["", "with torch.no_grad():\n    for _ in range(4): model(torch.ones(8, 6))"])
def test_a_compilation_without_a_graph_is_skipped(name: str, before: str) -> None:
    disabled = BLOCK.replace("    def forward", "    @torch.compiler.disable\n    def forward")
    blocks = f"{disabled}MODEL = nn.Sequential(Block(), Block(), nn.Linear(6, 3)); old = nn.Seq"
    whole = f"{disabled.replace('Linear(6, 6)', 'Linear(6, 3)')}MODEL = Block(); old = nn.Seq"
    model = ("MODEL = nn.Seq", blocks if name == "compile-blocks" else whole)
    edits = (model, (EAGER[0], f"{EAGER[1]}\n{before}"))
    assert reason(name, edited(*edits)) == "torch.compile compiled no graph of the model"


def test_graphs_of_a_training_count_after_an_evaluation_without_one() -> None:
    forward = "return self.inner(x).relu() if self.training else plain(self, x)"
    block = BLOCK.replace("Linear(6, 6)", "Linear(6, 3)").replace("return self.inner(x).relu()", forward)
    block = f"plain = torch.compiler.disable(lambda block, x: block.inner(x)){block}MODEL = Block(); old = nn.Seq"
    evaluation = f"MODEL.eval()\nwith torch.no_grad():\n    for _ in range(4): model(torch.ones(8, 6))\n{GRAPHS}"
    applied, graphs = compiled(
        "compile", ("MODEL = nn.Seq", block), ("for _ in range(9)", f"{evaluation}\nMODEL.train()\nfor _ in range(9)")
    )
    assert applied == {"compile": "Block"}
    assert graphs == [0, 1, 1, 1, 1]


def test_a_model_that_contains_another_one_is_compiled_too() -> None:
    first = ("for _ in range(9)", "MODEL[0](torch.ones(8, 6, requires_grad=True))\nfor _ in range(9)")
    applied, graphs = compiled("compile", first)
    assert applied == {"compile": "Linear, Sequential"}
    assert graphs[-1] == graphs[0] == 2


@pytest.mark.parametrize("by_program", ["model = torch.compile(MODEL)", "MODEL.compile()"])
def test_compiled_models_are_skipped(by_program: str) -> None:
    program = edited((EAGER[0], f"{EAGER[1]}\n{by_program}"))
    for name in ("compile", "compile-blocks"):
        assert reason(name, program).endswith(" is compiled already")


def test_repeated_blocks_share_a_graph() -> None:
    """There are more blocks than torch.compile makes graphs for a function."""
    blocks = (
        "MODEL = nn.Seq",
        BLOCK + "MODEL = nn.Sequential(*[Block() for _ in range(12)], nn.Linear(6, 3)); old = nn.Seq",
    )
    applied, graphs = compiled("compile-blocks", blocks)
    assert applied == {"compile-blocks": "12 Block of Sequential"}
    assert graphs[-1] <= 2  # the input of the first block needs no gradient
    layer = "nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True)"
    encoder = f"nn.Unflatten(1, (1, 6)), nn.TransformerEncoder({layer}, 12), nn.Flatten()"
    layers = f"nn.Sequential({encoder}, nn.Linear(6, 3))"
    applied, graphs = compiled("compile-blocks", ("MODEL = nn.Seq", f"MODEL = {layers}; old = nn.Seq"))
    assert applied == {"compile-blocks": "12 TransformerEncoderLayer of Sequential"}
    assert graphs[-1] <= 2
    assert reason("compile-blocks") == "Sequential has no repeated blocks"


# ---------------------------------------------------------------- failures


def test_a_change_that_fails_is_skipped_with_its_reason() -> None:
    result, process = measured(
        PROGRAM, changes={"absent": "annot.live.torch_changes:absent", "fused": "annot.live.torch_changes:fused"}
    )
    assert process.returncode == 0
    assert result.skipped == {"absent": "AttributeError: module 'annot.live.torch_changes' has no attribute 'absent'"}
    assert result.applied == {"fused": "AdamW"}


def test_a_program_that_breaks_under_a_change_tells_the_error() -> None:
    loss = (
        "nn.functional.cross_entropy(model(x), y)",
        "torch.as_tensor(model(x).detach().numpy()).mean() + model(x).mean()",
    )
    result, process = measured(edited(loss), "bf16")
    assert process.returncode == 1
    assert result.error.startswith("TypeError: Got unsupported ScalarType BFloat16")
    assert (result.applied, result.window_ns) == ({"bf16": "Sequential"}, None)


def test_changes_without_their_object_are_skipped() -> None:
    result, _ = measured("import torch\ntorch.nn.Linear(2, 2)(torch.ones(1, 2))", "fused", "workers")
    unreached = "the program has not reached the code that it changes"
    assert result.skipped == {"fused": unreached, "workers": unreached}


def test_rounding_changes_parameters_in_their_last_bit() -> None:
    by_hand = edited(("# setup", "with torch.no_grad():\n    for p in model.parameters():\n        p *= 1 + 2**-23"))
    assert_as_by_hand(PROGRAM, by_hand, "rounding")


def test_rounding_of_parameters_that_two_models_share() -> None:
    """The second model is called first when the graph of the first one has the parameters already."""
    result, process = measured(
        edited(("cross_entropy(model(x)", "cross_entropy(model(x) + model[0](x)[:, :3]")), "rounding"
    )
    assert (result.error, "rounding" in result.applied) == ("", True), process.stderr
    shared = "cross_entropy(model[2](model[1](model[0](x))) + model(x)"
    result, process = measured(edited(("cross_entropy(model(x)", shared)), "rounding")
    assert (result.error, "rounding" in result.applied) == ("", True), process.stderr
