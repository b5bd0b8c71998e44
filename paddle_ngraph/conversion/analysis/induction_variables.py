"""Induction variables of a loop, as far as its block shows: each iteration adds a constant.

Slices as long as such a variable (``x[:, :i + 1]``) have a size that follows from the iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from paddle_ngraph.conversion.analysis.offsets import INTEGER_DTYPES, VALUE_PRESERVING, Offsets
from paddle_ngraph.conversion.symbolic_sizes import Number
from paddle_ngraph.ir.graph import Graph, Op, TensorSpec

# Types of operators that return slices. The bridge may have to prove the length of a slice.
SLICES = ("pd_op.slice", "pd_op.strided_slice")
# Operators whose result is true exactly where both operands are.
CONJUNCTIONS = ("pd_op.logical_and", "pd_op.bitwise_and")
# Comparisons that are true where the first operand is smaller, and those where it is larger; with
# the minimal difference of two integers for which the comparison is true.
LESS = {"pd_op.less_than": 1, "pd_op.less_equal": 0}
GREATER = {"pd_op.greater_than": 1, "pd_op.greater_equal": 0}


class CounterLimit(NamedTuple):
    """A condition for another iteration: induction variable + ``added`` <= ``upper``.

    Attributes:
        arg: The index of the induction variable among the loop-carried inputs.
        added: The constant that is added to its value before the iteration.
        upper: A known integer, or a tensor.
        is_float: Whether the comparison is one of float32 numbers: exact below 2^24 only.
    """

    arg: int
    added: int
    upper: int | TensorSpec
    is_float: bool


class InductionValues:
    """Integers of a block that follow from induction variables of the loop around it.

    Args:
        ops: The operators of the block.
        variable_value: The value of an induction variable in an iteration, by tensor id; ``None``
            for other tensors, and if the value is unknown. By default there is no loop around.
    """

    def __init__(
        self,
        ops: Sequence[Op],
        variable_value: Callable[[int], Number | None] = lambda tensor_id: None,
    ) -> None:
        self._ops = ops
        self._variable_value = variable_value

    @cached_property
    def offsets(self) -> Offsets:
        """The integers of the block as other integers plus constants, as far as operators show."""
        return Offsets(self._ops)

    def value(self, tensor: TensorSpec) -> Number | None:
        """The only element of ``tensor``, if it is an induction variable plus a constant.

        ``None`` otherwise.
        """
        found = self.offsets.scalar(tensor)
        if found is None or found.base is None:
            return None
        variable = self._variable_value(found.base[0])
        return None if variable is None else variable + found.added


class Counters:
    """The induction variables of a block.

    Args:
        block: The block of a loop.
        args: The number of loop-carried inputs, which come first.

    Attributes:
        steps: The increment per iteration of each induction variable, by index.
    """

    def __init__(self, block: Graph, args: int) -> None:
        self._offsets = Offsets(block.ops)
        # ``paddle.full([], 0)`` is a counter of float32.
        self._counted = Offsets(block.ops, dtypes=(*INTEGER_DTYPES, "float32"))
        self._producers = {spec.id: op for op in block.ops for spec in op.output_specs()}
        self._args = {spec.id: index for index, spec in enumerate(block.inputs[:args])}
        self._inputs = {spec.id: spec for spec in block.inputs}
        results = block.outputs[1:]
        pairs = enumerate(zip(block.inputs[:args], results))
        found = {n: self._offsets_for(arg).increment(arg, result) for n, (arg, result) in pairs}
        self.steps = {n: step for n, step in found.items() if step}
        self._condition = block.outputs[0]
        self._ops = block.ops

    def _offsets_for(self, arg: TensorSpec) -> Offsets:
        # An integer that is counted by way of float32 is exact below 2^24 only.
        return self._offsets if arg.dtype in INTEGER_DTYPES else self._counted

    def decide_slice_sizes(self) -> bool:
        """Whether the length of some slice in the body follows from an induction variable."""
        slices = (
            op for op in self._ops if op.type in SLICES and self._offsets.slice_bounds(op) is None
        )
        return any(
            bases and all(self._args.get(tensor) in self.steps for tensor, _ in bases)
            for bases in map(self._offsets.slice_bases, slices)
        )

    def limits(self) -> list[CounterLimit]:
        """The upper limits of induction variables in the condition of the loop, as in i < n."""
        return list(self._limits(self._condition))

    def decide_alone(self) -> bool:
        """Whether the condition of the loop is one comparison: no early exit."""
        op = self._source_op(self._condition)
        return op is not None and op.type in {**LESS, **GREATER}

    def _limits(self, condition: TensorSpec) -> Iterator[CounterLimit]:
        op = self._source_op(condition)
        if op is None:
            return
        if op.type in CONJUNCTIONS:
            yield from self._limits(op.input("x"))
            yield from self._limits(op.input("y"))
        elif op.type in LESS or op.type in GREATER:
            x, y = (op.input(name) for name in ("xy" if op.type in LESS else "yx"))
            distance = {**LESS, **GREATER}[op.type]
            counted, upper = self._counted.scalar(x), self._counted.scalar(y)
            if counted is None or upper is None or counted.base is None:
                return
            arg = self._args.get(counted.base[0])
            if arg is not None and self.steps.get(arg, 0) > 0:
                is_float = x.dtype == "float32"
                if upper.base is None:
                    yield CounterLimit(arg, counted.added + distance, upper.added, is_float)
                elif upper.base[0] in self._inputs:
                    # i + a < n + b, where an operator of the body computes n + b.
                    added = counted.added + distance - upper.added
                    upper_input = self._inputs[upper.base[0]]
                    yield CounterLimit(arg, added, upper_input, is_float)

    def _source_op(self, tensor: TensorSpec) -> Op | None:
        """The operator that computes the elements of a tensor: follows copies and reshapes back."""
        op = self._producers.get(tensor.id)
        while op is not None and op.type in VALUE_PRESERVING:
            op = self._producers.get(op.input("x").id)
        return op
        return op
