"""ProgramDesc operators that a translated program runs in program order, in one scope.

These are operators with effects, with blocks that the translation does not have, and those that
share other variables than dense tensors (partitioning/operator_chains.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import count
from typing import Any, NamedTuple

from paddle_ngraph.frontends.program_desc.liveness import WITH_BLOCK
from paddle_ngraph.frontends.program_desc.single_assignment import NotTranslatable
from paddle_ngraph.ir.graph import is_random
from paddle_ngraph.paddle_private.names import (
    AttrType,
    ProgramMessage,
    VarType,
    remove_operators,
    remove_variable,
)
from paddle_ngraph.paddle_private.protocols import LegacyProgramDesc
from paddle_ngraph.partitioning import operator_chains
from paddle_ngraph.partitioning.analysis.block_view import ACT, COMMUNICATE, DRAW
from paddle_ngraph.partitioning.analysis.operator_kinds import CALLS_PYTHON
from paddle_ngraph.partitioning.legacy_operators import ABSENT

# Kinds of variables that only operators of a chain may share.
KINDS = {
    VarType.DENSE_TENSOR_ARRAY: "a TensorArray",
    VarType.SELECTED_ROWS: "rows of a sparse gradient",
    VarType.STEP_SCOPES: "the scopes of a block",
}
# Types of operators that show something, in an order.
SHOWN = frozenset({"assert", "print"})
_PYTHON = "py_func"
# Attributes of operators that communicate if the attribute is set, and that read or write a file.
_REMOTE, _FILE = ("endpoints", "epmap"), "file_path"
# Samplers that draw from a generator of their own in each run, if their seed is not 0.
SEEDED = frozenset(
    {
        *("gaussian_inplace", "gaussian_random", "randint", "seed", "truncated_gaussian_random"),
        *("uniform_random", "uniform_random_batch_size_like", "uniform_random_inplace"),
    }
)

# What operators with these effects do.
_EFFECTS = {
    CALLS_PYTHON: "calls Python",
    ACT: "acts in an order",
    DRAW: "draws from the generator of all samplers",
    COMMUNICATE: "communicates",
}

# A variable: the number of the block that declares it, and its name.
Key = tuple[int, str]


class _Node(NamedTuple):
    """An operator of the program, by its number.

    Attributes:
        block: The number of its block.
        message: The operator, in Paddle's format.
        around: The number of the operator with this block; ``None`` in the outermost block.
    """

    block: int
    message: Any
    around: int | None


class ChainedUnit(NamedTuple):
    """An operator of a chain, with the blocks that it runs.

    Attributes:
        text: Its description.
        inputs, outputs: The names of the dense tensors that it reads and writes.
    """

    text: str
    inputs: list[str]
    outputs: list[str]


class Chains:
    """Which operators of a program can only run in a chain, and their descriptions.

    Args:
        description: The program, which is not changed.
        owner: Names the programs whose equal operators share their state, such as how often one
            has printed; none by default.

    Raises:
        NotTranslatable: An operator runs a block that it is inside of, as in a damaged file.
    """

    def __init__(self, description: LegacyProgramDesc, owner: str = "") -> None:
        self._owner = owner or f"translation {next(_translations)}"
        self._message = ProgramMessage.FromString(description.serialize_to_string())
        self._variables = {
            block.idx: {variable.name: variable for variable in block.vars}
            for block in self._message.blocks
        }
        pairs = [(block.idx, op) for block in self._message.blocks for op in block.ops]
        for block, op in pairs:
            if any(inner <= block for inner in _inner_blocks(op)):
                raise NotTranslatable(f"{op.type} runs a block of the program around it")
        around = {
            inner: number for number, (_, op) in enumerate(pairs) for inner in _inner_blocks(op)
        }
        self._nodes = [_Node(block, op, around.get(block)) for block, op in pairs]
        self._inside: dict[int, list[int]] = defaultdict(list)
        for number, node in enumerate(self._nodes):
            if node.around is not None:
                self._inside[node.around].append(number)

    # -- which operators -----------------------------------------------------------------------

    def reasons(self) -> dict[int, str]:
        """Reasons against the translation of operators that their blocks and variables show."""
        found = {}
        for number, node in enumerate(self._nodes):
            type = node.message.type
            if _inner_blocks(node.message) and type not in WITH_BLOCK:
                found[number] = f"PIR has no {type}"
            elif any(self._kind(key) == VarType.SELECTED_ROWS for key in self._own(number)):
                found[number] = f"{type} reads or writes {KINDS[VarType.SELECTED_ROWS]}"
        users: dict[Key, list[int]] = defaultdict(list)
        for number in range(len(self._nodes)):
            for key in self._own(number):
                if self._kind(key) == VarType.STEP_SCOPES:
                    users[key].append(number)
        for numbers in users.values():
            for number in numbers if len(numbers) > 1 else ():
                found.setdefault(number, "a gradient reads the scopes of its runs")
        return found

    def completed(self, unchanged: dict[int, str]) -> dict[int, str]:
        """All operators that stay if these do, with the reasons; without those inside others."""
        found = dict(unchanged)
        while new := self._implied(found):
            found.update(new)
        return {n: reason for n, reason in found.items() if not self._is_inside(n, found)}

    def _implied(self, unchanged: dict[int, str]) -> dict[int, str]:
        shared = {key for number in unchanged for key in self._others(number)}
        new: dict[int, str] = {}
        for number, node in enumerate(self._nodes):
            if number not in unchanged:
                if common := shared.intersection(self._own(number)):
                    kinds = sorted({self._shown_kind(key) for key in common})
                    new[number] = (
                        f"it shares {', '.join(kinds)} with an operator that stays as it is"
                    )
            elif node.around is not None and node.around not in unchanged and self._others(number):
                new[node.around] = "an operator of its block stays as it is, with other variables"
        acts = any(ACT in self.effects(number) for number in unchanged)
        for number, node in enumerate(self._nodes):
            if acts and number not in unchanged and node.message.type in SHOWN:
                new[number] = f"{node.message.type} keeps its order with operators that stay"
        return new

    def _is_inside(self, number: int, others: dict[int, str]) -> bool:
        around = self._nodes[number].around
        while around is not None:
            if around in others:
                return True
            around = self._nodes[around].around
        return False

    def _own(self, number: int) -> set[Key]:
        """The variables other than dense tensors among the operands of an operator."""
        node = self._nodes[number]
        keys = (self._key(node.block, name) for name in _names(node.message))
        return {key for key in keys if key is not None and self._kind(key) != VarType.DENSE_TENSOR}

    def _others(self, number: int) -> set[Key]:
        """The variables of `_own`, with those from around its blocks that operators inside use."""
        own, inner = self._own(number), self._tree(number)
        for each in self._inside.get(number, ()):
            own |= {key for key in self._others(each) if key[0] not in inner}
        return own

    def _key(self, block: int, name: str) -> Key | None:
        while block >= 0:
            if name in self._variables[block]:
                return block, name
            block = self._message.blocks[block].parent_idx
        return None

    def _kind(self, key: Key) -> int:
        found: int = self._variables[key[0]][key[1]].type.type
        return found

    def _shown_kind(self, key: Key) -> str:
        return KINDS.get(VarType(self._kind(key)), "a variable of another kind")

    def _tree(self, number: int) -> list[int]:
        """The numbers of the blocks that an operator runs, outer ones first."""
        pending, found = list(_inner_blocks(self._nodes[number].message)), []
        while pending:
            block = pending.pop(0)
            if block not in found:
                found.append(block)
                ops = self._message.blocks[block].ops
                pending += [inner for op in ops for inner in _inner_blocks(op)]
        return found

    # -- effects -------------------------------------------------------------------------------

    def effects(self, number: int) -> frozenset[str]:
        """The effects of an operator, and of those inside (analysis/block_view.py)."""
        found = _effects(self._nodes[number].message)
        return found.union(*(self.effects(each) for each in self._inside.get(number, ())))

    def needs_chain(self, number: int) -> bool:
        """Whether an operator cannot run on its own, in a scope of its own."""
        is_simple = not (self._own(number) or _inner_blocks(self._nodes[number].message))
        return not is_simple or bool(self.effects(number))

    def empty(self, description: LegacyProgramDesc, number: int) -> None:
        """Removes what is in the blocks of an operator that a chain runs."""
        for block in map(description.block, self._tree(number)):
            remove_operators(block)
            for variable in list(block.all_vars()):
                remove_variable(block, variable.name().encode())

    # -- descriptions --------------------------------------------------------------------------

    def reject(self, unchanged: dict[int, str]) -> None:
        """Raises :class:`NotTranslatable` if one of these operators needs a chain."""
        for number, reason in unchanged.items():
            if self.needs_chain(number):
                type = self._nodes[number].message.type
                why = (
                    f"{type} cannot stay as it is in a saved program, since it {self._why(number)}"
                )
                raise NotTranslatable(f"{reason}; {why}")

    def _why(self, number: int) -> str:
        """Why an operator can only run in a chain."""
        effects = self.effects(number)
        found = [text for effect, text in _EFFECTS.items() if effect in effects]
        if kinds := sorted({self._shown_kind(key) for key in self._own(number)}):
            found.append(f"reads or writes {', '.join(kinds)}")
        return " and ".join(found) or "runs a block of the program"

    def unit(self, number: int) -> ChainedUnit:
        """The description of an operator with its blocks.

        Raises:
            NotTranslatable: A variable other than a dense tensor is not one of the run alone.
        """
        node, tree = self._nodes[number], self._tree(number)
        own = [*_read_names(node.message), *_written_names(node.message)]
        keys = dict.fromkeys(
            key
            for block, names in [(node.block, own), *self._names_in(tree)]
            for name in names
            if (key := self._key(block, name)) is not None and key[0] not in tree
        )
        names = [name for _, name in keys]
        if len(set(names)) < len(names):
            raise NotTranslatable(f"blocks of {node.message.type} declare one name twice")
        for block in tree:
            for name, variable in self._variables[block].items():
                if variable.persistable:
                    raise NotTranslatable(f"two blocks declare '{name}', which outlives a run")
        for key in keys:
            self._check_kind(key, node.message.type)
        dense = [key[1] for key in keys if self._kind(key) == VarType.DENSE_TENSOR]
        read, written = set(_read_names(node.message)), set(_written_names(node.message))
        for each in self._messages_in(tree):
            read.update(_read_names(each))
            written.update(_written_names(each))
        inputs = [n for n in dense if n in read | (written if tree else set())]
        if tree:
            inputs = [name for name in inputs if self._has_contents(number, name)]
        program = self._fragment(number, tree, list(keys))
        outputs = [name for name in dense if name in written]
        properties = operator_chains.Properties(
            state=f"{self._owner}, operator {number}",
            calls_python=CALLS_PYTHON in self.effects(number),
        )
        text = operator_chains.text_of(program, inputs, outputs, properties)
        return ChainedUnit(text, inputs, outputs)

    def _check_kind(self, key: Key, type: str) -> None:
        kind, variable = self._kind(key), self._variables[key[0]][key[1]]
        if kind == VarType.DENSE_TENSOR:
            return
        if kind not in KINDS or variable.persistable:
            raise NotTranslatable(f"{type} uses '{key[1]}', which outlives a run and is no tensor")
        for node in self._nodes:
            if node.message.type in _STRUCTURE and key[1] in _names(node.message):
                raise NotTranslatable(f"'{key[1]}' is fetched, which is {self._shown_kind(key)}")

    def _names_in(self, tree: Iterable[int]) -> Iterator[tuple[int, list[str]]]:
        for block in tree:
            for op in self._message.blocks[block].ops:
                yield block, _names(op)

    def _messages_in(self, tree: Iterable[int]) -> Iterator[Any]:
        return (op for block in tree for op in self._message.blocks[block].ops)

    def _has_contents(self, number: int, name: str) -> bool:
        """Whether a variable has contents before an operator with blocks."""
        key = self._key(self._nodes[number].block, name)
        if key is None:
            return False
        variable = self._variables[key[0]][name]
        is_given = variable.persistable or variable.need_check_feed
        return is_given or self._first_writes.get(name, number) < number

    @cached_property
    def _first_writes(self) -> dict[str, int]:
        """The number of the first operator that writes a variable, by name."""
        found: dict[str, int] = {}
        for number, node in enumerate(self._nodes):
            for name in _written_names(node.message):
                found.setdefault(name, number)
        return found

    def _fragment(self, number: int, tree: list[int], keys: Sequence[Key]) -> bytes:
        """A program of an operator alone, with the blocks that it runs."""
        node, program = self._nodes[number], ProgramMessage()
        forward = self._forward_of(number)
        tree = (
            [*tree, *(each for each in self._tree(forward) if each not in tree)]
            if (forward is not None)
            else tree
        )
        numbers = {block: index for index, block in enumerate(tree, 1)}
        outermost = program.blocks.add(idx=0, parent_idx=-1)
        for block, name in keys:
            outermost.vars.append(self._variables[block][name])
        if forward is not None:
            _append_unrun(outermost, self._nodes[forward].message)
        outermost.ops.append(node.message)
        for block in tree:
            copy = program.blocks.add()
            copy.CopyFrom(self._message.blocks[block])
            _set(
                copy,
                idx=numbers[block],
                parent_idx=numbers.get(copy.parent_idx, 0),
                forward_block_idx=numbers.get(copy.forward_block_idx, -1),
            )
        kept = self._names_of_gradient(number)
        for copy in program.blocks:
            for op in copy.ops:
                _renumber(op, numbers)
                if kept and op.type in WITH_BLOCK:
                    _keep(op, kept)
        program.version.CopyFrom(self._message.version)
        serialized: bytes = program.SerializeToString()
        return serialized

    def _forward_of(self, number: int) -> int | None:
        """The operator of whose blocks an operator computes the gradient."""
        message = self._nodes[number].message
        if not message.type.endswith(_GRADIENT):
            return None
        scopes = {key for key in self._own(number) if self._kind(key) == VarType.STEP_SCOPES}
        type = message.type.removesuffix(_GRADIENT)
        for other, node in enumerate(self._nodes):
            if node.message.type == type and scopes & self._own(other):
                return other
        return None

    def _names_of_gradient(self, number: int) -> list[str]:
        """The variables of its blocks that the gradient of an operator reads."""
        gradients = [n for n in range(len(self._nodes)) if self._forward_of(n) == number]
        found = (
            name for n in gradients for _, names in self._names_in(self._tree(n)) for name in names
        )
        return list(dict.fromkeys(found))


_translations = count(1)
_GRADIENT = "_grad"
_STRUCTURE = frozenset({"feed", "fetch", "fetch_v2"})
_NEVER, _UNUSED = "@never@", "@unused@"


def _set(message: Any, **fields: Any) -> None:
    """Sets fields of a message of Paddle's."""
    message.MergeFrom(type(message)(**fields))


