"""Random ProgramDesc programs, natively and with the engine, by Executor and predictor.

``python -m tests.old_programs --first 0 --count 1000 --jobs 2`` runs many; ``--seed 17`` shows one.
A program has several operators with attributes off their defaults, operators of
legacy_operators.json on inputs that Paddle accepts, loops and branches with blocks, members of
lists, LoD variables, names that are written several times, and variables that outlive a run.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import paddle
from paddle import inference, static
from paddle.base.layer_helper import LayerHelper
from paddle.static.nn.control_flow import ConditionalBlock

import paddle_ngraph
from paddle_ngraph.paddle_private.names import VarType
from tests.programs import Program, parameter

WIDTH, PICTURE, WORDS = 6, (4, 6, 6), 5
_STEPS = (3, 1, 4, 3)
_DTYPES = {"float32": 5, "float64": 6, "int32": 2, "int64": 3, "bool": 0}
_SIZE = 4096  # elements of a tensor of a batch of one


class Value(NamedTuple):
    """A variable of the program.

    Attributes:
        variable: The variable.
        rows: What its first dimension counts: "batch", "words" with a LoD, or nothing that differs.
    """

    variable: Any
    rows: str = ""

    @property
    def shape(self) -> list[int]:
        """The declared shape."""
        return list(self.variable.shape)

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def dtype(self) -> str:
        """The name of the dtype."""
        return paddle.base.data_feeder.convert_dtype(self.variable.dtype)


# Operators of one operand and one result of its shape, with values of their attributes.
_UNARY: dict[str, dict[str, list[Any]]] = {
    "abs": {},
    "assign": {},
    "atan": {},
    "ceil": {},
    "celu": {"alpha": [1.0, 0.4]},
    "clip": {"min": [-0.5, -3.0], "max": [0.7, 2.0]},
    "clip_by_norm": {"max_norm": [0.5, 4.0]},
    "cos": {},
    "cumsum": {
        **{"axis": [-1, 0], "flatten": [False, False, True]},
        **{"exclusive": [False, True], "reverse": [False, True]},
    },
    "elu": {"alpha": [1.0, 0.3]},
    "erf": {},
    "flip": {"axis": [[0], [1], [-1], [0, 1]]},
    "floor": {},
    "gelu": {"approximate": [False, True]},
    "hard_shrink": {"threshold": [0.5, 0.2]},
    "hard_sigmoid": {"slope": [0.2, 0.3], "offset": [0.5, 0.3]},
    "hard_swish": {"threshold": [6.0, 4.0], "scale": [6.0, 5.0], "offset": [3.0, 2.5]},
    "label_smooth": {"epsilon": [0.0, 0.2]},
    "leaky_relu": {"alpha": [0.02, 0.2, -0.3]},
    "log_softmax": {"axis": [-1, 1]},
    "logsigmoid": {},
    "mish": {"threshold": [20.0, 2.0]},
    "pow": {"factor": [1.0, 2.0, 3.0]},
    "relu": {},
    "relu6": {"threshold": [6.0, 0.5]},
    "roll": {"shifts": [[1], [-2]], "axis": [[0], [1], []]},
    "round": {},
    "scale": {"scale": [0.7, -1.5], "bias": [0.0, 0.3], "bias_after_scale": [True, False]},
    "selu": {"scale": [1.05, 0.5], "alpha": [1.67, 0.7]},
    "sigmoid": {},
    "sign": {},
    "silu": {},
    "sin": {},
    "soft_relu": {"threshold": [40.0, 2.0]},
    "softmax": {"axis": [-1, 1]},
    "softplus": {"beta": [1.0, 2.0], "threshold": [20.0, 1.0]},
    "softshrink": {"lambda": [0.5, 0.1]},
    "softsign": {},
    "square": {},
    "stanh": {"scale_a": [0.67, 0.4], "scale_b": [1.7159, 0.9]},
    "swish": {"beta": [1.0, 0.5]},
    "tanh": {},
    "tanh_shrink": {},
    "thresholded_relu": {"threshold": [1.0, 0.1]},
    "tril_triu": {"lower": [True, False], "diagonal": [0, 1, -1]},
}
_REDUCTIONS = [f"reduce_{kind}" for kind in ("sum", "mean", "max", "min", "prod", "amax")]
_BINARY = [f"elementwise_{kind}" for kind in ("add", "sub", "mul", "max", "min", "add")]
_COMPARISONS = ["less_than", "less_equal", "greater_than", "greater_equal", "equal", "not_equal"]


class Drawing:
    """A program that is being sampled.

    Args:
        seed: Of the random choices.
    """

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self._values: list[Value] = []
        self._depth = 0
        self._kept = 0
        self.feeds: list[Value] = []
        self.trains = False
        self.needs_lod = False

    # -- draws -------------------------------------------------------------------------------------

    def chance(self, share: float) -> bool:
        """True in this share of the draws."""
        return self.draw.random() < share

    def choose(self, options: Any) -> Any:
        """One of the options."""
        return self.draw.choice(list(options))

    def value(self, where: Callable[[Value], bool] = lambda _: True) -> Value:
        """A float of the program for which ``where`` holds; late ones are likelier."""
        found = [v for v in self._values if v.dtype == "float32" and where(v)]
        if not found:
            raise _NoneFits
        return self.choose(found[-8:] if self.chance(0.7) else found)

    def like(self, x: Value) -> Value:
        """A float of the shape and the rows of ``x``, if there is one; otherwise ``x``."""
        return self.value(lambda v: v.shape == x.shape and v.rows == x.rows)

    # -- operators ---------------------------------------------------------------------------------

    def append(
        self, type: str, inputs: Any, dtypes: dict[str, str], rows: str = "", **attributes: Any
    ) -> list[Value]:
        """Appends an operator; ``dtypes`` are those of its outputs by slot."""
        helper, block = LayerHelper(type), static.default_main_program().current_block()
        inputs = {
            slot: [v.variable for v in given] if isinstance(given, list) else given.variable
            for slot, given in inputs.items()
        }
        outputs = {
            slot: helper.create_variable_for_type_inference(dtype) for slot, dtype in dtypes.items()
        }
        before = block.desc.op_size()
        try:
            block.append_op(type=type, inputs=inputs, outputs=outputs, attrs=attributes)
        except Exception as error:
            block.desc._remove_op(before, block.desc.op_size())
            raise _NoneFits from error
        found = [Value(variable, rows) for variable in outputs.values()]
        if any(_elements(v.shape) > _SIZE for v in found):
            block._remove_op(before)
            raise _NoneFits
        return found

    def one(self, type: str, inputs: Any, rows: str = "", **attributes: Any) -> Value:
        """Appends an operator with one float result in ``Out``."""
        (found,) = self.append(type, inputs, {"Out": "float32"}, rows, **attributes)
        return found

    def keep(self, *found: Value) -> None:
        """Adds results to the values that later operators read, or writes them over others."""
        for each in found:
            old = [
                v
                for v in self._values
                if v.shape == each.shape and v.rows == each.rows and v.dtype == each.dtype
            ]
            feeds = {v.variable.name for v in self.feeds}
            old = [v for v in old if v.variable.name not in feeds]
            if old and self.chance(0.25):
                target = self.choose(old).variable
                if target.name != each.variable.name:
                    paddle.assign(each.variable, output=target)
            elif each.rank <= 5:
                self._values.append(each)

    def in_place(self) -> None:
        """An operator that writes its result over its operand, or over another variable."""
        feeds = {v.variable.name for v in self.feeds}
        x = self.value(lambda v: v.variable.name not in feeds)
        y = self.like(x)
        if y.variable.name in feeds:
            raise _NoneFits
        type = self.choose(
            ["relu", "scale", "tanh", "leaky_relu", "elementwise_add", "sum", "clip"]
        )
        inputs: dict[str, Any] = {"X": x.variable}
        attributes = {name: self.choose(v) for name, v in _UNARY.get(type, {}).items()}
        if type == "elementwise_add":
            inputs["Y"], attributes = self.like(x).variable, {"axis": -1}
        elif type == "sum":
            inputs["X"] = [x.variable, self.like(x).variable]
        static.default_main_program().current_block().append_op(
            type=type, inputs=inputs, outputs={"Out": y.variable}, attrs=attributes
        )

    def unary(self) -> None:
        """An operator of one operand."""
        type = self.choose(_UNARY)
        x = self.value(lambda v: v.rank > 1)
        attributes = {name: self.choose(values) for name, values in _UNARY[type].items()}
        if type == "pow" or self.chance(0.1):
            x = self.one("clip", {"X": x}, x.rows, min=-2.0, max=1.5)
        self.keep(self.one(type, {"X": x}, x.rows, **attributes))

    def binary(self) -> None:
        """Two operands, the second aligned with some axes of the first."""
        x = self.value()
        type, axis = self.choose(_BINARY), -1
        y = self.like(x)
        if self.chance(0.4) and x.rank > 1:
            first = self.draw.randrange(1, x.rank)
            last = self.draw.randrange(first + 1, x.rank + 1)
            shape = x.shape[first:last]
            if min(shape) > 0:
                y, axis = self.weight(shape), first
        self.keep(self.one(type, {"X": x, "Y": y}, x.rows, axis=axis))

    def weight(self, shape: list[int]) -> Value:
        """A parameter, or a variable that outlives a run and is written by it."""
        self._kept += 1
        return Value(parameter(*shape, seed=self.draw.randrange(1000)))

    def reduction(self) -> None:
        """A reduction over some axes, or over all."""
        x = self.value(lambda v: v.rank > 1)
        axes = sorted(self.draw.sample(range(x.rank), self.draw.randint(1, x.rank)))
        axes = [axis - x.rank if self.chance(0.3) else axis for axis in axes]
        keeps, is_all = self.chance(0.5), self.chance(0.2)
        type = self.choose(_REDUCTIONS)
        remain = not is_all and 0 not in axes and -x.rank not in axes
        is_all = is_all and type != "reduce_amax"
        attributes = {"dim": axes, "keep_dim": keeps, "reduce_all": is_all}
        self.keep(self.one(type, {"X": x}, x.rows if remain else "", **attributes))

    def product(self) -> None:
        """A product with a parameter, by each of the operators for it."""
        x = self.value(lambda v: v.rank in (2, 3, 4) and v.shape[-1] > 0)
        width, type = self.draw.randint(2, 7), self.choose(["matmul", "matmul_v2", "mul", "fc"])
        if type == "fc":
            first = self.draw.randrange(1, x.rank)
            if min(x.shape[first:]) < 1:
                raise _NoneFits
            out = static.nn.fc(x.variable, width, num_flatten_dims=first)
            return self.keep(Value(out, x.rows))
        if type == "mul":
            first = self.draw.randrange(1, x.rank)
            if min(x.shape[first:]) < 1:
                raise _NoneFits
            y = self.weight([_elements(x.shape[first:]), width])
            attributes = {"x_num_col_dims": first, "y_num_col_dims": 1}
            return self.keep(self.one("mul", {"X": x, "Y": y}, x.rows, **attributes))
        transposed = self.chance(0.5)
        y = self.weight([width, x.shape[-1]] if transposed else [x.shape[-1], width])
        if type == "matmul":
            alpha = self.choose([1.0, 1.0, 0.5])
            attributes = {"transpose_X": False, "transpose_Y": transposed, "alpha": alpha}
        else:
            attributes = {"trans_x": False, "trans_y": transposed}
        self.keep(self.one(type, {"X": x, "Y": y}, x.rows, **attributes))

    def picture(self) -> None:
        """A convolution, pooling, padding, resizing or normalization of pictures."""
        x = self.value(lambda v: v.rank == 4 and min(v.shape[1:]) > 1)
        channels = x.shape[1]
        kind = self.choose(["conv", "pool", "pad", "resize", "norm", "norm", "shuffle", "prelu"])
        if kind == "conv":
            groups = 2 if channels % 2 == 0 and self.chance(0.3) else 1
            size = self.draw.randint(1, 3)
            weights = self.weight([4, channels // groups, size, size])
            attributes = {
                "strides": self.choose([[1, 1], [2, 1]]),
                "paddings": self.choose([[0, 0], [1, 1], [1, 0, 2, 1]]),
                "dilations": self.choose([[1, 1], [1, 2]]),
                "groups": groups,
                "padding_algorithm": self.choose(["EXPLICIT", "SAME", "VALID"]),
            }
            inputs = {"Input": x, "Filter": weights}
            found = self.append("conv2d", inputs, {"Output": "float32"}, x.rows, **attributes)
        elif kind == "pool":
            found = [
                self.one(
                    "pool2d",
                    {"X": x},
                    x.rows,
                    pooling_type=self.choose(["max", "avg"]),
                    ksize=self.choose([[2, 2], [3, 2]]),
                    strides=self.choose([[1, 1], [2, 2]]),
                    paddings=self.choose([[0, 0], [1, 1], [1, 0, 0, 1]]),
                    ceil_mode=self.chance(0.3),
                    exclusive=self.chance(0.5),
                    adaptive=self.chance(0.2),
                    global_pooling=self.chance(0.2),
                )
            ]
        elif kind == "pad":
            mode = self.choose(["constant", "reflect", "edge"])
            pads = [self.draw.randint(0, 1) for _ in range(4)]
            attributes = {"paddings": pads, "mode": mode, "pad_value": self.choose([0.0, 0.5])}
            found = [self.one("pad2d", {"X": x}, x.rows, **attributes)]
        elif kind == "resize":
            type = self.choose(
                [f"{k}_interp{v}" for k in ("nearest", "bilinear") for v in ("", "_v2")]
            )
            attributes = {"out_h": self.draw.randint(2, 7), "out_w": self.draw.randint(2, 7)}
            if self.chance(0.5):
                scale = self.choose([2.0, 1.5])
                attributes = {"scale": [scale, scale] if type.endswith("v2") else scale}
            attributes["align_corners"] = self.chance(0.5)
            attributes["align_mode"] = self.draw.randint(0, 1)
            attributes["interp_method"] = type.partition("_")[0]
            found = [self.one(type, {"X": x}, x.rows, **attributes)]
        elif kind == "norm":
            found = [self.norm(x)]
        elif kind == "shuffle":
            type, attributes = self.choose(
                [
                    ("shuffle_channel", {"group": 2}),
                    ("pixel_shuffle", {"upscale_factor": 2}),
                    ("space_to_depth", {"blocksize": 2}),
                    ("affine_channel", {"data_layout": "NCHW"}),
                ]
            )
            inputs = {"X": x}
            if type == "affine_channel":
                inputs.update(Scale=self.weight([channels]), Bias=self.weight([channels]))
            found = [self.one(type, inputs, x.rows, **attributes)]
        else:
            mode = self.choose(["all", "channel", "element"])
            shape = {"all": [1], "channel": [1, channels, 1, 1], "element": [1, *x.shape[1:]]}[mode]
            found = [self.one("prelu", {"X": x, "Alpha": self.weight(shape)}, x.rows, mode=mode)]
        self.keep(*found)

    def norm(self, x: Value) -> Value:
        """A normalization of pictures."""
        kind = self.choose(["batch", "layer", "group", "instance"])
        if kind == "batch":
            options = {"is_test": self.chance(0.5), "use_global_stats": self.chance(0.3)}
            out = static.nn.batch_norm(x.variable, momentum=self.choose([0.9, 0.5]), **options)
        elif kind == "layer":
            out = static.nn.layer_norm(
                x.variable, begin_norm_axis=self.draw.randint(1, 3), epsilon=1e-3
            )
        elif kind == "group":
            if x.shape[1] % 2:
                raise _NoneFits
            out = static.nn.group_norm(x.variable, groups=2, epsilon=1e-3)
        else:
            out = static.nn.instance_norm(x.variable, epsilon=1e-3)
        return Value(out, x.rows)

    def shape_change(self) -> None:
        """An operator that moves elements."""
        x = self.value(lambda v: v.rank > 1 and min(v.shape[1:]) > 0)
        kind = self.choose(
            [
                *("transpose2", "transpose", "reshape2", "slice", "strided_slice", "unsqueeze2"),
                *("concat", "stack", "split", "tile", "expand", "flatten2", "gather", "pad"),
                "flatten_contiguous_range",
            ]
        )
        inner = list(range(1, x.rank))
        axis = self.choose(inner)
        rows = x.rows
        if kind.startswith("transpose"):
            self.draw.shuffle(inner)
            found = [self.one(kind, {"X": x}, rows, axis=[0, *inner])]
        elif kind == "reshape2":
            target = self.choose([[0, -1], [-1, _elements(x.shape[1:])], [0, 0, -1, 1]])
            found = [self.one(kind, {"X": x}, rows, shape=target)]
        elif kind == "slice":
            decreased = [axis] if self.chance(0.4) else []
            start = self.draw.randrange(-x.shape[axis], x.shape[axis])
            end = start + 1 if decreased else 10**6
            end = 10**6 if end == 0 else end
            attributes = {"axes": [axis], "starts": [start], "ends": [end]}
            attributes["decrease_axis"] = decreased
            found = [self.one(kind, {"Input": x}, rows, **attributes)]
        elif kind == "strided_slice":
            stride = self.choose([1, 2, -1])
            start, end = (-1, -(10**6)) if stride < 0 else (0, 10**6)
            attributes = {"axes": [axis], "starts": [start], "ends": [end], "strides": [stride]}
            attributes["infer_flags"] = [1]
            found = [self.one(kind, {"Input": x}, rows, **attributes)]
        elif kind == "unsqueeze2":
            found = [self.one(kind, {"X": x}, rows, axes=[axis])]
        elif kind == "concat":
            found = [
                self.one(
                    kind, {"X": [x, self.like(x)]}, rows, axis=self.choose([axis, axis - x.rank])
                )
            ]
        elif kind == "stack":
            found = self.append(kind, {"X": [x, self.like(x)]}, {"Y": "float32"}, rows, axis=axis)
        elif kind == "split":
            found = self.split(x, axis)
        elif kind in ("tile", "expand"):
            times = [1] * x.rank
            times[axis] = 2
            name = "repeat_times" if kind == "tile" else "expand_times"
            found = [self.one(kind, {"X": x}, rows, **{name: times})]
        elif kind == "flatten2":
            axis = self.draw.randrange(0, x.rank)
            found = [self.one(kind, {"X": x}, rows if axis == 1 else "", axis=axis)]
        elif kind == "gather":
            at = self.one_of_numbers([self.draw.randrange(x.shape[axis]) for _ in range(2)])
            found = [self.one(kind, {"X": x, "Index": at}, rows, axis=axis)]
        elif kind == "pad":
            pads = [0, 0, *(self.draw.randint(0, 1) for _ in range(2 * x.rank - 2))]
            found = [
                self.one(kind, {"X": x}, rows, paddings=pads, pad_value=self.choose([0.0, 0.5]))
            ]
        else:
            attributes = {"start_axis": axis, "stop_axis": -1}
            found = [self.one(kind, {"X": x}, rows, **attributes)]
        self.keep(*found)

    def split(self, x: Value, axis: int) -> list[Value]:
        """A list of parts, of which some are read, and one may be written over."""
        size = x.shape[axis]
        if size < 2:
            raise _NoneFits
        sections = [1, size - 1]
        helper = LayerHelper("split")
        outs = [helper.create_variable_for_type_inference("float32") for _ in sections]
        attributes = {"sections": sections, "axis": axis}
        if size % 2 == 0 and self.chance(0.5):
            attributes = {"num": 2, "axis": axis}
        helper.append_op(
            type="split", inputs={"X": x.variable}, outputs={"Out": outs}, attrs=attributes
        )
        return [Value(out, x.rows) for out in outs]

    def one_of_numbers(self, numbers: list[int]) -> Value:
        """A constant of integers."""
        return Value(paddle.assign(np.array(numbers, "int64")))

    def indices(self) -> None:
        """Integers and booleans that are computed, and read as floats."""
        x = self.value(lambda v: v.rank > 1 and min(v.shape[1:]) > 1)
        kind = self.choose(["arg_max", "top_k", "top_k_v2", "compare", "one_hot_v2", "lookup"])
        if kind == "arg_max":
            attributes = {"axis": self.choose([1, -1]), "keepdims": self.chance(0.5)}
            dtype = self.choose(["int64", "int32"])
            attributes["dtype"] = _DTYPES[dtype]
            (at,) = self.append(kind, {"X": x}, {"Out": dtype}, x.rows, **attributes)
            return self.keep(Value(paddle.cast(at.variable, "float32"), x.rows))
        if kind.startswith("top_k"):
            attributes = {"k": self.draw.randint(1, 2)}
            if kind == "top_k_v2":
                attributes.update(axis=self.choose([-1, 1]), largest=self.chance(0.5))
            dtypes = {"Out": "float32", "Indices": "int64"}
            found, at = self.append(kind, {"X": x}, dtypes, x.rows, **attributes)
            return self.keep(found, Value(paddle.cast(at.variable, "float32"), x.rows))
        if kind == "compare":
            inputs = {"X": x, "Y": self.like(x)}
            (mask,) = self.append(
                self.choose(_COMPARISONS), inputs, {"Out": "bool"}, x.rows, axis=-1
            )
            if self.chance(0.5):
                inputs = {"Condition": mask, "X": x, "Y": self.like(x)}
                return self.keep(self.one("where", inputs, x.rows))
            return self.keep(Value(paddle.cast(mask.variable, "float32"), x.rows))
        ids = next((v for v in self.feeds if v.dtype == "int64"), None)
        if ids is None:
            raise _NoneFits
        if kind == "one_hot_v2":
            out = self.one(kind, {"X": ids}, "batch", depth=WORDS, dtype=5)
        else:
            padding = self.choose([-1, 2])
            inputs = {"W": self.weight([WORDS, WIDTH]), "Ids": ids}
            out = self.one("lookup_table_v2", inputs, "batch", padding_idx=padding)
        self.keep(out)

    def constant(self) -> None:
        """A constant, or seeded samples."""
        x = self.value(lambda v: v.rank > 1 and min(v.shape[1:]) > 0)
        kind = self.choose(["like", "uniform_random", "gaussian_random", "assign_value", "range"])
        if kind == "like":
            attributes = {"shape": [7, WIDTH], "value": 0.7, "dtype": 5}
            attributes.update(input_dim_idx=0, output_dim_idx=self.draw.randint(0, 1))
            rows = x.rows if attributes["output_dim_idx"] == 0 else "none"
            found = self.one("fill_constant_batch_size_like", {"Input": x}, rows, **attributes)
            if rows == "none":
                return
        elif kind == "range":
            numbers = [Value(paddle.full([1], n, "float32")) for n in (0.0, 3.0, 0.5)]
            found = self.one("range", dict(zip(("Start", "End", "Step"), numbers)))
        elif kind == "assign_value":
            numbers = [self.draw.random() for _ in range(2 * WIDTH)]
            found = Value(paddle.assign(np.array(numbers, "float32").reshape(2, WIDTH)))
        else:
            attributes = {"shape": [3, WIDTH], "seed": self.draw.randint(1, 9), "dtype": 5}
            attributes.update({"mean": 0.2} if kind == "gaussian_random" else {"min": -0.3})
            found = self.one(kind, {}, **attributes)
        self.keep(found)

    def state(self) -> None:
        """A variable that outlives a run: read, then written, once or twice."""
        self._kept += 1
        kept = static.create_global_var(
            [WIDTH], self.choose([0.0, 0.5]), "float32", persistable=True, name=f"kept{self._kept}"
        )
        before = Value(kept * 2.0)
        x = self.value(lambda v: v.rank > 1 and v.shape[-1] == WIDTH and v.rows != "words")
        axes = list(range(x.rank - 1))
        batch = self.one("reduce_mean", {"X": x}, dim=axes, keep_dim=False)
        block = static.default_main_program().current_block()
        how = self.choose(["assign", "sum", "add", "twice"])
        if how == "sum":
            inputs = {"X": [kept, batch.variable]}
            block.append_op(type="sum", inputs=inputs, outputs={"Out": kept}, attrs={})
        elif how == "add":
            operands = {"X": batch.variable, "Y": kept}
            attributes = {"axis": -1}
            block.append_op(
                type="elementwise_add", inputs=operands, outputs={"Out": kept}, attrs=attributes
            )
        else:
            paddle.assign(kept * 0.5 + batch.variable, output=kept)
            if how == "twice":
                paddle.assign(kept * 0.9, output=kept)
        self.keep(before, Value(kept * 1.5))
        self._values.append(Value(kept))

    def words(self) -> None:
        """An operator of sequences."""
        x = self.value(lambda v: v.rows == "words" and v.rank == 2)
        self.needs_lod = True
        kind = self.choose(["pool", "softmax", "expand", "reset", "first"])
        if kind == "pool":
            out = static.nn.sequence_pool(
                x.variable, self.choose(["sum", "max", "average", "last"])
            )
            return self.keep(Value(out))
        if kind == "first":
            return self.keep(Value(static.nn.sequence_first_step(x.variable)))
        if kind == "softmax":
            (one,) = self.append(
                "reduce_mean", {"X": x}, {"Out": "float32"}, "words", dim=[1], keep_dim=True
            )
            return self.keep(Value(static.nn.sequence_softmax(one.variable), "words"))
        if kind == "expand":
            pooled = static.nn.sequence_pool(x.variable, "sum")
            return self.keep(Value(static.nn.sequence_expand(pooled, x.variable, 0), "words"))
        self.keep(self.one("lod_reset", {"X": x}, "words", target_lod=[0, 1], append=False))

    # -- blocks ------------------------------------------------------------------------------------

    @contextmanager
    def inner(self) -> Iterator[None]:
        """A block: its values are not read outside."""
        before, self._depth = list(self._values), self._depth + 1
        yield
        self._values, self._depth = before, self._depth - 1

    def loop(self) -> None:
        """A loop that carries a value, and may write variables of outer blocks and lists."""
        x = self.value(lambda v: v.rank > 1)
        times = self.draw.randint(0, 3)
        array = Value(paddle.tensor.array_write(x.variable, self.number(0).variable))

        def body(i: Any, value: Any) -> list[Any]:
            with self.inner():
                carried = Value(value, x.rows)
                self._values.append(carried)
                for _ in range(self.draw.randint(1, 4)):
                    self.step()
                same = self.value(lambda v: v.shape == x.shape and v.rows == x.rows)
                if self.chance(0.4):
                    paddle.tensor.array_write(same.variable, i, array=array.variable)
                result = self.one("tanh", {"X": same}).variable * 0.5 + value * 0.5
            return [i + 1, result]

        start, end = self.number(0).variable, self.number(times).variable
        _, found = static.nn.while_loop(lambda i, _: i < end, body, [start, x.variable])
        read = paddle.tensor.array_read(array.variable, self.number(0).variable)
        read.desc.set_shape(x.shape)
        self.keep(Value(found, x.rows), Value(read * 1.0, x.rows))

    def number(self, number: int) -> Value:
        """A constant of one integer."""
        return Value(paddle.tensor.fill_constant([1], "int64", number))

    def branch(self) -> None:
        """A branch of two sides, or a block that may not run and writes outer variables."""
        x = self.value(lambda v: v.rank > 1)
        total = paddle.reshape(
            self.one("reduce_mean", {"X": x}, dim=[0], reduce_all=True).variable, [1]
        )
        flag = total > paddle.full([1], self.choose([0.0, 0.1, -5.0, 5.0]))
        if self.chance(0.5):
            return self.keep(Value(self.select(flag, x), x.rows))
        feeds = {v.variable.name for v in self.feeds}
        target = self.value(lambda v: v.variable.name not in feeds and v.rank > 0)
        with ConditionalBlock([flag], is_scalar_condition=True).block(), self.inner():
            for _ in range(self.draw.randint(0, 2)):
                self.step()
            found = self.like(target)
            paddle.assign(found.variable * 0.5, output=target.variable)

    def select(self, flag: Any, x: Value) -> Any:
        """Two blocks, of which one runs, and an operator that selects a result (``cond``)."""
        (opposite,) = self.append("logical_not", {"X": Value(flag)}, {"Out": "bool"})
        block, results = static.default_main_program().current_block(), []
        for condition, factor in ((opposite.variable, -1.0), (flag, 2.0)):
            result = block.create_var(
                name=f"result{len(self._values)}_{block.desc.op_size()}",
                dtype="float32",
                shape=x.shape,
            )
            with ConditionalBlock([condition], is_scalar_condition=True).block():
                paddle.assign(self.side(x, factor), output=result)
            results.append(Value(result, x.rows))
        mask = Value(paddle.cast(flag, "int32"))
        selected = self.one("select_input", {"X": results, "Mask": mask}).variable
        selected.desc.set_shape(x.shape)
        return selected

    def side(self, x: Value, factor: float) -> Any:
        """One side of a branch."""
        with self.inner():
            for _ in range(self.draw.randint(0, 2)):
                self.step()
            return self.like(x).variable * factor

    # -- programs ----------------------------------------------------------------------------------

    def step(self) -> None:
        """Appends something; nothing if no value fits."""
        kinds: dict[Callable[[], None], int] = {
            self.unary: 6,
            self.binary: 4,
            self.reduction: 3,
            self.product: 2,
            self.picture: 4,
            self.shape_change: 6,
            self.indices: 3,
            self.constant: 1,
            self.in_place: 2,
            self.words: 1,
        }
        if self._depth < 2:
            kinds |= {self.loop: 1, self.branch: 1}
        if self._depth == 0:
            kinds[self.state] = 1
        (kind,) = self.draw.choices(list(kinds), kinds.values())
        with suppress(_NoneFits):
            kind()

    def build(self) -> list[Any]:
        """Builds the program; returns the variables to fetch."""
        self.feed("x", [-1, WIDTH])
        if self.chance(0.5):
            self.feed("picture", [-1, *PICTURE])
        if self.chance(0.3):
            self.feed("ids", [-1, 2], "int64")
        if self.chance(0.2):
            self.feed("words", [-1, WIDTH], rows="words")
        if self.chance(0.7):  # to be worth a subgraph
            x = self.feeds[0].variable
            self.keep(Value(static.nn.fc(x, WIDTH, activation="relu"), "batch"))
        for _ in range(self.draw.randint(3, 14)):
            self.step()
        fetched = {v.variable.name: v.variable for v in self._values[-5:]}
        for each in self.draw.sample(self._values, min(2, len(self._values))):
            fetched.setdefault(each.variable.name, each.variable)
        found = [v for v in fetched.values() if v.name not in {f.variable.name for f in self.feeds}]
        if self.chance(0.2):
            self.train()
        return found or [self.feeds[0].variable * 1.0]

    def feed(
        self, name: str, shape: list[int], dtype: str = "float32", rows: str = "batch"
    ) -> None:
        """Adds an input."""
        variable = static.data(name, shape, dtype, lod_level=int(rows == "words"))
        variable.stop_gradient = dtype != "float32"
        self.feeds.append(Value(variable, rows))
        self._values.append(self.feeds[-1])

    def train(self) -> None:
        """Adds a step of an optimizer."""
        trained = [v for v in self._values if not v.variable.stop_gradient][-3:]
        if not trained or not static.default_main_program().all_parameters():
            return
        terms = [paddle.mean(self.one("tanh", {"X": v}).variable) for v in trained]
        loss = sum(terms[1:], terms[0])
        optimizer = self.choose(
            [
                paddle.optimizer.SGD(0.01),
                paddle.optimizer.Momentum(0.01, 0.8, use_nesterov=self.chance(0.5)),
                paddle.optimizer.Adam(0.01, beta1=0.8),
            ]
        )
        optimizer.minimize(loss)
        self.trains = True


class _NoneFits(Exception):
    """Raised where no value of the program fits an operator."""


def _elements(shape: list[int]) -> int:
    return int(np.prod([size for size in shape if size > 0], dtype=np.int64))


def sampled(seed: int) -> tuple[Drawing, Program]:
    """The program of a seed: equal in each call."""
    drawing = Drawing(seed)
    return drawing, Program(drawing.build)


def feed_of(drawing: Drawing, step: int, seed: int) -> dict[str, Any]:
    """Random feeds of another batch size at each step; words have a LoD where one is needed."""
    batch, found = _STEPS[step], {}
    numbers = np.random.default_rng([seed, step])
    for each in drawing.feeds:
        name, shape = each.variable.name, [batch, *each.shape[1:]]
        if each.dtype == "int64":
            found[name] = numbers.integers(0, WORDS, shape)
        elif each.rows == "words":
            lengths = [int(numbers.integers(1, 3)) for _ in range(batch)]
            rows = numbers.normal(size=[sum(lengths), *shape[1:]]).astype("float32")
            found[name] = rows
            if drawing.needs_lod or numbers.random() < 0.3:
                found[name] = paddle.base.create_lod_tensor(rows, [lengths], paddle.CPUPlace())
        else:
            found[name] = numbers.normal(size=shape).astype("float32")
    return found


# -- comparisons -----------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """The results of a run, or its error, and the variables that outlive it."""

    results: list[tuple[np.ndarray, list[list[int]]]]
    error: str
    variables: dict[str, np.ndarray | None]


def outcome(program: Program, is_on: bool, feed: dict[str, Any]) -> Outcome:
    """Runs a program once, natively or with the engine."""
    results, error = [], ""
    paddle.seed(5)
    try:
        with static.scope_guard(program.scope), paddle_ngraph.use_ngraph(is_on):
            found = program.executor.run(
                program.main, feed=dict(feed), fetch_list=program.fetches, return_numpy=False
            )
        results = [(np.array(each).copy(), _lod_of(each)) for each in found]
    except Exception as raised:
        error = type(raised).__name__
    return Outcome(results, error, _variables(program))


def _lod_of(tensor: Any) -> list[list[int]]:
    """The LoD of a result; none if an earlier run, of another size, has left the LoD behind."""
    lod, shape = tensor.lod(), tensor.shape()
    is_current = bool(lod and shape) and lod[-1][-1] == shape[0]
    return lod if is_current else []


def _variables(program: Program) -> dict[str, np.ndarray | None]:
    kept: dict[str, np.ndarray | None] = {}
    for variable in program.main.list_vars():
        if not variable.persistable or variable.type != VarType.DENSE_TENSOR:
            continue
        if (found := program.scope.find_var(variable.name)) is not None:
            tensor = found.get_tensor()
            kept[variable.name] = np.array(tensor).copy() if tensor._is_initialized() else None
    return kept


def distance(expected: Outcome, found: Outcome) -> float:
    """The largest difference, by the size of a tensor; infinite where more than numbers differ."""
    if expected.error != found.error or len(expected.results) != len(found.results):
        return np.inf
    if expected.variables.keys() != found.variables.keys():
        return np.inf
    pairs = [(a, b) for (a, _), (b, _) in zip(expected.results, found.results)]
    pairs += [(a, found.variables[name]) for name, a in expected.variables.items()]
    if any(a != b for (_, a), (_, b) in zip(expected.results, found.results)):
        return np.inf
    return max((_apart(a, b) for a, b in pairs), default=0.0)


def _apart(a: np.ndarray | None, b: np.ndarray | None) -> float:
    if a is None or b is None:
        return 0.0 if a is b else np.inf
    if a.shape != b.shape or a.dtype != b.dtype:
        return np.inf
    if a.dtype.kind != "f":
        return 0.0 if np.array_equal(a, b) else np.inf
    is_number = np.isfinite(a)
    if not np.array_equal(is_number, np.isfinite(b)):
        return np.inf
    if not np.array_equal(a[~is_number], b[~is_number], equal_nan=True):
        return np.inf
    a, b = a[is_number].astype("float64"), b[is_number].astype("float64")
    return float(np.max(np.abs(a - b), initial=0.0) / max(np.max(np.abs(a), initial=0.0), 1.0))


class Verdict(NamedTuple):
    """The comparison of a program.

    Attributes:
        text: "equal", "unstable", "an error of Paddle" or what differs.
        runs: How often a subgraph ran.
        whole: The reason why the program runs natively as a whole, if it does.
    """

    text: str
    runs: int = 0
    whole: str = ""


TOLERANCE = 2e-5
# Verdicts that say nothing against the engine.
HARMLESS = ("equal", "unstable", "an error of Paddle")


def check(seed: int) -> Verdict:
    """Runs the program of a seed by both ways, and compares all that each leaves behind."""
    with paddle.pir_utils.OldIrGuard():
        drawing, native = sampled(seed)
        _, engine = sampled(seed)
        whole = whole_reason(engine)
        before = paddle_ngraph.stats()["engine_runs"]
        history: list[dict[str, Any]] = []
        for step in range(len(_STEPS)):
            feed = feed_of(drawing, step, seed)
            history.append(feed)
            expected, found = outcome(native, False, feed), outcome(engine, True, feed)
            if expected.error:
                # PIR drops operators whose results nothing reads, and so their errors.
                if found.error in ("", expected.error):
                    return Verdict("an error of Paddle", 0, whole)
                return Verdict(f"step {step}: {expected.error!r}, not {found.error!r}", 0, whole)
            if (apart := distance(expected, found)) > TOLERANCE:
                if _is_unstable(seed, history, expected):
                    return Verdict("unstable", 1, whole)
                text = f"step {step}: {apart:.2g} apart {found.error}"
                return Verdict(text, paddle_ngraph.stats()["engine_runs"] - before, whole)
        runs = paddle_ngraph.stats()["engine_runs"] - before
        if not drawing.trains and (text := _of_predictors(drawing, native, seed)):
            return Verdict(f"predictor: {text}", runs, whole)
        return Verdict("equal", runs, whole)


def whole_reason(program: Program) -> str:
    """Why a program runs natively as a whole; empty if it does not."""
    mark = "the program runs natively: "
    reasons = {op.reason for op in paddle_ngraph.explain(program.main).native}
    return next((each.removeprefix(mark) for each in reasons if each.startswith(mark)), "")


def _is_unstable(seed: int, history: list[dict[str, Any]], expected: Outcome) -> bool:
    """Whether rounding errors on the feeds alone have natively such an effect on the results."""
    numbers = np.random.default_rng(1)
    for _ in range(4):
        _, program = sampled(seed)
        for feed in history:
            nudged = {}
            for name, given in feed.items():
                array = np.array(given)
                if array.dtype.kind == "f":
                    array = (array * (1 + numbers.choice([-1e-7, 0.0, 1e-7], array.shape))).astype(
                        array.dtype
                    )
                nudged[name] = array
                if not isinstance(given, np.ndarray):
                    nudged[name] = _with_lod(array, given)
            last = outcome(program, False, nudged)
        if distance(expected, last) > TOLERANCE / 4:
            return True
    return False


def _with_lod(array: np.ndarray, given: Any) -> Any:
    tensor = paddle.base.core.DenseTensor()
    tensor.set(array, paddle.CPUPlace())
    tensor.set_lod(given.lod())
    return tensor


def _of_predictors(drawing: Drawing, program: Program, seed: int) -> str:
    """The difference between predictors of the saved program; empty if there is none.

    Paddle's predictor of some programs with branches differs from Paddle's Executor on the same
    file, or has an error: then Executor decides, or a branch reads what nothing has written.
    """
    with tempfile.TemporaryDirectory() as folder:
        prefix = str(Path(folder, "model"))
        if not _save(drawing, program, prefix):
            return ""
        native, engine = (_predicted(prefix, is_on, drawing, seed) for is_on in (False, True))
        if len(native) < len(_STEPS):
            return ""  # Paddle has no predictor of it
        if len(engine) < len(_STEPS):
            return f"no predictor: {engine[0].error}"
        for step, (expected, found) in enumerate(zip(native, engine)):
            if expected.error or (apart := distance(expected, found)) <= TOLERANCE:
                continue
            by_executor = _executed(prefix, feed_of(drawing, step, seed))
            if by_executor.error or distance(by_executor, found) <= TOLERANCE:
                continue
            return f"step {step}: {apart:.2g} apart {found.error}"
    return ""


def _save(drawing: Drawing, program: Program, prefix: str) -> bool:
    """Saves a program for predictors; false if Paddle cannot, or if it has no parameters."""
    block = program.main.global_block()
    feeds = [block.var(v.variable.name) for v in drawing.feeds]
    fetches = [block.var(v.name) for v in program.fetches]
    with suppress(Exception), static.scope_guard(program.scope), paddle_ngraph.use_ngraph(False):
        static.save_inference_model(prefix, feeds, fetches, program.executor, program=program.main)
    return Path(f"{prefix}.pdiparams").exists()


def _executed(prefix: str, feed: dict[str, Any]) -> Outcome:
    """The results of Paddle's Executor on a saved program."""
    executor = static.Executor(paddle.CPUPlace())
    with static.scope_guard(static.Scope()), paddle_ngraph.use_ngraph(False):
        try:
            program, names, fetches = static.load_inference_model(prefix, executor)
            given = {name: feed[name] for name in names}
            found = executor.run(program, feed=given, fetch_list=fetches, return_numpy=False)
        except Exception as raised:
            return Outcome([], type(raised).__name__, {})
    return Outcome([(np.array(each).copy(), each.lod()) for each in found], "", {})


