"""Time and memory of making MNIST-Scale: 60,000 digits, 28×28, the default set.

Prints one JSON line. Peak memory is that of the whole process, PyTorch and the digits included. Without `--data-dir`
the 10,000 embedded digits are taken six times over, which is the same work.

    python benchmarks/data.py [--data-dir DIRECTORY] [--threads 2] [--repeats 5] [--device cuda]
"""

import argparse
import json
import platform
import resource
import statistics

import torch

from scaleconv.data import MNIST_SCALE, embedded_digits, load_digits, make_scaled
from scaleconv.metrics.timing import milliseconds

COUNT = 60_000
SIZE = 28


def peak_memory_gib() -> float:
    """Of this process since it began; Linux counts in KiB, macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**30 if platform.system() == "Darwin" else peak / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    if arguments.data_dir:
        images = load_digits("mnist", "train", data_dir=arguments.data_dir).images
    else:
        images = embedded_digits().images.repeat(COUNT // 10_000, 1, 1)
    images = images.to(arguments.device)
    scales = torch.from_numpy(MNIST_SCALE.draw(COUNT, seed=0))
    seconds = [
        milliseconds(lambda: make_scaled(images, scales, SIZE), arguments.device) / 1000
        for _ in range(arguments.repeats)
    ]
    record = {
        "benchmark": "data",
        "digits": len(images),
        "size": SIZE,
        "seconds": [round(value, 3) for value in seconds],
        "median_seconds": round(statistics.median(seconds), 3),
        "peak_memory_gib": round(peak_memory_gib(), 3),
        "threads": arguments.threads,
        "device": torch.cuda.get_device_name(images.device) if images.is_cuda else platform.machine(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
