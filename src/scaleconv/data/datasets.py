"""The published data sets: their files, checksums and mirrors. Plain facts, no code that reads or fetches."""

from dataclasses import dataclass

from .idx import IdxFile

PARTS = ("train", "test")


@dataclass(frozen=True)
class Dataset:
    """One published data set.

    Attributes:
        name: as the user writes it, and the name of its folder.
        title: its proper name.
        files: for each part, the images and the labels.
        mirrors: addresses of the folder, each ending in `/`, in the order in which they are tried.
        folders: where, below a data directory, its files may lie, in the order in which they are tried.
    """

    name: str
    title: str
    files: dict[str, tuple[IdxFile, IdxFile]]
    mirrors: tuple[str, ...]
    folders: tuple[str, ...]


def _files(checksums: tuple[str, str, str, str], packed: bool = False) -> dict[str, tuple[IdxFile, IdxFile]]:
    """The four files; the checksums are those of train images, train labels, test images, test labels."""
    key = "packed_md5" if packed else "md5"
    files: dict[str, tuple[IdxFile, IdxFile]] = {}
    for part, stem, count, md5s in (("train", "train", 60_000, checksums[:2]), ("test", "t10k", 10_000, checksums[2:])):
        images = IdxFile(f"{stem}-images-idx3-ubyte", (count, 28, 28), **{key: md5s[0]})
        labels = IdxFile(f"{stem}-labels-idx1-ubyte", (count,), **{key: md5s[1]})
        files[part] = (images, labels)
    return files


MNIST = Dataset(
    name="mnist",
    title="MNIST",
    files=_files(
        (
            "6bbc9ace898e44ae57da46a324031adb",
            "a25bea736e30d166cdddb491f175f624",
            "2646ac647ad5339dbf082846283269ea",
            "27ae3e4e09519cfbb04c329615203637",
        )
    ),
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "https://raw.githubusercontent.com/fgnt/mnist/master/",
    ),
    folders=("mnist", "MNIST/raw", "."),
)

# Zalando publishes the checksums of the gzipped files only.
FASHION = Dataset(
    name="fashion",
    title="Fashion-MNIST",
    files=_files(
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        packed=True,
    ),
    mirrors=(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
    folders=("fashion", "FashionMNIST/raw", "."),
)

DATASETS = {dataset.name: dataset for dataset in (MNIST, FASHION)}