def _predicted(prefix: str, is_on: bool, drawing: Drawing, seed: int) -> list[Outcome]:
    config = inference.Config(f"{prefix}.pdmodel", f"{prefix}.pdiparams")
    config.disable_onednn()
    config.disable_glog_info()
    found = []
    with paddle_ngraph.use_ngraph(is_on):
        try:
            predictor = inference.create_predictor(config)
        except Exception as error:
            return [Outcome([], str(error)[-300:], {})]
        for step in range(len(_STEPS)):
            feed = feed_of(drawing, step, seed)
            results, error = [], ""
            try:
                for name in predictor.get_input_names():
                    given, handle = feed[name], predictor.get_input_handle(name)
                    handle.copy_from_cpu(np.array(given))
                    if not isinstance(given, np.ndarray):
                        handle.set_lod(given.lod())
                paddle.seed(5)
                predictor.run()
                for name in predictor.get_output_names():
                    handle = predictor.get_output_handle(name)
                    results.append((handle.copy_to_cpu(), handle.lod()))
            except Exception as raised:
                error, results = type(raised).__name__, []
            found.append(Outcome(results, error, {}))
    return found


def main(arguments: list[str]) -> None:
    """Checks programs, and prints what differs and a summary."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    options = parser.parse_args(arguments)
    paddle.enable_static()
    paddle.set_flags({"FLAGS_ngraph_min_interval_us": 0, "FLAGS_ngraph_cache_dir": ""})
    counts: Counter[str] = Counter()
    for seed in range(options.first, options.first + options.count):
        Path(tempfile.gettempdir(), "old_programs_seed").write_text(str(seed))
        found = check(seed)
        kind = found.text if found.text in HARMLESS else "DIFFERENT"
        counts[kind] += 1
        counts["without the engine"] += kind == "equal" and not found.runs
        if found.whole:
            counts[f"whole: {found.whole}"] += 1
        if kind == "DIFFERENT":
            print(seed, *found, flush=True)
    for name, count in sorted(counts.items()):
        print(f"{count:6} {name}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
