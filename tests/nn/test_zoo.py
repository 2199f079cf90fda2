"""torchvision's and timm's own networks are converted, run, trained, saved and reverted, where these packages import.

`tests/bench/test_architectures.py` does the same with small networks of these shapes, everywhere.
"""

import io
from importlib import import_module

import pytest
import torch

from scaleconv import SIConv2d, convert, revert

SCALES = (1, 0.7, 1.5)
TORCHVISION = ("resnet18", "resnet50", "vgg11_bn", "mobilenet_v2", "convnext_tiny", "densenet121", "regnet_y_400mf")
# Among them layers that standardise their weights, pad as TensorFlow does, or become one when they are fused.
TIMM = ("resnet18", "resnetv2_50x1_bit", "tf_efficientnet_b0", "repvgg_a0", "hrnet_w18_small", "convnextv2_atto")
DETECTION = "fasterrcnn_resnet18_fpn"


def package(name):
    try:
        return import_module(name)
    except (ImportError, RuntimeError) as error:  # torchvision refuses another version of torch at run time
        pytest.skip(f"{name} does not import: {str(error).splitlines()[0]}")


def make(zoo, name):
    torch.manual_seed(0)
    if name == DETECTION:
        return package("torchvision.models.detection.backbone_utils").resnet_fpn_backbone(
            backbone_name="resnet18", weights=None, trainable_layers=5
        )
    if zoo == "timm":
        return package("timm").create_model(name, pretrained=False)
    return getattr(package("torchvision.models"), name)(weights=None)


def run(network, images):
    """The outputs as one list; the backbone of a detector has several."""
    output = network(images)
    return list(output.values()) if isinstance(output, dict) else [output]


@pytest.mark.parametrize(
    ("zoo", "name"),
    [*(("torchvision", name) for name in (*TORCHVISION, DETECTION)), *(("timm", name) for name in TIMM)],
)
def test_a_network_of_a_zoo_is_converted_trained_saved_and_reverted(zoo, name):
    plain = make(zoo, name).eval()
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    converted = convert(plain, scales=SCALES)
    assert any(isinstance(layer, SIConv2d) for layer in converted.modules())
    with torch.no_grad():
        expected, found = run(plain, images), run(converted, images)
    assert [output.shape for output in found] == [output.shape for output in expected]
    assert not all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))

    sum(output.square().mean() for output in run(converted, images)).backward()
    grads = [layer.weight.grad for layer in converted.modules() if isinstance(layer, SIConv2d)]
    assert all(grad is None or torch.isfinite(grad).all() for grad in grads)
    assert any(grad is not None and grad.abs().sum() > 0 for grad in grads)

    stream = io.BytesIO()
    torch.save(converted.state_dict(), stream)
    stream.seek(0)
    other = make(zoo, name).eval()
    other.load_state_dict(torch.load(stream, weights_only=True))
    with torch.no_grad():
        for back in (other, revert(converted)):
            assert all(torch.equal(one, same) for one, same in zip(run(back, images), expected, strict=True))