def _append_unrun(block: Any, forward: Any) -> None:
    """Appends the operator of a gradient, under a condition that is false.

    Paddle prepares the gradient of a loop or branch only where it finds the loop or branch.
    """
    never = block.vars.add(name=_NEVER)
    _set(never.type, type=VarType.DENSE_TENSOR)
    _set(never.type.dense_tensor.tensor, data_type=VarType.BOOL, dims=[1])
    _set(block.vars.add(name=_UNUSED).type, type=VarType.STEP_SCOPES)
    fill = block.ops.add(type="fill_constant")
    fill.outputs.add(parameter="Out", arguments=[_NEVER])
    fill.attrs.add(name="shape", type=AttrType.LONGS, longs=[1])
    fill.attrs.add(name="dtype", type=AttrType.INT, i=int(VarType.BOOL))
    fill.attrs.add(name="value", type=AttrType.FLOAT, f=0.0)
    unrun = block.ops.add()
    unrun.CopyFrom(forward)
    for each in unrun.inputs:
        if each.parameter in WITH_BLOCK.values():
            each.arguments[:] = [_NEVER]
    for each in unrun.outputs:
        if each.parameter == "StepScopes":  # a loop that does not run would clear them
            each.arguments[:] = [_UNUSED]
    for attribute in unrun.attrs:
        if attribute.name == "is_scalar_condition":
            _set(attribute, b=True)


