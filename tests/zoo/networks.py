"""The networks: constructors with random weights, small where the library lets us, and how each is called.

The libraries are imported by the constructors, so that importing this module needs none of them.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

# Where the name of what is imported differs from that of the library here.
MODULES = {"smp": "segmentation_models_pytorch"}

Call = Callable[[Any, Any], Tensor]  # of the model and a batch; returns the tensor to look at


@dataclass(frozen=True)
class Entry:
    """A network of a library.

    Attributes:
        name: the library and the network, with a slash between.
        make: builds it.
        size: of one image: channels, then 1, 2 or 3 lengths.
        call: how to call it, where it takes or returns more than a tensor.
        include: the layers to convert; patch embeddings are converted only where they are named.
        without: steps that do not apply, each with the reason.
    """

    name: str
    make: Callable[[], nn.Module]
    size: tuple[int, ...] = (3, 64, 64)
    call: Call | None = None
    include: str = "*"
    without: dict[str, str] = field(default_factory=dict)

    @property
    def library(self):
        return self.name.split("/")[0]

    def build(self):
        """The network in evaluation mode; with the same weights and statistics every time, none of them constant."""
        prepare_torchvision()
        torch.manual_seed(0)
        model = self.make()
        give_content(model, lambda: self.run(model, self.batch(4)))
        return model.eval()

    def run(self, model, batch):
        return model(batch) if self.call is None else self.call(model, batch)

    def batch(self, images: int = 2):
        return torch.rand(images, *self.size, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def give_content(model, run):
    """Make it look trained: libraries begin with heads and last norms of zeros, and BatchNorm has seen nothing yet.

    Some networks would answer 0 or 1e14 otherwise, and no comparison of answers would say anything.
    """
    for parameter in model.parameters():
        if parameter.numel() > 1 and parameter.min() == parameter.max():
            parameter.add_(0.1 * torch.randn_like(parameter))
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    model.train()
    run()
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


_libraries = []  # torch forgets a library that nobody holds


@cache
def prepare_torchvision():
    """Let torchvision be imported beside a build of torch that it was not compiled for.

    Its compiled operators do not load beside the CPU build of torch. It then fails at its first use of `nms`, unless
    somebody has declared that operator. No network here runs it.
    """
    try:
        import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        _libraries.append(library)
        for operator in ("nms", "qnms"):
            library.define(operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import_module("torchvision")


ENTRIES: dict[str, Entry] = {}


def network(name, **options):
    """Add what a function builds to the networks."""

    def add(make):
        ENTRIES[name] = Entry(name, make, **options)
        return make

    return add


def get(place):
    """Call the model with the batch and take the attribute, if it does not return a tensor anyway."""

    def call(model, batch):
        output = model(batch)
        return output if isinstance(output, Tensor) else getattr(output, place)

    return call


def item(place):
    """Call the model with the batch and take one of the values it returns."""
    return lambda model, batch: model(batch)[place]


# torchvision


def from_torchvision(name, **options):
    return lambda: getattr(import_module("torchvision.models"), name)(weights=None, num_classes=10, **options)


for _name in ("squeezenet1_1", "resnet18", "mobilenet_v3_small", "regnet_y_400mf", "shufflenet_v2_x0_5"):
    network(f"torchvision/{_name}")(from_torchvision(_name))


# In these two, as in squeezenet, ReLU(inplace=True) follows the convolutions. Their heads have 100 million weights.
@network("torchvision/alexnet")
def _():
    model = from_torchvision("alexnet")()
    model.classifier = nn.Linear(256 * 6 * 6, 10)
    return model


@network("torchvision/vgg")
def _():
    vgg = import_module("torchvision.models.vgg")
    model = vgg.VGG(vgg.make_layers([8, "M", 16, "M", 32, 32, "M"]), num_classes=10)
    model.classifier = nn.Linear(32 * 7 * 7, 10)
    return model


def make_resnet10():
    resnet = import_module("torchvision.models.resnet")
    return resnet.ResNet(resnet.BasicBlock, [1, 1, 1, 1], num_classes=10)


network("torchvision/resnet10")(make_resnet10)


@network("torchvision/densenet")
def _():
    models = import_module("torchvision.models")
    return models.DenseNet(growth_rate=8, block_config=(2, 2, 2, 2), num_init_features=16, num_classes=10)


@network("torchvision/convnext")
def _():
    convnext = import_module("torchvision.models.convnext")
    blocks = [convnext.CNBlockConfig(*block) for block in ((16, 32, 1), (32, 64, 1), (64, None, 1))]
    return convnext.ConvNeXt(blocks, stochastic_depth_prob=0.1, num_classes=10)


network("torchvision/googlenet", call=get("logits"))(from_torchvision("googlenet", aux_logits=True, init_weights=False))
network("torchvision/inception_v3", size=(3, 96, 96))(
    from_torchvision("inception_v3", aux_logits=False, init_weights=False)
)


@network("torchvision/vit", include="conv_proj")
def _():
    models = import_module("torchvision.models")
    return models.VisionTransformer(64, 16, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64, num_classes=10)


@network("torchvision/swin", include="features.0.0")
def _():
    models = import_module("torchvision.models")
    return models.SwinTransformer([4, 4], 24, [1, 1], [2, 2], [4, 4], num_classes=10)


@network("torchvision/maxvit")
def _():
    models = import_module("torchvision.models")
    return models.MaxVit((64, 64), 16, 4, [16, 32], [1, 1], 8, 0.1, num_classes=10)


@network("torchvision/deeplabv3", call=item("out"))
def _():
    models = import_module("torchvision.models.segmentation")
    return models.deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5)


def make_fpn_backbone():
    utils = import_module("torchvision.models.detection.backbone_utils")
    layers = {f"layer{number + 1}": str(number) for number in range(4)}
    return utils.BackboneWithFPN(make_resnet10(), layers, [64, 128, 256, 512], 64)


network("torchvision/fpn_backbone", call=item("0"))(make_fpn_backbone)


def call_detector(model, batch):
    """The best score of each class among all anchors; the boxes of a whole detector need `nms`."""
    return model.head(list(model.backbone(batch).values()))["cls_logits"].amax(1)


@network("torchvision/retinanet", call=call_detector)
def _():
    return import_module("torchvision.models.detection").RetinaNet(make_fpn_backbone(), num_classes=3)


@network("torchvision/r3d_18", size=(3, 4, 32, 32))
def _():
    return import_module("torchvision.models.video").r3d_18(weights=None, num_classes=10)


# timm


def from_timm(name, **options):
    return lambda: import_module("timm").create_model(name, pretrained=False, **options)


for _name, _options in {
    "tf_efficientnet_b0": {},  # Conv2dSame
    "tf_mobilenetv3_small_minimal_100": {},
    "repvgg_a0": {},
    "fastvit_t8": {"layers": (1, 1, 1, 1)},
    "resnetv2_50x1_bit": {},  # StdConv2d
    "nf_regnet_b0": {},  # ScaledStdConv2d
    "convnextv2_atto": {"depths": (1, 1, 1, 1)},
    "edgenext_xx_small": {"depths": (1, 1, 2, 1)},
    "coatnet_pico_rw_224": {"img_size": 64},
    "levit_128s": {"img_size": 64},
}.items():
    network(f"timm/{_name}")(from_timm(_name, num_classes=10, **_options))
network("timm/beit_base_patch16_224", include="patch_embed.proj")(
    from_timm("beit_base_patch16_224", num_classes=10, img_size=64, embed_dim=48, depth=2, num_heads=2)
)
network("timm/resnet18_features", call=item(-1))(from_timm("resnet18", features_only=True))


# segmentation-models-pytorch


def from_smp(name, encoder, **options):
    def make():
        kind = getattr(import_module("segmentation_models_pytorch"), name)
        return kind(encoder, encoder_weights=None, classes=4, **options)

    return make


network("smp/Unet")(from_smp("Unet", "resnet18", encoder_depth=2, decoder_channels=(16, 8)))
for _name, _encoder in {"FPN": "mobilenet_v2", "DeepLabV3Plus": "resnet18", "Segformer": "mit_b0"}.items():
    network(f"smp/{_name}")(from_smp(_name, _encoder))


# transformers


def from_transformers(name, config, **options):
    """A model from settings; `config` is the name of their class."""

    def make():
        library = import_module("transformers")
        return getattr(library, name)(getattr(library, config)(**options))

    return make


_stages = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
_resnet = {"embedding_size": 16, "hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1]}
_vit = {"image_size": 64, "hidden_size": 32, "num_attention_heads": 2}
for _name, _config, _options in (
    ("ResNet", "ResNetConfig", {**_resnet, "layer_type": "basic", "num_labels": 5}),
    ("ConvNext", "ConvNextConfig", _stages),
    (
        "MobileViT",
        "MobileViTConfig",
        {
            "image_size": 64,
            "hidden_sizes": [16, 24, 32],
            "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 48],
            "num_labels": 5,
        },
    ),
):
    network(f"transformers/{_name}", call=get("logits"))(
        from_transformers(f"{_name}ForImageClassification", _config, **_options)
    )
_heads = {"num_attention_heads": [1, 1, 2, 2], "decoder_hidden_size": 16, "num_labels": 4}
network("transformers/Segformer", call=get("logits"))(
    from_transformers("SegformerForSemanticSegmentation", "SegformerConfig", **_stages, **_heads)
)
_layers = {"patch_size": 8, "num_hidden_layers": 2, "intermediate_size": 64}
network("transformers/ViT", call=get("logits"), include="vit.embeddings.patch_embeddings.projection")(
    from_transformers("ViTForImageClassification", "ViTConfig", **_vit, **_layers)
)


@network("transformers/DPT", call=get("predicted_depth"), without={"check_scale": "depth (N, H, W) has no classes"})
def _():
    library = import_module("transformers")
    config = library.DPTConfig(
        **_vit,
        patch_size=16,
        num_hidden_layers=4,
        intermediate_size=64,
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 16, 24, 32],
        fusion_hidden_size=16,
        initializer_range=0.08,
    )
    model = library.DPTForDepthEstimation(config)
    last = [module for module in model.head.modules() if isinstance(module, nn.Conv2d)][-1]
    nn.init.constant_(last.bias, 5)  # a ReLU follows: depth is not negative
    return model


@network("transformers/UperNet", call=get("logits"))
def _():
    library = import_module("transformers")
    stages = ["stage1", "stage2", "stage3", "stage4"]
    backbone = library.ConvNextConfig(**_stages, out_features=stages)
    config = library.UperNetConfig(
        backbone_config=backbone, hidden_size=16, auxiliary_in_channels=24, auxiliary_channels=16, num_labels=4
    )
    return library.UperNetForSemanticSegmentation(config)


@network("transformers/Detr", call=lambda model, batch: model(batch).logits.amax(1))
def _():
    library = import_module("transformers")
    backbone = {"backbone_config": library.ResNetConfig(**_resnet, out_features=["stage4"]), "backbone": None}
    half = {"layers": 1, "ffn_dim": 64, "attention_heads": 2}
    halves = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in half.items()}
    options = {"use_timm_backbone": False, "use_pretrained_backbone": False, "num_queries": 10, "num_labels": 4}
    config = library.DetrConfig(d_model=32, **backbone, **halves, **options)
    return library.DetrForObjectDetection(config).requires_grad_(True)  # it freezes its backbone otherwise


network("transformers/Wav2Vec2", size=(640,), call=get("last_hidden_state"))(
    from_transformers(
        "Wav2Vec2Model",
        "Wav2Vec2Config",
        conv_dim=(16, 16, 16),
        conv_stride=(5, 2, 2),
        conv_kernel=(10, 3, 2),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=2,
        apply_spec_augment=False,
        layerdrop=0.0,
    )
)


# MONAI


def from_monai(name, **options):
    return lambda: getattr(import_module("monai.networks.nets"), name)(**options)


_two = {"spatial_dims": 2, "in_channels": 1, "out_channels": 3}
_three = {**_two, "spatial_dims": 3}
_unet = {"channels": (8, 16, 32), "strides": (2, 2), "num_res_units": 1}
_kernels = {"kernel_size": [3, 3, 3], "strides": [1, 2, 2], "upsample_kernel_size": [2, 2], "filters": [8, 16, 32]}
_unetr = {"img_size": 64, "feature_size": 8, "hidden_size": 32, "mlp_dim": 64, "num_heads": 2}
_dense = {"init_features": 8, "growth_rate": 4, "block_config": (2, 2, 2)}
for _name, _size, _options in (
    ("UNet", (1, 64, 64), {**_two, "channels": (8, 16), "strides": (2,), "num_res_units": 1}),
    ("BasicUNet", (1, 64, 64), {**_two, "features": (8, 8, 16, 16, 24, 8)}),
    ("SegResNet", (1, 64, 64), {**_two, "init_filters": 8}),
    ("DynUNet", (1, 64, 64), {**_two, **_kernels}),
    ("UNETR", (1, 64, 64), {**_two, **_unetr}),
    ("UNet_3d", (1, 16, 16, 16), {**_three, **_unet}),
    ("SegResNet_3d", (1, 16, 16, 16), {**_three, "init_filters": 8, "blocks_down": (1, 1, 1), "blocks_up": (1, 1)}),
    ("DenseNet_3d", (1, 32, 32, 32), {**_three, **_dense, "bn_size": 2}),
    ("UNet_1d", (1, 64), {**_two, "spatial_dims": 1, **_unet}),
    ("DenseNet_1d", (1, 128), {**_two, "spatial_dims": 1, **_dense}),
):
    network(f"monai/{_name}", size=_size)(from_monai(_name.split("_")[0], **_options))


# diffusers


def call_with_timestep(model, batch):
    return model(batch, 3).sample


_unet_blocks = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8}


@network("diffusers/UNet2DModel", size=(3, 32, 32), call=call_with_timestep)
def _():
    return import_module("diffusers").UNet2DModel(
        sample_size=32,
        block_out_channels=(16,),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("DownBlock2D",),
        up_block_types=("UpBlock2D",),
        attention_head_dim=8,
    )


def call_with_text(model, batch):
    text = torch.linspace(-1, 1, 4 * 16, dtype=batch.dtype, device=batch.device).view(1, 4, 16)
    return model(batch, 3, encoder_hidden_states=text.expand(len(batch), 4, 16)).sample


@network("diffusers/UNet2DConditionModel", size=(4, 32, 32), call=call_with_text)
def _():
    return import_module("diffusers").UNet2DConditionModel(
        sample_size=32,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=8,
        **_unet_blocks,
    )


@network("diffusers/AutoencoderKL", call=get("sample"))
def _():
    return import_module("diffusers").AutoencoderKL(
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
        **_unet_blocks,
    )


@network("diffusers/AutoencoderTiny", call=get("sample"))
def _():
    return import_module("diffusers").AutoencoderTiny(
        encoder_block_out_channels=(16, 16),
        decoder_block_out_channels=(16, 16),
        num_encoder_blocks=(1, 1),
        num_decoder_blocks=(1, 1),
        upsampling_scaling_factor=2,
    )


# kornia


def from_kornia(name, **options):
    return lambda: getattr(import_module("kornia.feature"), name)(**options)


for _name, _side in {"HardNet": 32, "HyNet": 32, "KeyNet": 64}.items():
    network(f"kornia/{_name}", size=(1, _side, _side))(from_kornia(_name, pretrained=False))


def call_disk(model, batch):
    return model.heatmap_and_dense_descriptors(batch)[1]


network("kornia/DISK", call=call_disk)(from_kornia("DISK"))
