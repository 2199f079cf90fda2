"""Small folders of images."""

import numpy as np
from PIL import Image


def write_image(path, *, size=(12, 10), mode="RGB", seed=0, **options):
    """A random image of (height, width); the suffix decides the format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 4), dtype=np.uint8)
    image = Image.fromarray(pixels)  # RGBA
    image = image if mode == "RGBA" else image.convert("RGB").convert(mode)
    image.save(path, **options)
    return path


def write_classes(root, count=10, classes=("cat", "dog"), size=(12, 12)):
    """Grey squares, light in one class and dark in the other, each a little different."""
    for label, name in enumerate(classes):
        for index in range(count):
            path = root / name / f"{index:03}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            noise = np.random.default_rng([*name.encode(), index]).integers(0, 40, size, dtype=np.uint8)
            Image.fromarray(noise + np.uint8(40 + 120 * label)).save(path)
    return root


def parts(folder):
    """The names of the images in each part."""
    return {part: [image.name for image in getattr(folder, part)] for part in ("train", "val", "test")}


def write_masks(root, count=12, size=(16, 16)):
    """A light square on a dark ground with noise, and its mask: 1 on the square, 0 elsewhere, no label in a corner."""
    for part in ("images", "masks"):
        (root / part).mkdir(parents=True, exist_ok=True)
    for index in range(count):
        random = np.random.default_rng(index)
        mask = np.zeros(size, np.uint8)
        top, left = random.integers(0, size[0] // 2), random.integers(0, size[1] // 2)
        mask[top : top + size[0] // 2, left : left + size[1] // 2] = 1
        image = random.integers(0, 60, size, dtype=np.uint8) + 150 * mask
        mask[0, 0] = 255
        Image.fromarray(image).save(root / "images" / f"{index:03}.png")
        Image.fromarray(mask).save(root / "masks" / f"{index:03}.png")
    return root
