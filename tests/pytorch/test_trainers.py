"""The callbacks for Lightning and for the Trainer of Hugging Face, with the real packages."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from captured import Captured, capture
from commands import needs_recorder
from torch.utils.data import DataLoader, TensorDataset

import annot
import annot.torch
from annot.emit.client import IS_NATIVE

pytestmark = [pytest.mark.slow, needs_recorder]


def texts(captured: Captured, *codes: str) -> list[str]:
    """Texts of the ranges with one of these codes, numbers as the client in use shows them."""
    return [one.text for one in captured.ranges if one.text.rsplit("|", 1)[-1] in codes]


def numbered(*wanted: str) -> list[str]:
    """The nvtx package only sends registered texts, so that the loop has no numbers there."""
    return list(wanted) if IS_NATIVE else [" ".join(w for w in text.split(" ") if not w.isdigit()) for text in wanted]


def within(captured: Captured, text: str) -> Counter[str]:
    """Texts of push/pop ranges that begin inside ranges of this text, which are start/end ranges."""
    spans = [(one.start, one.end) for one in captured.ranges if one.text == text]
    inside = (one for one in captured.ranges if one.nested and any(a <= one.start <= b for a, b in spans))
    return Counter(one.text for one in inside)


def untouched() -> list[Any]:
    """What must be as before when a trainer is done."""
    return [torch.nn.Module.__call__, torch.optim.SGD.step, torch.optim.Optimizer.zero_grad]


def numbers(rows: int = 4) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(rows, 3, generator=generator), torch.randn(rows, 1, generator=generator))


def test_importing_annot_torch_imports_no_trainer() -> None:
    """They are heavy, and may not be there; an unknown name is an AttributeError."""
    code = "import sys, annot.torch; print({'lightning', 'pytorch_lightning', 'transformers'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
    with pytest.raises(AttributeError, match="Nothing"):
        annot.torch.Nothing  # noqa: B018


class TestLightning:
    """`AnnotCallback` and `AnnotProfiler`."""

    @pytest.fixture
    def lightning(self) -> Any:
        return pytest.importorskip("lightning")

    def model(self, lightning: Any, fails: bool = False) -> Any:
        torch.manual_seed(0)

        class Model(lightning.LightningModule):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.body = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
                self.loss = torch.nn.MSELoss()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.body(x)  # type: ignore[no-any-return]

            def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
                if fails and batch_idx == 1:
                    raise ArithmeticError("mine")
                return self.loss(self(batch[0]), batch[1])  # type: ignore[no-any-return]

            def validation_step(self, batch: Any, batch_idx: int) -> None:
                self(batch[0])

            def test_step(self, batch: Any, batch_idx: int) -> None:
                self(batch[0])

            def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
                return self(batch[0])  # type: ignore[no-any-return]

            def configure_optimizers(self) -> Any:
                optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
                return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

        return Model()

    def trainer(self, lightning: Any, folder: Path, **options: Any) -> Any:
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        quiet |= {"enable_model_summary": False, "accelerator": "cpu", "devices": 1, "default_root_dir": folder}
        return lightning.Trainer(**{**quiet, "max_epochs": 2, "num_sanity_val_steps": 0, **options})

    def test_fit_has_epochs_batches_and_layers(self, lightning: Any, tmp_path: Path) -> None:
        """Two epochs of two batches, each with its layers, one optimizer range, and validation after each epoch."""
        loader, plain, ranged = DataLoader(numbers(), 2), self.model(lightning), self.model(lightning)
        self.trainer(lightning, tmp_path).fit(plain, loader, loader)
        before = untouched()

        def body() -> None:
            trainer = self.trainer(lightning, tmp_path, callbacks=[annot.torch.AnnotCallback()])
            trainer.fit(ranged, loader, loader)

        captured = capture(tmp_path, body)
        assert untouched() == before
        assert all(map(torch.equal, plain.parameters(), ranged.parameters()))
        validation = ["Epoch validate {} |epoch", "Batch validate 0 |step", "Batch validate 1 |step"]
        wanted = []
        for epoch in range(2):
            wanted += [f"Epoch {epoch} |epoch", "Batch 0 |step", "Batch 1 |step"]
            wanted += [text.format(epoch) for text in validation]
        assert texts(captured, "epoch", "step") == numbered(*wanted)
        steps = within(captured, numbered("Batch 0 |step")[0])
        times = 2 if IS_NATIVE else 4
        step = "Optimizer SGD params=21 momentum=True |opt"
        for text in ("body.0 Linear [2,3]f32 out=4 |fwd", "body.2 Linear [2,4]f32 out=1 |bwd", step):
            assert steps[text] == times, text
        assert not [one for one in captured.ranges if one.parent and one.parent.text == step]
        assert texts(captured, "data").count("Data |data") >= 8
        assert "lr_scheduler StepLR |opt" in captured.texts

    def test_other_stages(self, lightning: Any, tmp_path: Path) -> None:
        """Validating, testing and predicting alone."""
        loader, model = DataLoader(numbers(), 4), self.model(lightning)

        def body() -> None:
            trainer = self.trainer(lightning, tmp_path, callbacks=[annot.torch.AnnotCallback()])
            trainer.validate(model, loader, verbose=False)
            trainer.test(model, loader, verbose=False)
            trainer.predict(model, loader)

        captured = capture(tmp_path, body)
        wanted = [f"{title} {stage} 0 |{code}" for stage in ("validate", "test", "predict")
                  for title, code in (("Epoch", "epoch"), ("Batch", "step"))]  # fmt: skip
        assert texts(captured, "epoch", "step") == numbered(*wanted)
        assert Counter(captured.names)["body.0>"] == 3

    def test_an_exception_closes_all(self, lightning: Any, tmp_path: Path) -> None:
        """`on_exception` comes instead of `teardown`; the callback works again afterwards."""
        loader, before = DataLoader(numbers(), 2), untouched()
        callback = annot.torch.AnnotCallback()

        def body() -> None:
            trainer = self.trainer(lightning, tmp_path, callbacks=[callback])
            with pytest.raises(ArithmeticError, match="mine"):
                trainer.fit(self.model(lightning, fails=True), loader)
            assert untouched() == before
            self.trainer(lightning, tmp_path, callbacks=[callback], max_epochs=1).fit(self.model(lightning), loader)

        captured = capture(tmp_path, body)
        epoch = ["Epoch 0 |epoch", "Batch 0 |step", "Batch 1 |step"]
        assert texts(captured, "epoch", "step") == numbered(*epoch, *epoch)

    def test_stopping_early_and_skipping(self, lightning: Any, tmp_path: Path) -> None:
        """A callback that stops after a batch, and a hook that skips one, which never ends."""

        class Stop(lightning.Callback):  # type: ignore[misc]
            def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
                trainer.should_stop = True

        def fit(model: Any, *callbacks: Any) -> Captured:
            def body() -> None:
                every = [annot.torch.AnnotCallback(), *callbacks]
                trainer = self.trainer(lightning, tmp_path, callbacks=every, max_epochs=1)
                trainer.fit(model, DataLoader(numbers(8), 2))

            return capture(tmp_path, body)

        assert texts(fit(self.model(lightning), Stop()), "step") == numbered("Batch 0 |step")
        skipping = self.model(lightning)
        skipping.on_train_batch_start = lambda batch, batch_idx: -1 if batch_idx == 1 else None
        captured = fit(skipping)
        assert texts(captured, "step") == numbered("Batch 0 |step", "Batch 1 |step")
        assert captured.names.count("body.0>") == 1

    def test_options_reach_emit_ranges_and_survive_a_pickle(self, lightning: Any, tmp_path: Path) -> None:
        """As for strategies that spawn processes."""
        callback = pickle.loads(pickle.dumps(annot.torch.AnnotCallback(backward=False, shapes=False)))

        def body() -> None:
            self.trainer(lightning, tmp_path, callbacks=[callback], max_epochs=1).fit(
                self.model(lightning), DataLoader(numbers(), 2)
            )

        captured = capture(tmp_path, body)
        assert "body.0 Linear |fwd" in captured.texts
        assert texts(captured, "bwd") == []

    def test_without_a_tool_nothing_is_installed(self, lightning: Any, tmp_path: Path) -> None:
        """Off means free."""
        before = untouched()

        class Look(lightning.Callback):  # type: ignore[misc]
            def on_train_batch_end(self, *_: Any) -> None:
                assert untouched() == before

        callbacks = [annot.torch.AnnotCallback(), Look()]
        self.trainer(lightning, tmp_path, callbacks=callbacks).fit(self.model(lightning), DataLoader(numbers(), 2))

    def test_the_profiler_names_actions(self, lightning: Any, tmp_path: Path) -> None:
        """Each action of the trainer is a range, all of them closed, also after an exception."""
        loader = DataLoader(numbers(), 2)

        def body(fails: bool) -> None:
            trainer = self.trainer(lightning, tmp_path, profiler=annot.torch.AnnotProfiler(), max_epochs=1)
            if fails:
                with pytest.raises(ArithmeticError, match="mine"):
                    trainer.fit(self.model(lightning, fails=True), loader)
            else:
                trainer.fit(self.model(lightning), loader)

        found = Counter(capture(tmp_path, lambda: body(False)).texts)
        assert found["run_training_batch |other"] == 2
        assert capture(tmp_path, lambda: body(True)).texts


class TestHuggingFace:
    """`AnnotTrainerCallback`."""

    @pytest.fixture
    def transformers(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        pytest.importorskip("accelerate")
        return pytest.importorskip("transformers")

    def model(self, fails_at: int = -1) -> torch.nn.Module:
        torch.manual_seed(0)

        class Model(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.body = torch.nn.Linear(3, 1)
                self.calls = 0

            def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
                self.calls += 1
                if self.calls == fails_at:
                    raise ArithmeticError("mine")
                out = self.body(x)
                return {"loss": torch.nn.functional.mse_loss(out, labels), "logits": out}

        return Model()

    def trainer(self, transformers: Any, folder: Path, model: Any, callbacks: list[Any], **options: Any) -> Any:
        rows = [{"x": x, "labels": y} for x, y in numbers(8)]
        quiet = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "use_cpu": True, "seed": 0}
        arguments = transformers.TrainingArguments(
            str(folder / "hf"), per_device_train_batch_size=2, per_device_eval_batch_size=4, num_train_epochs=2,
            **quiet, **options,
        )  # fmt: skip
        return transformers.Trainer(model, arguments, train_dataset=rows, eval_dataset=rows, callbacks=callbacks)

    def test_train_has_epochs_steps_and_layers(self, transformers: Any, tmp_path: Path) -> None:
        """Two epochs of two steps of two batches each, and an evaluation after each epoch; the same bits."""
        options = {"gradient_accumulation_steps": 2, "eval_strategy": "epoch"}
        plain, ranged = self.model(), self.model()
        self.trainer(transformers, tmp_path, plain, [], **options).train()
        before = untouched()

        def body() -> None:
            callback = annot.torch.AnnotTrainerCallback()
            self.trainer(transformers, tmp_path, ranged, [callback], **options).train()
            assert untouched() == before

        captured = capture(tmp_path, body)
        assert all(map(torch.equal, plain.parameters(), ranged.parameters()))
        wanted = []
        for epoch in range(2):
            wanted += [f"Epoch {epoch} |epoch", f"Batch {2 * epoch} |step", f"Batch {2 * epoch + 1} |step"]
            wanted += [f"Epoch evaluate {epoch} |epoch"]
        assert texts(captured, "epoch", "step") == numbered(*wanted)
        steps = within(captured, numbered("Batch 1 |step")[0])
        times = 1 if IS_NATIVE else 4
        assert steps["Optimizer AdamW params=4 fused=True |opt"] == times
        assert steps["body Linear [2,3]f32 out=1 |fwd"] == 2 * times
        assert steps["body Linear [2,3]f32 out=1 grad=weight |bwd"] == 2 * times
        assert steps["clip_grad_norm_ |opt"] == times
        assert within(captured, numbered("Epoch evaluate 0 |epoch")[0])["body Linear [4,3]f32 out=1 |fwd"] >= 2
        assert texts(captured, "data").count("Data |data") >= 8

    def test_evaluating_after_steps_and_stopping_early(self, transformers: Any, tmp_path: Path) -> None:
        """An evaluation after a step lies in the epoch, but in no batch; a limit of steps ends all."""
        options = {"eval_strategy": "steps", "eval_steps": 2, "max_steps": 3}

        def body() -> None:
            callback = annot.torch.AnnotTrainerCallback()
            self.trainer(transformers, tmp_path, self.model(), [callback], **options).train()

        found = texts(capture(tmp_path, body), "epoch", "step")
        steps = [f"Batch {number} |step" for number in range(3)]
        evaluations = [f"Epoch evaluate {number} |epoch" for number in range(2)]
        assert found == numbered("Epoch 0 |epoch", *steps[:2], evaluations[0], steps[2], evaluations[1])

    def test_a_failed_training_is_closed(self, transformers: Any, tmp_path: Path) -> None:
        """By the next training, and at last when the callback goes."""
        before = untouched()

        def body() -> None:
            callback = annot.torch.AnnotTrainerCallback()
            for _ in range(2):
                trainer = self.trainer(transformers, tmp_path, self.model(fails_at=2), [callback])
                with pytest.raises(ArithmeticError, match="mine"):
                    trainer.train()
            del callback, trainer
            gc.collect()
            assert untouched() == before

        assert texts(capture(tmp_path, body), "epoch") == numbered("Epoch 0 |epoch") * 2
