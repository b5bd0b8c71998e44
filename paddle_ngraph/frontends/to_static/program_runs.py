"""Runs of a program of dynamic mode on tensors, which leave nothing in a scope.

Paddle's operator for the programs of a layer leaves the saved forward state in the scope of its
run, for one backward pass. Here the forward program returns the saved values, too, and the backward
program takes them as inputs: each run has a scope until it ends, and a backward pass can be
repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from random import Random
from typing import Any

import paddle

from paddle_ngraph.frontends.executor.whole_program import WholeLayer, find_layer
from paddle_ngraph.frontends.to_static import scope_pool
from paddle_ngraph.paddle_private.names import (
    NO_GRADIENT,
    attribute_map,
    is_reusable,
    new_scope,
    operators,
    set_reusable,
)
from paddle_ngraph.paddle_private.protocols import Program, Scope, Value
from paddle_ngraph.partitioning.analysis.block_view import SHADOW_OUTPUT, scope_name
from paddle_ngraph.utils import signals

# Generates random ids for programs. Paddle caches its interpreters permanently, by a linear sum of
# the program's id and the address of the scope: ids 4 apart collide with scopes 1040 bytes apart,
# and Paddle then runs the interpreter of another program.
_random = Random(__name__)


def random_program_id() -> int:
    """A number by which Paddle finds the interpreters of a program."""
    return _random.getrandbits(63)


class StatelessProgram:
    """A program of dynamic mode, as a function of tensors.

    Args:
        program: The program.
        input_names: The names of the variables that it reads.
        outputs: The variables that it returns, by name.
        graph_options: Paddle's options for CUDA graphs.
        contexts: At most three context managers, in which the program runs.
        whole: The program, if it is one engine operator.
    """

    def __init__(
        self,
        program: Program,
        input_names: Sequence[str],
        outputs: dict[str, Value],
        graph_options: Any,
        contexts: Sequence[AbstractContextManager[Any]],
        whole: WholeLayer | None,
    ) -> None:
        unused = ("fp", "fm", "bm", "bo", "bo_g", "bp", "bp_g", "bx", "bx_g", "no_need_buffers")
        self.is_whole = whole is not None
        self._whole = whole
        none: AbstractContextManager[Any] = nullcontext()
        self._contexts = [*contexts, *[none] * (3 - len(contexts))]
        self._graph_options = graph_options
        self._attributes = attribute_map(
            {
                **{f"{kind}_names": [] for kind in unused},
                "fx_names": list(input_names),
                "fo_names": list(outputs),
                "fo_values": list(outputs.values()),
                "forward_program": program,
                "backward_program": paddle.static.Program(),
                "is_test": True,
                "program_id": random_program_id(),
                "in_sot_mode": True,
            }
        )
        self._scopes: list[Scope] = []
        self._has_run = False

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        """Runs the program, while gradients are off; returns its outputs."""
        returned = self._run_whole(inputs)
        if returned is not None:
            return returned
        if self._has_run:
            return self._run_by_paddle(inputs)
        # The first run builds functions, perhaps in other threads.
        with signals.seen_by_other_threads():
            outputs = self._run_by_paddle(inputs)
        self._has_run = True
        return outputs

    def _run_by_paddle(self, inputs: list[Any]) -> Sequence[Any]:
        scope = scope_pool.claim(self._find_scope)
        first, second, third = self._contexts
        try:
            with first, second, third:
                outputs: Sequence[Any] = operators.run_program(
                    inputs, [], [scope], self._attributes, self._graph_options
                )
        except BaseException:
            set_reusable(scope, True)  # Paddle does so itself after other runs
            raise
        return outputs

    def _run_whole(self, inputs: list[Any]) -> Sequence[Any] | None:
        if self._whole is None:
            return None
        with signals.own_errors():
            try:
                return self._whole.run_on(inputs)
            except Exception:
                # Paddle runs the program again, and its error shows the location in the user's
                # code, too.
                return None

    def _find_scope(self) -> Scope:
        found = next((each for each in self._scopes if is_reusable(each)), None)
        if found is None:
            found = new_scope()
            self._scopes.append(found)
        return found


class TrainingPrograms:
    """The forward and the backward program of a layer.

    Args:
        forward, backward: The programs.
        names: Paddle's names of their inputs and outputs (``program_attr``).
        graph_options: Paddle's options for CUDA graphs.
        forward_contexts: Context managers, in which the forward program runs.
        backward_contexts: Those for the backward program.
        may_be_whole: Whether the forward program may run without Paddle, as one engine operator.
    """

    def __init__(
        self,
        forward: Program,
        backward: Program,
        names: dict[str, Any],
        graph_options: Any,
        forward_contexts: Sequence[AbstractContextManager[Any]] = (),
        backward_contexts: Sequence[AbstractContextManager[Any]] = (),
        may_be_whole: bool = False,
    ) -> None:
        inputs, outputs = list(names["fx_names"]), list(names["fo_names"])
        arguments = backward.global_block().kwargs()
        read = [name for name, value in arguments.items() if not value.use_empty()]
        gradients = list(names["bo_g_names"])
        saved = [name for name in read if name not in gradients]
        new = [name for name in saved if name not in inputs and name not in outputs]
        known = [*inputs, *outputs, *new]
        returned = list(dict.fromkeys([*outputs, *new]))
        self._returned = [returned.index(name) for name in (*outputs, *new)]
        self._num_outputs = len(outputs)
        # The tensors that the backward program reads, as indices in ``known``.
        self._saved = [known.index(name) for name in saved]
        shapes_only = set(names["no_need_buffers_names"]) & set(new)
        self._shapes_only = [at for at, name in enumerate(saved) if name in shapes_only]
        self._gradients_read = [at for at, name in enumerate(gradients) if name in read]
        given = [*saved, *(gradients[at] for at in self._gradients_read)]
        computed = [name for name in dict.fromkeys(names["bx_g_names"]) if name != NO_GRADIENT]
        # For each input, the index of its gradient.
        self._gradients = [
            None if name == NO_GRADIENT else computed.index(name) for name in names["bx_g_names"]
        ]
        forward_values = _named_values(forward)
        self._forward = StatelessProgram(
            forward,
            inputs,
            {name: forward_values[name] for name in returned},
            graph_options,
            forward_contexts,
            find_layer(forward, inputs, returned) if may_be_whole else None,
        )
        backward_values = arguments | _named_values(backward)
        self._backward = StatelessProgram(
            backward,
            given,
            {name: backward_values[name] for name in computed},
            graph_options,
            backward_contexts,
            find_layer(backward, given, computed),
        )
        # Operators of Paddle may overwrite values that only the graph has.
        own: set[str] = set() if self._backward.is_whole else set(new) - shapes_only
        self._overwritable = [at for at, name in enumerate(saved) if name in own]

    @property
    def is_whole(self) -> bool:
        """Whether both programs run without an interpreter of Paddle."""
        return self._forward.is_whole and self._backward.is_whole

    def run_forward(self, inputs: list[Any]) -> tuple[list[Any], list[Any]]:
        """Returns the outputs of the layer, and the values that :meth:`run_backward` takes.

        Of values whose contents are not read, those are the shape and the dtype.
        """
        returned = self._forward(inputs)
        results = [returned[at] for at in self._returned]
        outputs = results[: self._num_outputs]
        # The saved outputs are detached: the others get an autograd node, which references the
        # saved ones.
        values = [*inputs, *(each.detach() for each in outputs), *results[self._num_outputs :]]
        saved = [values[index] for index in self._saved]
        for at in self._shapes_only:
            saved[at] = saved[at].shape, saved[at].dtype
        return outputs, saved

    def run_backward(
        self, saved: Sequence[Any], gradients: Sequence[Any], is_repeatable: bool
    ) -> list[Any]:
        """Returns the gradients of the inputs; ``None`` for an input without one.

        Args:
            saved: The values from :meth:`run_forward`.
            gradients: The gradients of the outputs.
            is_repeatable: Whether ``saved`` must be left unchanged.
        """
        given = list(saved)
        for at in self._shapes_only:
            given[at] = paddle.empty(*given[at])
        for at in self._overwritable if is_repeatable else ():
            given[at] = given[at].clone()
        for at in self._gradients_read:
            gradient = gradients[at]
            given.append(gradient if gradient.is_contiguous() else gradient.contiguous())
        computed = self._backward(given)
        return [None if at is None else computed[at] for at in self._gradients]


def _named_values(program: Program) -> dict[str, Value]:
    """The values that a program stores in variables of its scope, by name."""
    ops = program.global_block().ops
    return {scope_name(op): op.operand_source(0) for op in ops if op.name() == SHADOW_OUTPUT}
