"""The same seed gives the same bits in another process, with as many threads."""

import subprocess
import sys

TRAIN = """
import hashlib, sys, torch
from scaleconv import SIConv2d
torch.set_num_threads(int(sys.argv[1]))
torch.manual_seed(int(sys.argv[2]))
network = torch.nn.Sequential(SIConv2d(3, 16, 3), torch.nn.ReLU(), SIConv2d(16, 8, 3))
optimiser = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
images = torch.randn(9, 3, 20, 17)
for _ in range(3):
    optimiser.zero_grad()
    output = network(images)
    output.square().mean().backward()
    optimiser.step()
kept = [output, *network.parameters(), *(each.grad for each in network.parameters())]
print(hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in kept)).hexdigest())
"""


def start(threads, seed):
    return subprocess.Popen([sys.executable, "-c", TRAIN, str(threads), str(seed)], stdout=subprocess.PIPE, text=True)


def test_the_same_seed_gives_the_same_bits_in_another_process():
    running = [start(threads=2, seed=seed) for seed in (0, 0, 1)]
    first, again, other = (process.communicate()[0] for process in running)
    assert first == again
    assert len(first) == 65
    assert first != other
