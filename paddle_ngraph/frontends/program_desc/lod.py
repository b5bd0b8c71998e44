"""The operators of a ProgramDesc program that may read or write a LoD.

A LoD (level of detail) divides the rows of a tensor into sequences. Operators of ProgramDesc
programs pass a LoD on from inputs to outputs; engine operators do not. Executor and predictors fall
back to Paddle for runs with a LoD in a feed. In all other runs, a LoD comes from an operator that
produces one.
"""

from __future__ import annotations

from paddle_ngraph.frontends.program_desc.liveness import WITH_BLOCK
from paddle_ngraph.frontends.program_desc.single_assignment import numbered
from paddle_ngraph.paddle_private.names import VarType
from paddle_ngraph.paddle_private.protocols import LegacyOperator, LegacyProgramDesc

# Operators that write a LoD though no input has one.
PRODUCERS = frozenset(
    {
        "beam_search",
        "beam_search_decode",
        "collect_fpn_proposals",
        "ctc_align",
        "distribute_fpn_proposals",
        "filter_by_instag",
        "generate_proposal_labels",
        "generate_proposals",
        "im2sequence",
        "locality_aware_nms",
        "multiclass_nms",
        "multiclass_nms2",
        "retinanet_detection_output",
        "rpn_target_assign",
    }
)
_PRODUCER_PREFIXES = ("sequence_", "lod_reset", "lod_append")
# Operators whose outputs have no LoD though an input has one. An operator that is not listed is
# taken to pass a LoD on.
DROPS = frozenset(
    {
        "anchor_generator",
        "bilinear_interp_v2",
        "conv2d",
        "conv2d_transpose",
        "depthwise_conv2d",
        "expand_as_v2",
        "expand_v2",
        "fill_constant_batch_size_like",
        "matrix_nms",
        "mean",
        "multiclass_nms3",
        "nearest_interp_v2",
        "prior_box",
        "reduce_all",
        "reduce_any",
        "reduce_max",
        "reduce_mean",
        "reduce_min",
        "reduce_prod",
        "reduce_sum",
        "roi_align",
        "roi_pool",
        "shape",
        "size",
        "slice",
        "split",
        "tile",
    }
)
# Operators that read a LoD without an effect on the results.
_UNTOUCHED = DROPS | WITH_BLOCK.keys()
# Operators that exchange variables with the feeds, the fetches, or their own block: they are not
# computed, and in PIR they pass a LoD on.
_STRUCTURE = frozenset({"feed", "fetch", "fetch_v2"})


def operators_with_lod(description: LegacyProgramDesc, feeds_lod: bool) -> dict[int, str]:
    """Reasons against the translation of operators that may read or write a LoD, by their numbers.

    Variables are told apart by name only: a name that has a LoD once is taken to have one always.
    Of loops and branches, the operators of their blocks read and write; but PIR has no LoD for the
    results of a loop or branch.

    Args:
        description: The program.
        feeds_lod: Whether runs may feed a LoD to variables that declare one.
    """
    operators = [op for _, op in numbered(description)]
    with_lod = _declared(description, operators) if feeds_lod else set()
    size = -1
    while size < len(with_lod):
        size = len(with_lod)
        for op in operators:
            if op.type() not in WITH_BLOCK and _writes_lod(op, with_lod):
                with_lod.update(op.output_arg_names())
    return {
        number: f"{op.type()} reads or writes a LoD"
        for number, op in enumerate(operators)
        if op.type() not in _STRUCTURE
        and not with_lod.isdisjoint([*op.input_arg_names(), *op.output_arg_names()])
        and (op.type() not in _UNTOUCHED or not with_lod.isdisjoint(op.output_arg_names()))
    }


def _declared(description: LegacyProgramDesc, operators: list[LegacyOperator]) -> set[str]:
    """The variables that declare a LoD, and that no operator computes."""
    computing = (op for op in operators if op.type() not in _STRUCTURE)
    computed = {name for op in computing for name in op.output_arg_names()}
    return {
        variable.name()
        for variable in description.block(0).all_vars()
        if variable.type() == VarType.DENSE_TENSOR and variable.lod_level() > 0
    } - computed


def produces_lod(type: str) -> bool:
    """Whether an operator of this type may write a LoD though no input has one."""
    return type in PRODUCERS or type.startswith(_PRODUCER_PREFIXES)


def _writes_lod(op: LegacyOperator, with_lod: set[str]) -> bool:
    if produces_lod(op.type()):
        return True
    return op.type() not in DROPS and not with_lod.isdisjoint(op.input_arg_names())
