"""The networks of the zoo, as data: where each comes from, and the inputs that it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Make:
    """A call that makes a network, or an argument of one.

    Attributes:
        of: ``module:attribute`` of what is called.
        arguments: Its keyword arguments, which may be calls, too.
        positional: Those before them.
    """

    of: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    positional: Sequence[Any] = ()


@dataclass(frozen=True)
class Input:
    """An input of a network.

    Attributes:
        shape: Its shape; the first dimension is the batch, if ``batched``.
        dtype: Floats are sampled from a normal distribution, integers from ``low`` to
            ``high`` - 1.
        high, low: The limits of integers.
        name: The key, of a network that takes a dictionary.
        value: What all elements are, instead of random numbers.
        batched: Whether the export leaves the first dimension dynamic.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    high: int = 0
    low: int = 1
    name: str = ""
    value: float | None = None
    batched: bool = True


@dataclass(frozen=True)
class NetworkFamily:
    """A network that stands for a family of them.

    Attributes:
        package: The package on PyPI whose definition it is.
        name: What the package calls it.
        task: What it computes.
        year: When the network was published.
        make: The call that makes it.
        inputs: Its inputs.
        untrained: Why it takes no training steps; empty if it does.
        differentiates: Whether the network computes gradients itself.
        onednn: Whether Paddle's oneDNN runs it; on some networks it crashes.
    """

    package: str
    name: str
    task: str
    year: int
    make: Make
    inputs: tuple[Input, ...]
    untrained: str = ""
    differentiates: bool = False
    onednn: bool = True

    @property
    def id(self) -> str:
        """The name in results and on the command line."""
        return f"{self.package}/{self.name}"

    @property
    def decade(self) -> int:
        """The decade of its publication."""
        return self.year // 10 * 10


def _picture(size: int = 64, channels: int = 3, batch: int = 2) -> tuple[Input, ...]:
    return (Input((batch, channels, size, size)),)


def _words(high: int, length: int = 16) -> tuple[Input, ...]:
    return (Input((2, length), "int64", high),)


def _points(*names: str, count: int = 64) -> tuple[Input, ...]:
    return tuple(Input((count, 1), name=name) for name in names)


def _vision(name: str, year: int, inputs: tuple[Input, ...], **arguments: Any) -> NetworkFamily:
    make = Make(f"paddle.vision.models:{name}", {"num_classes": 10, **arguments})
    return NetworkFamily("paddlepaddle", name, "classification", year, make, inputs)


def _classifier(
    name: str, year: int, size: int = 64, task: str = "classification"
) -> NetworkFamily:
    make = Make(f"paddleclas.ppcls.arch.backbone:{name}", {"class_num": 10})
    return NetworkFamily("paddleclas", name, task, year, make, _picture(size))


def _segmentation(
    name: str, year: int, backbone: str = "", size: int = 64, **more: Any
) -> NetworkFamily:
    if backbone:
        more["backbone"] = Make(f"paddleseg.models.backbones:{backbone}")
    make = Make(f"paddleseg.models:{name}", {"num_classes": 4, **more})
    return NetworkFamily("paddleseg", name, "segmentation", year, make, _picture(size))


_TARGETS = "its loss assigns targets with NumPy"


def _detector(
    name: str, year: int, size: int = 96, task: str = "detection", reads_size: bool = True
) -> NetworkFamily:
    size_of_image = (Input((1, 2), name="im_shape", value=size),) if reads_size else ()
    inputs = (
        Input((1, 3, size, size), name="image"),
        *size_of_image,
        Input((1, 2), name="scale_factor", value=1.0),
    )
    make = Make("tests.zoo.networks:detector", positional=(name,))
    return NetworkFamily("paddledet", name, task, year, make, inputs, _TARGETS)


def _science(name: str, year: int, inputs: tuple[Input, ...], **more: Any) -> NetworkFamily:
    outputs = more.pop("output_keys", ("out",))
    arguments = {"input_keys": tuple(i.name for i in inputs), "output_keys": outputs, **more}
    return NetworkFamily(
        "paddlesci", name, "science", year, Make(f"ppsci.arch:{name}", arguments), inputs
    )


def _language(name: str, year: int, config: str, **more: Any) -> NetworkFamily:
    sizes = {
        "vocab_size": 200,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        **more,
    }
    module = f"paddlenlp.transformers:{name}"
    make = Make(module, positional=(Make(f"paddlenlp.transformers:{config}", sizes),))
    return NetworkFamily("paddlenlp", name, "text", year, make, _words(200))


def _audio(package: str, path: str, year: int, *shape: int, **arguments: Any) -> NetworkFamily:
    name = path.partition(":")[2]
    return NetworkFamily(package, name, "speech", year, Make(path, arguments), (Input(shape),))


def _forecast(name: str, path: str, year: int, **arguments: Any) -> NetworkFamily:
    make = Make(f"paddlets.models.forecasting.dl.{path}", arguments)
    inputs = (Input((4, 24, 1), name="past_target"),)
    return NetworkFamily("paddlets", name, "forecasting", year, make, inputs)


