"""The statements of a generated ``main.cc``, from the blocks of a rewritten program.

Each variable of the program is assigned the name of a C++ variable, and resolved through the
scopes: variables of outer blocks that a block reads become parameters of its function.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Union

from paddle_ngraph.codegen import cpp, kernels
from paddle_ngraph.codegen.kernels import PhiKernel
from paddle_ngraph.conversion import kernel_calls
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import CPU, Graph
from paddle_ngraph.paddle_private.protocols import Block, Operation, Program, Value
from paddle_ngraph.partitioning.analysis.aliases import OVERWRITES_SHARED, Aliases
from paddle_ngraph.partitioning.analysis.block_view import (
    CONSTANTS,
    FETCH,
    LISTS,
    SCOPE_NAMES,
    SOURCES,
    dtype_name,
    is_engine,
    scope_name,
)
from paddle_ngraph.partitioning.analysis.operator_kinds import (
    overwritten,
    pairs_in_place,
    value_id,
)

# Operators that the runtime (run.h) computes: the bookkeeping of control flow, on int64. In the
# engine these fall back to Paddle, since the engine has no 64-bit arithmetic.
_BINARY_OPERATORS = frozenset(
    {"add", "subtract", "multiply", "minimum", "maximum"}
    | {"equal", "not_equal", "less_than", "less_equal", "greater_than", "greater_equal"}
    | {"logical_and", "logical_or", "logical_xor"}
)
_RUNTIME_OPERATORS = _BINARY_OPERATORS | {
    "assign",
    "assign_out",
    "cast",
    "increment",
    "scale",
    "logical_not",
}
_RUNTIME_DTYPES = frozenset({"bool", "uint8", "int8", "int16", "int32", "int64", "float32"})
_SETTERS = frozenset({"builtin.set_parameter", "builtin.shadow_output", "pd_op.shadow_output"})

_LEFT_TO_PADDLE = "it falls back to Paddle in the engine, for the reason that follows"

# C++ keywords and names used in main.cc; a variable of such a name gets a suffix.
_GENERATED_NAMES = re.compile(r"(block|branch|called|loop|made|popped)_\d+")
_MACRO_NAMES = re.compile(r"[A-Z][A-Z0-9_]+")  # names like NULL and INT64_MAX may be macros in C++
_RESERVED_NAMES = frozenset(
    re.findall(
        r"\w+",
        """alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t
        char32_t class compl const const_cast constexpr continue decltype default delete do double
        dynamic_cast else enum explicit export extern false float for friend goto if inline int long
        mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public
        register reinterpret_cast return short signed sizeof static static_assert static_cast struct
        switch template this thread_local throw true try typedef typeid typename union unsigned
        using virtual void volatile wchar_t while xor xor_eq
        ElementType Run Stack Tensor Tensors carried errno kernels main more native next run std""",
    )
)


@dataclass(eq=False)
class CppVariable:
    """A variable of the program in C++.

    Attributes:
        name: The name of the variable in C++.
        dtype: Paddle's name of its dtype; empty for a stack.
        shape: The declared shape; -1 for dynamic dimensions.
        used: Whether a statement reads or writes it.
    """

    name: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    used: bool = False


@dataclass
class Feed:
    """A statement that declares a variable which each run is fed."""

    target: CppVariable
    name: str


@dataclass
class PersistentVariable:
    """A variable that outlives runs: a parameter, or the state of an optimizer."""

    target: CppVariable
    name: str


@dataclass
class Compute:
    """An operator that the runtime computes.

    Attributes:
        target: The variable that it creates, or overwrites.
        operator: The name of the runtime's function in run.h.
        operands: The variables that it reads.
        attributes: Other arguments, as C++.
        in_place: Whether the operator overwrites a variable.
        description: A readable description of its place in the program.
    """

    target: CppVariable
    operator: str
    operands: list[CppVariable]
    attributes: list[str] = field(default_factory=list)
    in_place: bool = False
    description: str = ""


@dataclass
class KernelCall:
    """An operator that one of Paddle's kernels computes.

    Attributes:
        number: The index among kernel calls.
        op: Paddle's operator.
        kernel: The kernel, and its arguments.
        description: A readable description of the operator and its place in the program.
        operands: The variables of each operand: one, several for a list, none if absent.
        results: The variables that it creates or overwrites, with lists flattened.
        overwrites: The operand that shares memory with a result, by the index of the result.
    """

    number: int
    op: Operation
    kernel: PhiKernel
    description: str
    operands: list[list[CppVariable]]
    results: list[CppVariable]
    overwrites: dict[int, int]

    @property
    def function(self) -> str:
        """The name of the C++ function in kernels.h that calls the kernel."""
        return f"{self.op.name().removeprefix('pd_op.').rstrip('_')}_{self.number}"

    def written(self) -> list[CppVariable]:
        """The variables, defined before, that the kernel overwrites."""
        return [each for operand in self.overwrites.values() for each in self.operands[operand]]


@dataclass
class EngineCall:
    """An engine operator.

    Attributes:
        number: The index of the operator in the program.
        graph: The graph of the subgraph.
        text: The graph string.
        description: A readable description of its operators.
        inputs, states: The input variables, in the order of the graph, without the weights.
        outputs: The output variables.
        weights: The names of constant parameters, by input index in the graph.
    """

    number: int
    graph: Graph
    text: str
    description: str
    inputs: list[CppVariable]
    states: list[CppVariable]
    outputs: list[CppVariable]
    weights: dict[int, str]


@dataclass
class While:
    """A loop statement: ``body`` yields the next condition, and then the loop-carried values."""

    number: int
    condition: CppVariable
    initial_values: list[CppVariable]
    results: list[CppVariable]
    body: CppBlock


@dataclass
class If:
    """A branch statement: one of two blocks runs, and yields the results."""

    number: int
    condition: CppVariable
    results: list[CppVariable]
    branches: list[CppBlock]


@dataclass
class MakeStack:
    """A statement that creates a stack of values that a forward pass saves."""

    target: CppVariable


@dataclass
class Push:
    """A statement that pushes values onto a stack."""

    stack: CppVariable
    values: list[CppVariable]


@dataclass
class Pop:
    """A statement that pops the last values from a stack."""

    number: int
    stack: CppVariable
    results: list[CppVariable]


@dataclass
class HasElements:
    """A statement that tests whether a stack is not empty: the condition of a backward loop."""

    target: CppVariable
    stack: CppVariable


@dataclass
class SetVariable:
    """A statement that sets the value of a variable that outlives runs."""

    name: str
    value: CppVariable


@dataclass
class Fetch:
    """A statement that returns a result of the program."""

    name: str
    value: CppVariable


@dataclass
class Yield:
    """A statement that ends a block, and returns values from it."""

    values: list[CppVariable]


Statement = Union[
    Feed,
    PersistentVariable,
    Compute,
    KernelCall,
    EngineCall,
    While,
    If,
    MakeStack,
    Push,
    Pop,
    HasElements,
    SetVariable,
    Fetch,
    Yield,
]


@dataclass
class CppBlock:
    """A block of the generated C++ program: its outermost block, or the body of a loop or branch.

    Attributes:
        number: The index of the block; the program itself is block 0.
        role: A readable description.
        arguments: The loop-carried variables.
        statements: The statements, in order.
        captured: The variables of outer blocks that it reads or writes, by name.
    """

    number: int
    role: str
    arguments: list[CppVariable] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    captured: dict[str, CppVariable] = field(default_factory=dict)


@dataclass
class CppProgram:
    """A program as statements of C++, from which ``main.cc`` is generated.

    Attributes:
        blocks: Block 0 first.
        feeds: The feeds of each run.
        results: The results of each run.
        persistent: The variables that outlive runs.
        intervals: All subgraphs, by index.
        kernel_calls: All kernel calls, by index.
        changes: Whether a run changes variables that outlive it.
    """

    blocks: list[CppBlock]
    feeds: list[Feed]
    results: list[Fetch]
    persistent: list[PersistentVariable]
    intervals: list[EngineCall]
    kernel_calls: list[KernelCall]
    changes: bool


class NotExpressible(NgraphError):
    """Raised for an operator that cannot be expressed in C++."""


def cpp_program_of(
    program: Program, fetches: Sequence[tuple[str, Value]], scheduled: str = ""
) -> CppProgram:
    """Translates a rewritten program into statements of C++.

    Args:
        program: A PIR program, after the program pass.
        fetches: Names and values of results; if empty, the fetches of the program.
        scheduled: The variable that a learning rate schedule sets, which becomes a feed.

    Raises:
        NotExpressible: An operator cannot be expressed; the message describes it and its place.
    """
    builder = _CppProgramBuilder(scheduled, takes_fetched=not fetches)
    block = builder.add_block(program.global_block(), None, "the program")
    for name, value in fetches:
        builder.fetch(block, name, value)
    return builder.finished()


class _CppScope:
    """The variables of a block, and the scope of the enclosing block."""

    def __init__(self, block: CppBlock, outer: _CppScope | None) -> None:
        self.block = block
        self.outer = outer
        # The C++ variable of each value in this block, by the id of the value.
        self.variables: dict[int, CppVariable] = {}
        # For each value that is a list, by its id: the values that are its members.
        self.lists: dict[int, list[Value]] = {}
        # For each list that a kernel returns, by the id of its value: the C++ variables of its
        # members.
        self.made_lists: dict[int, list[CppVariable]] = {}

    def find(self, value: Value) -> CppVariable:
        found = self._find(value.id)
        found.used = True
        return found

    def _find(self, number: int) -> CppVariable:
        if number in self.variables:
            return self.variables[number]
        if self.outer is None:
            raise NotExpressible("a variable is read that no operator computes")
        found = self.outer._find(number)
        self.block.captured[found.name] = found
        return found


class _CppProgramBuilder:
    """Builder of the statements of a program; see :func:`cpp_program_of`."""

    def __init__(self, scheduled: str, takes_fetched: bool) -> None:
        self._scheduled = scheduled
        self._takes_fetched = takes_fetched
        self._names: set[str] = set(_RESERVED_NAMES)
        self._scopes: list[_CppScope] = []
        self._feeds: dict[str, Feed] = {}
        self._persistent: dict[str, PersistentVariable] = {}
        self._intervals: list[EngineCall] = []
        self._kernel_calls: list[KernelCall] = []
        self._results: dict[str, Fetch] = {}
        self._numbers = 0
        self._changes = False
        self._description = ""

    def finished(self) -> CppProgram:
        """Returns the program, after all blocks were added."""
        return CppProgram(
            blocks=[scope.block for scope in self._scopes],
            feeds=list(self._feeds.values()),
            results=list(self._results.values()),
            persistent=[each for each in self._persistent.values() if each.target.used],
            intervals=self._intervals,
            kernel_calls=self._kernel_calls,
            changes=self._changes,
        )

    def fetch(self, scope: _CppScope, name: str, value: Value) -> None:
        """Adds a statement that returns a value as the result ``name``."""
        fetch = Fetch(name, scope.find(value))
        if name in self._results:
            raise NgraphError(f"two results are called {name!r}")
        self._results[name] = fetch
        scope.block.statements.append(fetch)

    def add_block(self, block: Block, outer: _CppScope | None, role: str) -> _CppScope:
        """Translates a block and its sub-blocks to statements; returns the scope of the block."""
        if outer is None:
            self._aliases = Aliases(block)
        scope = _CppScope(CppBlock(len(self._scopes), role), outer)
        self._scopes.append(scope)
        for value in block.args():
            scope.block.arguments.append(self._new_variable(scope, value, "carried"))
        for index, op in enumerate(block.ops):
            self._description = description = (
                f"{op.name()} (operator {index} of block {scope.block.number})"
            )
            try:
                self._operator(scope, op)
            except NotExpressible as reason:
                raise NgraphError(f"{description} is not supported in C++: {reason}") from reason
        return scope

    # -- operators ---------------------------------------------------------------------------------

    def _operator(self, scope: _CppScope, op: Operation) -> None:
        name = op.name()
        if name in SOURCES:
            self._source(scope, op)
        elif name in LISTS:
            self._list(scope, op)
        elif is_engine(name):
            self._interval(scope, op)
        elif name in _SETTERS:
            self._setter(scope, op)
        elif name == FETCH:
            if self._takes_fetched:
                self.fetch(scope, str(op.attrs()["name"]), op.operand_source(0))
        elif (special := self._special().get(name)) is not None:
            special(scope, op)
        elif name in CONSTANTS:
            self._constant(scope, op)
        else:
            self._fallback(scope, op)

    def _special(self) -> dict[str, Any]:
        return {
            "pd_op.while": self._while,
            "pd_op.if": self._if,
            "cf.yield": self._yield,
            "cf.stack_create": self._stack,
            "cf.tuple_push": self._push,
            "cf.tuple_pop": self._pop,
            "cf.has_elements": self._has_elements,
        }

    def _source(self, scope: _CppScope, op: Operation) -> None:
        if op.name() == "builtin.constant":
            raise NotExpressible("it is a constant of the scope")
        value, name = op.result(0), scope_name(op)
        is_persistent = op.name() == "builtin.parameter" or value.persistable
        outlives = is_persistent and name != self._scheduled
        known: dict[str, Any] = self._persistent if outlives else self._feeds
        if name not in known:
            # The variable is defined in the outermost scope, so that every block sees it: one name
            # is one variable.
            outermost = self._scopes[0]
            create: Any = PersistentVariable if outlives else Feed
            known[name] = create(self._new_variable(outermost, value, name), name)
            outermost.block.statements.insert(
                len(self._feeds) + len(self._persistent) - 1, known[name]
            )
        self._scopes[0].variables[value.id] = known[name].target

    def _constant(self, scope: _CppScope, op: Operation) -> None:
        attributes, target = op.attrs(), self._new_variable(scope, op.result(0))
        dtype = _cpp_dtype(target.dtype)
        if op.name() == "pd_op.full":
            shape = ", ".join(map(str, attributes["shape"]))
            arguments = [dtype, f"{{{shape}}}", cpp.number(attributes["value"])]
        else:
            numbers = ", ".join(cpp.integer(int(number)) for number in attributes["value"])
            arguments = [dtype, f"{{{numbers}}}"]
        operator = op.name().removeprefix("pd_op.")
        scope.block.statements.append(Compute(target, operator, [], arguments))

    def _list(self, scope: _CppScope, op: Operation) -> None:
        if op.name() == "builtin.combine":
            scope.lists[op.result(0).id] = op.operands_source()
        elif op.operand_source(0).id in scope.made_lists:
            made = scope.made_lists[op.operand_source(0).id]
            taken = made if op.name() == "builtin.split" else [made[op.attrs()["index"]]]
            for value, variable in zip(op.results(), taken):
                scope.variables[value.id] = variable
        else:
            members = self._members(scope, op.operand_source(0))
            parts = members if op.name() == "builtin.split" else [members[op.attrs()["index"]]]
            for value, member in zip(op.results(), parts):
                scope.variables[value.id] = scope.find(member)

    def _members(self, scope: _CppScope, value: Value) -> list[Value]:
        if not value.initialized():
            return []
        if value.id not in scope.lists:
            raise NotExpressible("it reads a list whose length is known in a run only")
        return scope.lists[value.id]

    def _interval(self, scope: _CppScope, op: Operation) -> None:
        text = str(op.attrs()["graph"])
        graph = Graph.from_string(text)
        for each in graph.ops:
            if kernel_calls.find(each) is kernel_calls.CONVERTER:
                raise NotExpressible(
                    f"its function calls Paddle's kernel of {each.type}; generate the project from "
                    "the program that was transpiled"
                )
        # Subgraphs that were placed on another device are compiled for the CPU: projects run on
        # CPUs only.
        if graph.compiled_for != CPU:
            graph = replace(graph, device=CPU)
            text = graph.to_string()
        read, written = (self._members(scope, value) for value in op.operands_source())
        weights = {number: _parameter_name(read[number]) for number in graph.weights}
        inputs = [scope.find(value) for i, value in enumerate(read) if i not in weights]
        states = [scope.find(value) for value in written]
        results = op.results()
        outputs = [self._new_variable(scope, value) for value in results[: len(graph.outputs)]]
        if states:
            scope.lists[results[-1].id] = written
        for state in states:
            self._writes(state)
        first, last = (op.attrs()["interval"][end] for end in (0, -1))
        interval = EngineCall(
            len(self._intervals),
            graph,
            text,
            f"operators {first} to {last}",
            inputs,
            states,
            outputs,
            weights,
        )
        self._intervals.append(interval)
        scope.block.statements.append(interval)

    def _while(self, scope: _CppScope, op: Operation) -> None:
        condition, *starts = (scope.find(value) for value in op.operands_source())
        (body,) = op.blocks()
        inner = self.add_block(body, scope, f"the body of a loop in block {scope.block.number}")
        results = [self._new_variable(scope, value) for value in op.results()]
        loop = While(self._number(), condition, starts, results, inner.block)
        scope.block.statements.append(loop)

    def _if(self, scope: _CppScope, op: Operation) -> None:
        condition = scope.find(op.operand_source(0))
        description = f"where {condition.name} of block {scope.block.number} is"
        branches = [
            self.add_block(block, scope, f"{description} {case}").block
            for block, case in zip(op.blocks(), ("true", "false"))
        ]
        results = [self._new_variable(scope, value) for value in op.results()]
        scope.block.statements.append(If(self._number(), condition, results, branches))

    def _yield(self, scope: _CppScope, op: Operation) -> None:
        values = [scope.find(value) for value in op.operands_source()]
        scope.block.statements.append(Yield(values))

    def _stack(self, scope: _CppScope, op: Operation) -> None:
        stack = CppVariable(self._unused_name("stack"))
        # In C++, one variable represents all three results: the stack and its two ends.
        for value in op.results():
            scope.variables[value.id] = stack
        scope.block.statements.append(MakeStack(stack))

    def _push(self, scope: _CppScope, op: Operation) -> None:
        stack, *values = (scope.find(value) for value in op.operands_source())
        scope.block.statements.append(Push(stack, values))

    def _pop(self, scope: _CppScope, op: Operation) -> None:
        stack = scope.find(op.operand_source(0))
        results = [self._new_variable(scope, value) for value in op.results()]
        scope.block.statements.append(Pop(self._number(), stack, results))

    def _has_elements(self, scope: _CppScope, op: Operation) -> None:
        stack = scope.find(op.operand_source(0))
        target = self._new_variable(scope, op.result(0))
        scope.block.statements.append(HasElements(target, stack))

    def _setter(self, scope: _CppScope, op: Operation) -> None:
        name = str(op.attrs()[SCOPE_NAMES.get(op.name(), "output_name")])
        value = scope.find(op.operand_source(0))
        outliving = self._persistent.get(name)
        if outliving is None or outliving.target is value:
            # No statement is needed: no operator of the program reads the variable, or the variable
            # has the value already.
            return
        if scope.outer is not None:
            raise NotExpressible("it sets a variable inside control flow")
        outliving.target.used = self._changes = True
        scope.block.statements.append(SetVariable(outliving.target.name, value))

    def _fallback(self, scope: _CppScope, op: Operation) -> None:
        if any(self._aliases.is_observed(value_id(operand)) for operand, _ in overwritten(op)):
            raise NotExpressible(OVERWRITES_SHARED)
        operator = op.name().removeprefix("pd_op.").removesuffix("_")
        operands = [[scope.find(v) for v in self._tensors(scope, v)] for v in op.operands_source()]
        read = [variable for members in operands for variable in members]
        if operator in _RUNTIME_OPERATORS and _is_bookkeeping(operator, op, read):
            self._computed(scope, op, operator, read)
        else:
            self._kernel(scope, op, operands)

    def _computed(
        self, scope: _CppScope, op: Operation, operator: str, operands: list[CppVariable]
    ) -> None:
        attributes = _attributes_of(operator, op)
        pairs = pairs_in_place(op)
        if not pairs:
            target = self._new_variable(scope, op.result(0))
        else:
            target = operands[op.get_input_names().index(pairs[0][0])]
            scope.variables[op.result(0).id] = target
            self._writes(target)
        operator = "assign" if operator == "assign_out" else operator
        scope.block.statements.append(
            Compute(target, operator, operands, attributes, bool(pairs), self._description)
        )

    def _kernel(self, scope: _CppScope, op: Operation, operands: list[list[CppVariable]]) -> None:
        if not op.name().startswith("pd_op."):
            raise NotExpressible(_LEFT_TO_PADDLE)
        try:
            kernel = kernels.kernel_of(op)
        except NgraphError as reason:
            raise NotExpressible(
                f"{_LEFT_TO_PADDLE}, and its kernel cannot be called: {reason}"
            ) from reason
        inputs, outputs = op.get_input_names(), op.get_output_names()
        pairs = [(inputs.index(i), outputs.index(o)) for i, o in pairs_in_place(op)]
        overwrites = {output: operand for operand, output in pairs if operands[operand]}
        results: list[CppVariable] = []
        for number, (value, type) in enumerate(zip(op.results(), kernel.results)):
            if number in overwrites:
                targets = operands[overwrites[number]]
                if isinstance(type, list):
                    scope.made_lists[value.id] = targets
                else:
                    (scope.variables[value.id],) = targets
                for target in targets:
                    self._writes(target)
                results += targets
            elif isinstance(type, list):
                members = [CppVariable(self._unused_name("v"), *_declared(each)) for each in type]
                scope.made_lists[value.id] = members
                results += members
            elif type is not None:
                results.append(self._new_variable(scope, value))
        call = KernelCall(
            len(self._kernel_calls), op, kernel, self._description, operands, results, overwrites
        )
        self._kernel_calls.append(call)
        scope.block.statements.append(call)

    def _tensors(self, scope: _CppScope, value: Value) -> list[Value]:
        """The tensors of an operand: itself, or the members of a list; none if it is absent."""
        if not value.initialized():
            return []
        return [value] if value.is_dense_tensor_type() else self._members(scope, value)

    def _writes(self, variable: CppVariable) -> None:
        self._changes |= any(each.target is variable for each in self._persistent.values())

    # -- names -------------------------------------------------------------------------------------

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers - 1

    def _new_variable(self, scope: _CppScope, value: Value, name: str = "v") -> CppVariable:
        if not value.initialized() or not value.is_dense_tensor_type():
            raise NotExpressible("its result is not a dense tensor")
        shape = tuple(max(int(size), -1) for size in value.shape)
        variable = CppVariable(self._unused_name(name), dtype_name(value.dtype), shape)
        scope.variables[value.id] = variable
        return variable

    def _unused_name(self, name: str) -> str:
        plain = re.sub(r"\W", "_", name, flags=re.ASCII).strip("_") or "v"
        plain = f"v_{plain}" if plain[0].isdigit() or _MACRO_NAMES.fullmatch(plain) else plain
        found, number = plain, 0
        while found in self._names or found == "v" or _GENERATED_NAMES.fullmatch(found):
            found, number = f"{plain}{'' if plain == 'v' else '_'}{number}", number + 1
        self._names.add(found)
        return found


def _parameter_name(value: Value) -> str:
    producer = value.get_defining_op()
    assert producer is not None
    return scope_name(producer)


def _is_bookkeeping(operator: str, op: Operation, operands: Sequence[CppVariable]) -> bool:
    """Whether the project's C++ runtime runs the operator for these declared dtypes and shapes.

    Dynamic sizes may differ: functions.py checks the given ones.
    """
    if any(operand.dtype not in _RUNTIME_DTYPES for operand in operands):
        return False
    if operator == "cast" and dtype_name(op.attrs()["dtype"]) not in _RUNTIME_DTYPES:
        return False
    if operator == "assign_out":
        return operands[0].shape == operands[1].shape
    shapes = [each.shape for each in operands if any(size != 1 for size in each.shape)]
    return all(_may_be_equal(shape, shapes[0]) for shape in shapes)


def _may_be_equal(shape: Sequence[int], other: Sequence[int]) -> bool:
    pairs = zip(shape, other)
    return len(shape) == len(other) and all(a == b or -1 in (a, b) for a, b in pairs)


def _declared(type: tuple[str, Sequence[int]]) -> tuple[str, tuple[int, ...]]:
    dtype, shape = type
    return dtype, tuple(max(int(size), -1) for size in shape)


def _attributes_of(operator: str, op: Operation) -> list[str]:
    """C++ expressions of the arguments after the operands, for a function that run.h declares."""
    attributes = op.attrs()
    if operator == "cast":
        return [_cpp_dtype(dtype_name(attributes["dtype"]))]
    if operator == "increment":
        return [cpp.number(attributes["value"])]
    if operator == "scale":
        return [cpp.number(attributes["bias"]), cpp.truth(attributes["bias_after_scale"])]
    return []


_ELEMENTS = {
    "bool": "boolean",
    "uint8": "u8",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "float32": "f32",
    "float64": "f64",
}


def _cpp_dtype(dtype: str) -> str:
    if dtype not in _ELEMENTS:
        raise NotExpressible(f"{dtype} is computed by Paddle only")
    return f"ElementType::{_ELEMENTS[dtype]}"
