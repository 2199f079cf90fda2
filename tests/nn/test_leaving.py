"""The layer and the pyramid beyond eager PyTorch: ONNX Runtime, AOTInductor, int8, many processes, less memory."""

import os
import shutil
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.utils.checkpoint import checkpoint

from helpers.loops import random
from helpers.tolerance import assert_close
from scaleconv import ScaleInvariant, SIConv2d

SCALES = (0.6, 1, 1.7)


def images(*shape, seed=0):
    return random(*shape, seed=seed, dtype=torch.float32)


def network():
    torch.manual_seed(0)
    first, second = SIConv2d(3, 4, 3, padding=1, scales=SCALES), SIConv2d(4, 2, 3, stride=2, scales=SCALES)
    return nn.Sequential(first, nn.ReLU(), second).eval()


def layer(scales):
    torch.manual_seed(0)
    return SIConv2d(3, 2, 3, stride=2, padding=(1, 0), scales=scales).eval()


def pyramid(scales=SCALES):
    torch.manual_seed(0)
    return ScaleInvariant(nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 2, 3)), scales).eval()


class Winner(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = layer(SCALES)

    def forward(self, x):
        return self.layer(x, return_winner=True)[1]


EVERY = {0: Dim("batch"), 2: Dim("height", min=12), 3: Dim("width", min=12)}
EXPORTED = {
    "layer": (lambda: layer((1, 1.7)), EVERY),
    "pyramid": (lambda: pyramid((0.6, 1)), EVERY),
    "winner": (Winner, {}),
}


@pytest.mark.filterwarnings("ignore")  # raised inside the exporter
@pytest.mark.parametrize(("make", "dynamic"), EXPORTED.values(), ids=EXPORTED)
def test_onnx_runtime_computes_the_same_on_images_of_any_number_and_size(make, dynamic, tmp_path):
    pytest.importorskip("onnxscript", reason="the extra `export` is not installed")
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `export` is not installed")
    module, path, example = make(), tmp_path / "module.onnx", images(2, 3, 16, 15)
    torch.onnx.export(module, (example,), dynamo=True, dynamic_shapes=(dynamic,), verbose=False).save(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (entry,) = session.get_inputs()
    assert [axis for axis, length in enumerate(entry.shape) if isinstance(length, str)] == list(dynamic)
    for shape in ((2, 3, 16, 15), (1, 3, 16, 15), (2, 3, 21, 18), (3, 3, 12, 30))[: None if dynamic else 1]:
        batch = images(*shape, seed=1)
        (output,) = session.run(None, {entry.name: batch.numpy()})
        expected = module(batch).detach()
        assert len(expected.unique()) > 1
        assert_close(torch.from_numpy(output), expected, torch.float32)


@pytest.mark.filterwarnings("ignore")  # raised inside the exporter
def test_behind_a_stride_images_of_odd_sizes_can_be_exported():
    strided = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.ReLU(), SIConv2d(4, 2, 3, padding=1, scales=(0.5, 1))
    )
    sizes = {2: Dim("height", min=16), 3: Dim("width", min=16)}
    program = torch.export.export(strided, (images(2, 3, 32, 30),), dynamic_shapes=(sizes,)).module()
    for size in ((32, 30), (33, 31), (23, 18)):
        batch = images(2, 3, *size, seed=1)
        assert_close(program(batch), strided(batch).detach())


# A C++ compiler that hurries, in the words that this version of torch knows.
HURRIED = {
    "aot_inductor.compile_wrapper_opt_level": "O0",
    "cpp.simdlen": 1,  # no vector instructions
    "cpp_cache_precompile_headers": False,  # each would be used once
}


@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs a C++ compiler")
@pytest.mark.filterwarnings("ignore")  # raised inside the compiler
def test_aot_inductor_computes_the_same(tmp_path):
    module = SIConv2d(3, 2, 3, scales=(1, 1.7)).eval()
    program = torch.export.export(module, (images(2, 3, 9, 8),), dynamic_shapes=({0: Dim("batch")},))
    hurried = {name: value for name, value in HURRIED.items() if name in torch._inductor.list_options()}
    path = torch._inductor.aoti_compile_and_package(
        program, package_path=str(tmp_path / "layer.pt2"), inductor_configs=hurried
    )
    compiled = torch._inductor.aoti_load_package(path)
    for batch in (2, 5):
        assert_close(compiled(images(batch, 3, 9, 8, seed=1)), module(images(batch, 3, 9, 8, seed=1)).detach())


@pytest.mark.filterwarnings("ignore")  # raised inside torchao
def test_int8_quantization_reaches_every_level():
    pytest.importorskip("torchao", reason="the extra `export` is not installed")
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (
        X86InductorQuantizer,
        get_default_x86_inductor_quantization_config,
    )

    net, example = network(), images(4, 3, 16, 15)
    exported = torch.export.export(net, (example,), strict=True).module()
    quantizer = X86InductorQuantizer().set_global(get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(exported, quantizer)
    prepared(example)
    quantized = convert_pt2e(prepared)
    expected, convolutions = (
        [node for node in module.graph.nodes if "conv2d" in str(node.target)] for module in (exported, quantized)
    )
    assert len(convolutions) == len(expected) >= 2 * 2  # of each layer that of scale 1 and that of the other levels
    assert all("dequantize" in str(source.target) for node in convolutions for source in node.args[:2])
    expected = net(example)
    assert (quantized(example) - expected).norm() < 0.02 * expected.norm()


# Two processes, by gloo: what they train together is what one trains alone.

WORKER = """
import os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from scaleconv import ScaleInvariant, SIConv2d

torch.set_num_threads(1)
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
images = torch.load(f"{folder}/images.pt")[2 * rank : 2 * rank + 2]


def network():
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Conv2d(4, 4, 3, stride=2), nn.Tanh())
    return nn.Sequential(SIConv2d(3, 4, 3, padding=1, scales=(0.6, 1, 1.7)), ScaleInvariant(inner, (1, 1.5)))


def shard(network):
    mesh = init_device_mesh("cpu", (2,))  # also where there is a GPU
    fully_shard(network[0], mesh=mesh)
    return fully_shard(network, mesh=mesh)


for name, wrap in (("ddp", DistributedDataParallel), ("fsdp", shard)):
    wrapped = wrap(network())
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        wrapped(images).square().mean().backward()
        optimizer.step()
    whole = {
        key.removeprefix("module."): value.full_tensor() if hasattr(value, "full_tensor") else value
        for key, value in wrapped.state_dict().items()
    }
    whole = {key: value.detach().clone() for key, value in whole.items()}
    if rank == 0:
        torch.save(whole, f"{folder}/{name}.pt")
dist.barrier()
os._exit(0)  # the threads of gloo sometimes abort a process that takes its interpreter down under them
"""


@pytest.fixture(scope="module")
def trained_by_two(tmp_path_factory):
    """The folder in which two processes have left the weights of each way to share the work."""
    folder = tmp_path_factory.mktemp("processes")
    (folder / "worker.py").write_text(textwrap.dedent(WORKER))
    torch.save(images(4, 3, 14, 13), folder / "images.pt")
    command = [sys.executable, "-W", "ignore", str(folder / "worker.py")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    workers = [
        subprocess.Popen([*command, str(rank), str(folder)], env=environment, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for worker in workers:
        _, errors = worker.communicate(timeout=240)
        assert worker.returncode == 0, errors
    return folder


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")
@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_two_processes_train_what_one_trains(trained_by_two, way):
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Conv2d(4, 4, 3, stride=2), nn.Tanh())
    net = nn.Sequential(SIConv2d(3, 4, 3, padding=1, scales=SCALES), ScaleInvariant(inner, (1, 1.5)))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        net(images(4, 3, 14, 13)).square().mean().backward()
        optimizer.step()
    together = torch.load(trained_by_two / f"{way}.pt")
    assert list(together) == list(before)
    for name, value in net.state_dict().items():
        assert_close(together[name], value)
        assert (value - before[name]).abs().max() > 1e-4


@pytest.mark.parametrize("make", [network, pyramid])
def test_less_memory_for_activations_gives_the_same_gradients(make):
    module, batch = make(), images(2, 3, 14, 13).requires_grad_()
    leaves = [batch, *module.parameters()]
    expected = torch.autograd.grad(module(batch).square().sum(), leaves)
    recomputed = checkpoint(module, batch, use_reentrant=False)
    with torch.autograd.graph.save_on_cpu():
        offloaded = module(batch)
    for output in (recomputed, offloaded):
        for one, other in zip(torch.autograd.grad(output.square().sum(), leaves), expected, strict=True):
            assert torch.equal(one, other)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA graph needs a GPU")
@pytest.mark.parametrize("make", [network, pyramid])
def test_a_cuda_graph_replays_forward_and_backward(make):
    module, batch = make().cuda(), images(2, 3, 16, 15).cuda()
    parameters = list(module.parameters())

    def step():
        return torch.autograd.grad(module(batch).square().sum(), parameters)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = step()
    batch.copy_(images(2, 3, 16, 15, seed=1))
    graph.replay()
    for one, other in zip(replayed, step(), strict=True):
        assert_close(one, other)
