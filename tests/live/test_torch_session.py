"""Steps, losses and ends of PyTorch programs."""

from __future__ import annotations

import re
import textwrap

import forked
import pytest
import torch
from measured import measured, measured_in_turn

NET = """
import atexit, torch
torch.set_num_threads(1)
def net():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
def batch():
    return torch.randn(16, 4), torch.randint(0, 2, (16,))
loss_of = torch.nn.functional.cross_entropy
"""
TRAIN = f"""{NET}
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
atexit.register(print, "atexit")
steps = 0
try:
    while steps < 9:
        x, y = batch()
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        print("loss", repr(loss.item()), flush=True)
        optimizer.step()
        steps += 1
finally:
    print("finally", steps)
print("end")
"""


def printed_losses(output: str) -> list[float]:
    return [float(text) for text in re.findall(r"loss (\S+)", output)]


def test_a_training_ends_after_its_measured_steps_and_runs_its_cleanup() -> None:
    result, process = measured(TRAIN, losses=3)
    assert process.returncode == 0
    assert process.stdout.split("\n")[-3:-1] == ["finally 3", "atexit"]
    assert (result.framework, result.ended, result.warmup, result.device) == ("torch", "steps", 1, "cpu")
    assert len(result.step_ns) == 4
    assert result.window_ns is not None
    assert result.window_ns >= sum(result.step_ns[1:])
    assert result.losses == printed_losses(process.stdout)[:3]
    assert result.error == ""
    assert result.peak_bytes > 10_000_000


def test_a_program_goes_on_to_its_own_end_if_asked_to() -> None:
    result, process = measured(TRAIN, keep_going=True)
    assert process.stdout.endswith("finally 9\nend\natexit\n")
    assert (result.ended, len(result.step_ns)) == ("program", 4)
    assert result.window_ns is not None


def test_a_program_that_ends_before_its_steps_has_no_window() -> None:
    result, process = measured(TRAIN, steps=30)
    assert process.stdout.endswith("end\natexit\n")
    assert (result.ended, len(result.step_ns), result.window_ns) == ("program", 9, None)


def test_the_exception_that_ends_a_program_is_in_the_result() -> None:
    result, process = measured(TRAIN.replace("steps += 1", "steps += 1; model[9]"))
    assert process.returncode == 1
    assert "IndexError: index 9 is out of range" in process.stderr
    assert result.error == "IndexError: index 9 is out of range"
    assert (result.ended, len(result.step_ns)) == ("program", 1)


def test_losses_repeat_with_a_seed_and_an_infinite_one_is_none() -> None:
    first, second = (measured(TRAIN, losses=3, parameters=True, seed=5)[0] for _ in range(2))
    other = measured(TRAIN, losses=3, parameters=True, seed=6)[0]
    assert first.losses == second.losses != other.losses
    assert first.parameters == second.parameters != other.parameters
    infinite, _ = measured(TRAIN.replace("loss = loss_of", "loss = (steps != 1 or torch.inf) * loss_of"), losses=3)
    assert [value is None for value in infinite.losses] == [False, True, True]


@pytest.mark.parametrize(("losses", "seed", "falls_back"), [(2, 0, True), (0, 0, False), (2, None, False)])
def test_compiled_code_draws_the_numbers_of_uncompiled_code_where_losses_are_compared(
    losses: int, seed: int | None, falls_back: bool
) -> None:
    program = "import torch._inductor.config; print(torch._inductor.config.fallback_random)"
    _, process = measured(program, losses=losses, seed=seed)
    assert process.stdout == f"{falls_back}\n", process.stderr


@pytest.mark.slow
def test_a_compiled_model_with_dropout_trains_as_an_uncompiled_one() -> None:
    program = TRAIN.replace("net()\noptimizer", "torch.nn.Sequential(net(), torch.nn.Dropout())\noptimizer")
    plain, _ = measured(program, losses=3)
    compiled, process = measured(program, "compile", losses=3)
    assert compiled.applied == {"compile": "Sequential"}, process.stderr
    assert compiled.losses == pytest.approx(plain.losses, rel=1e-4)


