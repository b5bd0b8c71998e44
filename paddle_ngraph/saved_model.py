"""A saved model as Paddle Inference takes it: in both forms, from files and from buffers."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import paddle
from paddle.base import core

from paddle_ngraph import translation
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.single_assignment import NotTranslatable

# The endings of the two forms: PIR, and ProgramDesc.
ENDINGS = (".json", ".pdmodel")

# Paddle's framework.proto: the fields of a ProgramDesc, among which there must be blocks.
_BLOCKS = 1
_DESCRIPTION = frozenset({_BLOCKS, 2, 3, 4, 5})
_VARINT, _LENGTH_DELIMITED = 0, 2


@dataclass(frozen=True)
class SavedModel:
    """Where a predictor takes its program and its parameters from.

    Attributes:
        program, parameters: Their paths.
        has_separate_parameters: Whether each parameter has a file of its own.
    """

    program: str
    parameters: str
    has_separate_parameters: bool = False

    @classmethod
    def of(cls, config: Any) -> SavedModel:
        """What a ``paddle.inference.Config`` names."""
        folder = config.model_dir()
        program = config.prog_file() or os.path.join(folder, "__model__")
        return cls(program, config.params_file(), has_separate_parameters=bool(folder))

    @property
    def is_pir(self) -> bool:
        """Whether the program is PIR; Paddle goes by the ending."""
        return self.program.endswith(ENDINGS[0])

    @cached_property
    def description(self) -> Any:
        """The ``core.ProgramDesc`` of a program of that form."""
        return core.ProgramDesc(Path(self.program).read_bytes())

    def as_pir(self) -> Any:
        """The program as a PIR program.

        Raises:
            NgraphError: There is none: the file cannot be read, or not be translated.
        """
        try:
            program = self._read() if self.is_pir else translation.translate(self.description)
        except NotTranslatable as error:
            raise NgraphError(f"{self.program} cannot run as PIR: {error}") from error
        except Exception as error:  # whatever Paddle says of a damaged file
            raise NgraphError(f"{self.program} cannot be read: {last_line(error)}") from error
        if not self.is_pir and _parameters_of(program) != _persistable_in(self.description):
            raise NgraphError(f"the translation of {self.program} loses parameters")
        return program

    def _read(self) -> Any:
        program = paddle.pir.Program()
        core.deserialize_pir_program(self.program, program)
        return program

    def check(self) -> None:
        """Refuses what Paddle does not survive, or takes without a word.

        Raises:
            NgraphError: An old-style program is none, or the file of the parameters is missing.
        """
        if not os.path.isfile(self.program):
            return  # Paddle says so
        if not self.is_pir:
            fields = set(_fields(Path(self.program).read_bytes()))
            if _BLOCKS not in fields or not fields <= _DESCRIPTION:
                raise NgraphError(f"{self.program} is no program: it is damaged, or another file")
        # Paddle leaves the parameters of a PIR program as they happen to be in memory.
        elif not os.path.isfile(self.parameters) and _parameters_of(self.as_pir()):
            raise NgraphError(
                f"the parameters of {self.program} are missing: there is no {self.parameters!r}"
            )

    def stamp(self) -> tuple[tuple[int, int], ...]:
        """Changes whenever the files do."""
        stats = (os.stat(path) for path in (self.program, self.parameters) if os.path.isfile(path))
        return tuple((stat.st_size, stat.st_mtime_ns) for stat in stats)

    def give_to(self, config: Any) -> OwnFolder | None:
        """Has ``config`` take the program as PIR.

        An old-style program is translated here: Paddle's own translation loses more of it.

        Returns:
            What has to live as long as predictors of ``config`` are made or cloned.
        """
        if self.is_pir:
            return None
        if not os.path.isfile(self.parameters):
            raise NgraphError(f"there is no {self.parameters!r}")
        folder = OwnFolder()
        core.serialize_pir_program(self.as_pir(), folder / "model.json")
        config.set_model(folder / "model.json", self.parameters)
        return folder


class OwnFolder:
    """A folder for what Paddle only reads by path; gone with the object."""

    def __init__(self) -> None:
        self._path = tempfile.mkdtemp(prefix="paddle_ngraph_")
        self._opened: list[int] = []
        weakref.finalize(self, _remove, self._path, self._opened, os.getpid())

    def __truediv__(self, name: str) -> str:
        return os.path.join(self._path, name)

    def hold(self, name: str, contents: bytes) -> str:
        """Makes a file that is in memory alone. Returns its path."""
        self._opened.append(os.memfd_create(name))
        with open(self._opened[-1], "wb", closefd=False) as file:
            file.write(contents)
        os.symlink(f"/proc/self/fd/{self._opened[-1]}", self / name)
        return self / name


def _remove(path: str, opened: list[int], process: int) -> None:
    for number in opened:
        os.close(number)
    if os.getpid() == process:  # in a fork it is the parent's
        shutil.rmtree(path, ignore_errors=True)


def _fields(message: bytes) -> Iterator[int | None]:
    """The numbers of the fields of a protocol buffer; ``None`` where the bytes are no such."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        value, position = _varint(message, position)
        if key & 7 == _LENGTH_DELIMITED:
            position += value
        elif key & 7 != _VARINT:
            yield None
            return
        yield key >> 3
    if position != len(message):
        yield None


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """The whole number at ``position``, and the position behind it."""
    value, shift = 0, 0
    while position < len(message):
        byte = message[position]
        value, shift, position = value | (byte & 127) << shift, shift + 7, position + 1
        if byte < 128:
            break
    return value, position


def find(path: str) -> list[Path]:
    """The programs that ``path`` means: one file, one without its ending, or all in a folder.

    Raises:
        NgraphError: There is none.
    """
    given = Path(path)
    if given.is_dir():
        found = sorted(file for file in given.iterdir() if file.suffix in ENDINGS)
        if (given / "__model__").is_file():
            found.append(given / "__model__")
        # A model that is there in both forms counts once, as PIR.
        found = [f for f in found if f.suffix != ".pdmodel" or f.with_suffix(".json") not in found]
        found = [file for file in found if file.suffix != ".json" or _holds_program(file)]
    else:
        names = [given, *(given.with_name(given.name + ending) for ending in ENDINGS)]
        found = [file for file in names if file.is_file()][:1]
    if not found:
        raise NgraphError(f"there is no model {path}: give a .json or .pdmodel file, or its folder")
    return found


def _holds_program(file: Path) -> bool:
    """Whether a .json file is a program, and not the settings beside one."""
    with file.open("rb") as opened:
        return b'"pir"' in opened.read(4096)


def _parameters_of(program: Any) -> set[str]:
    operators = program.global_block().ops
    return {op.attrs()["parameter_name"] for op in operators if op.name() == "builtin.parameter"}


def _persistable_in(description: Any) -> set[str]:
    kinds = core.VarDesc.VarType
    variables = description.block(0).all_vars()
    return {
        variable.name()
        for variable in variables
        if variable.persistable()
        and variable.type() not in (kinds.FEED_MINIBATCH, kinds.FETCH_LIST)
    }


def last_line(error: Exception) -> str:
    """What an error of Paddle's comes down to, without the stack above it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
