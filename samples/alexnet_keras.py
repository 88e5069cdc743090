"""Train AlexNet in Keras on synthetic images, with a range around every layer, batch and epoch.

Run it alone, or profile it:

    annot run -- python samples/alexnet_keras.py
"""

import keras
from keras import layers
from keras_training import SyntheticImages, image_arguments, run


class AlexNet(keras.Sequential):
    """Single-tower AlexNet. 224×224 images give feature maps of 55×55, 27×27 and 13×13, then 9216 features.

    Args:
        classes: number of classes.
        image: height and width of the images in pixels: 63 or more, 67 or more with `convnet`.
        convnet: build the variant of Soumith Chintala's convnet-benchmarks: no padding in the first convolution, no
            dropout. Images of 227 pixels give the feature maps of the default variant with 224.
    """

    def __init__(self, classes: int = 1000, image: int = 224, *, convnet: bool = False) -> None:
        padding, dropout = [layers.ZeroPadding2D(2, name="padding")], [layers.Dropout(0.5), layers.Dropout(0.5)]
        if convnet:
            padding, dropout = [], []
        super().__init__(
            [
                layers.Input((image, image, 3)), *padding,
                layers.Conv2D(64, 11, strides=4, activation="relu", name="conv1"),
                layers.MaxPooling2D(3, strides=2, name="pool1"),
                layers.Conv2D(192, 5, padding="same", activation="relu", name="conv2"),
                layers.MaxPooling2D(3, strides=2, name="pool2"),
                layers.Conv2D(384, 3, padding="same", activation="relu", name="conv3"),
                layers.Conv2D(256, 3, padding="same", activation="relu", name="conv4"),
                layers.Conv2D(256, 3, padding="same", activation="relu", name="conv5"),
                layers.MaxPooling2D(3, strides=2, name="pool5"),
                layers.Flatten(name="flatten"), *dropout[:1],
                layers.Dense(4096, activation="relu", name="fc6"), *dropout[1:],
                layers.Dense(4096, activation="relu", name="fc7"),
                layers.Dense(classes, name="fc8"),
            ],
            name="alexnet",
        )  # fmt: skip


def main() -> None:
    """Parse the options and train."""
    parser = image_arguments("Train AlexNet on synthetic images.", batch=16, steps=6)
    parser.add_argument("--convnet", action="store_true", help="variant of convnet-benchmarks; use it with --image 227")
    options = parser.parse_args()
    data = SyntheticImages(options.steps, options.batch, options.image)
    run(lambda: AlexNet(image=options.image, convnet=options.convnet), data, options)


if __name__ == "__main__":
    main()
