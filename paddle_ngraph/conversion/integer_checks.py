"""Checks of integers that a run does, or the build where the contents are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from openvino import Node, Output, Type, opset15

from paddle_ngraph.conversion.constant_folding import VALUE_PRESERVING, ConstantFolding
from paddle_ngraph.conversion.errors import RunError
from paddle_ngraph.conversion.extensions import extension_for
from paddle_ngraph.conversion.node_tools import as_output
from paddle_ngraph.conversion.registry import RANGES, find_converter
from paddle_ngraph.errors import SENTENCES, ErrorCode, NgraphError
from paddle_ngraph.ir.graph import CPU, Op, TensorSpec

# Elementwise operators, and those of their operands whose deferred checks propagate: an element of
# the result overflows int32, or replaces an overflow, only where one of these operands does.
_FORWARDS_DEFERRED_CHECK = {
    **dict.fromkeys(("pd_op.scale", "pd_op.scale_", "pd_op.assign"), ("x",)),
    **dict.fromkeys(
        (
            *("pd_op.add", "pd_op.add_", "pd_op.subtract", "pd_op.subtract_"),
            *("pd_op.multiply", "pd_op.multiply_", "pd_op.maximum", "pd_op.minimum"),
        ),
        ("x", "y"),
    ),
    "pd_op.where": ("x", "y"),
}


class RangeCheck(NamedTuple):
    """Bounds of an integer input, which a run checks before a device reads the input.

    Attributes:
        input: The index of the subgraph input.
        low: The minimum; a list of one, or one for each index of the last axis.
        high: One more than the maximum, likewise.
        ignored: Values that are allowed as well.
        error: The error of a run with an index out of range.
    """

    input: int
    low: list[int]
    high: list[int]
    ignored: list[int]
    error: RunError


class DeferredCheck(NamedTuple):
    """An overflow check of a tensor, deferred: a run fails only if a reader uses a wrong element.

    Attributes:
        mask: True for wrong elements; of a shape that broadcasts to that of the tensor.
        error: The error of a run with such elements.
    """

    mask: Output
    error: RunError


class IntegerChecks:
    """The checks of a block's integers.

    Args:
        nodes: The nodes of the block's tensors by tensor id, where checked nodes replace others.
        folding: Contents of nodes that are known during the build.
        input_position: The index of the subgraph input that a node is; ``None`` for other nodes.
        device: The device that the function is built for.

    Attributes:
        checks: Checks that a run does before the device reads its inputs.
    """

    def __init__(
        self,
        nodes: dict[int, Output],
        folding: ConstantFolding,
        input_position: Callable[[Output], int | None],
        device: str,
    ) -> None:
        self._nodes = nodes
        self._folding = folding
        self._input_position = input_position
        self._device = device
        # The range checks that were added, by tensor id and bounds: none is added twice.
        self._required: set[tuple[Any, ...]] = set()
        # For each id of a tensor, the check that its readers have to apply if they read wrong
        # elements.
        self._deferred: dict[int, DeferredCheck] = {}
        self.checks: list[RangeCheck] = []

    def in_range(self, values: Any, least: int, end: int, error: RunError) -> Node:
        """``values``, checked in each run to be at least ``least`` and less than ``end``."""
        limits = {"low": [least], "high": [end], "has_ignored": False, "ignored": 0}
        return extension_for(self._device, "CheckRange", [values], **limits, **error.attributes())

    def require_32_bits(self, value: Output) -> bool:
        """Checks that int64 contents that are known during the build are representable in int32.

        Returns:
            Whether the contents are known.

        Raises:
            NgraphError: An element overflows int32.
        """
        known = self._folding.known_contents(value)
        if known is None:
            return False
        least, most = RANGES["int32"]
        for number in known.reshape(-1).tolist():
            if not least <= number <= most:
                raise NgraphError(SENTENCES["int32_overflow"], code=ErrorCode.INT32_OVERFLOW)
        return True

    def require_range(
        self,
        op: Op,
        name: str,
        low: int | Sequence[int],
        high: int | Sequence[int],
        ignored: int | None = None,
        position: int = 0,
    ) -> None:
        """Has the engine reject a run whose input ``name`` has an element out of range.

        To be called before the converter gets the input's node, which becomes the checked node.

        Args:
            op: The operator.
            name: One of its inputs, of int32 or int64.
            low: The minimum; a list gives one for each index of the last axis.
            high: One more than the maximum, likewise.
            ignored: A value that is allowed as well.
            position: The index of the tensor, if the input is a list.
        """
        spec = op.inputs[name][position]
        bounds = (tuple(np.atleast_1d(low)), tuple(np.atleast_1d(high)), ignored)
        if (spec.id, *bounds) in self._required:
            return
        self._required.add((spec.id, *bounds))
        ids = self._nodes[spec.id]
        entry = find_converter(op.type)
        unchecked = () if entry is None else entry.unchecked
        lowest, highest = ([int(v) for v in bound] for bound in bounds[:2])
        is_unchecked = name in unchecked
        reason = SENTENCES["out_of_bounds" if is_unchecked else "out_of_range"].format(name=name)
        code = ErrorCode.OUT_OF_BOUNDS if is_unchecked else ErrorCode.GENERAL
        error = RunError.of(op, reason, code)
        if self._device != CPU:
            allowed = [] if ignored is None else [int(ignored)]
            return self._check_beforehand(ids, lowest, highest, allowed, error)
        checked = extension_for(
            self._device,
            "CheckRange",
            [ids],
            low=lowest,
            high=highest,
            has_ignored=ignored is not None,
            ignored=0 if ignored is None else int(ignored),
            **error.attributes(),
        ).output(0)
        if ids.get_element_type() != checked.get_element_type():
            checked = opset15.convert(checked, ids.get_element_type()).output(0)
        self._nodes[spec.id] = self._folding.folded(checked)

    def _check_beforehand(
        self, ids: Output, low: list[int], high: list[int], ignored: list[int], error: RunError
    ) -> None:
        """Checks indices now if they are known, else before the device reads them in a run."""
        known = self._folding.contents(ids)
        if known is not None:
            inside = (known >= np.array(low)) & (known < np.array(high)) | np.isin(known, ignored)
            if not inside.all():
                raise NgraphError(error.message, code=error.code, op_id=error.op_id)
            return
        source = ids
        while len(low) == 1 and source.get_node().get_type_name() in VALUE_PRESERVING:
            source = source.get_node().input_value(0)
            if source.get_element_type() not in (Type.i32, Type.i64):
                break
        is_integer = source.get_element_type() in (Type.i32, Type.i64)
        position = self._input_position(source) if is_integer else None
        if position is None:
            raise NgraphError(f"positions that are computed are not checked on {self._device}")
        self.checks.append(RangeCheck(position, low, high, ignored, error))

    def defer_check(self, op: Op, name: str, mask: Any, error: RunError) -> None:
        """Has the engine reject a run in which a reader uses wrong elements of an output.

        A ``where`` may discard wrong elements, such as the logarithm of 0.

        Args:
            op: The operator.
            name: The output, which is set already.
            mask: A mask of the wrong elements.
            error: The error of such a run.
        """
        self._deferred[op.output(name).id] = DeferredCheck(as_output(mask), error)

    def defer_forwarded(self, op: Op, check: DeferredCheck | None) -> None:
        """Makes a result of :meth:`forwarded_check` the deferred check of the outputs of ``op``."""
        if check is not None:
            self._deferred.update((spec.id, check) for spec in op.output_specs())

    def forwarded_check(self, op: Op) -> DeferredCheck | None:
        """The deferred overflow check of an input, to be deferred to the output of ``op``, if any.

        Applies the deferred checks of all other inputs now.
        """
        if not self._deferred:
            return None
        entry = find_converter(op.type)
        checks: dict[str, DeferredCheck] = {}
        for name, specs in op.inputs.items():
            for spec in specs if entry is None or entry.role(name).has_contents_read else ():
                if spec.id not in self._deferred:
                    continue
                if name in _FORWARDS_DEFERRED_CHECK.get(op.type, ()):
                    checks[name] = self._deferred[spec.id]
                else:
                    self.apply_deferred(spec)
        if not checks:
            return None
        error = next(iter(checks.values())).error
        if op.type == "pd_op.where":
            never = opset15.constant(False, Type.boolean)
            x, y = (checks[name].mask if name in checks else never for name in ("x", "y"))
            condition = self._nodes[op.input("condition").id]
            return DeferredCheck(opset15.select(condition, x, y).output(0), error)
        mask, *others = (check.mask for check in checks.values())
        for other in others:
            mask = opset15.logical_or(mask, other).output(0)
        return DeferredCheck(mask, error)

    def apply_deferred(self, spec: TensorSpec) -> Output:
        """The node of a tensor, to which the check that was deferred for it, if any, is added."""
        check = self._deferred.pop(spec.id, None)
        if check is not None:
            node, dtype = self._nodes[spec.id], self._nodes[spec.id].get_element_type()
            checked = self.in_range(opset15.convert(check.mask, Type.i32), 0, 1, check.error)
            added = opset15.add(
                node, checked if dtype == Type.i32 else opset15.convert(checked, dtype)
            )
            self._nodes[spec.id] = self._folding.folded(added.output(0))
        return self._nodes[spec.id]
