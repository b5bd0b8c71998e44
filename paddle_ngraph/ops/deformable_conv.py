"""Deformable convolution: each kernel element reads the input at an offset, interpolated."""

from __future__ import annotations

from openvino import opset8

from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.registry import converter
from paddle_ngraph.ir.graph import Op


@converter("pd_op.deformable_conv")
def deformable_conv(bridge: NgraphBridge, op: Op) -> None:
    """A convolution of ``x`` sampled at offsets (Paddle ``deformable_conv``).

    Shapes: ``x`` [N, C, H, W], ``filter`` [O, C / groups, KH, KW], ``offset`` [N, 2 D KH KW, OH,
    OW] with D deformable groups, vertical offsets first, ``mask`` [N, D KH KW, OH, OW] or absent.
    Samples outside the image are 0. Sources: Dai et al., Deformable Convolutional Networks; Zhu
    et al., Deformable ConvNets v2 (with a mask); OpenVINO ``DeformableConvolution-8``.
    """
    x, offset, filter_ = (bridge.get_input_node(op, name) for name in ("x", "offset", "filter"))
    pads = [int(pad) for pad in op.attr("paddings")]
    node = opset8.deformable_convolution(
        x,
        offset,
        filter_,
        strides=[int(stride) for stride in op.attr("strides")],
        pads_begin=pads,
        pads_end=pads,
        dilations=[int(dilation) for dilation in op.attr("dilations")],
        mask=bridge.get_input_node(op, "mask") if op.has_input("mask") else None,
        group=int(op.attr("groups")),
        deformable_group=int(op.attr("deformable_groups")),
        bilinear_interpolation_pad=True,
    )
    bridge.set_output_node(op, "out", node)