@pytest.mark.parametrize(
    ("edits", "draws"),
    [
        ((), False),  # the batches are random
        ((("net()\noptimizer", "torch.nn.Sequential(net(), torch.nn.Dropout())\noptimizer"),), True),
        ((("model(x), y)", "model(x) + torch.randn(16, 2), y)"),), True),
        # The first model of a step draws, the last one does not.
        ((("steps = 0", "first = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout())\nsteps = 0"),
          ("model(x), y)", "model(first(x)), y)")), True),
        ((("model(x), y)", "model(x).double() + torch.randn(2, generator=torch.Generator()), y)"),), False),
    ],
)  # fmt: skip
def test_random_numbers_of_the_model_and_its_loss_are_noted(edits: tuple[tuple[str, str], ...], draws: bool) -> None:
    program = TRAIN
    for before, after in edits:
        assert before in program
        program = program.replace(before, after)
    assert measured(program, losses=3)[0].draws is draws
    assert measured(program)[0].draws is False


def test_the_hash_is_that_of_parameters_and_buffers_by_name() -> None:
    show = """finally:
    import hashlib
    digest = hashlib.sha256()
    for _, value in sorted(model.state_dict().items()):
        digest.update(value.numpy().tobytes())
    print("hash", digest.hexdigest())"""
    model = "model = torch.nn.Sequential(torch.nn.BatchNorm1d(4), net())"
    result, process = measured(
        TRAIN.replace("model = net()", model).replace("finally:", show), losses=4, parameters=True
    )
    assert f"hash {result.parameters}" in process.stdout


def test_calls_of_the_model_are_the_steps_of_inference() -> None:
    program = f"""{NET}
model = net()
with torch.no_grad():
    for number in range(9):
        x = torch.full((1, 4), float(number))
        output = model(x)
        print("loss", repr(output.double().abs().mean().item()))
"""
    result, process = measured(program, losses=2)
    assert (result.ended, len(result.step_ns)) == ("steps", 4)
    assert result.losses == printed_losses(process.stdout)[:2]
    assert process.stdout.count("loss") == 3  # the last step ends inside its call


INFERENCE = f"{NET}model = net()\nwith torch.no_grad():\n    for _ in range(20): model(batch()[0])"


@pytest.mark.parametrize(
    ("programs", "trains", "steps"),
    [
        ([TRAIN, INFERENCE, "import torch"], True, 4),
        ([INFERENCE, TRAIN], True, 4),
        ([INFERENCE, INFERENCE.replace("range(20)", "range(2)")], False, 2),
        ([TRAIN.replace("optimizer.step()", "raise SystemExit"), INFERENCE], False, 4),
    ],
)
def test_the_result_of_a_command_is_that_of_its_training(programs: list[str], trains: bool, steps: int) -> None:
    result, process = measured_in_turn(programs)
    assert (result.trains, len(result.step_ns)) == (trains, steps), process.stderr


def test_the_heap_is_scanned_outside_the_measured_steps() -> None:
    watch = """
import gc, annot.live.torch_session as live
scan = gc.get_objects
def watched():
    print("window", live._session._window_start, live._session.result.window_ns is not None)
    return scan()
gc.get_objects = watched
"""
    loop = "model = net()\nwith torch.no_grad():\n    for _ in range(9): model(batch()[0])"
    result, process = measured(f"{NET}{watch}{loop}")
    assert result.ended == "steps", process.stderr
    opens, closes = process.stdout.splitlines()
    assert opens == "window None False"
    assert closes.endswith(" True")


def test_an_evaluation_before_the_training_counts_no_steps() -> None:
    evaluation = "with torch.no_grad():\n    for _ in range(20):\n        model(batch()[0])\n"
    program = TRAIN.replace("steps = 0", evaluation + "steps = 0")
    result, process = measured(program, losses=3)
    assert process.stdout.endswith("finally 3\natexit\n")
    assert result.losses == printed_losses(process.stdout)[:3]
    assert len(result.step_ns) == 4


