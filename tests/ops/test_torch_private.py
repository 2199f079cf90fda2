"""Every private API of PyTorch that the package uses is there, and does what the package needs."""

import ast
import operator
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import scaleconv
from scaleconv.ops import torch_private as private

SOURCES = Path(scaleconv.__file__).parent
HOME = SOURCES / "ops" / "torch_private.py"

CUDA_ALONE = {"torch._C._cuda_clearCublasWorkspaces"}  # absent from a build of torch for CPUs
# What a Module offers to the classes derived from it.
OF_MODULES = (
    "_conv_forward",
    "_load_from_state_dict",
    "_parameters",
    "_reversed_padding_repeated_twice",
    "_save_to_state_dict",
)


def without_members(name):
    """The name up to the first class in it."""
    parts = name.split(".")
    ends = [place + 1 for place, part in enumerate(parts) if part[:1].isupper()]
    return ".".join(parts[: ends[0]] if ends else parts)


def is_private(name):
    parts = name.split(".")
    hidden = any(part.startswith("_") and not part.startswith("__") for part in parts)
    return parts[0] == "torch" and (hidden or "experimental" in parts)


def private_names(path):
    """The private names of torch that a file imports, or reads as attributes of what it imports."""
    tree, known, found = ast.parse(path.read_text()), {"torch": "torch"}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                found.add(f"{node.module}.{alias.name}")
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)

    def dotted(node):
        if isinstance(node, ast.Name):
            return known.get(node.id)
        base = dotted(node.value) if isinstance(node, ast.Attribute) else None
        return base and f"{base}.{node.attr}"

    longest = [name for node in ast.walk(tree) if isinstance(node, ast.Attribute) and (name := dotted(node))]
    names = {short for name in {*found, *longest} if is_private(short := without_members(name))}
    return {name for name in names if not any(other.startswith(f"{name}.") for other in names)}


def test_no_other_file_reads_a_private_name_of_torch():
    elsewhere = {path.name: names for path in SOURCES.rglob("*.py") if path != HOME and (names := private_names(path))}
    assert elsewhere == {}


@pytest.mark.parametrize("name", sorted(private_names(HOME) - CUDA_ALONE))
def test_torch_has_it(name):
    module, _, attribute = name.rpartition(".")
    try:
        assert hasattr(import_module(module), attribute)
    except ModuleNotFoundError:  # torch._C is no package
        assert operator.attrgetter(name.removeprefix("torch."))(torch) is not None


class CountCalls(TorchDispatchMode):
    calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


class Named(torch.Tensor):
    pass


def test_eager_means_that_nothing_traces_or_transforms():
    plain, found = torch.ones(2), []
    torch.vmap(lambda row: found.append(private.is_eager(row)) or row)(torch.ones(2, 3))
    with CountCalls():
        found.append(private.is_eager(plain))
    found.append(private.is_eager(plain.as_subclass(Named)))
    assert found == [False, False, False]
    assert private.is_eager(plain, nn.Parameter(plain), None)


def test_derivatives_of_torch_func_and_in_forward_mode_are_noticed_and_vmap_is_none():
    x, found = torch.ones(3), []

    def look(value):
        found.append(private.under_functional_derivative(value, None))
        return value.sum()

    torch.vmap(look)(torch.ones(2, 3))
    torch.func.grad(look)(x)
    torch.vmap(torch.func.grad(look))(torch.ones(2, 3))
    with forward_ad.dual_level():
        look(x)
        look(forward_ad.make_dual(x, x))
    assert found == [False, True, True, False, True]
    assert not private.under_functional_derivative(x)


def test_an_exporter_is_told_from_a_compiler():
    found = []

    class Module(nn.Module):
        def forward(self, x):
            found.append(private.is_exporting())
            return x + 1

    torch.export.export(Module(), (torch.ones(2),), strict=False)
    assert all(found)
    assert found
    assert not private.is_exporting()
    seen = torch.compile(lambda x: x + private.is_exporting(), backend="eager", fullgraph=True)(torch.zeros(1))
    assert seen.item() == 0


def test_lengths_of_a_dynamic_axis_are_unknown_to_an_exporter():
    found = []

    class Module(nn.Module):
        def forward(self, x):
            found.append([private.has_known_lengths(x.shape[:1]), private.has_known_lengths(x.shape[1:])])
            return x + 1

    torch.export.export(Module(), (torch.ones(4, 3),), dynamic_shapes=({0: torch.export.Dim("n")},), strict=False)
    assert found[-1] == [False, True]


def test_a_compiler_calls_a_constant_function_and_does_not_look_into_it():
    called = []

    @private.mark_constant
    def constant(number):
        called.append(number)
        return number * len(str(object()).split())  # which no compiler follows

    compiled = torch.compile(lambda x: x + constant(1), backend="eager", fullgraph=True)
    assert compiled(torch.zeros(1)).item() == constant(1)
    assert called


def test_modes_that_are_active_can_be_listed_and_left():
    with CountCalls() as mode:
        assert mode in private.active_dispatch_modes()
        with private.without_dispatch_modes():
            torch.ones(2).add(1)
        assert mode.calls == 0
        torch.ones(2).add(1)
    assert mode.calls > 0


def test_functions_of_subclasses_can_be_switched_off():
    tensor = torch.ones(2).as_subclass(Named)
    assert type(tensor + 1) is Named
    for switch in (private.DisableTorchFunction, private.DisableTorchFunctionSubclass):
        with switch():
            assert type(F.relu(tensor)) is torch.Tensor


def test_products_take_the_precision_of_convolutions_for_a_while():
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        for convolutions in (True, False):
            torch.backends.cuda.matmul.allow_tf32 = not convolutions
            torch.backends.cudnn.allow_tf32 = convolutions
            with private.tf32_of_convolutions():
                assert torch.backends.cuda.matmul.allow_tf32 is convolutions
            assert torch.backends.cuda.matmul.allow_tf32 is not convolutions
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def test_a_tree_keeps_its_structure_and_names_its_leaves():
    tree = {"a": [torch.ones(1), 2], "b": (3.0,)}
    leaves, structure = private.tree_flatten(tree)
    assert private.tree_leaves(tree) == list(private.tree_iter(tree)) == leaves
    assert private.tree_unflatten(leaves, structure) == tree
    assert private.tree_structure(tree) == structure
    assert (structure.num_leaves, structure.is_leaf(), private.tree_structure(0).is_leaf()) == (3, False, True)
    paths, _ = private.tree_flatten_with_path(tree)
    assert [private.keystr(path) for path, _ in paths] == ["['a'][0]", "['a'][1]", "['b'][0]"]
    assert private.tree_map(type, tree) == {"a": [torch.Tensor, int], "b": (float,)}
    assert private.tree_map_only(float, str, tree)["b"] == ("3.0",)


def test_the_classes_of_all_norms_and_all_convolutions_are_those_of_torch():
    assert all(issubclass(kind, private.BatchNorm) for kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm))
    assert all(issubclass(kind, private.ConvNd) for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d))
    layer = nn.Conv2d(2, 3, (1, 3), padding=(0, 2))
    assert all(hasattr(layer, name) for name in OF_MODULES)
    assert list(layer._reversed_padding_repeated_twice) == [2, 2, 0, 0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_workspaces_of_matrix_products_are_freed():
    matrix = torch.ones(64, 64, device="cuda")
    matrix @ matrix
    private.free_cublas_workspaces()
