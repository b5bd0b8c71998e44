"""Bodies of loops and branches: models, whose inputs come from the nodes around them.

Loop-carried values may grow by equal sizes in each iteration: docs/how_it_works/growing_loops.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

import numpy as np
import openvino as ov
from openvino import Node, Output, Type, opset15
from openvino.utils import replace_node

from paddle_ngraph.conversion import kernel_calls
from paddle_ngraph.conversion.analysis.early_exits import EarlyExit
from paddle_ngraph.conversion.analysis.induction_variables import Counters, InductionValues
from paddle_ngraph.conversion.analysis.last_values import unread_values
from paddle_ngraph.conversion.analysis.offsets import EARLY_EXIT
from paddle_ngraph.conversion.analysis.prefix_stability import MAX_LENGTH, PrefixStability
from paddle_ngraph.conversion.analysis.single_rows import Kept, compute_single_rows
from paddle_ngraph.conversion.bridge import NgraphBridge, element_type
from paddle_ngraph.conversion.errors import RunError
from paddle_ngraph.conversion.loop_iterations import LoopIterations
from paddle_ngraph.conversion.model_inputs import BodyInputs
from paddle_ngraph.conversion.node_tools import (
    forwarded_parameters,
    is_used,
    key_of,
    read_by,
    select,
)
from paddle_ngraph.conversion.regions import Cut, RegionBody
from paddle_ngraph.conversion.size_rules import Shapes, is_same_shape
from paddle_ngraph.conversion.symbolic_sizes import (
    MAX_ITERATIONS,
    Number,
    SymbolicSize,
    bounds_of,
    hint_of,
    may_vary_per_iteration,
    symbols_in,
)
from paddle_ngraph.conversion.tensor_arrays import TensorArray, appended_by
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import Graph, Op, TensorSpec
from paddle_ngraph.utils.dtypes import ARRAY_SUFFIX, BYTES

# For each loop-carried value and each of its dimensions, the size that an iteration adds.
ShapeGrowth = Sequence[Sequence[Number]]

_SHAPE_CHANGES = "an iteration changes the shape of a loop-carried value"
# Maximum number of conversions of a loop body, which are repeated until the growth of all values is
# known: each size in a chain of sizes that follow from each other takes one conversion.
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
    builder = BodyBuilder(bridge, block, sources)
    return builder.build(), builder.inputs.sources


def body_of_loop(
    bridge: NgraphBridge,
    block: Graph,
    initial_values: Sequence[Output],
    captured: Sequence[Output | TensorArray],
    used_arrays: Collection[int] = (),
    has_iteration: bool = False,
    keeps: bool = True,
) -> tuple[RegionBody, list[Output], list[list[Number]]]:
    """Converts the block of a loop, which may carry growing values, and append to TensorArrays.

    The body may carry more values, behind the given ones (analysis/single_rows.py): then there has
    to be an iteration.

    A loop-carried value that no iteration reads may start from a placeholder of another shape: it
    starts from zeros then, and is undefined without an iteration.

    Args:
        bridge: The bridge of the surrounding block.
        block: The block of the loop, as a graph.
        initial_values: The initial values of the loop-carried values.
        captured: The invariant inputs.
        used_arrays: The indices of sources that are TensorArrays still used after the loop.
        has_iteration: Whether it is certain that there is an iteration.
        keeps: Whether the body may carry more values.

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
    args, initial_values = len(initial_values), list(initial_values)
    counters = Counters(block, args)
    unread = unread_values(block, args)
    has_placeholders = False
    for _ in range(_MAX_CONVERSIONS):
        sources = [*initial_values, *captured]
        builder = BodyBuilder(bridge, block, sources, args, growth, counters, used_arrays)
        body = builder.build()
        shapes = body.shapes[1 : 1 + args]
        placeholders = builder.placeholders(unread, shapes)
        if placeholders:
            results = body.results()[1:]
            has_placeholders = True
            growth = [
                [0] * len(shapes[n]) if n in placeholders else each for n, each in enumerate(growth)
            ]
            for n in placeholders:
                dtype = results[n].get_element_type()
                initial_values[n] = bridge.full(0, dtype, shapes[n]).output(0)
            continue
        found = builder.found_growth(shapes)
        if is_same_shape([*chain(*found)], [*chain(*growth)]):
            rows = builder.single_rows() if keeps else None
            if rows is not None:
                with suppress(NgraphError):  # an operator of the new block has another limit
                    return _with_kept(bridge, *rows, initial_values, captured, used_arrays)
            results = builder.loop_results(body.shapes[1 + args :], has_iteration)
            body.has_placeholders = has_placeholders
            body.cuts, body.count = builder.cuts, builder.count
            body.loop_carried = args
            return body, [*builder.initial_values(), *builder.inputs.sources[args:]], results
        growth = found
    raise NgraphError(f"{_SHAPE_CHANGES}, and not equally in all iterations")