def test_the_steps_of_two_optimizers_in_turns_count_once() -> None:
    program = f"""{NET}
first, second = net(), torch.nn.Linear(2, 1)
optimizers = [torch.optim.Adam(model.parameters()) for model in (second, first)]
rounds = 0
try:
    while rounds < 9:
        for optimizer in optimizers:
            optimizer.zero_grad()
            loss = second(first(batch()[0])).mean()
            loss.backward()
            if optimizer is optimizers[1] or not rounds:  # a step ends with that of the first optimizer
                print("loss", repr(loss.item()))
            optimizer.step()
        rounds += 1
finally:
    print("rounds", rounds)
"""
    result, process = measured(program, losses=4)
    assert "rounds 3" in process.stdout
    assert result.losses == printed_losses(process.stdout)[:4]
    assert len(result.step_ns) == 4


def test_a_step_with_a_closure_counts_once() -> None:
    program = f"""{NET}
model, (x, y) = net(), batch()
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
calls = []
def closure():
    optimizer.zero_grad()
    loss = loss_of(model(x), y)
    loss.backward()
    calls.append(loss.item())
    return loss
try:
    for step in range(9):
        print("loss", repr(calls[-1]) if calls else 0.0)
        first = len(calls)
        optimizer.step(closure)
        print("first", repr(calls[first]))
finally:
    print("first", repr(calls[first]))
"""
    result, process = measured(program, losses=4)
    assert (result.ended, len(result.step_ns)) == ("steps", 4)
    assert result.losses == [float(text) for text in re.findall(r"first (\S+)", process.stdout)]


def test_several_backwards_of_a_step_are_a_step() -> None:
    program = TRAIN.replace(
        "        x, y = batch()\n", "        x, y = batch(); loss_of(model(x), y).backward()\n"
    ).replace("zero_grad()", "state")
    result, _ = measured(program, losses=2)
    assert (len(result.losses), len(result.step_ns)) == (2, 4)


def test_losses_of_a_gradient_scaler_are_unscaled() -> None:
    scaler = "scaler = torch.amp.GradScaler('cpu', init_scale=4.0)\nsteps = 0"
    program = TRAIN.replace("steps = 0", scaler).replace("loss.backward()", "scaler.scale(loss).backward()")
    program = program.replace("optimizer.step()", "scaler.step(optimizer); scaler.update()")
    result, process = measured(program, losses=3)
    assert result.losses == printed_losses(process.stdout)[:3]


def test_steps_that_a_gradient_scaler_leaves_out_are_steps() -> None:
    scaler = "scaler = torch.amp.GradScaler('cpu', growth_interval=1)\nsteps = 0"
    program = TRAIN.replace("steps = 0", scaler).replace(
        "loss.backward()", "scaler.scale(loss * (1e38 if steps in (0, 2) else 1)).backward()"
    )
    program = program.replace("optimizer.step()", "print('skips', scaler.step(optimizer) is None); scaler.update()")
    result, process = measured(program, steps=5, losses=6)
    assert process.stdout.count("loss") == 6 == len(result.step_ns), process.stderr
    assert "inf" not in process.stdout
    assert len(result.losses) == 6


WRAPPER = """
class Lookahead(torch.optim.Optimizer):  # without the hooks that Optimizer.__init__ installs
    def __init__(self, inner):
        self.inner, self.param_groups = inner, inner.param_groups
    def zero_grad(self):
        self.inner.zero_grad()
    def step(self):
        self.inner.step()
optimizer = Lookahead(optimizer)
scaler = torch.amp.GradScaler('cpu', growth_interval=99)
steps = 0"""


