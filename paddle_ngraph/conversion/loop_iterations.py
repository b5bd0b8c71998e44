"""The iterations of a loop during a build: the index and the induction variables as sizes."""

from __future__ import annotations

from collections.abc import Sequence

from openvino import Output, Type

from paddle_ngraph.conversion.analysis.induction_variables import Counters
from paddle_ngraph.conversion.analysis.offsets import INTEGER_DTYPES
from paddle_ngraph.conversion.size_rules import Shapes
from paddle_ngraph.conversion.symbolic_sizes import (
    MAX_SYMBOLIC_SIZE,
    Guards,
    Number,
    SymbolicSize,
    bounds_of,
    hint_of,
    is_always_at_least,
)
from paddle_ngraph.ir.graph import TensorSpec

# The index of the iteration whose sizes are the hints of symbolic sizes in a body.
_TRACED_ITERATION = 2
# Half of 2^24, up to which integers are exact in float32: counters add small constants to these.
_MAX_EXACT = 2**23


class LoopIterations:
    """The symbolic iteration index and trip count of a loop, if sizes in its body depend on them.

    Args:
        counters: The induction variables; ``None`` in a branch.
        specs: The inputs of the block.
        sources: The loop's inputs in the surrounding block: initial values, then invariant inputs.
        outer_shapes: The shapes of the surrounding block; ``None`` if every size is static.

    Attributes:
        index: The iteration index; ``None`` until :meth:`begin`.
        last: The highest possible iteration index; ``None`` if it is unknown.
    """

    def __init__(
        self,
        counters: Counters | None,
        specs: Sequence[TensorSpec],
        sources: Sequence[Output],
        outer_shapes: Shapes | None,
    ) -> None:
        self._counters = counters
        self._specs = specs
        self._sources = sources
        self._outer_shapes = outer_shapes
        self.index: SymbolicSize | None = None
        self.last: Number | None = None

    def begin(self, guards: Guards, args: int) -> SymbolicSize:
        """Creates the iteration index of a loop. ``args``: the number of loop-carried inputs."""
        self.last = None if self._counters is None else self._find_last(self._counters, args)
        if self.last is None:
            self.index = guards.new_iteration_symbol(_TRACED_ITERATION)
        else:
            traced = min(_TRACED_ITERATION, hint_of(self.last))
            self.index = guards.new_iteration_symbol(traced, self.last)
        return self.index

    @property
    def count(self) -> Number | None:
        """The number of iterations, if there is any at all; ``None`` if data decides it."""
        is_certain = self._counters is not None and self._counters.decide_alone()
        return self.last + 1 if is_certain and self.last is not None else None

    def extra(self, guards: Guards, least: int) -> SymbolicSize:
        """A new symbolic size: the number of iterations of the loop beyond the first ``least``."""
        if self.last is None:
            return guards.new_iteration_symbol(_TRACED_ITERATION - least, like=self.index)
        current = min(_TRACED_ITERATION, hint_of(self.last) + 1)
        return guards.new_iteration_symbol(current - least, self.last + 1 - least)

    def value(self, tensor_id: int) -> Number | None:
        """A tensor's value in an iteration if it is a known induction variable; else ``None``."""
        steps = {} if self._counters is None else self._counters.steps
        for position in steps:
            if self._specs[position].id == tensor_id:
                return self._value_at(position, self.index)
        return None

    def size(self, position: int) -> Number | None:
        """An induction variable's value if it fits into int32 in every iteration; else ``None``."""
        if self._counters is None or position not in self._counters.steps:
            return None
        if self._specs[position].dtype not in INTEGER_DTYPES:
            return None
        end = self._value_at(position, self.last)
        has_32_bits = (
            end is not None
            and is_always_at_least(MAX_SYMBOLIC_SIZE - end, 0)
            and is_always_at_least(end, -MAX_SYMBOLIC_SIZE)
        )
        return self._value_at(position, self.index) if has_32_bits else None

    def _value_at(self, position: int, iteration: Number | None) -> Number | None:
        first = None if iteration is None else self._initial_value(position)
        if first is None or iteration is None or self._counters is None:
            return None
        return first + iteration * self._counters.steps[position]

    def _find_last(self, counters: Counters, args: int) -> Number | None:
        """The highest iteration index that the loop's condition allows; ``None`` if unknown."""
        for limit in counters.limits():
            first, most = self._initial_value(limit.arg), self._limit(limit.upper, args)
            if first is not None and most is not None:
                if limit.is_float and not _are_exact_in_float32(first, most):
                    continue
                last = (most - limit.added - first) // counters.steps[limit.arg] + 1
                if is_always_at_least(last, 0):
                    return last
        return None

    def _limit(self, limit: int | TensorSpec, args: int) -> Number | None:
        if isinstance(limit, int):
            return limit
        indices = [n for n, spec in enumerate(self._specs) if spec.id == limit.id]
        return self._initial_value(indices[0]) if indices and indices[0] >= args else None

    def _initial_value(self, position: int) -> Number | None:
        """The only element of a loop-carried value before the loop; ``None`` if unknown."""
        source, shapes = self._sources[position], self._outer_shapes
        if shapes is None or shapes.depends_on(source) == "data":
            return None
        node = source.get_node()
        if node.get_type_name() == "Constant" and source.get_element_type() == Type.f32:
            data = node.get_data().reshape(-1)
            return int(data[0]) if data.size == 1 and float(data[0]).is_integer() else None
        found = shapes.value(source)
        return None if found is None or found.size != 1 else found.reshape(-1).tolist()[0]


def _are_exact_in_float32(*numbers: Number) -> bool:
    """Whether integers up to these, and sums with small ones, are exact in float32."""
    bounds = [bound for number in numbers for bound in bounds_of(number)]
    return all(abs(bound) <= _MAX_EXACT for bound in bounds)
