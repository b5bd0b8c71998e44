"""Patches of Paddle's functions that open models and parameter files."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any

import paddle

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.frontends.saved_models import parameter_file
from paddle_ngraph.paddle_private import replaced
from paddle_ngraph.paddle_private.names import VarType
from paddle_ngraph.paddle_private.protocols import Program
from paddle_ngraph.utils import first_use


def install() -> None:
    """Patches the opening of models: to find their functions, and to reject damaged files."""
    replaced.OPEN_PROGRAM.replace(_with_functions_folder)
    replaced.LOAD_VARIABLES.replace(_checking_files)
    replaced.LOAD_COMBINED.replace(_checking_file)


def _with_functions_folder(original: Callable[..., bool]) -> Callable[..., bool]:
    """Prepares the process for a program with engine operators, or of a given order.

    Rejects a ProgramDesc opened as PIR, for which Paddle only reports a non-UTF-8 byte.
    """

    @wraps(original)
    def deserialize_pir_program(path: str, program: Program, *args: Any) -> bool:
        from paddle_ngraph.frontends.saved_models import saved_model
        from paddle_ngraph.partitioning.analysis.block_view import has_engines, is_sequential

        if os.path.isfile(path):
            saved_model.use_functions_folder(path)
            if saved_model.is_misnamed_program_desc(path):
                raise NgraphError(
                    f"{path} is a ProgramDesc program: load and run it in the context "
                    "paddle.pir_utils.OldIrGuard()"
                )
        is_trainable = original(path, program, *args)
        if is_sequential(program) or has_engines(program):
            first_use.begin()
        return is_trainable

    return deserialize_pir_program


def _checking_file(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def load_combine_func(path: str, *args: Any) -> None:
        parameter_file.check_file(path)
        original(path, *args)

    return load_combine_func


def _checking_files(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def load_vars(
        executor: Any,
        dirname: Any = None,
        main_program: Any = None,
        vars: Any = None,
        predicate: Any = None,
        filename: Any = None,
    ) -> None:
        # load_vars() calls itself with these arguments once it has resolved them: checked only
        # then.
        if vars is not None and dirname is not None:
            vars = list(vars)
            if filename:
                parameter_file.check_file(os.path.join(dirname, filename))
            else:
                parameter_file.check_files(
                    dirname, [each.name for each in vars if _is_tensor(each)]
                )
        original(executor, dirname, main_program, vars, predicate, filename)

    return load_vars


def _is_tensor(variable: Any) -> bool:
    is_pir = isinstance(variable, paddle.pir.Value)
    return is_pir or variable.type == VarType.DENSE_TENSOR