def _with_kept(
    bridge: NgraphBridge,
    block: Graph,
    kept: Sequence[Kept],
    initial_values: Sequence[Output],
    captured: Sequence[Output | TensorArray],
    used_arrays: Collection[int],
) -> tuple[RegionBody, list[Output], list[list[Number]]]:
    """The body of a block that carries more values, as :func:`body_of_loop` returns it."""
    starts = [bridge.full(0, element_type(each.spec.dtype), each.shape) for each in kept]
    initial_values = [*initial_values, *(start.output(0) for start in starts)]
    arrays = [n + len(kept) for n in used_arrays]
    return body_of_loop(bridge, block, initial_values, captured, arrays, True, False)


class Skipped(NamedTuple):
    """The growth of a tensor in an iteration that early exits skip.

    Attributes:
        exits: The early exits.
        added: The sizes that they skip, by axis.
    """

    exits: Sequence[EarlyExit]
    added: Sequence[Number]


def declare_growth(bridge: NgraphBridge, op: Op, exit: EarlyExit, added: Sequence[Number]) -> None:
    """Declares that a branch, in the body of a loop, has a larger result than ``exit`` allows.

    Args:
        bridge: The bridge of the body.
        op: The branch: the result is that of all other iterations.
        exit: The early exit.
        added: The sizes by which the result is larger, by axis.

    Raises:
        NgraphError: No loop-carried value shows whether the loop has ended by the exit.
    """
    if exit.flag is None:
        raise NgraphError("a value does not grow in the last iteration, which no value shows")
    skipped = _skipped(bridge)
    inner = skipped.get(op.inputs["captured"][exit.after].id)
    others = [] if inner is None else inner.exits
    skipped[op.output("out").id] = Skipped([exit, *others], added)


def require_whole(bridge: NgraphBridge, op: Op) -> None:
    """Raises NgraphError if a branch selects a tensor that is larger than early exits allow."""
    if any(spec.id in _skipped(bridge) for spec in op.inputs["captured"]):
        raise NgraphError("a value that may not grow in the last iteration is selected")


def _skipped(bridge: NgraphBridge) -> dict[int, Skipped]:
    """The growth that early exits skip, by the id of the tensor in the body."""
    found: dict[int, Skipped] = bridge.shared.setdefault(EARLY_EXIT, {})
    return found