def test_a_wrapped_optimizer_whose_first_step_is_left_out() -> None:
    program = TRAIN.replace("steps = 0", WRAPPER).replace(
        "loss.backward()", "scaler.scale(loss * (1e38 if steps == 0 else 1)).backward()"
    )
    program = program.replace("optimizer.step()", "scaler.step(optimizer); scaler.update()")
    result, process = measured(program, losses=4)
    assert (len(result.step_ns), result.ended) == (4, "steps"), process.stderr
    assert result.losses[1:] == printed_losses(process.stdout)[1:]


def test_an_optimizer_of_each_step_counts_once() -> None:
    new = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1); optimizer.zero_grad()"
    program = TRAIN.replace("optimizer.zero_grad()", new).replace(
        "steps = 0", "model.compile(backend='eager')\nsteps = 0"
    )
    result, process = measured(program, losses=4)
    assert (len(result.step_ns), result.ended) == (4, "steps"), process.stderr
    assert result.losses == printed_losses(process.stdout)


OUTSIDE = "outside functions that torch.compile compiles"
COMPILED_STEP = """
@torch.compile(backend="eager")
def step(x, y):
    optimizer.zero_grad()
    loss = loss_of(model(x), y)
    loss.backward()
    optimizer.step()
    return loss
update = torch.compile(lambda: optimizer.step(), backend="eager")
"""


@pytest.mark.parametrize(
    ("loop", "reasons"),
    [
        (
            "loss = step(*batch())",
            {
                "bf16": f"the program calls no model {OUTSIDE}",
                "fused": f"the program steps no optimizer {OUTSIDE}",
            },
        ),
        (
            "optimizer.zero_grad(); loss = loss_of(model(x), y); loss.backward(); update()",
            dict.fromkeys(["fused", "fp16"], f"the program steps no optimizer {OUTSIDE}"),
        ),
    ],
)
def test_a_compiled_step_of_the_optimizer_ends_a_step(loop: str, reasons: dict[str, str]) -> None:
    setup = TRAIN[: TRAIN.index("atexit.register(")] + COMPILED_STEP
    program = f"{setup}for _ in range(9):\n    x, y = batch(); {loop}; print('loss', repr(loss.item()))"
    result, process = measured(program, losses=4)
    assert (result.trains, len(result.step_ns), result.ended) == (True, 4, "steps"), process.stderr
    assert result.losses == printed_losses(process.stdout)
    changed, process = measured(program, *reasons, losses=4)
    assert changed.skipped == reasons, process.stderr


def test_checkpointed_layers_are_no_models() -> None:
    program = TRAIN.replace("model(x)", "wrapped(x)").replace(
        "steps = 0",
        """
from torch.utils.checkpoint import checkpoint
class Wrapped(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = model
    def forward(self, x):
        return checkpoint(self.model, x, use_reentrant=False)
wrapped = Wrapped()
steps = 0""",
    )
    result, process = measured(program, "bf16")
    assert result.applied == {"bf16": "Wrapped"}, process.stderr


@pytest.mark.parametrize(
    "run",
    [
        "worker = threading.Thread(target=train); worker.start(); worker.join()",
        "concurrent.futures.ThreadPoolExecutor(1).submit(train).result()",
    ],
)
def test_a_training_in_another_thread_ends_the_program(run: str) -> None:
    setup, loop = TRAIN[len(NET) :].split("steps = 0\n")
    body = textwrap.indent("steps = 0\n" + loop, "    ")
    program = f"{NET}\nimport threading, concurrent.futures\n{setup}\ndef train():\n{body}\n{run}\nprint('after')"
    result, process = measured(program)
    assert process.returncode == 0, process.stderr
    assert all(word in process.stdout for word in ("finally", "atexit"))  # two threads may print at the same time
    assert "after" not in process.stdout
    assert (result.ended, result.error) == ("steps", "")


