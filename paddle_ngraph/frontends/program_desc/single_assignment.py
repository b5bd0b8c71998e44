"""Single-assignment form of ProgramDesc programs, in which the translation preserves all writes.

The variables of a ProgramDesc are memory that operators may overwrite. Paddle's translation treats
a name as a value: it loses the result that an operator writes over its second input, second writes
to a persistable variable, and writes of a loop body to variables other than those of the loop. So
each write gets a name of its own first. A variable that outlives the block is assigned at the end
of the block, which is translated to an assignment in place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from paddle_ngraph.frontends.program_desc.liveness import WITH_BLOCK, Liveness
from paddle_ngraph.paddle_private.names import (
    ProgramDesc,
    VarType,
    attribute_variables,
    block_number,
    insert_operator,
    remove_variable,
    set_attribute_variables,
    translate,
)
from paddle_ngraph.paddle_private.protocols import (
    LegacyBlock,
    LegacyOperator,
    LegacyProgramDesc,
    LegacyVariable,
)
from paddle_ngraph.utils.once import once


class NotTranslatable(Exception):
    """Raised if a ProgramDesc program cannot be translated; the message is the reason."""


class LossyOperators(NotTranslatable):
    """Raised if the translation would lose information of operators, which can run unchanged.

    Attributes:
        reasons: The reason for each operator, by its number (:func:`numbered`).
    """

    def __init__(self, reasons: dict[int, str]) -> None:
        super().__init__(next(iter(reasons.values())))
        self.reasons = reasons


_TENSORS = frozenset({VarType.DENSE_TENSOR, VarType.SELECTED_ROWS})
# Operators that PIR, too, computes in place: their outputs keep the names of inputs.
IN_PLACE = frozenset(
    {
        "adadelta",
        "adagrad",
        "adam",
        "adamax",
        "adamw",
        "asgd",
        "average_accumulates",
        "batch_norm",
        "check_finite_and_unscale",
        "decayed_adagrad",
        "exponential",
        "ftrl",
        "lamb",
        "lars_momentum",
        "momentum",
        "nadam",
        "radam",
        "rmsprop",
        "rprop",
        "sgd",
        "sync_batch_norm",
        "update_loss_scaling",
    }
)


def operators(block: LegacyBlock) -> Iterator[LegacyOperator]:
    """The operators of a ProgramDesc block, in order."""
    return (block.op(i) for i in range(block.op_size()))


def blocks(description: LegacyProgramDesc) -> Iterator[LegacyBlock]:
    """The blocks of a ProgramDesc program, the outermost one first."""
    return (description.block(i) for i in range(description.num_blocks()))


def numbered(description: LegacyProgramDesc) -> Iterator[tuple[LegacyBlock, LegacyOperator]]:
    """The operators of a program with their blocks, in the order of their numbers from 0."""
    return ((block, op) for block in blocks(description) for op in operators(block))


# Added to the numbers of operators, which Paddle's own ids do not reach.
_FIRST_ID = 1 << 48


def store_numbers(description: LegacyProgramDesc) -> None:
    """Stores the number of each operator with it, for :func:`number_of`."""
    for number, (_, op) in enumerate(numbered(description)):
        op.set_original_id(_FIRST_ID + number)


def number_of(op: LegacyOperator) -> int | None:
    """The stored number of an operator; ``None`` for one that was inserted later."""
    number = op.original_id() - _FIRST_ID
    return number if number >= 0 else None


@once
def load_dialect() -> None:
    """Has Paddle register its operators in PIR, by translating an empty program."""
    translate(ProgramDesc())


def rename(description: LegacyProgramDesc) -> None:
    """Renames variables of a ``ProgramDesc`` in place, so that each has one definition."""
    _distinguish(description)
    _Renaming(description).run()


def _distinguish(description: LegacyProgramDesc) -> None:
    """Renames variables of inner blocks that have the name of another block's variable.

    Raises:
        LossyOperators: Such a variable outlives the run, and an outer block has another one.
    """
    declare_outermost(description)
    known: set[str] = set()
    for block in blocks(description):
        own = {variable.name(): variable for variable in block.all_vars()}
        for name in own.keys() & known:
            if own[name].persistable():
                reason = f"two blocks declare '{name}', which outlives a run"
                raise _lossy(_around(description, block), reason)
            renamed = f"{name}@BLOCK@{block.id}"
            copy_variable(block, own[name], renamed)
            for inner in blocks(description):
                if _declaring(description, inner, name) == block.id:
                    for op in operators(inner):
                        rename_inputs(inner, op, {name: renamed})
                        rename_outputs(op, {name: renamed})
        known |= own.keys()


def declare_outermost(description: LegacyProgramDesc) -> None:
    """Declares what outlives a run in the outermost block, where Paddle creates it.

    A variable of an inner block stays there if a block around that block has another one of the
    name, which operators would find first.
    """
    outermost = description.block(0)
    for block in list(blocks(description))[1:]:
        for variable in list(block.all_vars()):
            name = variable.name()
            if not variable.persistable() or variable.type() not in _TENSORS:
                continue
            if _is_hidden(description, block, name):
                continue
            if outermost.find_var(name.encode()) is None:
                copy_variable(outermost, variable, name)
                declared(outermost, name).set_persistable(True)
            remove_variable(block, name.encode())


def _is_hidden(description: LegacyProgramDesc, block: LegacyBlock, name: str) -> bool:
    """Whether a block around ``block`` declares a variable of this name that ends with a run."""
    while block.parent >= 0:
        block = description.block(block.parent)
        variable = block.find_var(name.encode())
        if variable is not None and not variable.persistable():
            return True
    return False


def _around(description: LegacyProgramDesc, block: LegacyBlock) -> LegacyOperator:
    """The operator that runs an inner block."""
    return next(
        op
        for _, op in numbered(description)
        if op.type() in WITH_BLOCK and block_number(op, "sub_block") == block.id
    )


def _declaring(description: LegacyProgramDesc, block: LegacyBlock, name: str) -> int | None:
    """The number of the block that declares the variable which ``block`` has under this name."""
    while block.find_var(name.encode()) is None:
        if block.parent < 0:
            return None
        block = description.block(block.parent)
    return block.id


class _Renaming:
    """Converts one description to single-assignment form.

    A *name* is the name of a variable in the original description; its *version* at a point of the
    program is the new name under which its contents are stored.
    """

    def __init__(self, description: LegacyProgramDesc) -> None:
        self._description = description
        self._writes: Counter[str] = Counter()
        self._written: set[str] = set()
        # Names of the variables of which a run reads the contents from before the run.
        self._read_before_write: set[str] = set()
        self._initialized: set[str] = set()  # names that the operators renamed so far write
        self._branch_results: set[str] = set()
        self._num_versions = 0
        # Names of variables of outer blocks that the blocks being renamed write, and nothing reads
        # later: each write has a variable of its block.
        self._unread: set[str] = set()
        self._collect_writes(description.block(0))
        self._liveness = Liveness(description)

    def run(self) -> None:
        """Renames the variables of every block, the outermost block first."""
        self._rename_block(self._description.block(0), {})

    def _collect_writes(self, block: LegacyBlock) -> None:
        """Counts the writes of variables, and finds those that are read before they are written."""
        for op in operators(block):
            # The loop or branch operator itself reads its condition only; its other operands are
            # what operators in the block read.
            if op.type() in WITH_BLOCK:
                self._read_before_write |= set(op.input(WITH_BLOCK[op.type()])) - self._written
                self._collect_writes(self._inner(op))
                continue
            if op.has_attr("sub_block"):
                raise NotTranslatable(f"{op.type()} has a block of its own")
            self._read_before_write |= set(op.input_arg_names(True)) - self._written
            if op.type() == "select_input":
                self._branch_results |= set(op.input("X"))
            renamed = self._renamed_by(block, op)
            self._writes.update(renamed)
            # A block that may not run leaves the contents from before the run.
            self._read_before_write |= {n for n in renamed if _is_kept(block, n)} - self._written
            self._written |= set(op.output_arg_names())

    def _inner(self, op: LegacyOperator) -> LegacyBlock:
        return self._description.block(block_number(op, "sub_block"))

    def _renamed_by(self, block: LegacyBlock, op: LegacyOperator) -> list[str]:
        """The names of the outputs of ``op`` that may need a new name.

        These are tensors, and no inputs that ``op`` updates in place.
        """
        if op.type() in ("feed", "fetch"):
            return []
        inputs = set(op.input_arg_names()) if op.type() in IN_PLACE else set()
        names = [name for name in op.output_arg_names() if name not in inputs]
        variables = {name: block.find_var_recursive(name.encode()) for name in names}
        return [n for n, variable in variables.items() if variable and variable.type() in _TENSORS]

    def _rename_block(
        self, block: LegacyBlock, versions: dict[str, str], num_carried: int = 0
    ) -> None:
        """Renames the variables that a block reads and writes.

        Args:
            block: The block.
            versions: The version of each name in the enclosing block.
            num_carried: The number of operators at the end that assign loop-carried variables.
        """
        outside, versions = versions, dict(versions)
        written: dict[str, None] = {}
        pending = list(operators(block))
        body, tail = pending[: len(pending) - num_carried], pending[len(pending) - num_carried :]
        for op in body:
            names = set(op.output_arg_names())
            if op.type() == "while":
                self._rename_loop(block, op, versions, written)
            elif op.type() == "conditional_block":
                names -= self._rename_branch(block, op, versions, written)
            else:
                rename_inputs(block, op, versions)
                self._rename_outputs(block, op, versions, written)
            self._initialized |= names
        for op in tail:
            rename_inputs(block, op, versions)
            rename_outputs(op, outside)
            written.pop(_output(op), None)
        for name in written:
            if name in self._unread and name not in outside:
                continue
            before = outside.get(name, name)
            if versions[name] != before and self._outlives(block, name):
                _insert_assign(block, block.op_size() - num_carried, versions[name], before)

    def _rename_loop(
        self,
        block: LegacyBlock,
        loop: LegacyOperator,
        versions: dict[str, str],
        written: dict[str, None],
    ) -> None:
        """Makes all variables of outer blocks that the body writes loop-carried.

        Paddle moves the initial values of a loop out of their variables: initial values that are
        needed later are copied first. Paddle, too, runs no loop whose variables have no contents.
        """
        body = self._inner(loop)
        names = self._outer_writes(body)
        for name in names:
            if not self._has_contents(name):
                raise _lossy(loop, f"'{name}' is first written in a loop")
            version = versions.get(name, name)
            is_own = block.find_var(version.encode()) is not None
            if is_own and (version != name or name not in self._read_before_write):
                continue
            versions[name] = self._new_version(block, name)
            written[name] = None
            _insert_assign(block, _position(block, loop), version, versions[name])
        rename_inputs(block, loop, versions)
        arrays = [n for n in loop.output("Out") if _type_of(block, n) not in _TENSORS]
        loop.set_output("Out", [versions.get(n, n) for n in names] + arrays)
        self._rename_block(body, versions, len(_carried_assigns(loop, body)))

    def _rename_branch(
        self,
        block: LegacyBlock,
        op: LegacyOperator,
        versions: dict[str, str],
        written: dict[str, None],
    ) -> set[str]:
        """Renames variables of a branch, which writes variables of outer blocks.

        The renamed branch returns those that have no contents before. The contents of one that the
        branch did not write are undefined, as they are in Paddle.

        Returns:
            The names of variables that only the branch itself reads.
        """
        rename_inputs(block, op, versions)
        inner = self._inner(op)
        unread = {
            name
            for name in self._outer_writes(inner)
            if not self._has_contents(name) and not self._liveness.is_read_after(inner, name)
        }
        results = []
        for name in self._outer_writes(inner):
            if name in unread or self._has_contents(name):
                continue
            if not self._is_new_result(name):
                versions[name] = self._new_version(block, name)
                written[name] = None
            results.append(versions.get(name, name))
        op.set_output("Out", results)
        outside, self._unread = self._unread, self._unread | unread
        self._rename_block(inner, versions)
        self._unread = outside
        return unread

    def _is_new_result(self, name: str) -> bool:
        """Whether a variable is a new result of a branch, to be selected by ``select_input``."""
        is_once = self._writes[name] == 1
        return is_once and name in self._branch_results and name not in self._read_before_write

    def _has_contents(self, name: str) -> bool:
        return name in self._read_before_write or name in self._initialized

    def _outer_writes(self, block: LegacyBlock) -> list[str]:
        """Names of the tensors of outer blocks that ``block`` or one of its inner blocks writes."""
        names: list[str] = []
        for op in operators(block):
            is_simple = op.type() not in WITH_BLOCK
            names += (
                self._renamed_by(block, op) if is_simple else self._outer_writes(self._inner(op))
            )
        return [n for n in dict.fromkeys(names) if block.find_var(n.encode()) is None]

    def _rename_outputs(
        self,
        block: LegacyBlock,
        op: LegacyOperator,
        versions: dict[str, str],
        written: dict[str, None],
    ) -> None:
        new = self._renamed_by(block, op)
        renamed = {name: versions.get(name, name) for name in op.output_arg_names()}
        for name in new:
            self._writes[name] -= 1
            renamed[name] = self._version_of_a_write(block, name)
        rename_outputs(op, renamed)
        versions.update({name: renamed[name] for name in new})
        written.update(dict.fromkeys(new))

    def _version_of_a_write(self, block: LegacyBlock, name: str) -> str:
        """The name of the version that a write of variable ``name`` creates.

        The last write uses the variable's own name, unless a run reads its initial contents.
        """
        is_last = self._writes[name] == 0 and name not in self._read_before_write
        is_own = block.find_var(name.encode()) is not None
        if name in self._unread and not is_own:
            return self._new_version(block, name)
        if is_last and (is_own or name in self._branch_results):
            return name
        return self._new_version(block, name)

    def _new_version(self, block: LegacyBlock, name: str) -> str:
        self._num_versions += 1
        version = f"{name}@VERSION@{self._num_versions}"
        copy_variable(block, declared(block, name), version)
        return version

    def _outlives(self, block: LegacyBlock, name: str) -> bool:
        """Whether a variable outlives a run of the block: persistable, or of an outer block."""
        own = block.find_var(name.encode())
        return own is None or bool(own.persistable())


def _is_kept(block: LegacyBlock, name: str) -> bool:
    """Whether an inner block writes a variable that outlives the run."""
    return block.find_var(name.encode()) is None and bool(declared(block, name).persistable())


def declared(block: LegacyBlock, name: str) -> LegacyVariable:
    """The variable of this name: that of the block, or of the nearest enclosing block."""
    variable = block.find_var_recursive(name.encode())
    if variable is None:
        raise NotTranslatable(f"'{name}' is declared nowhere")
    return variable


def copy_variable(
    block: LegacyBlock, variable: LegacyVariable, name: str, shape: Sequence[int] | None = None
) -> None:
    """Adds a copy of a variable to a block; the copy is not persistable."""
    type, dtype = variable.type(), variable.dtype()
    shape = variable.shape() if shape is None else shape
    stop_gradient = variable.stop_gradient()
    copy = block.var(name.encode())
    copy.set_type(type)
    copy.set_dtype(dtype)
    copy.set_shape(shape)
    copy.set_stop_gradient(stop_gradient)
    copy.set_persistable(False)


def _output(op: LegacyOperator) -> str:
    return str(op.output("Out")[0])


def _position(block: LegacyBlock, op: LegacyOperator) -> int:
    return next(i for i, other in enumerate(operators(block)) if other is op)


def _lossy(op: LegacyOperator, reason: str) -> NotTranslatable:
    """The error for an operator that the translation would change."""
    number = number_of(op)
    return NotTranslatable(reason) if number is None else LossyOperators({number: reason})


def _carried_assigns(loop: LegacyOperator, body: LegacyBlock) -> list[LegacyOperator]:
    """The operators at the end of a loop's body that assign the variables of the loop."""
    found: list[LegacyOperator] = []
    for op in reversed(list(operators(body))):
        if op.type() != "assign" or body.find_var(_output(op).encode()) is not None:
            break
        found.insert(0, op)
    assigned = [_output(op) for op in found]
    for i, op in enumerate(found):
        if op.input("X")[0] in assigned[:i]:
            raise _lossy(loop, "a loop passes on the same variable twice")
    return found


