"""Writes ``main.cc`` of a project: a C++ function for each block of the program."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from paddle_ngraph.codegen import cpp, statements
from paddle_ngraph.codegen.statements import (
    CppBlock,
    CppProgram,
    CppVariable,
    EngineCall,
    KernelCall,
)

_RUN = re.compile(r"\brun\b")

_TOP = """\
// Written by `python -m paddle_ngraph codegen`: the program, one function for each block. Its
// intervals are the models in model/functions, its variables the arrays in model/variables, and
// README.md says how to build and run it.
#include <limits>

{own}#include "runtime/command_line.h"
#include "runtime/run.h"

namespace {{

using native::ElementType;
using native::Run;
using native::Stack;
using native::Tensor;
using native::Tensors;
"""

_BOTTOM = """\
}}  // namespace

void native::program(Run& run) {{ block_0(run); }}

std::string native::program_id() {{ return {identity}; }}

#ifndef NGRAPH_LIBRARY
int main(int count, char** arguments) {{ return native::command_line(count, arguments); }}
#endif
"""


def text_of(program: CppProgram, identity: str) -> str:
    """The text of ``main.cc``.

    Args:
        program: The program.
        identity: The id of the program in the manifest.
    """
    # Inner blocks come first, since C++ functions have to be defined before their calls.
    blocks = (_function(block) for block in reversed(program.blocks))
    own = '#include "kernels.h"\n\n' if program.kernel_calls else ""
    parts = [_TOP.format(own=own), *blocks, _BOTTOM.format(identity=cpp.text(identity))]
    return "\n".join(parts)


def _function(block: CppBlock) -> str:
    lines = [line for statement in block.statements for line in _lines(statement, block)]
    runs = any(_RUN.search(line) for line in lines)
    parameters = ["Run& run" if runs else "Run&"]
    if block.arguments:
        parameters.append("Tensors carried")
    parameters += [f"{_type(each)}& {each.name}" for each in block.captured.values() if each.used]
    result = "Tensors" if block.number else "void"
    comment = f"Block {block.number}: {block.role}."
    head = cpp.wrapped(f"{result} block_{block.number}(", parameters, ") {")
    names = [
        f"  Tensor& {each.name} = carried[{number}];"
        for number, each in enumerate(block.arguments)
        if each.used
    ]
    if block.arguments and not names:
        names = ["  (void)carried;"]
    return "\n".join([f"// {comment}", *head, *names, *lines, "}", ""])


def _type(variable: CppVariable) -> str:
    return "Tensor" if variable.dtype else "Stack"


def _lines(statement: statements.Statement, block: CppBlock) -> Iterator[str]:
    if isinstance(statement, (statements.Feed, statements.PersistentVariable)):
        yield from _source(statement)
    elif isinstance(statement, statements.Compute):
        yield from _compute(statement)
    elif isinstance(statement, statements.KernelCall):
        yield from _kernel_call(statement)
    elif isinstance(statement, statements.EngineCall):
        yield from _interval(statement)
    elif isinstance(statement, statements.While):
        yield from _while(statement)
    elif isinstance(statement, statements.If):
        yield from _if(statement)
    elif isinstance(statement, statements.MakeStack):
        if statement.target.used:
            yield f"  Stack {statement.target.name};"
    elif isinstance(statement, statements.Push):
        yield from cpp.wrapped(f"  {statement.stack.name}.push({{", _names(statement.values), "});")
    elif isinstance(statement, statements.Pop):
        yield f"  Tensors popped_{statement.number} = {statement.stack.name}.pop();"
        yield from _references(statement.results, f"popped_{statement.number}")
    elif isinstance(statement, statements.HasElements):
        yield f"  Tensor {statement.target.name} = {statement.stack.name}.has_elements();"
    elif isinstance(statement, statements.SetVariable):
        yield f"  {statement.name} = {statement.value.name};"
    elif isinstance(statement, statements.Fetch):
        yield f"  run.fetch({cpp.text(statement.name)}, {statement.value.name});"
    elif block.number:
        yield from cpp.wrapped("  return {", _names(statement.values), "};")


def _source(statement: statements.Feed | statements.PersistentVariable) -> Iterator[str]:
    name = cpp.text(statement.name)
    if not statement.target.used:
        return
    if isinstance(statement, statements.Feed):
        yield f"  Tensor {statement.target.name} = run.feed({name});"
    else:
        yield f"  Tensor& {statement.target.name} = run.variable({name});"


def _compute(statement: statements.Compute) -> Iterator[str]:
    target, operands = statement.target, _names(statement.operands)
    # The statement is omitted if nothing reads its result. With operands it stays, since their C++
    # variables have to be read.
    if not target.used and not operands:
        return
    begin = f"  {'' if statement.in_place else 'Tensor '}{target.name} = "
    if statement.operator == "assign":
        yield f"{begin}{operands[0]};"
    else:
        arguments = [*operands, *statement.attributes]
        yield from cpp.wrapped(f"{begin}native::{statement.operator}(", arguments, ");")


def _kernel_call(call: KernelCall) -> Iterator[str]:
    called = f"called_{call.number}"
    operands = [f"{{{', '.join(_names(members))}}}" for members in call.operands]
    yield f"  // {call.description}, a kernel of Paddle."
    begin = f"  Tensors {called} = kernels::{call.function}("
    yield from cpp.wrapped(begin, cpp.braced(operands), ");")
    written = call.written()
    for number, result in enumerate(call.results):
        if result.used:
            declared = "" if result in written else "Tensor& "
            yield f"  {declared}{result.name} = {called}[{number}];"


def _interval(interval: EngineCall) -> Iterator[str]:
    made = f"made_{interval.number}"
    yield f"  // Interval {interval.number}, {interval.description}: {_summary(interval)}"
    has_results = any(output.used for output in interval.outputs)
    states = [f"&{state.name}" for state in interval.states]
    begin = f"  {f'Tensors {made} = ' if has_results else ''}run.interval("
    items = [str(interval.number), *cpp.braced(_names(interval.inputs))]
    yield from cpp.wrapped(begin, [*items, *cpp.braced(states)] if states else items, ");")
    # Checked, since the number of results comes from the model directory.
    yield from _references(interval.outputs, made, is_checked=True)


def _summary(interval: EngineCall) -> str:
    counts = Counter(op.type.removeprefix("pd_op.") for op in interval.graph.ops)
    named = [
        f"{op_type} x{count}" if count > 1 else op_type for op_type, count in counts.most_common(4)
    ]
    return ", ".join(named) + (", ..." if len(counts) > 4 else ".")


def _while(loop: statements.While) -> Iterator[str]:
    carried = f"loop_{loop.number}"
    yield from cpp.wrapped(f"  Tensors {carried} = {{", _names(loop.initial_values), "};")
    condition = f"Tensor more = {loop.condition.name}; native::is_true(more);"
    yield f"  for ({condition}) {{"
    yield f"    Tensors next = {_call(loop.body, [carried])};"
    yield "    more = next.front();"
    yield f"    {carried}.assign(next.begin() + 1, next.end());"
    yield "  }"
    yield from _references(loop.results, carried)


def _if(statement: statements.If) -> Iterator[str]:
    made = f"branch_{statement.number}"
    has_results = any(result.used for result in statement.results)
    assign = f"{made} = " if has_results else ""
    if has_results:
        yield f"  Tensors {made};"
    yield f"  if (native::is_true({statement.condition.name})) {{"
    yield f"    {assign}{_call(statement.branches[0])};"
    yield "  } else {"
    yield f"    {assign}{_call(statement.branches[1])};"
    yield "  }"
    yield from _references(statement.results, made)


def _call(block: CppBlock, first: Sequence[str] = ()) -> str:
    captured = [each.name for each in block.captured.values() if each.used]
    return f"block_{block.number}({', '.join(['run', *first, *captured])})"


def _references(
    variables: Sequence[CppVariable], source: str, is_checked: bool = False
) -> Iterator[str]:
    for number, variable in enumerate(variables):
        if variable.used:
            element = f".at({number})" if is_checked else f"[{number}]"
            yield f"  Tensor& {variable.name} = {source}{element};"


def _names(variables: Iterable[CppVariable]) -> list[str]:
    return [variable.name for variable in variables]
