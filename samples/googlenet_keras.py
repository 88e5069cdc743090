"""Train GoogLeNet in Keras on synthetic images, with a range around every layer, batch and epoch.

Run it alone, or profile it:

    annot run -- python samples/googlenet_keras.py
"""

from typing import Any

import keras
from architectures import INCEPTIONS, POOLED_AFTER
from keras import layers, ops
from keras_training import SyntheticImages, image_arguments, run


class Inception(layers.Layer):
    """Inception module: 1×1, 3×3 and 5×5 convolutions and a max pool in parallel."""

    def __init__(
        self, one: int, three_in: int, three: int, five_in: int, five: int, pool: int, *, name: str
    ) -> None:  # fmt: skip
        super().__init__(name=name)
        self.one = conv(one, 1, "one")
        self.three_in, self.three = conv(three_in, 1, "three_in"), conv(three, 3, "three")
        self.five_in, self.five = conv(five_in, 1, "five_in"), conv(five, 5, "five")
        self.pool = layers.MaxPooling2D(3, strides=1, padding="same", name="pool")
        self.pool_out = conv(pool, 1, "pool_out")
        self.join = layers.Concatenate(name="join")

    def call(self, x: Any) -> Any:
        """Return the concatenated channels of all branches."""
        three, five = self.three(self.three_in(x)), self.five(self.five_in(x))
        return self.join([self.one(x), three, five, self.pool_out(self.pool(x))])


class LocalResponseNorm(layers.Layer):
    """Local response normalization as in AlexNet and GoogLeNet: x / (1 + scale / size · sum(x²)) ** power.

    Args:
        size: number of neighboring channels in the sum, odd.
        scale: factor of the sum.
        power: exponent.
        name: layer name.
    """

    def __init__(self, size: int, scale: float = 1e-4, power: float = 0.75, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.size, self.scale, self.power = size, scale, power

    def call(self, x: Any) -> Any:
        """Return the normalized activations, of the same shape."""
        around, channels = self.size // 2, x.shape[-1]
        squares = ops.pad(ops.square(x), [[0, 0], [0, 0], [0, 0], [around, around]])
        total = sum(squares[..., start : start + channels] for start in range(self.size))
        return x / (1 + self.scale / self.size * total) ** self.power


class GoogLeNet(keras.Sequential):
    """GoogLeNet (ILSVRC 2014) without its two auxiliary classifiers.

    Args:
        width: channels of the first convolution. 64 is the full network; other layers scale with it.
        image: height and width of the images in pixels.
        classes: number of classes.
    """

    def __init__(self, width: int = 64, image: int = 224, classes: int = 1000) -> None:
        stem = [
            conv(width, 7, "conv1", strides=2), pool("pool1"), LocalResponseNorm(5, name="norm1"),
            conv(width, 1, "conv2_in"), conv(3 * width, 3, "conv2"), LocalResponseNorm(5, name="norm2"), pool("pool2"),
        ]  # fmt: skip
        blocks: list[layers.Layer] = []
        for number, full in enumerate(INCEPTIONS):
            channels = [max(1, count * width // 64) for count in full]
            blocks.append(Inception(*channels, name=f"inception{number + 1}"))
            if number in POOLED_AFTER:
                blocks.append(pool(f"pool_after{number + 1}"))
        pooled = [layers.GlobalAveragePooling2D(name="avgpool"), layers.Dropout(0.4, name="dropout")]
        whole = [layers.Input((image, image, 3)), *stem, *blocks, *pooled, layers.Dense(classes, name="fc")]
        super().__init__(whole, name="googlenet")


def conv(outputs: int, kernel: int, name: str, strides: int = 1) -> layers.Layer:
    """Return a convolution with "same" padding and ReLU."""
    return layers.Conv2D(outputs, kernel, strides, "same", activation="relu", name=name)


def pool(name: str) -> layers.Layer:
    """Return a max pool that halves height and width."""
    return layers.MaxPooling2D(3, strides=2, padding="same", name=name)


def main() -> None:
    """Parse the options and train."""
    options = image_arguments("Train GoogLeNet on synthetic images.", batch=8).parse_args()
    data = SyntheticImages(options.steps, options.batch, options.image)
    run(lambda: GoogLeNet(image=options.image), data, options)


if __name__ == "__main__":
    main()