def _deep_potential(name: str, year: int, descriptor: str, **sizes: Any) -> NetworkFamily:
    config = {
        "type_map": ["O", "H"],
        "descriptor": {
            **{"type": descriptor, "rcut": 6.0, "rcut_smth": 0.5, "neuron": [8, 16]},
            **{"seed": 1, "precision": "float32"},
            **sizes,
        },
        "fitting_net": {"neuron": [16, 16], "seed": 1, "precision": "float32"},
    }
    make = Make("deepmd.pd.model.model:get_model", positional=(config,))
    inputs = (Input((1, 8, 3)), Input((1, 8), "int64", high=2, low=0))
    return NetworkFamily("deepmd-kit", name, "science", year, make, inputs, differentiates=True)


def _rearrange(pattern: str, **sizes: int) -> Make:
    return Make("einops.layers.paddle:Rearrange", sizes, (pattern,))


FAMILIES: tuple[NetworkFamily, ...] = (
    _vision("LeNet", 1998, _picture(28, 1)),
    _vision("resnet18", 2015, _picture()),
    _vision("inception_v3", 2015, _picture(139, batch=1)),
    _vision("densenet121", 2016, _picture()),
    _vision("squeezenet1_1", 2016, _picture()),
    _vision("mobilenet_v1", 2017, _picture(), scale=0.5),
    _vision("mobilenet_v2", 2018, _picture(), scale=0.5),
    _vision("shufflenet_v2_x0_25", 2018, _picture()),
    _vision("mobilenet_v3_small", 2019, _picture()),
    _classifier("Xception41", 2016, 96),
    _classifier("DPN68", 2017),
    _classifier("DLA46_c", 2017),
    _classifier("PeleeNet", 2018),
    _classifier("ResNet18_vd", 2018),
    _classifier("CSPDarkNet53", 2019),
    _classifier("GhostNet_x0_5", 2019),
    _classifier("HRNet_W18_C", 2019),
    _classifier("MixNet_S", 2019, 224),
    _classifier("Res2Net50_14w_8s", 2019),
    _classifier("EfficientNetB0_small", 2019),
    _classifier("HarDNet39_ds", 2019),
    _classifier("ReXNet_1_0", 2020),
    _classifier("RegNetX_200MF", 2020),
    _classifier("ResNeSt50_fast_1s1x64d", 2020),
    _classifier("TinyNet_E", 2020),
    _classifier("MobileNeXt_x0_35", 2020),
    _classifier("DeiT_tiny_patch16_224", 2020, 224),
    _classifier("MicroNet_M0", 2021),
    _classifier("PPLCNet_x0_25", 2021),
    _classifier("RepVGG_A0", 2021),
    _classifier("MobileViT_XXS", 2021),
    _classifier("LeViT_128S", 2021, 224),
    _classifier("PVT_V2_B0", 2021, 224),
    _classifier("RedNet26", 2021),
    _classifier("SwinTransformer_tiny_patch4_window7_224", 2021, 224),
    _classifier("VAN_B0", 2022),
    _classifier("ConvNeXt_tiny", 2022),
    _classifier("MobileViTV2_x0_5", 2022),
    NetworkFamily(
        "paddleclas",
        "AdaFace_IR_18",
        "faces",
        2022,
        Make("paddleclas.ppcls.arch.backbone:AdaFace_IR_18"),
        _picture(112),
        onednn=False,
    ),
    _classifier("FasterNet_T0", 2023),
    _classifier("PPHGNetV2_B0", 2023),
    _classifier("MobileNetV4_conv_small", 2024),
    _classifier("StarNet_S1", 2024),
    _segmentation("UNet", 2015),
    _segmentation("SegNet", 2015),
    _segmentation("ENet", 2016),
    _segmentation("DeepLabV3P", 2018, "MobileNetV2_x0_5", backbone_indices=(0, 3)),
    _segmentation("ESPNetV2", 2018),
    _segmentation("FastSCNN", 2019, enable_auxiliary_loss=False),
    _segmentation("BiSeNetV2", 2020),
    _segmentation("U2Netp", 2020),
    _segmentation("DDRNet_23", 2021),
    _segmentation("SegFormer", 2021, "MixVisionTransformer_B0", embedding_dim=64),
    _segmentation("PPHumanSegLite", 2021, size=96),
    _segmentation("PPLiteSeg", 2022, "STDC1"),
    _segmentation("RTFormer", 2022, base_channels=32, head_channels=64),
    _segmentation("SegNeXt", 2022, "MSCAN_T", decoder_cfg={"ham_channels": 64}),
    _segmentation("TopFormer", 2022, "TopTransformer_Tiny"),
    _detector("SSD", 2015, 128),
    _detector("FasterRCNN", 2015),
    _detector("RetinaNet", 2017),
    _detector("YOLOv3", 2018),
    _detector("TTFNet", 2019),
    _detector("BlazeFace", 2019, 128, "faces"),
    _detector("GFL", 2020),
    _detector("SOLOv2", 2020, 128),
    _detector("PicoDet", 2021, reads_size=False),
    _detector("PPYOLOE", 2022),
    _science("MLP", 2019, _points("x", "y"), num_layers=4, hidden_size=64),
    _science("ModifiedMLP", 2020, _points("x", "y"), num_layers=4, hidden_size=64),
    NetworkFamily(
        "paddlesci",
        "DeepONet",
        "science",
        2019,
        Make(
            "ppsci.arch:DeepONet",
            {
                **{"u_key": "u", "y_key": "y", "G_key": "G", "num_loc": 32, "num_features": 40},
                **{"branch_num_layers": 2, "trunk_num_layers": 3},
                **{"branch_hidden_size": 64, "trunk_hidden_size": 64},
            },
        ),
        (Input((64, 32), name="u"), Input((64, 1), name="y")),
    ),
    _science(
        "AFNONet",
        2021,
        (Input((1, 3, 64, 64), name="x", batched=False),),
        **{"img_size": (64, 64), "in_channels": 3, "out_channels": 3},
        **{"embed_dim": 64, "depth": 2, "num_blocks": 4},
    ),
    _science(
        "PirateNet",
        2024,
        _points("x", "y"),
        num_blocks=2,
        hidden_size=64,
        fourier={"dim": 64, "scale": 1.0},
    ),
    NetworkFamily(
        "paddlesci",
        "UNetEx",
        "science",
        2019,
        Make(
            "ppsci.arch:UNetEx",
            {"input_key": "x", "output_key": "y", "in_channel": 3, "out_channel": 3},
        ),
        (Input((2, 3, 64, 64), name="x"),),
    ),
    _language("BertModel", 2018, "BertConfig"),
    _language("ErnieModel", 2019, "ErnieConfig"),
    _language("AlbertModel", 2019, "AlbertConfig", embedding_size=32),
    _language("ElectraModel", 2020, "ElectraConfig", embedding_size=32),
    _language("RoFormerModel", 2021, "RoFormerConfig", embedding_size=32),
    _audio("ppvector", "ppvector.models.tdnn:TDNN", 2018, 2, 80, 80, input_size=80),
    _audio("ppvector", "ppvector.models.ecapa_tdnn:EcapaTdnn", 2020, 2, 80, 80, input_size=80),
    _audio("ppvector", "ppvector.models.eres2net:ERes2Net", 2023, 1, 64, 80, input_size=80),
    _audio("ppvector", "ppvector.models.campplus:CAMPPlus", 2023, 2, 80, 80, input_size=80),
    _audio(
        "ppacls", "ppacls.models.panns:PANNS_CNN6", 2019, 2, 64, 80, num_class=10, input_size=80
    ),
    _audio(
        "paddlespeech",
        "paddlespeech.t2s.models.hifigan.hifigan:HiFiGANGenerator",
        2020,
        *(1, 80, 16),
        channels=64,
    ),
    _audio(
        "paddlespeech",
        "paddlespeech.t2s.models.melgan.melgan:MelGANGenerator",
        2019,
        *(1, 80, 16),
        channels=64,
        upsample_scales=(4, 4, 2, 2),
    ),
    NetworkFamily(
        "paddlespeech",
        "ConformerEncoder",
        "speech",
        2020,
        Make(
            "paddlespeech.s2t.modules.encoder:ConformerEncoder",
            {
                **{"input_size": 80, "output_size": 64, "attention_heads": 4},
                **{"linear_units": 128, "num_blocks": 2, "cnn_module_kernel": 15},
            },
        ),
        (Input((2, 64, 80)), Input((2,), "int64", value=64)),
    ),
    _deep_potential("DeepPot-SE", 2018, "se_e2_a", sel=[8, 8], axis_neuron=4),
    _deep_potential("DPA-1", 2022, "se_atten", sel=16, axis_neuron=4, attn=16, attn_layer=2),
    NetworkFamily(
        "einops",
        "MLPMixer",
        "classification",
        2021,
        Make(
            "paddle.nn:Sequential",
            positional=(
                _rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=8, q=8),
                Make("paddle.nn:Linear", positional=(192, 64)),
                _rearrange("b n c -> b c n"),
                Make("paddle.nn:Linear", positional=(64, 64)),
                Make("paddle.nn:GELU"),
                _rearrange("b c n -> b n c"),
                Make("paddle.nn:LayerNorm", positional=(64,)),
                Make("paddle.nn:Linear", positional=(64, 64)),
                Make("einops.layers.paddle:Reduce", positional=("b n c -> b c", "mean")),
                Make("paddle.nn:Linear", positional=(64, 10)),
            ),
        ),
        _picture(),
    ),
    NetworkFamily(
        "paddleslim",
        "pruned mobilenet_v1",
        "classification",
        2019,
        Make("tests.zoo.networks:pruned", positional=(0.25,)),
        _picture(),
    ),
    _forecast(
        "TCN",
        "tcn:_TCNModule",
        2018,
        **{"in_chunk_len": 24, "out_chunk_len": 6, "target_dim": 1, "hidden_config": [16]},
        **{"kernel_size": 3, "dropout_rate": 0.0},
    ),
)
