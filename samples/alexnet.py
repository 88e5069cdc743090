"""Train AlexNet on synthetic images, with a range around every layer, batch and epoch.

Run it alone, or profile it:

    annot run -- python samples/alexnet.py
"""

from torch import Tensor, nn
from training import SyntheticImages, arguments, run


class AlexNet(nn.Module):
    """Single-tower AlexNet. 224×224 images give feature maps of 55×55, 27×27 and 13×13, then 9216 features.

    Args:
        classes: number of classes.
        image: height and width of the images in pixels, 63 or more.
    """

    def __init__(self, classes: int = 1000, image: int = 224) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, kernel_size=11, stride=4, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(64, 192, kernel_size=5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(192, 384, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(384, 256, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(256, 256, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2),
        )
        side = (image - 7) // 4 + 1
        for _ in range(3):
            side = (side - 3) // 2 + 1
        self.classifier = nn.Sequential(
            nn.Dropout(),
            nn.Linear(256 * side * side, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Linear(4096, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return scores of shape (batch, classes)."""
        features = self.features(images)
        scores: Tensor = self.classifier(features.flatten(1))
        return scores


class ConvnetAlexNet(nn.Module):
    """AlexNet as in Soumith Chintala's convnet-benchmarks: no padding in the first convolution, no dropout.

    Args:
        classes: number of classes.
        image: height and width of the images in pixels, 67 or more. 227 gives the feature maps of `AlexNet` with 224.
    """

    def __init__(self, classes: int = 1000, image: int = 227) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, kernel_size=11, stride=4),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(64, 192, kernel_size=5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(192, 384, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(384, 256, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(256, 256, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2),
        )
        side = (image - 11) // 4 + 1
        for _ in range(3):
            side = (side - 3) // 2 + 1
        self.classifier = nn.Sequential(
            nn.Linear(256 * side * side, 4096),
            nn.ReLU(inplace=True),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Linear(4096, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return scores of shape (batch, classes)."""
        features = self.features(images)
        scores: Tensor = self.classifier(features.flatten(1))
        return scores


def main() -> None:
    """Parse the options and train."""
    parser = arguments("Train AlexNet on synthetic images.", batch=16, steps=6)
    parser.add_argument("--image", type=int, default=224, help="image size in pixels (default: %(default)s)")
    parser.add_argument("--convnet", action="store_true", help="variant of convnet-benchmarks; use it with --image 227")
    options = parser.parse_args()
    form = ConvnetAlexNet if options.convnet else AlexNet
    run(lambda: form(image=options.image), SyntheticImages(options.steps * options.batch, options.image), options)


if __name__ == "__main__":
    main()
