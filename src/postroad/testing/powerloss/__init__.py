"""Power loss: a recording of what a program does to its files, and images of what a power cut may leave of them."""

from postroad.testing.powerloss.images import Image as Image, image as image, images as images
from postroad.testing.powerloss.recording import (
    Names as Names,
    Promise as Promise,
    Recording as Recording,
    Sync as Sync,
    Write as Write,
    recorded as recorded,
)