def rename_inputs(block: LegacyBlock, op: LegacyOperator, versions: Mapping[str, str]) -> None:
    """Renames what an operator of ``block`` reads, also in place of attributes."""
    _rename_slots(op.input_names(), op.input, op.set_input, versions)
    rename_attributes(block, op, versions)


def rename_attributes(block: LegacyBlock, op: LegacyOperator, versions: Mapping[str, str]) -> None:
    """Renames the variables that an operator of ``block`` reads in place of attributes."""
    for attribute, names in attribute_variables(op).items():
        renamed = [versions.get(name, name) for name in names]
        set_attribute_variables(op, attribute, [declared(block, name) for name in renamed])


def rename_outputs(op: LegacyOperator, versions: Mapping[str, str]) -> None:
    """Renames what an operator writes."""
    _rename_slots(op.output_names(), op.output, op.set_output, versions)


def _rename_slots(
    slots: Iterable[str],
    get: Callable[[str], list[str]],
    set: Callable[[str, list[str]], None],
    versions: Mapping[str, str],
) -> None:
    for slot in slots:
        names = get(slot)
        renamed = [versions.get(name, name) for name in names]
        if renamed != names:
            set(slot, renamed)


def _insert_assign(block: LegacyBlock, position: int, source: str, target: str) -> None:
    if _type_of(block, source) != VarType.DENSE_TENSOR:
        raise NotTranslatable(f"'{target}' is written by an operator that the translation loses")
    op = insert_operator(block, position)
    op.set_type("assign")
    op.set_input("X", [source])
    op.set_output("Out", [target])


def _type_of(block: LegacyBlock, name: str) -> Any:
    variable = block.find_var_recursive(name.encode())
    return None if variable is None else variable.type()
