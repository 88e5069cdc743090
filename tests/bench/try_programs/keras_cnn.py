"""A convolutional network of Keras, trained by `fit` on images that tf.data resizes."""

import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

EPOCHS, STEPS, BATCH = 4, 10, 32


class Log(keras.callbacks.Callback):
    """Prints the loss and the time of each step, or of the last of several steps that are one call."""

    def on_train_begin(self, logs: Any = None) -> None:
        """Note the time."""
        self.start, self.epoch = time.perf_counter(), 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Count epochs."""
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Print a line."""
        step, seconds = self.epoch * STEPS + batch, time.perf_counter() - self.start
        print(f"step {step}: loss {logs['loss']:.6f} at {seconds:.6f} s", flush=True)


def prepare(image: Any, label: Any) -> tuple[Any, Any]:
    """Resize and normalise an image."""
    image = tf.image.resize(tf.cast(image, tf.float32), (48, 48), method="bicubic", antialias=True)
    return image / 127.5 - 1, label


def main() -> None:
    """Train for some steps."""
    keras.utils.set_random_seed(0)
    source = np.random.default_rng(0)
    images = source.integers(256, size=(STEPS * BATCH, 160, 160, 3), dtype=np.uint8)
    labels = source.integers(10, size=STEPS * BATCH)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    dataset = dataset.map(prepare)
    dataset = dataset.batch(BATCH, drop_remainder=True)
    convolutions = [layers.Conv2D(width, 3, activation="relu", padding="same") for width in (32, 64, 64, 128)]
    model = keras.Sequential(
        [
            layers.Input((48, 48, 3)),
            *convolutions[:2],
            layers.MaxPooling2D(),
            *convolutions[2:],
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(256, activation="relu"),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, jit_compile=False)
    model.fit(dataset, epochs=EPOCHS, callbacks=[Log()], verbose=0)


if __name__ == "__main__":
    main()