class BodyBuilder:
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
        inputs: The inputs of the body, as parameters.
        bridge: The bridge that converts the block.
        cuts: The results that may be shorter than the model's, once :meth:`loop_results` is called.
        count: The number of iterations then, if sizes after the loop depend on it and it may be 0.
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
        self._block = block
        outer_shapes = outer.sizes.shapes
        # Symbols that the code around the loop knows: sizes of such symbols alone are
        # loop-invariant.
        self._outer_symbols = set() if outer_shapes is None else set(outer_shapes.guards.numbers())
        self._args = args
        self._is_loop = counters is not None
        self._growth = growth
        self._shapes_slices = counters is not None and counters.decide_slice_sizes()
        self._outer_arrays = {
            n: each for n, each in enumerate(sources) if isinstance(each, TensorArray)
        }
        written = appended_by(block)
        # For each TensorArray of the surrounding block, by its index among the sources: the number
        # of elements that an iteration appends.
        self._appends = {
            index: written[block.inputs[index].id]
            for index in self._outer_arrays
            if counters is not None and written[block.inputs[index].id]
        }
        self._used_arrays = used_arrays
        self.cuts: list[Cut] = []
        self.count: SymbolicSize | None = None
        # TensorArrays of the elements that one iteration appends, by the index of the array's
        # source.
        self._appended: dict[int, TensorArray] = {}
        self._has_iteration_sizes = (
            _has_growth(growth) or self._shapes_slices or bool(self._appends)
        )
        # Node that rejects a run in which the loop has more iterations than its sizes allow.
        self._iteration_check: Node | None = None
        self._next_iteration: Node | None = None  # node that computes the next iteration index
        sizes = outer.sizes.of_block()
        read = [self._source(index, each) for index, each in enumerate(sources)]
        self.inputs = BodyInputs(read, args, sizes, outer.sizes)
        # Declared shapes do not bind a body with sizes that vary: Paddle infers them from the first
        # iteration.
        as_declared = outer.as_declared and not self._has_iteration_sizes
        self._iterations = LoopIterations(counters, block.inputs, self.inputs.sources, outer_shapes)
        induction = InductionValues(block.ops, self._iterations.value)
        self.bridge = NgraphBridge(
            block, self.inputs, sizes, outer.device, induction, as_declared, is_body=True
        )
        self._set_inputs()

    def found_growth(self, results: Sequence[Sequence[Number]]) -> ShapeGrowth:
        """The growth of the loop-carried values in an iteration that yields these shapes.

        Raises:
            NgraphError: The rank changes, or the growth differs between iterations.
        """
        shapes = zip(self.inputs.arg_shapes, results)
        return [_growth_between(before, after, self._outer_symbols) for before, after in shapes]

    def single_rows(self) -> tuple[Graph, list[Kept]] | None:
        """The block, computing the last position of a sequence alone, and what it keeps.

        ``None`` if it computes other positions than the last one for other reasons.
        """
        index, last = self._iterations.index, self._iterations.last
        if not _has_growth(self._growth) or index is None or last is None:
            return None
        if may_vary_per_iteration(last) or not last < MAX_LENGTH:
            return None
        most = min(MAX_LENGTH, bounds_of(last)[1] + 1)
        stability = PrefixStability(
            self._block, self._args, self._tensor_shapes, self._known, index, most
        )
        return compute_single_rows(self._block, self._args, stability)

    def placeholders(
        self, unread: Collection[int], results: Sequence[Sequence[Number]]
    ) -> list[int]:
        """The loop-carried values whose initial value is a placeholder of another shape.

        Args:
            unread: The indices of loop-carried values that no iteration reads.
            results: The shapes that an iteration yields.
        """
        return [
            index
            for index in unread
            if not is_same_shape(self.inputs.arg_shapes[index], results[index])
            and all(symbols_in(size) <= self._outer_symbols for size in results[index])
        ]

    def initial_values(self) -> list[Output]:
        """The initial values of the loop, in which sizes that grow are hidden from nGraph.

        nGraph would take the initial sizes for the sizes in each iteration if the final value has
        no reader.
        """
        return list(map(self._with_hidden_sizes, self.inputs.sources, self._growth))

    def _with_hidden_sizes(self, start: Output, growth: Sequence[Number]) -> Output:
        axes = [axis for axis, size in enumerate(growth) if _is_growth(size)]
        outer = self._outer
        empty = [axis for axis, size in enumerate(outer.shape(start)) if is_same_shape([size], [0])]
        shape = outer.shape(start)
        if empty:
            start = self._nothing(start, empty, axes)
        elif not axes:
            return start
        node = outer.extension("ShapeBarrier", [start, outer.inputs.runtime_input()], axes=axes)
        outer.sizes.set_initial(node.output(0), shape)
        return node.output(0)

    def _nothing(self, start: Output, empty: Sequence[int], axes: Sequence[int]) -> Output:
        """An initial value without elements along the axis that grows.

        It is cut from one with elements, at a size that nGraph does not know: operators that read
        empty tensors are refused, and only concatenations read this one (empty_tensors.py).

        Raises:
            NgraphError: It does not grow along that axis only.
        """
        if list(empty) != list(axes):
            raise NgraphError("an initial value has no elements, and does not grow")
        outer, (axis,) = self._outer, axes
        shape = outer.shape(start)
        none = opset15.constant(np.zeros(0, np.int64))
        hidden = outer.extension("ShapeBarrier", [none, outer.inputs.runtime_input()], axes=[0])
        outer.sizes.set_initial(hidden.output(0), [0])
        some = outer.full(0, start.get_element_type(), [*shape[:axis], 1, *shape[axis + 1 :]])
        first, step, along = (outer.ints([number]) for number in (0, 1, axis))
        node = opset15.slice(some, first, opset15.shape_of(hidden), step, along)
        outer.sizes.set_initial(node.output(0), shape)
        return node.output(0)

    def loop_results(
        self, appended: Sequence[Sequence[Number]], has_iteration: bool
    ) -> list[list[Number]]:
        """The shapes of the loop's results.

        Args:
            appended: The shapes of the results collected from all iterations, of which there is at
                least one then.
            has_iteration: Whether it is certain that there is an iteration.

        Raises:
            NgraphError: Iterations append elements of several shapes.
        """
        if not all(symbols_in(size) <= self._outer_symbols for size in chain(*appended)):
            raise NgraphError("iterations append elements of several shapes")
        outer_shapes = self._outer.sizes.shapes
        before = [self._outer.shape(source) for source in self.inputs.sources[: self._args]]
        if outer_shapes is None or not (_has_growth(self._growth) or appended):
            return before
        count = self._iterations.count
        if count is not None and appended and not _has_growth(self._growth):
            return [*before, *([count, *shape[1:]] for shape in appended)]
        least = 1 if appended or has_iteration else 0
        skipped = [self._skipped_by(index) for index in range(self._args)]
        whole = [pair for pair, each in zip(zip(before, self._growth), skipped) if each is None]
        more = self._iterations.extra(outer_shapes.guards, least)
        if (first := 1 if appended else _grown_by_one(whole)) is not None:
            outer_shapes.declare_trip_count(more, first if appended else first + least)
        iterations = more + least
        self.count = None if least else more
        self._declare_cuts(before, skipped, outer_shapes)
        return [
            *_shapes_after(before, self._growth, iterations),
            *([iterations, *shape[1:]] for shape in appended),
        ]

    def _declare_cuts(
        self, before: Sequence[list[Number]], skipped: Sequence[Skipped | None], outer: Shapes
    ) -> None:
        """Declares the results that early exits make shorter.

        Those that other exits skip grow in another number of iterations.
        """
        by_exits: dict[frozenset[tuple[int | None, bool]], list[int]] = {}
        for index, each in enumerate(skipped):
            if each is not None:
                flags = frozenset((exit.flag, exit.value) for exit in each.exits)
                by_exits.setdefault(flags, []).append(index)
        for indices in by_exits.values():
            grown = self._iterations.extra(outer.guards, 0)
            values = [(before[index], self._growth[index]) for index in indices]
            if (first := _grown_by_one(values)) is not None:
                outer.declare_trip_count(grown, first)
            for index, (size, growth) in zip(indices, values):
                each = skipped[index]
                exits = () if each is None else each.exits
                (axis,) = (axis for axis, added in enumerate(growth) if _is_growth(added))
                (shape,) = _shapes_after([size], [growth], grown)
                self.cuts.append(Cut(index, exits, axis, growth[axis], shape, grown))

    def _skipped_by(self, index: int) -> Skipped | None:
        """The growth of a loop-carried value that early exits skip; ``None`` without any.

        Raises:
            NgraphError: They do not skip all of it.
        """
        found = _skipped(self.bridge).get(self._block.outputs[1 + index].id)
        if found is not None and not is_same_shape(found.added, self._growth[index]):
            raise NgraphError("a value grows in front of an early exit, too")
        return found

    def _set_inputs(self) -> None:
        inputs, shapes = self.inputs, self.bridge.sizes.shapes
        if self._has_iteration_sizes:
            assert shapes is not None
            iteration = self._iterations.begin(shapes.guards, self._args)
            inputs.with_hints(inputs.iteration_index(), [iteration])
            inputs.arg_shapes = _shapes_after(inputs.arg_shapes, self._growth, iteration)
        arrays = self.bridge.arrays
        for position, spec in enumerate(self._block.inputs):
            if position in self._outer_arrays:
                arrays[spec] = self._array(position)
                continue
            node = inputs.add_value(position)
            if spec.dtype.endswith(ARRAY_SUFFIX):
                arrays[spec] = TensorArray([node])
                continue
            size = self._iterations.size(position) if self._shapes_slices else None
            if size is not None:
                node = inputs.with_hints(node, [size])
            self.bridge.set_input(spec, node)
        inputs.add_outer_sizes()

    def _source(self, index: int, source: Output | TensorArray) -> Output:
        """The node that the body reads for ``source``: ``source``, or a TensorArray's elements."""
        if not isinstance(source, TensorArray):
            return source
        # The body gets a dummy instead of the elements of an array to which it only appends.
        if index in self._appends:
            return opset15.constant(np.int64(0)).output(0)
        return self._outer.arrays.elements(source)

    def _array(self, index: int) -> TensorArray:
        """A TensorArray of the surrounding block, as the body finds it when an iteration starts."""
        if index not in self._appends:
            return TensorArray([self.inputs.add(index)], is_read=True)
        iteration = self._iterations.index
        assert iteration is not None
        initial_length = self._outer.arrays.length(self._outer_arrays[index])
        array = TensorArray(before=initial_length + iteration * self._appends[index])
        self._appended[index] = array
        return array

    def build(self) -> RegionBody:
        """Converts the block to the model of the body.

        Raises:
            ConversionError: As in :meth:`NgraphBridge.convert`.
        """
        self.bridge.convert()
        if self._has_iteration_sizes:
            self._tensor_shapes = self.bridge.shapes()
            self._known = self.bridge.known_integers()
        results = self._results()
        shapes = [self.bridge.shape(output) for output in results]
        self._complete(results)
        self._separate_args(results)
        if self._has_iteration_sizes:
            self._make_growing_args_dynamic()
            self._hide_size_bounds(results)
        read = [
            (node, index)
            for node, index in self.inputs.indexed()
            if index < self._args or is_used(node)
        ]
        parameters = [*(node for node, _ in read), *self.inputs.index_parameters()]
        return RegionBody(
            ov.Model([opset15.result(r) for r in results], parameters),
            [index for _, index in read],
            shapes,
            self.bridge.regions,
            self._update_trip_count_check,
            reads_iteration=self.inputs.iteration_parameter is not None,
            collected=[index for index in self._appended if index in self._used_arrays],
        )

    def _results(self) -> list[Output]:
        """The results of an iteration or a branch, each computed by a node of its own."""
        results: list[Output] = []
        for output in (*map(self._yielded, self._block.outputs), *self._appended_elements()):
            # A parameter, a constant, or a result that occurs twice passes a Reshape to its own
            # shape: nGraph identifies a result by the node that computes it, so each needs its own
            # node.
            is_made = output.get_node().get_type_name() not in ("Parameter", "Constant")
            if not is_made or key_of(output) in map(key_of, results):
                shape = self.bridge.ints(self.bridge.shape(output))
                output = opset15.reshape(output, shape, False).output(0)
            results.append(output)
        return results

    def _yielded(self, spec: TensorSpec) -> Output:
        """The value that the body returns for a yielded tensor or TensorArray."""
        arrays = self.bridge.arrays
        if spec in arrays:
            return arrays.elements(arrays[spec])
        if spec.dtype in BYTES:
            return self.bridge.operand(spec)
        return self.bridge.integers.apply_deferred(spec)

    def _appended_elements(self) -> list[Output]:
        """The elements that an iteration appends to each TensorArray, as nodes [1, count, ...]."""
        chunks = [
            array.chunks for index, array in self._appended.items() if index in self._used_arrays
        ]
        joined = (opset15.concat(each, 0) for each in chunks)
        return [opset15.unsqueeze(each, self.bridge.ints([0])).output(0) for each in joined]

    def _complete(self, results: list[Output]) -> None:
        """Replaces hints in the body by the sizes of each iteration, once it is converted."""
        last = self._iterations.last
        if self._has_iteration_sizes and (last is None or bounds_of(last)[1] >= MAX_ITERATIONS):
            results[0] = self._checked_condition(results[0])
        if self._is_loop and self._calls_kernels():
            condition = self.bridge.shape(results[0])
            results[0] = self.bridge.extension("EndAfterError", [results[0]]).output(0)
            self.bridge.sizes.set(results[0], condition)
        if self.bridge.sizes.shapes is None:
            return
        regions = self.bridge.regions
        regions.record_sizes(self._model_of(results, regions.placeholders()))
        regions.replace_placeholders()
        self.inputs.use_runtime_sizes()

    def _calls_kernels(self) -> bool:
        """Whether an iteration calls kernels of Paddle, each of which may fail."""
        return any(
            kernel_calls.find(op) is kernel_calls.CONVERTER or op.type in kernel_calls.SAMPLERS
            for op in self._block.all_ops()
        )

    def _make_growing_args_dynamic(self) -> None:
        """Makes growing dimensions of parameters dynamic.

        nGraph does not find all of them, since it infers one loop-carried value at a time.
        """
        for node, shape, growth in zip(
            self.inputs.parameters, self.inputs.arg_shapes, self._growth
        ):
            dims = [
                -1 if _is_growth(added) else hint_of(size) for size, added in zip(shape, growth)
            ]
            node.set_partial_shape(ov.PartialShape(dims))

    def _model_of(self, results: Sequence[Output], late: Sequence[Node] = ()) -> ov.Model:
        """An OpenVINO model of these results, with all parameters of the body, then ``late``."""
        yielded = [opset15.result(result) for result in results]
        parameters = [*self.inputs.parameters, *self.inputs.index_parameters()]
        return ov.Model(yielded, [*parameters, *late])

    def _hide_size_bounds(self, results: list[Output]) -> None:
        """Hides the bounds of yielded sizes from nGraph if an initial size is outside the bounds.

        nGraph treats these bounds as bounds of the loop's result, which may be the initial value.
        """
        self._model_of(results).validate_nodes_and_infer_types()
        for index in filter(self._grows, range(self._args)):
            initial_minima = [
                bounds_of(size)[0] for size in self._outer.shape(self.inputs.sources[index])
            ]
            known = results[index + 1].get_partial_shape()
            covers = [
                not _is_growth(added) or (dim.min_length <= least and dim.max_length == -1)
                for dim, least, added in zip(known, initial_minima, self._growth[index])
            ]
            if not all(covers):
                sizes = zip(self.inputs.arg_shapes[index], self._growth[index])
                shape = self.bridge.ints([size + added for size, added in sizes])
                results[index + 1] = opset15.reshape(results[index + 1], shape, False).output(0)
        self.inputs.use_runtime_sizes()

    def _checked_condition(self, continues: Output) -> Output:
        """The condition for another iteration; false if the check of the iteration index fails.

        Paddle runs loops with more iterations than sizes allow; in the engine, such a loop ends at
        the check, which rejects the run.
        """
        next_index = opset15.add(self.inputs.iteration_index(), self.bridge.full(1, Type.i64))
        condition = (
            opset15.squeeze(continues, self.bridge.ints([0]))
            if self.bridge.shape(continues)
            else continues
        )
        next_index = opset15.select(condition, next_index, self.bridge.full(0, Type.i64))
        self._next_iteration = opset15.convert(next_index, Type.i32)
        self._iteration_check = checked = self._trip_count_check()
        is_iteration = opset15.equal(checked, self._next_iteration)
        if self.bridge.shape(continues):
            is_iteration = opset15.unsqueeze(is_iteration, self.bridge.ints([0]))
        return opset15.logical_and(continues, is_iteration).output(0)

    def _trip_count_check(self) -> Node:
        """Checks that a loop has at most as many iterations as sizes allow, as far as known.

        The checked value is the index of the next iteration if there is one, else 0.
        """
        shapes, iteration = self.bridge.sizes.shapes, self._iterations.index
        assert shapes is not None and iteration is not None
        most = shapes.guards.max_iterations(iteration)
        error = RunError(f"a loop has more than {most} iterations.")
        return self.bridge.integers.in_range(self._next_iteration, 0, most, error)

    def _update_trip_count_check(self) -> None:
        """Replaces the check of a loop's trip count by one for all sizes of the complete body."""
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
        names = [node.get_name() for node in self.inputs.parameters[: self._args]]
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
        is_iteration = opset15.greater_equal(
            self.inputs.iteration_index(), opset15.constant(np.int64(0))
        )
        for index in chosen:
            if self._grows(index):
                raise NgraphError(
                    "a growing loop-carried value becomes the earlier value of another one"
                )
            arg = self.inputs.parameters[index].output(0)
            results[index + 1] = select(is_iteration, results[index + 1], arg).output(0)

    def _has_expected_shape(self, index: int, result: Output) -> bool:
        """Whether a yielded value has the shape of its loop-carried input, plus its growth."""
        before, after = self.inputs.arg_shapes[index], self.bridge.shape(result)
        return len(before) == len(after) and all(
            size + added == found for size, added, found in zip(before, self._growth[index], after)
        )

    def _grows(self, index: int) -> bool:
        """Whether an iteration enlarges some dimension of the loop-carried value ``index``."""
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
        raise NgraphError(f"{_SHAPE_CHANGES}, and not equally in all iterations")
    return added


def _is_growth(added: Number) -> bool:
    """Whether ``added``, the size that an iteration adds to a dimension, differs from 0."""
    return not is_same_shape([added], [0])


def _grown_by_one(values: Iterable[tuple[Sequence[Number], Sequence[Number]]]) -> Number | None:
    """The initial size of a dimension to which each iteration adds 1; ``None`` if there is none.

    Args:
        values: The initial shape of each loop-carried value, and its growth.
    """
    sizes = (pair for shape, growth in values for pair in zip(shape, growth))
    return next((size for size, added in sizes if is_same_shape([added], [1])), None)


def _has_growth(growth: ShapeGrowth) -> bool:
    """Whether an iteration enlarges some dimension of some loop-carried value."""
    return any(map(_is_growth, chain(*growth)))


def _shapes_after(
    shapes: Sequence[Sequence[Number]], growth: ShapeGrowth, iterations: SymbolicSize
) -> list[list[Number]]:
    """The shapes that loop-carried values have after ``iterations`` iterations."""
    return [
        [size + added * iterations for size, added in zip(*pair)] for pair in zip(shapes, growth)
    ]
