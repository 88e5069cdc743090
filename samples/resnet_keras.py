"""Train ResNet-50 or ResNet-152 in Keras on synthetic images, with a range around every layer, batch and epoch.

Run it alone, or profile it:

    annot run -- python samples/resnet_keras.py --depth 152
"""

from typing import Any

import keras
from architectures import RESNET_BLOCKS
from keras import layers
from keras_training import SyntheticImages, image_arguments, run


class Block(layers.Layer):
    """Residual block: convolutions with batch norm, and a shortcut.

    Args:
        inputs: number of input channels.
        convolutions: output channels, kernel size and stride of each convolution.
        name: layer name.
    """

    def __init__(self, inputs: int, *convolutions: tuple[int, int, int], name: str) -> None:
        super().__init__(name=name)
        self.steps: list[layers.Layer] = []
        for number, (outputs, kernel, stride) in enumerate(convolutions, 1):
            if number > 1:
                self.steps.append(layers.ReLU(name=f"relu{number - 1}"))
            self.steps += conv_norm(outputs, kernel, stride, str(number))
        outputs, stride = convolutions[-1][0], max(stride for _, _, stride in convolutions)
        fits = stride == 1 and inputs == outputs
        self.downsample = [] if fits else conv_norm(outputs, 1, stride, "_downsample")
        self.relu = layers.ReLU(name="relu")

    def call(self, x: Any) -> Any:
        """Return the activations of the block."""
        y = around = x
        for layer in self.steps:
            y = layer(y)
        for layer in self.downsample:
            around = layer(around)
        return self.relu(y + around)


class Bottleneck(Block):
    """Bottleneck block: 1×1, 3×3 and 1×1 convolutions. The 3×3 one has `width` channels and the stride."""

    expansion = 4
    """Ratio of output channels to `width`."""

    def __init__(self, inputs: int, width: int, stride: int, name: str) -> None:
        super().__init__(inputs, (width, 1, 1), (width, 3, stride), (self.expansion * width, 1, 1), name=name)


class Residual(Block):
    """Basic block of ResNet-18 and ResNet-34: two 3×3 convolutions."""

    expansion = 1
    """Ratio of output channels to `width`."""

    def __init__(self, inputs: int, width: int, stride: int, name: str) -> None:
        super().__init__(inputs, (width, 3, stride), (width, 3, 1), name=name)


class ResNet(keras.Sequential):
    """ResNet. The defaults are ResNet-50.

    Args:
        blocks: number of blocks in each of the four stages.
        width: width of the first stage. It doubles from stage to stage.
        image: height and width of the images in pixels.
        classes: number of classes.
        block: type of the blocks.
    """

    def __init__(
        self,
        blocks: tuple[int, int, int, int] = RESNET_BLOCKS[50],
        width: int = 64,
        image: int = 224,
        classes: int = 1000,
        block: type[Bottleneck] | type[Residual] = Bottleneck,
    ) -> None:
        stem = [*conv_norm(width, 7, 2, "1"), layers.ReLU(name="relu")]
        stem.append(layers.MaxPooling2D(3, strides=2, padding="same", name="maxpool"))
        stages: list[layers.Layer] = []
        inputs = width
        for stage, count in enumerate(blocks):
            for number in range(count):
                stride = 2 if stage and not number else 1
                stages.append(block(inputs, width << stage, stride, name=f"stage{stage + 1}_block{number + 1}"))
                inputs = block.expansion * width << stage
        head = [layers.GlobalAveragePooling2D(name="avgpool"), layers.Dense(classes, name="fc")]
        super().__init__([layers.Input((image, image, 3)), *stem, *stages, *head], name="resnet")


def conv_norm(outputs: int, kernel: int, stride: int, number: str) -> list[layers.Layer]:
    """Return a convolution with "same" padding, and batch norm."""
    conv = layers.Conv2D(outputs, kernel, stride, "same", use_bias=False, name=f"conv{number}")
    return [conv, layers.BatchNormalization(name=f"bn{number}")]


def main() -> None:
    """Parse the options and train."""
    parser = image_arguments("Train a ResNet on synthetic images.", batch=8, image=64)
    parser.add_argument("--depth", type=int, choices=RESNET_BLOCKS, default=50, help="default: %(default)s")
    options = parser.parse_args()
    data = SyntheticImages(options.steps, options.batch, options.image)
    run(lambda: ResNet(RESNET_BLOCKS[options.depth], image=options.image), data, options)


if __name__ == "__main__":
    main()