def test_forked_children_do_not_measure() -> None:
    child = """
pid = __import__("os").fork()
if not pid:
    for _ in range(9):
        loss_of(model(batch()[0]), batch()[1]).backward()
        optimizer.step()
    print("child", flush=True)
    raise SystemExit(3)
__import__("os").waitpid(pid, 0)
steps = 0"""
    result, process = measured(TRAIN.replace("steps = 0", child, 1), keep_going=False)
    assert "child" in process.stdout
    assert process.stdout.endswith("finally 3\natexit\n")
    assert len(result.step_ns) == 4


def test_graphs_that_are_compiled_in_the_measured_steps_are_counted() -> None:
    program = TRAIN.replace(
        "steps = 0",
        "compiled = torch.compile(lambda x, n: model(x) * n, backend='eager', dynamic=False)\nsteps = 0",
    )
    steady, _ = measured(program.replace("model(x), y", "compiled(x, 1), y"))
    changing, _ = measured(program.replace("model(x), y", "compiled(x, max(steps, 1)), y"))
    assert (steady.recompiled, changing.recompiled) == (0, 2)


def test_torch_compile_sees_no_frame_that_it_does_not_see_in_a_plain_run() -> None:
    step = """
@torch.compile(backend="eager")
def step(x, y):
    loss = loss_of(model(x), y)
    torch._dynamo.graph_break()
    print("between")
    loss.backward()
for _ in range(4):
    step(*batch())
    optimizer.step()
    optimizer.zero_grad()
print("graphs", torch._dynamo.utils.counters["stats"]["unique_graphs"])"""
    program = TRAIN[: TRAIN.index("atexit.register(")] + step
    result, process = measured(program, keep_going=True)
    plain = forked.python(program)
    assert plain.stdout == process.stdout
    assert (len(result.step_ns), result.recompiled) == (4, 0)


def test_numbers_of_bfloat16_and_no_dimensions_are_hashed() -> None:
    from annot.live.request import Request
    from annot.live.torch_session import TorchSession

    def digest(value: float) -> str:
        model = torch.nn.Linear(2, 2, dtype=torch.bfloat16)
        torch.nn.init.ones_(model.weight)
        torch.nn.init.ones_(model.bias)
        model.register_buffer("scale", torch.tensor(value))
        session = TorchSession(Request(result=""))
        session._meet(model)
        return session.hash_parameters()

    assert digest(1.0) == digest(1.0) != digest(2.0)


LIGHTNING = """
import lightning, torch, warnings
warnings.simplefilter("ignore")
class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(8, 2)
    def training_step(self, batch, index):
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
    def validation_step(self, batch, index):
        self.net(batch[0])
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())
data = torch.utils.data.TensorDataset(torch.randn(256, 8), torch.randint(0, 2, (256,)))
loader = torch.utils.data.DataLoader(data, batch_size=4)
options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
lightning.Trainer(max_epochs=1, accelerator="cpu", **options).fit(Lit(), loader, loader)
print("end")
"""
HUGGING_FACE = """
import tempfile, torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
model = BertForSequenceClassification(BertConfig(vocab_size=20, **sizes))
data = [{"input_ids": torch.randint(0, 20, (4,)), "labels": index % 2} for index in range(256)]
with tempfile.TemporaryDirectory() as folder:
    options = {"report_to": [], "save_strategy": "no", "use_cpu": True, "disable_tqdm": True}
    Trainer(model=model, args=TrainingArguments(folder, **options), train_dataset=data).train()
print("end")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "program", "model"),
    [
        ("lightning", LIGHTNING, "Linear"),
        ("transformers", HUGGING_FACE, "BertForSequenceClassification"),
    ],
)
def test_trainers_are_measured_with_changes(package: str, program: str, model: str) -> None:
    pytest.importorskip(package)
    plain, process = measured(program, losses=4)
    changed, _ = measured(program, "fp16", "workers", losses=4)
    assert "end" not in process.stdout.split()
    assert (plain.ended, len(plain.step_ns)) == ("steps", 4)
    assert changed.applied["fp16"] == model
    assert "workers" in changed.applied
    assert plain.losses != changed.losses == pytest.approx(plain.losses, rel=0.01)
