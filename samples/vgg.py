"""Train VGG-16 or VGG-19 on synthetic images, with a range around every layer, batch and epoch.

Run it alone, or profile it:

    annot run -- python samples/vgg.py --depth 19
"""

from typing import Literal

from architectures import VGG_CONVOLUTIONS
from torch import Tensor, nn
from training import SyntheticImages, arguments, run


class Vgg(nn.Module):
    """VGG with in-place ReLUs.

    Args:
        depth: 16 or 19 layers with weights.
        width: channels of the first stage. 64 is the full network.
        image: height and width of the images in pixels, 32 or more.
        classes: number of classes.
    """

    def __init__(self, depth: Literal[16, 19] = 16, width: int = 64, image: int = 224, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for count, factor in zip(VGG_CONVOLUTIONS[depth], (1, 2, 4, 8, 8), strict=True):
            for _ in range(count):
                layers += [nn.Conv2d(inputs, factor * width, 3, padding=1), nn.ReLU(inplace=True)]
                inputs = factor * width
            layers.append(nn.MaxPool2d(2))
        hidden = 64 * width
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(8 * width * (image // 32) ** 2, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(hidden, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return scores of shape (batch, classes)."""
        scores: Tensor = self.classifier(self.features(images).flatten(1))
        return scores


def main() -> None:
    """Parse the options and train."""
    parser = arguments("Train VGG on synthetic images.", batch=4)
    parser.add_argument("--depth", type=int, choices=VGG_CONVOLUTIONS, default=16, help="default: %(default)s")
    parser.add_argument("--image", type=int, default=224, help="image size in pixels (default: %(default)s)")
    options = parser.parse_args()
    data = SyntheticImages(options.steps * options.batch, options.image)
    run(lambda: Vgg(options.depth, image=options.image), data, options)


if __name__ == "__main__":
    main()
