"""Train ResNet-152 on synthetic images, with a range around every layer, batch and epoch.

Run it alone, or profile it:

    annot run -- python samples/resnet152.py
"""

from architectures import RESNET_BLOCKS
from resnet50 import ResNet
from training import SyntheticImages, arguments, run


def main() -> None:
    """Parse the options and train."""
    parser = arguments("Train ResNet-152 on synthetic images.", batch=4)
    parser.add_argument("--image", type=int, default=64, help="image size in pixels (default: %(default)s)")
    options = parser.parse_args()
    run(lambda: ResNet(RESNET_BLOCKS[152]), SyntheticImages(options.steps * options.batch, options.image), options)


if __name__ == "__main__":
    main()
