"""Train MobileNetV2 in Keras on synthetic images, with a range around every layer, batch and epoch.

Run it alone, or profile it:

    annot run -- python samples/mobilenetv2_keras.py
"""

from typing import Any

import keras
from architectures import MOBILENET_BLOCKS, divisible
from keras import layers
from keras_training import SyntheticImages, image_arguments, run


class ConvNorm(keras.Sequential):
    """Convolution with "same" padding, batch norm and ReLU6."""

    def __init__(self, outputs: int, name: str, kernel: int = 1, stride: int = 1) -> None:
        conv = layers.Conv2D(outputs, kernel, stride, "same", use_bias=False, name="conv")
        super().__init__([conv, layers.BatchNormalization(name="norm"), layers.ReLU(6.0, name="relu")], name=name)


class DepthwiseNorm(keras.Sequential):
    """Depthwise 3×3 convolution with "same" padding, batch norm and ReLU6."""

    def __init__(self, name: str, stride: int) -> None:
        conv = layers.DepthwiseConv2D(3, stride, "same", use_bias=False, name="conv")
        super().__init__([conv, layers.BatchNormalization(name="norm"), layers.ReLU(6.0, name="relu")], name=name)


class InvertedResidual(layers.Layer):
    """Inverted residual: 1×1 expansion, 3×3 depthwise convolution, 1×1 projection. Has a shortcut if shapes match.

    Args:
        inputs: number of input channels.
        outputs: number of output channels.
        expansion: factor from input channels to channels of the depthwise convolution.
        stride: stride of the depthwise convolution.
        name: layer name.
    """

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int, name: str) -> None:
        super().__init__(name=name)
        self.widen = ConvNorm(inputs * expansion, "widen") if expansion > 1 else None
        self.depthwise = DepthwiseNorm("depthwise", stride)
        self.narrow = layers.Conv2D(outputs, 1, use_bias=False, name="narrow")
        self.norm = layers.BatchNormalization(name="norm")
        self.shortcut = stride == 1 and inputs == outputs

    def call(self, x: Any) -> Any:
        """Return the activations of the block."""
        y = self.depthwise(x if self.widen is None else self.widen(x))
        y = self.norm(self.narrow(y))
        return x + y if self.shortcut else y


class MobileNetV2(keras.Sequential):
    """MobileNetV2.

    Args:
        width: width multiplier. Channels are rounded to multiples of 8. The last convolution never shrinks.
        image: height and width of the images in pixels.
        classes: number of classes.
    """

    def __init__(self, width: float = 1.0, image: int = 224, classes: int = 1000) -> None:
        inputs, last = divisible(32 * width), divisible(1280 * max(width, 1.0))
        blocks: list[layers.Layer] = [ConvNorm(inputs, "stem", 3, stride=2)]
        for expansion, channels, count, stride in MOBILENET_BLOCKS:
            for number in range(count):
                outputs, name = divisible(channels * width), f"block{len(blocks)}"
                blocks.append(InvertedResidual(inputs, outputs, expansion, 1 if number else stride, name))
                inputs = outputs
        pooled = [layers.GlobalAveragePooling2D(name="avgpool"), layers.Dropout(0.2, name="dropout")]
        head = [ConvNorm(last, "last"), *pooled, layers.Dense(classes, name="classifier")]
        super().__init__([layers.Input((image, image, 3)), *blocks, *head], name="mobilenetv2")


def main() -> None:
    """Parse the options and train."""
    options = image_arguments("Train MobileNetV2 on synthetic images.", batch=8).parse_args()
    data = SyntheticImages(options.steps, options.batch, options.image)
    run(lambda: MobileNetV2(image=options.image), data, options)


if __name__ == "__main__":
    main()
