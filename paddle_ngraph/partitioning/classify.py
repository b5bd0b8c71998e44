"""Classification of the operators of a block as convertible, or not with a reason.

Each operator is first examined alone. An operator that passes may still be rejected because of its
neighbours: if int64 arithmetic needs 64 bits, if an operator that Paddle runs reads an output that
the engine does not produce, or if the engine would read a value that only a converted operator
produces.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from paddle_ngraph.conversion import denylist, kernel_calls
from paddle_ngraph.conversion.registry import (
    ABSENT,
    INTEGER,
    KNOWN,
    Converter,
    Role,
    find_converter,
)
from paddle_ngraph.ir.graph import Op, compiled_for
from paddle_ngraph.ir.reasons import NO_CONVERTER
from paddle_ngraph.paddle_private.protocols import Value
from paddle_ngraph.partitioning.analysis.aliases import OVERWRITES_SHARED, may_share
from paddle_ngraph.partitioning.analysis.block_view import (
    COMMUNICATE,
    CONSTANTS,
    LISTS,
    REGIONS,
    WHILE,
    BlockView,
    OpNode,
    describe,
    is_fed,
    slots,
    value_id,
)
from paddle_ngraph.partitioning.analysis.capability import Candidates, Capability, ConvertibleBlock
from paddle_ngraph.partitioning.analysis.empty_tensors import always_empty, only_start_loops
from paddle_ngraph.partitioning.analysis.integer_ranges import Integers
from paddle_ngraph.partitioning.analysis.operator_kinds import YIELD
from paddle_ngraph.partitioning.analysis.placement import NATIVE
from paddle_ngraph.partitioning.analysis.unsized import unsized
from paddle_ngraph.partitioning.cost_model import is_matmul_or_convolution
from paddle_ngraph.partitioning.legacy_operators import reason_of
from paddle_ngraph.partitioning.subgraph import graph_of
from paddle_ngraph.utils import signals
from paddle_ngraph.utils.dtypes import BYTES

COMPUTES_EMPTY = "it computes an empty tensor, which nGraph does not support"


def classify(view: BlockView) -> Capability:
    """Determines the convertible operators of a block, and the reason against every other one."""
    return fixpoint(_Classifier(view).candidates())


def fixpoint(candidates: Candidates) -> Capability:
    """Rejects candidates for conversion until the rest is consistent: each may rule out others.

    The iteration terminates: each round rejects at least one operator, or adds an overflow check
    to at least one more, and neither is undone.
    """
    while True:
        signals.safe_point()
        integers = Integers(candidates)
        wide = integers.wide_operators()
        if checked := integers.operators_to_check():
            candidates = candidates.with_checks(checked)
            continue
        rejected = (
            wide
            or _outputs_read_natively(candidates)
            or _inputs_made_natively(candidates)
            or _empty_tensors_read_natively(candidates)
        )
        if not rejected:
            return Capability(**{**vars(candidates), "static": integers.static})
        candidates = candidates.without(rejected)


def _outputs_read_natively(candidates: Candidates) -> dict[OpNode, str]:
    """Operators whose converter omits an output that an operator which falls back reads."""
    return {
        node: "a native operator uses an output that the engine does not compute"
        for node, readers in candidates.unused_by.items()
        if candidates.can_convert(node)
        and not all(candidates.can_convert(r) and not candidates.is_kernel_call(r) for r in readers)
    }


def _inputs_made_natively(candidates: Candidates) -> dict[OpNode, str]:
    """Operators with a saved input that no converted operator produced, and the reason."""
    return {
        node: "its forward operator runs natively"
        for node in candidates.ops
        for vid in candidates.inputs_of(node, Role.SAVED)
        if not any(map(candidates.can_convert, candidates.producers(vid)))
    }


def _empty_tensors_read_natively(candidates: Candidates) -> dict[OpNode, str]:
    """Operators that compute an empty tensor from which a loop starts, if Paddle runs the loop."""
    readers = candidates.view.readers
    return {
        node: COMPUTES_EMPTY
        for node in candidates.ops.keys() - candidates.constants
        for vid in candidates.empty_starts.intersection(node.writes)
        if not all(map(candidates.can_convert, readers.get(vid, ())))
    }


class _Classifier:
    """Decides for each operator of a block, on its own, whether it can be converted.

    Args:
        view: The block.
        is_inside: Whether it is a body of a loop or branch that may belong to a subgraph.
    """

    def __init__(self, view: BlockView, is_inside: bool = False) -> None:
        self._view = view
        self._is_inside = is_inside
        empty = always_empty(view)
        self._empty_starts = only_start_loops(view, empty)
        self._empty = empty - self._empty_starts
        self._has_feed = any(node.type == "pd_op.feed" for node in view.nodes)
        self._is_fed = any(node.is_source and is_fed(node.op) for node in view.nodes)
        self._slots = {node: slots(view, node) for node in view.nodes}
        self._tensor_ids: dict[str, int] = {}
        self._unused_by: dict[OpNode, list[OpNode]] = {}
        self._bodies: dict[OpNode, list[ConvertibleBlock]] = {}
        self._calls_kernels = kernel_calls.are_enabled()
        self._unsized = unsized(view) if self._calls_kernels else frozenset()
        # Those variables of unknown size that kernel calls compute.
        self._sized_by_kernels: set[str] = set()
        # What describe() has returned, for operators without outputs to omit.
        self._descriptions: dict[OpNode, Op | str] = {}

    def candidates(self) -> Candidates:
        """Returns the operators that can be converted, each judged without regard to others."""
        ops: dict[OpNode, Op] = {}
        converters: dict[OpNode, Converter] = {}
        reasons: dict[OpNode, str] = {}
        constants = set()
        for node in self._view.nodes:
            signals.safe_point()
            entry = find_converter(node.type)
            if entry is not None and self._is_constant(node):
                described = describe(self._view, node, self._tensor_ids)
                if not isinstance(described, Op) or not _is_known(described):
                    continue
                constants.add(node)
            elif not node.is_compute:
                if node.type in LISTS and not (self._unsized - self._sized_by_kernels).intersection(
                    node.reads
                ):
                    self._sized_by_kernels.update(self._unsized.intersection(node.writes))
                continue
            else:
                described, entry = self._operator(node, entry)
            if isinstance(described, str):
                reasons[node] = described
            elif entry is not None:
                ops[node], converters[node] = described, entry
            if isinstance(described, Op) and entry is kernel_calls.CONVERTER:
                self._sized_by_kernels.update(self._unsized.intersection(node.writes))
        return Candidates(
            view=self._view,
            slots=self._slots,
            ops=ops,
            converters=converters,
            reasons=reasons,
            tensor_ids=self._tensor_ids,
            constants=frozenset(constants),
            unused_by=self._unused_by,
            bodies=self._bodies,
            unsized=self._unsized,
            empty_starts=self._empty_starts,
        )

    def _operator(self, node: OpNode, entry: Converter | None) -> tuple[Op | str, Converter | None]:
        """The operator as its converter sees it, or the reason for its fallback; the converter."""
        if entry is None:
            return self._kernel_call(node)
        described = self._described(node, entry)
        calls = self._calls_kernels and (
            self._is_sized_by_kernels(node) or self._has_dtypes_of_kernels(node, entry, described)
        )
        if calls:
            called, kernel = self._kernel_call(node)
            if isinstance(called, Op):
                return replace(called, called=True), kernel
        return described, entry

    def _is_sized_by_kernels(self, node: OpNode) -> bool:
        """Whether an operator with a converter reads a size that a kernel call determines.

        It would begin another subgraph: that pays off for operators with much work only.
        """
        if self._sized_by_kernels.isdisjoint(node.reads):
            return False
        return not is_matmul_or_convolution(node)

    def _has_dtypes_of_kernels(self, node: OpNode, entry: Converter, described: Op | str) -> bool:
        # Operators with effects stay without ids: programs that differ in these have equal graphs.
        if isinstance(described, Op) or node.effects:
            return False
        op = self._description(node)
        return isinstance(op, Op) and kernel_calls.has_dtypes_of_kernels(entry, op)

    def _kernel_call(self, node: OpNode) -> tuple[Op | str, Converter | None]:
        """An operator as a kernel call, or the reason for its fallback."""
        absent = reason_of(node.op) or ABSENT.get(node.type, NO_CONVERTER)
        if not self._calls_kernels or kernel_calls.converter_of(node.type) is None or node.effects:
            return absent, None
        if node.type in REGIONS:
            return absent, None
        described = self._described(node, kernel_calls.CONVERTER)
        if isinstance(described, str):
            return described, None
        if self._has_readers_of_lod(node):
            return "no converter, and its results have a LoD that another operator may read", None
        sized = self._sized_by_kernels
        if not (self._unsized - sized).isdisjoint(node.reads):
            return "no converter, and a size of its input depends on data", None
        sized_ids = {self._tensor_ids.get(vid) for vid in sized}
        read = (spec for spec in described.input_specs() if spec.id not in sized_ids)
        for spec in read:
            # An empty list of integers, such as axes, is no such tensor.
            if 0 in spec.shape and not (spec.shape == (0,) and spec.dtype in INTEGER):
                return "no converter, and an input is empty", None
        reads_unsized = not sized.isdisjoint(node.reads)
        if (reason := kernel_calls.reason_against(described, reads_unsized)) is not None:
            return reason, None
        return described, kernel_calls.CONVERTER

    def _description(self, node: OpNode, omitted: Collection[str] = ()) -> Op | str:
        """The operator, or the reason why it cannot be described; see :func:`describe`."""
        if omitted:
            return describe(self._view, node, self._tensor_ids, omitted)
        if node not in self._descriptions:
            self._descriptions[node] = describe(self._view, node, self._tensor_ids)
        return self._descriptions[node]

    def _has_readers_of_lod(self, node: OpNode) -> bool:
        """Whether a LoD of a result of ``node``, which functions drop, may have a reader."""
        name = kernel_calls.result_with_lod(node.type)
        if name is None:
            return False
        value = dict(zip(node.op.get_output_names(), node.op.results()))[name]
        members = self._view.result_members(value)
        if members is None or self._view.is_result(node):
            return True
        readers = [r for vid in members if vid for r, _ in self._reads_through_lists(vid)]
        read = (describe(self._view, reader, self._tensor_ids) for reader in readers)
        return not all(isinstance(op, Op) and kernel_calls.ignores_lod(op) for op in read)

    def _is_constant(self, node: OpNode) -> bool:
        return node.type in CONSTANTS and not any(map(self._view.is_overwritten, node.writes))

    def _described(self, node: OpNode, entry: Converter) -> Op | str:
        """Returns the operator as converters see it, or the reason for its fallback to Paddle."""
        if node.device == NATIVE:
            return "it is placed on native Paddle"
        if node.type in kernel_calls.SAMPLERS and not self._is_inside:
            return "functions sample by it in loops only"
        if COMMUNICATE in node.effects:
            return "it communicates with other processes"
        if (reason := self._reason_in_memory(node)) is not None:
            return reason
        op = self._description(node, entry.named(Role.OMITTED))
        if isinstance(op, str):
            return op
        if self._empty and (reason := self._reason_without_elements(node, entry, op)) is not None:
            return reason
        if node.type in REGIONS:
            return self._with_bodies(node, op)
        if self._reads_unwritten_variable(node, entry):
            return "an input has a shape, but no contents"
        self._drop_unused_inputs(node, op, entry)
        # An operator whose outputs have no reader is dropped, so its converter need not support it.
        if op.outputs_used():
            reason = entry.reason_against_roles(op) or entry.reason_against(op)
            if reason is not None:
                return reason
        if (reason := _denial_reason(node, op)) is not None:
            return reason
        if entry.draws(op) and not op.outputs_used():
            # The operator falls back to Paddle instead of being dropped: without it, the random
            # stream would not advance.
            return "its random numbers have no reader"
        return op

    def _with_bodies(self, node: OpNode, op: Op) -> Op | str:
        """Returns a loop or branch with its bodies, if all their operators can be converted."""
        if (reason := self._reason_in_blocks(node)) is not None:
            return reason
        specs = (*op.input_specs(), *op.output_specs())
        if not self._calls_kernels and (found := {s.dtype for s in specs} & BYTES.keys()):
            return f"a value is {min(found)}"
        bodies = []
        for block in node.op.blocks():
            inner = _Classifier(BlockView(block, self._view.aliases), is_inside=True)
            body = inner.body(block.args(), [self._view.values[vid] for vid in node.captured])
            if isinstance(body, str):
                return f"inside, {body}"
            bodies.append(body)
            op.blocks.append(graph_of(body))
        self._bodies[node] = bodies
        entry = find_converter(node.type)
        assert entry is not None
        return entry.reason_against(op) or _denial_reason(node, op) or op

    def _reason_without_elements(self, node: OpNode, entry: Converter, op: Op) -> str | None:
        """Returns the reason against an operator because of empty tensors, or ``None``.

        A rejected loop has engine operators in its body instead, for iterations with elements.
        """
        names = {vid: name for name, vid in self._slots[node] if vid in self._empty}
        if not names.keys().isdisjoint(node.initial_values):
            return "its initial value is an empty tensor, which nGraph does not support"
        # Of indices, empty inputs are allowed: converters may support them.
        if any(entry.role(name) not in (Role.UNUSED, Role.INDEX) for name in names.values()):
            return "it reads an empty tensor, which nGraph does not support"
        used = {spec.id for spec in op.outputs_used()}
        # Of a kernel of Paddle, shape inference declares sizes of 0 that are not known.
        if entry is not kernel_calls.CONVERTER and any(
            self._tensor_ids[vid] in used for vid in node.writes if vid in self._empty
        ):
            return COMPUTES_EMPTY
        return None

    def _reason_in_blocks(self, node: OpNode) -> str | None:
        """Returns the reason against a loop or branch because of writes in its blocks.

        A loop may append to a TensorArray of the block that contains the loop.
        """
        if not all(map(self._view.is_array, node.writes_inside)):
            return "it overwrites a variable of an outer block"
        if node.writes_inside and node.type != WHILE:
            return "it writes to a TensorArray under a condition"
        if any(map(self._view.is_outer, node.writes_inside)):
            return "it writes to a TensorArray of an outer block"
        return None

    def body(self, args: Sequence[Value], captured: Sequence[Value]) -> ConvertibleBlock | str:
        """Returns the block as the body of a loop or branch, or the reason for its fallback.

        Args:
            args: Loop-carried inputs of the body.
            captured: Variables of outer blocks that this block or its sibling block reads.
        """
        view = self._view
        if not view.nodes or view.nodes[-1].type != YIELD:
            return "a block yields no values"
        *nodes, end = view.nodes
        if not all(map(view.is_tensor, end.reads)):
            return "a yielded value is not a dense tensor"
        given = [view.known(value) for value in (*args, *captured)]
        arrays = {vid for vid in given[len(args) :] if view.is_array(vid)}
        if not all(map(view.is_tensor, {*given} - arrays)):
            return "a yielded value is not a dense tensor"
        for vid in given:
            self._tensor_ids.setdefault(vid, len(self._tensor_ids))
        candidates = self.candidates()
        for node in nodes:
            if (reason := _reason_inside(candidates, node)) is not None:
                return f"{node.type.removeprefix('pd_op.')} runs natively: {reason}"
        for node in view.nodes:
            members = (vid for read in node.reads for vid in view.members(read))
            made = ((producer, vid) for vid in members for producer in candidates.producers(vid))
            if any(candidates.is_unsized_for(node, *each) for each in made):
                return f"{node.type.rpartition('.')[2]} reads a size that depends on data"
        return ConvertibleBlock(candidates, given[: len(args)], given[len(args) :], end.reads)

    def _reason_in_memory(self, node: OpNode) -> str | None:
        """Returns why variables that an operator writes prevent its conversion; else ``None``."""
        view = self._view
        if node.is_observed:
            return OVERWRITES_SHARED
        shared = (*node.writes, *node.initial_values) if may_share(node.op) else ()
        if any(map(view.aliases.is_observed, shared)):
            return "it shares memory that another operator overwrites"
        written = [operand for operand, _ in node.overwrites if not view.is_array(operand)]
        if any(map(view.is_outer, written)):
            # The write has to remain an operator of Paddle: of an engine operator, Paddle would not
            # see the write, and would run other users of the variable concurrently.
            return "it overwrites a variable of an outer block"
        if any(view.is_named(operand) for operand, _ in node.overwrites):
            # An engine operator would write a copy: ``set_parameter`` would store a variable that
            # no operator writes.
            return "it overwrites a variable that the program names afterwards"
        if not self._is_fed and any(map(view.is_named, node.writes)):
            # The operator gives a variable its initial value: Paddle writes into its memory, which
            # others may read.
            return "it writes a variable of the scope, which may have other users"
        if any(map(view.has_aliased_name, node.writes)):
            return "it writes a variable that the program also has under another value"
        return None

    def _reads_unwritten_variable(self, node: OpNode, entry: Converter) -> bool:
        """Whether an operator reads a variable that was never written, by ``pd_op.data``.

        Only in programs that also have ``feed``: these are translated ProgramDesc programs.
        """
        if not self._has_feed:
            return False
        producer = self._view.producer
        inputs = zip(node.op.get_input_names(), node.op.operands_source())
        read = {
            value_id(value)
            for name, value in inputs
            if value.initialized() and entry.role(name) is not Role.UNUSED
        }
        return any(vid in producer and producer[vid].type == "pd_op.data" for vid in read)

    def _drop_unused_inputs(self, node: OpNode, op: Op, entry: Converter) -> None:
        for name, value in zip(node.op.get_output_names(), node.op.results()):
            if entry.output_role(name) is not Role.OMITTED:
                continue
            members = [vid for vid in self._view.result_members(value) or () if vid is not None]
            reads = [read for vid in members for read in self._reads_through_lists(vid)]
            if reads and all(self._ignores(reader, vid) for reader, vid in reads):
                op.outputs[name] = (None,) * len(op.outputs[name])
                self._unused_by.setdefault(node, []).extend(reader for reader, _ in reads)

    def _reads_through_lists(self, vid: str) -> Iterator[tuple[OpNode, str]]:
        """Yields (reader, id) for the readers of a variable, directly or as a list member."""
        for reader in self._view.readers.get(vid, ()):
            if reader.type != "builtin.combine":
                yield reader, vid
                continue
            for joined in reader.writes:
                yield from ((last, vid) for last in self._view.readers.get(joined, ()))

    def _ignores(self, reader: OpNode, vid: str) -> bool:
        entry = find_converter(reader.type)
        # An operator that only forwards a variable has no converter.
        if entry is None:
            return False
        roles = {entry.role(name) for name, v in self._slots[reader] if v == vid}
        return roles == {Role.UNUSED}


def _denial_reason(node: OpNode, op: Op) -> str | None:
    """The reason of the denylist entry for operators like ``op`` on this device, or ``None``."""
    return denylist.denial_reason(op, compiled_for(node.device))


def _reason_inside(candidates: Candidates, node: OpNode) -> str | None:
    """Returns the reason for which an operator in a body prevents conversion of the region."""
    if not candidates.can_convert(node):
        if node.type in LISTS:
            return None
        return candidates.reasons.get(node, "it belongs to the program around it")
    if node.effects and node.type not in REGIONS and node.type not in kernel_calls.SAMPLERS:
        return "it has to stay in order with others"
    if node.device:
        return "it is placed on a device"
    if node.type.rstrip("_").endswith("_grad"):
        return "gradients inside loops and branches fall back"
    return None


def _is_known(op: Op) -> bool:
    return all(spec.dtype in KNOWN for spec in op.output_specs())
