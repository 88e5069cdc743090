"""Train VGG-16 or VGG-19 in Keras on synthetic images, with a range around every layer, batch and epoch.

Run it alone, or profile it:

    annot run -- python samples/vgg_keras.py --depth 19
"""

from typing import Literal

import keras
from architectures import VGG_CONVOLUTIONS
from keras import layers
from keras_training import SyntheticImages, image_arguments, run


class Vgg(keras.Sequential):
    """VGG.

    Args:
        depth: 16 or 19 layers with weights.
        width: channels of the first stage. 64 is the full network.
        image: height and width of the images in pixels, 32 or more.
        classes: number of classes.
    """

    def __init__(self, depth: Literal[16, 19] = 16, width: int = 64, image: int = 224, classes: int = 1000) -> None:
        stages: list[layers.Layer] = []
        for stage, (count, factor) in enumerate(zip(VGG_CONVOLUTIONS[depth], (1, 2, 4, 8, 8), strict=True), 1):
            for number in range(1, count + 1):
                name = f"stage{stage}_conv{number}"
                stages.append(layers.Conv2D(factor * width, 3, padding="same", activation="relu", name=name))
            stages.append(layers.MaxPooling2D(2, name=f"stage{stage}_pool"))
        classifier = [
            layers.Flatten(name="flatten"),
            layers.Dense(64 * width, activation="relu", name="fc1"),
            layers.Dropout(0.5, name="dropout1"),
            layers.Dense(64 * width, activation="relu", name="fc2"),
            layers.Dropout(0.5, name="dropout2"),
            layers.Dense(classes, name="fc3"),
        ]
        super().__init__([layers.Input((image, image, 3)), *stages, *classifier], name=f"vgg{depth}")


def main() -> None:
    """Parse the options and train."""
    parser = image_arguments("Train VGG on synthetic images.", batch=4)
    parser.add_argument("--depth", type=int, choices=VGG_CONVOLUTIONS, default=16, help="default: %(default)s")
    options = parser.parse_args()
    data = SyntheticImages(options.steps, options.batch, options.image)
    run(lambda: Vgg(options.depth, image=options.image), data, options)


if __name__ == "__main__":
    main()