def _keep(op: Any, names: list[str]) -> None:
    """Has an operator keep these variables in the scopes of its runs."""
    for attribute in op.attrs:
        if attribute.name == "skip_eager_deletion_vars":
            attribute.strings[:] = names
            return
    op.attrs.add(name="skip_eager_deletion_vars", type=AttrType.STRINGS, strings=names)


def _renumber(op: Any, numbers: dict[int, int]) -> None:
    for attribute in op.attrs:
        if attribute.type == AttrType.BLOCK:
            _set(attribute, block_idx=numbers[attribute.block_idx])
        elif attribute.type == AttrType.BLOCKS:
            attribute.blocks_idx[:] = [numbers[each] for each in attribute.blocks_idx]


def _inner_blocks(op: Any) -> list[int]:
    found = [a.block_idx for a in op.attrs if a.type == AttrType.BLOCK]
    return found + [each for a in op.attrs if a.type == AttrType.BLOCKS for each in a.blocks_idx]


def _read_names(op: Any) -> list[str]:
    names = [name for slot in op.inputs for name in slot.arguments]
    names += [a.var_name for a in op.attrs if a.type == AttrType.VAR]
    names += [name for a in op.attrs if a.type == AttrType.VARS for name in a.vars_name]
    return [name for name in names if name != ABSENT]


def _written_names(op: Any) -> list[str]:
    return [name for slot in op.outputs for name in slot.arguments if name != ABSENT]


def _names(op: Any) -> list[str]:
    return [*_read_names(op), *_written_names(op)]


def _effects(op: Any) -> frozenset[str]:
    """The effects of an operator, without those inside."""
    attributes = {each.name: each for each in op.attrs}
    found = set()
    if op.type in SHOWN or _FILE in attributes:
        found.add(ACT)
    if op.type == _PYTHON:
        found.update((ACT, DRAW, CALLS_PYTHON))
    if _samples(op.type, attributes):
        found.add(DRAW)
    if "ring_id" in attributes or any(attributes[n].strings for n in _REMOTE if n in attributes):
        found.add(COMMUNICATE)
    return frozenset(found)


def _samples(type: str, attributes: dict[str, Any]) -> bool:
    """Whether an operator may draw random numbers from a generator that it shares with others."""
    if type in SEEDED and "seed" in attributes and attributes["seed"].i:
        return False
    is_evaluation = "is_test" in attributes and attributes["is_test"].b
    return ("seed" in attributes or is_random(f"pd_op.{type}")) and not is_evaluation
