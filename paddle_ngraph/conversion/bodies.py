"""Bodies of loops and branches: models, whose inputs come from the nodes around them.

Loop-carried values may grow by equal sizes in each iteration: docs/design.md, "Sizes that a turn
decides".
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import chain

import numpy as np
import openvino as ov
from openvino import Node, Output, Type, opset15
from openvino.utils import replace_node

from paddle_ngraph.conversion.analysis.induction_variables import Counters
from paddle_ngraph.conversion.bridge import NgraphBridge, fits, is_used
from paddle_ngraph.conversion.errors import RunError
from paddle_ngraph.conversion.node_tools import (
    as_output,
    forwarded_parameters,
    key_of,
    read_by,
    select,
)
from paddle_ngraph.conversion.regions import RegionBody
from paddle_ngraph.conversion.size_rules import is_same_shape
from paddle_ngraph.conversion.symbolic_sizes import (
    MAX_ITERATIONS,
    MAX_SYMBOLIC_SIZE,
    Guards,
    Number,
    Size,
    bounds_of,
    hint_of,
    is_always_at_least,
    symbolic_size,
    symbols_in,
)
from paddle_ngraph.conversion.tensor_arrays import TensorArray, appended_by
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import MAX_FOLDED_ELEMENTS, Graph, Op, TensorSpec
from paddle_ngraph.utils.dtypes import ARRAY_SUFFIX

# The sizes that an iteration adds to each dimension of each loop-carried value.
ShapeGrowth = Sequence[Sequence[Number]]

_SHAPE_CHANGES = "a turn of the loop changes the shape of what it hands on"
_TRACED_ITERATION = 2  # index of the iteration whose shapes are the hints
# Conversions of a loop body until all growth is known: each size in a chain of sizes that follow
# from each other takes one.
_MAX_CONVERSIONS = 4


def body_of_branch(
    bridge: NgraphBridge, block: Graph, sources: Sequence[Output | TensorArray]
) -> tuple[RegionBody, list[Output]]:
    """Converts the block of a branch.

    Args:
        bridge: The bridge of the surrounding block.
        block: The block of the branch, as a graph.
        sources: The values of its inputs.

    Returns:
        The body, and the sources that it reads: ``sources``, and more.

    Raises:
        ConversionError: As in :meth:`NgraphBridge.convert`; ``op`` is one of the block.
    """
    inner = InnerBridge(bridge, block, sources)
    inner.convert()
    body = inner.finish()
    bridge.add_inner(inner)
    return body, inner.sources


def body_of_loop(
    bridge: NgraphBridge,
    block: Graph,
    initial_values: Sequence[Output],
    captured: Sequence[Output | TensorArray],
    used_arrays: Collection[int] = (),
) -> tuple[RegionBody, list[Output], list[list[Number]]]:
    """Converts the block of a loop, which may carry growing values, and append to TensorArrays.

    Args:
        bridge: The bridge of the surrounding block.
        block: The block of the loop, as a graph.
        initial_values: The initial values of the loop-carried values.
        captured: The invariant inputs.
        used_arrays: The indices of sources that are TensorArrays still used after the loop.

    Returns:
        The body, the sources that it reads, and the shapes of the loop's results.

    Raises:
        ConversionError: As in :meth:`NgraphBridge.convert`; ``op`` is one of the block.
        NgraphError: A loop-carried value changes its shape in another way.
    """
    written = appended_by(block)
    growth: ShapeGrowth = [
        [written[spec.id] if axis == 0 else 0 for axis in range(len(bridge.shape(start)))]
        for spec, start in zip(block.inputs, initial_values)
    ]
    counters = Counters(block, len(initial_values))
    for _ in range(_MAX_CONVERSIONS):
        sources = [*initial_values, *captured]
        inner = InnerBridge(
            bridge, block, sources, len(initial_values), growth, counters, used_arrays
        )
        inner.convert()
        body = inner.finish()
        end = 1 + len(initial_values)
        found = inner.found_growth(body.shapes[1:end])
        if is_same_shape([*chain(*found)], [*chain(*growth)]):
            results = inner.loop_results(body.shapes[end:])
            bridge.add_inner(inner)
            return body, [*inner.initial_values(), *inner.sources[len(initial_values) :]], results
        growth = found
    raise NgraphError(f"{_SHAPE_CHANGES}, and not alike in each turn")


class InnerBridge(NgraphBridge):
    """Builds the body of a loop or branch: a model whose inputs come from the node around it.

    Args:
        outer: The bridge of the surrounding block.
        block: The block of the loop or branch.
        sources: The values of its inputs, nodes of ``outer``.
        args: The number of loop-carried inputs, which come first.
        growth: The sizes that an iteration adds to the dimensions of these.
        counters: The induction variables among these.
        used_arrays: The indices of sources that are TensorArrays whose elements have a reader.

    Attributes:
        arg_shapes: The shapes of the loop-carried inputs in an iteration.
    """

    def __init__(
        self,
        outer: NgraphBridge,
        block: Graph,
        sources: Sequence[Output | TensorArray],
        args: int = 0,
        growth: ShapeGrowth = (),
        counters: Counters | None = None,
        used_arrays: Collection[int] = (),
    ) -> None:
        self._outer = outer
        outer_shapes = outer.sizes.shapes
        # The symbols that are known outside.
        self._outer_symbols = set() if outer_shapes is None else set(outer_shapes.guards.numbers())
        self._args = args
        self._growth = growth
        self._counters = counters
        self._shapes_slices = counters is not None and counters.decide_slice_sizes()
        self._outer_arrays = {
            n: each for n, each in enumerate(sources) if isinstance(each, TensorArray)
        }
        written = appended_by(block)
        # The number of elements that an iteration appends to each outer TensorArray.
        self._appends = {
            index: written[block.inputs[index].id]
            for index in self._outer_arrays
            if counters is not None and written[block.inputs[index].id]
        }
        self._used_arrays = used_arrays
        self._appended: dict[int, TensorArray] = {}  # elements of this iteration, by source
        self._has_iteration_sizes = (
            _has_growth(growth) or self._shapes_slices or bool(self._appends)
        )
        self._iteration: Size | None = None  # the iteration index, if sizes depend on it
        self._last_iteration: Number | None = None  # the last index, if known
        self._iteration_check: Node | None = None  # checks the next iteration index
        self._next_iteration: Node | None = None  # the next index
        self._iteration_parameter: Node | None = None
        self._hints: list[tuple[Node, Output]] = []
        self.sources = [self._source(index, each) for index, each in enumerate(sources)]
        self.arg_shapes: list[list[Number]] = []
        super().__init__(block, (), sizes=outer.sizes.of_block())
        # Paddle declares shapes that follow from those of the first iteration.
        self._as_declared &= outer._as_declared and not self._has_iteration_sizes

    @property
    def infers(self) -> bool:
        """See :attr:`Graph.infers`."""
        return self._outer.infers

    @property
    def device(self) -> str:
        """See :attr:`Graph.compiled_for`."""
        return self._outer.device

    def found_growth(self, results: Sequence[Sequence[Number]]) -> ShapeGrowth:
        """The growth of the loop-carried values in an iteration that yields these shapes.

        Raises:
            NgraphError: The rank changes, or the growth differs between iterations.
        """
        shapes = zip(self.arg_shapes, results)
        return [_growth_between(before, after, self._outer_symbols) for before, after in shapes]

    def initial_values(self) -> list[Output]:
        """The initial values, with the sizes that grow hidden from nGraph.

        nGraph would take the initial sizes for those in each iteration if the final value has no
        reader.
        """
        return list(map(self._with_hidden_sizes, self.sources, self._growth))

    def _with_hidden_sizes(self, start: Output, growth: Sequence[Number]) -> Output:
        axes = [axis for axis, size in enumerate(growth) if _is_growth(size)]
        if not axes:
            return start
        outer = self._outer
        node = outer.extension("ShapeBarrier", [start, outer._any_runtime_input()], axes=axes)
        outer.sizes.set(node, outer.shape(start))
        return node.output(0)

    def loop_results(self, appended: Sequence[Sequence[Number]]) -> list[list[Number]]:
        """The shapes of the loop's results.

        Args:
            appended: The shapes of the results collected from all iterations, of which there is at
                least one then.

        Raises:
            NgraphError: Iterations append elements of several shapes.
        """
        if not all(symbols_in(size) <= self._outer_symbols for size in chain(*appended)):
            raise NgraphError("turns of the loop append elements of several shapes")
        outer_shapes = self._outer.sizes.shapes
        before = [self._outer.shape(source) for source in self.sources[: self._args]]
        if outer_shapes is None or not (_has_growth(self._growth) or appended):
            return before
        least = 1 if appended else 0
        more = self._extra_iterations(outer_shapes.guards, least)
        sizes = zip(chain(*before), chain(*self._growth))
        grow_by_one = (size for size, added in sizes if is_same_shape([added], [1]))
        if (first := 1 if appended else next(grow_by_one, None)) is not None:
            outer_shapes.declare_trip_count(more, first)
        iterations = more + least
        return [
            *_shapes_after(before, self._growth, iterations),
            *([iterations, *shape[1:]] for shape in appended),
        ]

    def draw(
        self, distribution: str, a: float, b: float, seed: int, shape: Sequence[int]
    ) -> Output:
        """Raises NgraphError: before a run, the count of samples in a loop or branch is unknown."""
        raise NgraphError("random numbers are drawn inside of a loop or branch")

    def _add_inputs(
        self, signature: Sequence[tuple[str, Sequence[int]]], values: Mapping[int, np.ndarray]
    ) -> None:
        outer_shapes = self._outer.sizes.shapes
        self.arg_shapes = [self._outer.shape(source) for source in self.sources[: self._args]]
        if self._has_iteration_sizes:
            assert self.sizes.shapes is not None
            iteration = self._iteration = self._new_iteration(self.sizes.shapes.guards)
            self._with_hints(self._iteration_index(), [iteration])
            self.arg_shapes = _shapes_after(self.arg_shapes, self._growth, iteration)
        for position, (spec, source) in enumerate(zip(self._graph.inputs, self.sources)):
            if position in self._outer_arrays:
                self.arrays[spec] = self._array(position, source)
                continue
            node = self._input(position, source)
            if spec.dtype.endswith(ARRAY_SUFFIX):
                self.arrays[spec] = TensorArray([node])
                continue
            if self._counters and self._shapes_slices and position in self._counters.steps:
                node = self._counted(node, position, self._counters.steps[position], iteration)
            self._nodes[spec.id] = node
            self._as_declared &= fits(spec.shape, self.shape(node))
        if (
            outer_shapes is not None
            and self.sizes.shapes is not None
            and (sizes := outer_shapes.known_sizes())
        ):
            self._with_hints(self._extra_parameter(as_output(self._outer.ints(sizes))), sizes)

    def _source(self, index: int, source: Output | TensorArray) -> Output:
        """The value that the block gets for a source."""
        if not isinstance(source, TensorArray):
            return source
        if index in self._appends:  # an unused value
            return opset15.constant(np.int64(0)).output(0)
        return self._outer.arrays.elements(source)

    def _array(self, index: int, source: Output) -> TensorArray:
        """A TensorArray of the surrounding block, in the state that an iteration sees."""
        if index not in self._appends:
            return TensorArray([self._parameter_for(index, source)], is_read=True)
        assert self._iteration is not None
        before = (
            self._outer.arrays.length(self._outer_arrays[index])
            + self._iteration * self._appends[index]
        )
        array = TensorArray(before=before)
        self._appended[index] = array
        return array

    def holds(self, op: Op, name: str, number: Number) -> bool:
        """See :meth:`NgraphBridge.holds`."""
        return super().holds(op, name, number) or self._counter_equals(op.input(name), number)

    def _counter_equals(self, tensor: TensorSpec, number: Number) -> bool:
        """Whether an integer derived from an induction variable is ``number`` in each iteration."""
        found = self.offsets.scalar(tensor)
        if self._counters is None or self._iteration is None or found is None or found.base is None:
            return False
        for index, step in self._counters.steps.items():
            if self._graph.inputs[index].id == found.base[0]:
                first = self._known_initial_value(index)
                now = [] if first is None else [first + found.added + self._iteration * step]
                return is_same_shape(now, [number])
        return False

    def _new_iteration(self, guards: Guards) -> Size:
        """The iteration index, as a size."""
        self._last_iteration = (
            None if self._counters is None else self._find_last_iteration(self._counters)
        )
        if self._last_iteration is None:
            return guards.new_iteration_symbol(_TRACED_ITERATION)
        return guards.new_iteration_symbol(
            min(_TRACED_ITERATION, hint_of(self._last_iteration)), self._last_iteration
        )

    def _extra_iterations(self, guards: Guards, least: int) -> Size:
        """The number of iterations beyond ``least``, as a size, where sizes depend on it."""
        if self._last_iteration is None:
            return guards.new_iteration_symbol(_TRACED_ITERATION - least, like=self._iteration)
        current = min(_TRACED_ITERATION, hint_of(self._last_iteration) + 1)
        return guards.new_iteration_symbol(current - least, self._last_iteration + 1 - least)

    def _find_last_iteration(self, counters: Counters) -> Number | None:
        """The highest possible iteration index, if the condition implies one."""
        for limit in counters.limits():
            first, most = self._known_initial_value(limit.arg), self._known_limit(limit.upper)
            if first is not None and most is not None:
                last = (most - limit.added - first) // counters.steps[limit.arg] + 1
                if is_always_at_least(last, 0):
                    return last
        return None

    def _counted(self, arg: Output, index: int, step: int, iteration: Size) -> Output:
        """An induction variable as a symbolic size, if its initial value and its end are known."""
        first = self._known_initial_value(index)
        if first is None or self._last_iteration is None:
            return arg
        end = first + self._last_iteration * step
        has_32_bits = is_always_at_least(MAX_SYMBOLIC_SIZE - end, 0) and is_always_at_least(
            end, -MAX_SYMBOLIC_SIZE
        )
        return self._with_hints(arg, [first + iteration * step]) if has_32_bits else arg

    def _known_limit(self, limit: int | TensorSpec) -> Number | None:
        if isinstance(limit, int):
            return limit
        indices = [n for n, spec in enumerate(self._graph.inputs) if spec.id == limit.id]
        return (
            self._known_initial_value(indices[0]) if indices and indices[0] >= self._args else None
        )

    def _known_initial_value(self, index: int) -> Number | None:
        """The only element of a source, if it is known."""
        source, outer_shapes = self.sources[index], self._outer.sizes.shapes
        if outer_shapes is None or outer_shapes.depends_on(source) == "data":
            return None
        found = outer_shapes.value(source)
        return None if found is None or found.size != 1 else found.reshape(-1).tolist()[0]

    def _with_hints(self, parameter: Output, sizes: Sequence[Number]) -> Output:
        """Replaces a parameter of sizes by its hints, until the block is complete.

        With the hints, nGraph infers the current shapes that are computed from it.
        """
        assert self.sizes.shapes is not None
        dtype = parameter.get_element_type()
        values = np.array(list(map(hint_of, sizes)), dtype.to_dtype())
        constant = opset15.constant(values.reshape(tuple(parameter.get_shape())))
        # A Convert between them: converters would treat the constant itself as known contents.
        node = opset15.convert(constant, dtype)
        self.sizes.shapes.declare_contents(node.output(0), sizes)
        self._hints.append((node, parameter))
        return node.output(0)

    def _input_of(self, positions: Output) -> int | None:
        """Returns ``None``: the subgraph's inputs belong to another bridge."""
        return None

    def _input(self, position: int, source: Output) -> Output:
        if position < self._args:
            return self._parameter_for(position, source)
        producer = source.get_node()
        if (
            producer.get_type_name() == "Constant"
            and math.prod(source.get_shape()) <= MAX_FOLDED_ELEMENTS
        ):
            return opset15.constant(np.array(producer.get_data())).output(0)
        node = self._parameter_for(position, source)
        outer_shapes = self._outer.sizes.shapes
        if (
            outer_shapes is None
            or self.sizes.shapes is None
            or outer_shapes.depends_on(source) != "sizes"
        ):
            return node
        sizes = outer_shapes.value(source)
        if sizes is None:
            return opset15.constant(outer_shapes.fixed_value(source)).output(0)
        return self._with_hints(node, sizes.reshape(-1).tolist())

    def _extra_parameter(self, source: Output) -> Output:
        """A parameter for ``source``, which is no input of the block."""
        self.sources.append(source)
        return self._parameter_for(len(self.sources) - 1, source)

    def _parameter_for(self, position: int, source: Output) -> Output:
        """A parameter for ``source``."""
        is_arg = position < self._args
        sizes = self.arg_shapes[position] if is_arg else self._outer.shape(source)
        node = opset15.parameter(list(map(hint_of, sizes)), source.get_element_type())
        self._parameters.append(node)
        self._input_of_parameter[node.get_friendly_name()] = position
        if self.sizes.shapes is not None:
            self.sizes.shapes.declare(node.output(0), list(map(symbolic_size, sizes)))
        return node.output(0)

    def _iteration_index(self) -> Output:
        """The parameter of the iteration index."""
        if self._iteration_parameter is None:
            self._iteration_parameter = opset15.parameter([], Type.i64)
            if self.sizes.shapes is not None:
                self.sizes.shapes.declare(self._iteration_parameter.output(0), [])
        return self._iteration_parameter.output(0)

    def _any_runtime_input(self) -> Output:
        """See :meth:`NgraphBridge._any_runtime_input`."""
        return self._iteration_index()

    def finish(self) -> RegionBody:
        """The converted block as a model."""
        results: list[Output] = []
        for output in (*map(self._yielded, self._graph.outputs), *self._appended_elements()):
            # nGraph identifies a result by the node that computes it.
            is_made = output.get_node().get_type_name() not in ("Parameter", "Constant")
            if not is_made or key_of(output) in map(key_of, results):
                output = opset15.reshape(output, self.ints(self.shape(output)), False).output(0)
            results.append(output)
        shapes = [self.shape(output) for output in results]
        self._complete(results)
        self._separate_args(results)
        if self._has_iteration_sizes:
            self._make_growing_args_dynamic()
            self._hide_size_bounds(results)
        read = [
            (node, index)
            for node in self._parameters
            for index in [self._input_of_parameter[node.get_friendly_name()]]
            if index < self._args or is_used(node)
        ]
        parameters = [node for node, _ in read] + (
            [self._iteration_parameter] if self._iteration_parameter else []
        )
        self.model = ov.Model([opset15.result(r) for r in results], parameters)
        reads = [index for _, index in read]
        collected = [index for index in self._appended if index in self._used_arrays]
        return RegionBody(
            self.model, reads, shapes, self._iteration_parameter is not None, collected
        )

    def _yielded(self, spec: TensorSpec) -> Output:
        """The value that an iteration or a branch yields."""
        if spec in self.arrays:
            return self.arrays.elements(self.arrays[spec])
        return self._apply_deferred_check(spec)

    def _appended_elements(self) -> list[Output]:
        """The elements that this iteration appends to TensorArrays, with a new axis 0 of size 1."""
        chunks = [
            array.chunks for index, array in self._appended.items() if index in self._used_arrays
        ]
        joined = (opset15.concat(each, 0) for each in chunks)
        return [opset15.unsqueeze(each, self.ints([0])).output(0) for each in joined]

    def _complete(self, results: list[Output]) -> None:
        """Replaces hints by the sizes of each iteration, once all operators are converted."""
        if self._has_iteration_sizes and (
            self._last_iteration is None or bounds_of(self._last_iteration)[1] >= MAX_ITERATIONS
        ):
            results[0] = self._checked_condition(results[0])
        if self.sizes.shapes is None:
            return
        late = [node for node, _, _ in self._placeholders]
        self._record_shapes(self._model_of(results, late))
        for inner in self._all_inner():
            inner._record_shapes(inner.model)
        self._replace_placeholders()
        self._use_runtime_sizes()

    def _use_runtime_sizes(self) -> None:
        """Has sizes read from parameters instead of from hints."""
        for node, parameter in self._hints:
            if is_used(node):
                node.input(0).replace_source_output(parameter)

    def _make_growing_args_dynamic(self) -> None:
        """Makes growing dimensions dynamic: nGraph infers one loop-carried value at a time."""
        for node, shape, growth in zip(self._parameters, self.arg_shapes, self._growth):
            dims = [
                -1 if _is_growth(added) else hint_of(size) for size, added in zip(shape, growth)
            ]
            node.set_partial_shape(ov.PartialShape(dims))

    def _model_of(self, results: Sequence[Output], late: Sequence[Node] = ()) -> ov.Model:
        """A model of all nodes so far, with all parameters."""
        index_parameters = [self._iteration_parameter] if self._iteration_parameter else []
        yielded = [opset15.result(result) for result in results]
        return ov.Model(yielded, [*self._parameters, *index_parameters, *late])

    def _hide_size_bounds(self, results: list[Output]) -> None:
        """Hides the bounds of yielded sizes from nGraph where the initial sizes are outside.

        nGraph treats these bounds as bounds of the loop's result, which may be the initial value.
        """
        self._model_of(results).validate_nodes_and_infer_types()
        for index in filter(self._grows, range(self._args)):
            initial_minima = [bounds_of(size)[0] for size in self._outer.shape(self.sources[index])]
            known = results[index + 1].get_partial_shape()
            covers = [
                not _is_growth(added) or (dim.min_length <= least and dim.max_length == -1)
                for dim, least, added in zip(known, initial_minima, self._growth[index])
            ]
            if not all(covers):
                sizes = zip(self.arg_shapes[index], self._growth[index])
                shape = self.ints([size + added for size, added in sizes])
                results[index + 1] = opset15.reshape(results[index + 1], shape, False).output(0)
        self._use_runtime_sizes()

    def _checked_condition(self, continues: Output) -> Output:
        """The condition for another iteration, false where a check of the iteration index fails.

        Paddle runs loops with too many iterations; the loop here ends where the check rejects the
        run.
        """
        next_index = opset15.add(self._iteration_index(), self.full(1, Type.i64))
        condition = (
            opset15.squeeze(continues, self.ints([0])) if self.shape(continues) else continues
        )
        next_index = opset15.select(condition, next_index, self.full(0, Type.i64))
        self._next_iteration = opset15.convert(next_index, Type.i32)
        self._iteration_check = checked = self._trip_count_check()
        is_iteration = opset15.equal(checked, self._next_iteration)
        if self.shape(continues):
            is_iteration = opset15.unsqueeze(is_iteration, self.ints([0]))
        return opset15.logical_and(continues, is_iteration).output(0)

    def _trip_count_check(self) -> Node:
        """Checks that a loop has at most as many iterations as sizes allow, as far as known.

        The checked value is the index of the next iteration if there is one, else 0.
        """
        assert self.sizes.shapes is not None and self._iteration is not None
        most = self.sizes.shapes.guards.max_iterations(self._iteration)
        error = RunError(f"a loop turns more than {most} times.")
        return self.in_range(self._next_iteration, 0, most, error)

    def _update_trip_count_check(self) -> None:
        """See :meth:`NgraphBridge._update_trip_count_check`."""
        if self._iteration_check is not None:
            replace_node(self._iteration_check, self._trip_count_check())

    def _separate_args(self, results: list[Output]) -> None:
        """Has the plugin carry the loop's values where an iteration does not compute them.

        The plugin drops a loop-carried input that no iteration reads, and then has no result for a
        loop without iterations. And it copies yielded values one after another: one that is another
        loop-carried input would become the new value of that input. So such a result becomes a
        Select between itself and the input in its own place. The condition is that the iteration
        index is not negative: always true, but unknown in a build, unlike perhaps the condition of
        the loop. A growing value is never a loop-carried input, unless another one. A value of an
        unexpected shape is left alone: the block will be converted again.
        """
        read = read_by(results)
        names = [node.get_name() for node in self._parameters[: self._args]]
        chosen = [
            index
            for index, name in enumerate(names)
            if self._has_expected_shape(index, results[index + 1])
            and (
                name not in read
                or forwarded_parameters(results[index + 1], not self._grows(index))
                & {*names} - {name}
            )
        ]
        if not chosen:
            return
        is_iteration = opset15.greater_equal(self._iteration_index(), opset15.constant(np.int64(0)))
        for index in chosen:
            if self._grows(index):
                raise NgraphError("what grows from turn to turn becomes what another one was")
            arg = self._parameters[index].output(0)
            results[index + 1] = select(is_iteration, results[index + 1], arg).output(0)

    def _has_expected_shape(self, index: int, result: Output) -> bool:
        """Whether a yielded value has the shape of its loop-carried input, plus its growth."""
        before, after = self.arg_shapes[index], self.shape(result)
        return len(before) == len(after) and all(
            size + added == found for size, added, found in zip(before, self._growth[index], after)
        )

    def _grows(self, index: int) -> bool:
        """Whether an iteration adds to a dimension of the loop-carried value ``index``."""
        return any(map(_is_growth, self._growth[index]))


