"""The same seed gives the same bits in another process, with as many threads."""

import os
import subprocess
import sys

TRAIN = """
import hashlib, sys, torch
from scaleconv import SIConv2d
torch.set_num_threads(2)
torch.use_deterministic_algorithms(True)
for seed in sys.argv[1:]:
    torch.manual_seed(int(seed))
    network = torch.nn.Sequential(SIConv2d(3, 16, 3), torch.nn.ReLU(), SIConv2d(16, 8, 3))
    images, parameters = torch.randn(9, 3, 20, 17), list(network.parameters())
    for _ in range(3):  # by hand: the optimisers of torch import its compiler
        output = network(images)
        grads = torch.autograd.grad(output.square().mean(), parameters)
        with torch.no_grad():
            for parameter, grad in zip(parameters, grads):
                parameter -= 0.1 * grad
    kept = [output, *parameters, *grads]
    print(hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in kept)).hexdigest())
"""


def start(*seeds):
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}  # threads that spin take cores from other tests
    command = [sys.executable, "-c", TRAIN, *map(str, seeds)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def test_the_same_seed_gives_the_same_bits_in_another_process():
    (first,), (again, other) = (process.communicate()[0].split() for process in (start(0), start(0, 1)))
    assert first == again
    assert len(first) == 64
    assert first != other