def _growth_between(
    before: Sequence[Number], after: Sequence[Number], known: set[int]
) -> list[Number]:
    """The sizes that an iteration adds to the dimensions of a loop-carried value.

    Args:
        before, after: The shapes.
        known: The symbols that are known outside the loop.

    Raises:
        NgraphError: The rank changes, or the growth differs between iterations.
    """
    if len(before) != len(after):
        raise NgraphError(f"{_SHAPE_CHANGES} from rank {len(before)} to {len(after)}")
    added = [0 if a == b else b - a for a, b in zip(before, after)]
    if not all(symbols_in(size) <= known for size in added):
        raise NgraphError(f"{_SHAPE_CHANGES}, and not alike in each turn")
    return added


def _is_growth(added: Number) -> bool:
    """Whether adding this size is growth."""
    return not is_same_shape([added], [0])


def _has_growth(growth: ShapeGrowth) -> bool:
    """Whether any dimension grows."""
    return any(map(_is_growth, chain(*growth)))


def _shapes_after(
    shapes: Sequence[Sequence[Number]], growth: ShapeGrowth, iterations: Size
) -> list[list[Number]]:
    """Shapes after ``iterations`` iterations."""
    return [
        [size + added * iterations for size, added in zip(*pair)] for pair in zip(shapes, growth)
    ]
