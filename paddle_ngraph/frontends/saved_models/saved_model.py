"""Saved models in both formats of Paddle Inference, from files and from buffers."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np
import paddle

from paddle_ngraph import _core
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.frontends.program_desc import translation
from paddle_ngraph.frontends.program_desc.single_assignment import NotTranslatable
from paddle_ngraph.frontends.saved_models import parameter_file, protobuf
from paddle_ngraph.ir.graph import FORMAT, MAGIC
from paddle_ngraph.paddle_private import replaced
from paddle_ngraph.paddle_private.names import (
    AnalysisConfig,
    ProgramDesc,
    VarType,
    serialize_program,
)
from paddle_ngraph.paddle_private.protocols import Config, LegacyProgramDesc, Program, Scope
from paddle_ngraph.partitioning.analysis.block_view import (
    scope_name,
)
from paddle_ngraph.utils import child_process, signals
from paddle_ngraph.utils.lru_cache import LRUCache, process_cache

# Extensions of program files: the first is that of PIR, the second that of ProgramDesc.
ENDINGS = (".json", ".pdmodel")
PARAMETERS = ".pdiparams"
# The file names of Paddle 1, equal for all models: of the program, and of a file with all
# parameters.
OLD_PROGRAM, OLD_PARAMETERS = "__model__", "__params__"
# Pattern of the files of compiled functions, in a folder next to the program.
FUNCTIONS_GLOB = "*.ngraph"

# The field ids of a ProgramDesc in Paddle's framework.proto; a program must have the field of
# blocks.
_BLOCKS = 1
_FIELDS = frozenset({_BLOCKS, 2, 3, 4, 5})
# Text that a PIR program contains if it has an engine operator.
_ENGINE_MARKER = b".ngraph_engine_"
# The digest in the first line of a graph string.
_GRAPH_DIGEST_PATTERN = re.compile(rb"%s %d ([0-9a-f]{64}) " % (MAGIC.encode(), FORMAT))
# Text at the beginning of a PIR program that was saved without parameter attributes that predictors
# need.
_UNTRAINABLE_PATTERN = re.compile(rb'"trainable"\s*:\s*false')
_HEADER_BYTES = 256


@dataclass(frozen=True)
class SavedModel:
    """The files of a predictor's program and parameters.

    Attributes:
        program, parameters: Paths.
        has_separate_parameters: Whether each parameter has its own file, next to the program.
    """

    program: str
    parameters: str
    has_separate_parameters: bool = False

    @classmethod
    def of(cls, config: Config) -> SavedModel:
        """The model that a ``paddle.inference.Config`` names."""
        folder = config.model_dir()
        program = config.prog_file() or os.path.join(folder, OLD_PROGRAM)
        separate = bool(folder) and not config.params_file()
        return cls(program, config.params_file(), has_separate_parameters=separate)

    @classmethod
    def at(cls, program: Path) -> SavedModel:
        """The model of a program file, whose parameters are in a file next to it."""
        if program.name != OLD_PROGRAM:
            return cls(str(program), str(program.with_suffix(PARAMETERS)))
        parameters = program.with_name(OLD_PARAMETERS)
        if parameters.is_file():
            return cls(str(program), str(parameters))
        return cls(str(program), "", has_separate_parameters=True)

    def config(self) -> Config:
        """Creates a ``paddle.inference.Config`` for the model."""
        if self.has_separate_parameters:
            return AnalysisConfig(os.path.dirname(self.program) or ".")
        return AnalysisConfig(self.program, self.parameters)

    @property
    def is_pir(self) -> bool:
        """Whether the file name has the extension of PIR programs, by which Paddle decides, too."""
        return self.program.endswith(ENDINGS[0])

    @property
    def has_engines(self) -> bool:
        """Whether the saved program already contains engine operators."""
        return (
            self.is_pir and os.path.isfile(self.program) and _ENGINE_MARKER in _read(self.program)
        )

    @cached_property
    def _contents(self) -> bytes:
        """The contents of the file of a program that is not PIR."""
        return _read(self.program)

    @cached_property
    def description(self) -> LegacyProgramDesc:
        """Reads a program that is not PIR, as ``ProgramDesc``."""
        return ProgramDesc(self._contents)

    def _read_as_pir(self, feeds_lod: bool, overwritten: Iterable[str] = ()) -> Program:
        with signals.own_errors():
            try:
                if self.is_pir:
                    return self._read()
                description = translation.with_parameters(self.description, overwritten)
                return translation.translate(description, feeds_lod, may_chain=False)
            except NotTranslatable as error:
                raise NgraphError(f"{self.program} cannot run as PIR: {error}") from error
            except Exception as error:  # any error of Paddle for a damaged file
                raise NgraphError(f"{self.program} cannot be read: {last_line(error)}") from error

    def as_pir(self, feeds_lod: bool = True) -> Program:
        """The program as a PIR program, translated if necessary.

        Args:
            feeds_lod: As in :func:`translation.translate`.

        Raises:
            NgraphError: The file cannot be read, or the program cannot be translated.
        """
        with signals.deferred_signals():
            program = self._read_as_pir(feeds_lod)
            if self.is_pir:
                return program
            # Predictors read the parameters of the file in their order, also those that the program
            # overwrites before it reads them.
            known = _persistable_in(self.description)
            if overwritten := known - set(_parameters_of(program)):
                program = self._read_as_pir(feeds_lod, overwritten)
        if set(_parameters_of(program)) != known:
            raise NgraphError(f"the translation of {self.program} loses parameters")
        return program

    def try_reading(self) -> None:
        """Reads the program as :meth:`as_pir` does, in a child process.

        Raises:
            NgraphError: Paddle crashes, as on operators of a ProgramDesc that lack operands or
                blocks. Errors that it reports are those of :meth:`as_pir`.
        """
        name = child_process.signal_of_trial(lambda: self.as_pir(feeds_lod=False))
        if name is not None:
            raise NgraphError(
                f"{self.program} cannot be read: Paddle crashes on it ({name}), so it is damaged"
            )

    def _read(self) -> Program:
        program: Program = paddle.pir.Program()
        replaced.OPEN_PROGRAM.current(self.program, program)
        return program

    def check(self) -> None:
        """Rejects models on which Paddle would crash, or that Paddle would accept silently.

        Raises:
            NgraphError: A file is not a ProgramDesc, the program was saved with
                ``trainable=False``, or the parameter file is missing or truncated.
        """
        if not os.path.isfile(self.program):
            return  # no check: Paddle reports the missing file
        if not self.is_pir:
            if not _is_program_desc(self._contents):
                raise NgraphError(
                    f"{self.program} is not a program: it is damaged, or another type of file"
                )
            if self.has_separate_parameters:
                parameter_file.check_files(
                    os.path.dirname(self.program), _persistable_in(self.description)
                )
            else:
                parameter_file.check_file(self.parameters)
            return
        if (
            _UNTRAINABLE_PATTERN.search(_read(self.program)[:_HEADER_BYTES])
            and self._has_parameters
        ):
            raise NgraphError(
                f"{self.program} was saved with trainable=False: Paddle crashes on such "
                "parameters in a predictor; save it without"
            )
        # Raises an error for a missing file: Paddle would leave the parameters of a PIR program
        # uninitialized.
        if not os.path.isfile(self.parameters) and self._has_parameters:
            raise self._missing_parameters()
        parameter_file.check_file(self.parameters)

    def check_parameters(self, program: Program) -> None:
        """Rejects a parameter file that does not match the program, which is this model's.

        Raises:
            NgraphError: The number of parameters or a shape differs. Separate files are compared
                when they are joined.
        """
        shapes = _parameters_of(program)
        if not shapes or self.has_separate_parameters:
            return
        if not os.path.isfile(self.parameters):
            raise self._missing_parameters()
        found = list(parameter_file.tensors_in(self.parameters))
        declared = [shapes[name] for name in sorted(shapes)]
        if len(found) != len(declared):
            raise NgraphError(
                f"{self.parameters} holds {len(found)} parameters, {self.program} has "
                f"{len(declared)}"
            )
        for name, (found_shape, expected) in zip(sorted(shapes), zip(found, declared)):
            sizes = zip_longest(found_shape, expected)
            if any(size not in (known, -1) for known, size in sizes):
                raise NgraphError(
                    f"{self.parameters} holds {name!r} in the shape {list(found_shape)}, "
                    f"{self.program} has {list(expected)}"
                )

    def _missing_parameters(self) -> NgraphError:
        return NgraphError(
            f"the parameters of {self.program} are missing: there is no {self.parameters!r}"
        )

    def parameters_among(self, names: Iterable[str]) -> frozenset[str]:
        """The ``names``, of inputs or outputs, that are names of parameters."""
        # In PIR, a name with this prefix is a computed result, never a parameter.
        candidates = [
            name for name in names if not (self.is_pir and name.startswith("fetch_name_"))
        ]
        if not candidates:
            return frozenset()
        known = _parameters_of(self.as_pir()) if self.is_pir else _persistable_in(self.description)
        return frozenset(known).intersection(candidates)

    @property
    def _has_parameters(self) -> bool:
        return bool(_parameters_of(self.as_pir()))

    def file_stamp(self) -> tuple[tuple[int, int], ...]:
        """The size and modification time of each file, by which changes are detected."""
        files = [self.program, self.parameters]
        if self.has_separate_parameters:
            files += [entry.path for entry in os.scandir(os.path.dirname(self.program) or ".")]
        stats = (os.stat(path) for path in sorted(files) if os.path.isfile(path))
        return tuple((stat.st_size, stat.st_mtime_ns) for stat in stats)

    def configure(self, config: Config) -> list[TemporaryFolder]:
        """Sets the model of ``config`` to the program as PIR, with parameters in one file.

        A ProgramDesc program is translated here, since Paddle's own translation loses more of it;
        programs of equal contents once.

        Returns:
            Objects that must live as long as predictors of ``config`` are created or cloned. None
            if the program is PIR already, with ``config`` unchanged.
        """
        if self.is_pir:
            return []
        translated = self._translation()
        folders = [translated.folder]
        if self.has_separate_parameters:
            folders.append(TemporaryFolder())
        config.set_model(translated.program, self._in_one_file(translated.shapes, folders[-1]))
        # In a ``Config`` of a ProgramDesc model, its folder would otherwise remain set.
        config.set_model("")
        return folders

    def _translation(self) -> Translation:
        """The translation of a program that is not PIR, for predictors."""
        key = _core.digest(self._contents)
        found = _translations.get(key)
        # Something else than this process may clean folders of temporary files.
        if found is None or not os.path.isfile(found.program):
            program, folder = self.as_pir(feeds_lod=False), TemporaryFolder()
            translation.feed_by_data(program)
            found = Translation(folder, _parameters_of(program))
            serialize_program(program, found.program)
            _translations.put(key, found)
        return found

    def _in_one_file(
        self, shapes: Mapping[str, parameter_file.Shape], folder: TemporaryFolder
    ) -> str:
        if not shapes:
            return ""
        if self.has_separate_parameters:
            return folder.add_file("model.pdiparams", self._joined(shapes))
        if not os.path.isfile(self.parameters):
            raise NgraphError(f"there is no {self.parameters!r}")
        return self.parameters

    def copy_parameters(self, path: str) -> None:
        """Writes the model's parameters to one file, ``path``; no file if there are none."""
        shapes = _parameters_of(self.as_pir())
        if self.has_separate_parameters and shapes:
            with open(path, "wb") as file:
                file.writelines(self._joined(shapes))
        elif shapes:
            shutil.copyfile(self.parameters, path)

    def _joined(self, shapes: Mapping[str, parameter_file.Shape]) -> Iterator[bytes]:
        """The contents of the parameter files, in the order of parameters in one file.

        Raises:
            NgraphError: A file is missing, damaged, or has another shape than the program.
        """
        for name in sorted(shapes):
            if parameter_file.leads_out(name):
                raise NgraphError(f"the parameter {name!r} would be outside of the model's folder")
            path = os.path.join(os.path.dirname(self.program), name)
            if not os.path.isfile(path):
                raise NgraphError(f"the parameter {name!r} is missing: there is no {path!r}")
            found = list(parameter_file.tensors_in(path))
            if found != [shapes[name]]:
                raise NgraphError(f"{path} holds {found}, the program says {shapes[name]}")
            yield _read(path)

    def load(self) -> tuple[Program, Scope]:
        """Loads the saved model: its program as a PIR program, and a scope with its parameters.

        Raises:
            NgraphError: The model is incomplete or damaged, or cannot be translated.
        """
        if not os.path.isfile(self.program):
            raise NgraphError(f"there is no {self.program!r}")
        self.check()
        program = self.as_pir()
        self.check_parameters(program)
        translation.rename_as_pir(program)
        folder, scope = TemporaryFolder(), paddle.static.Scope()
        parameters = self._in_one_file(_parameters_of(program), folder)
        serialize_program(program, folder / "model.json")
        SavedModel(folder / "model.json", parameters).load_parameters(scope)
        return program, scope

    def load_parameters(self, scope: Scope) -> None:
        """Loads the parameters of the model, a PIR program, into a scope."""
        names = sorted(_parameters_of(self.as_pir()))
        tensors = [scope.var(name).get_tensor() for name in names]
        # Each tensor gets memory first: Paddle reads the device of a tensor before it loads the
        # data.
        for tensor in tensors:
            tensor.set(np.zeros(1, "float32"), paddle.CPUPlace())
        if names:
            load = replaced.LOAD_COMBINED.current
            load(self.parameters, names, tensors, False, paddle.CPUPlace())


class TemporaryFolder:
    """A folder for files that Paddle reads only by path; deleted with the object."""

    def __init__(self) -> None:
        self._path = tempfile.mkdtemp(prefix="paddle_ngraph_")
        self._descriptors: list[int] = []
        weakref.finalize(self, _remove, self._path, self._descriptors, os.getpid())

    def __truediv__(self, name: str) -> str:
        return os.path.join(self._path, name)

    def add_file(self, name: str, contents: Iterable[bytes]) -> str:
        """Creates a file in memory, without a disk, in this folder; returns its path."""
        self._descriptors.append(os.memfd_create(name))
        with open(self._descriptors[-1], "wb", closefd=False) as file:
            file.writelines(contents)
        os.symlink(f"/proc/self/fd/{self._descriptors[-1]}", self / name)
        return self / name


class Translation(NamedTuple):
    """The translation of a ProgramDesc program, in a file.

    Attributes:
        folder: Contains the file.
        shapes: The shape of each parameter by name.
    """

    folder: TemporaryFolder
    shapes: Mapping[str, parameter_file.Shape]

    @property
    def program(self) -> str:
        """The path of the file."""
        return self.folder / "model.json"


_translations: LRUCache[bytes, Translation] = process_cache(
    __name__,
    "translations",
    "translations of ProgramDesc programs for predictors, in files",
    key="digest of the contents of the program",
    bound=64,
)


def _remove(path: str, descriptors: list[int], process_id: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
    # A forked process leaves the folder alone, which belongs to its parent.
    if os.getpid() == process_id:
        with signals.own_errors():
            shutil.rmtree(path, ignore_errors=True)


def _read(path: str) -> bytes:
    return Path(path).read_bytes()


def _is_program_desc(contents: bytes) -> bool:
    """Whether the bytes of a file may be a ProgramDesc: fields of its message, with blocks."""
    try:
        found = {number for number, _, _ in protobuf.fields(contents)}
    except ValueError:
        return False
    return _BLOCKS in found and found <= _FIELDS


def is_misnamed_program_desc(path: str) -> bool:
    """Whether a file that is opened as PIR is a ProgramDesc."""
    return not path.endswith(ENDINGS[0]) and _is_program_desc(_read(path))


# -- functions of a saved model -------------------------------------------------------------------


def functions_folder(program: str) -> Path:
    """The path of the folder for the compiled functions of a saved program."""
    return Path(program).absolute().with_suffix(".ngraph")


def files_at(prefix: Path) -> list[Path]:
    """All files and folders that belong to a model with engine operators."""
    program = f"{prefix}{ENDINGS[0]}"
    return [Path(program), Path(f"{prefix}{PARAMETERS}"), functions_folder(program)]


class Identity(NamedTuple):
    """The contents of the files of a model with engine operators.

    Attributes:
        digest: A digest of program and parameters, to which functions beside the model are bound.
        graphs: The digests of its graph strings.
        weights: The digests of its parameters.
    """

    digest: bytes
    graphs: list[str]
    weights: list[bytes]


_identities: LRUCache[Hashable, Identity] = process_cache(
    __name__,
    "model_identities",
    "digests of models with functions beside them",
    key="device, inode, size and times of program and parameters",
    bound=256,
)


def identity_of(program: str, parameters: str) -> Identity:
    """The identity of the model in these files; there may be no parameters.

    Raises:
        NgraphError: A file is damaged.
        OSError: The program cannot be read.
    """
    stamps = [_identifying_stamp(path) for path in (program, parameters) if os.path.isfile(path)]
    return _identities.get_or_create(tuple(stamps), lambda: _read_identity(program, parameters))


def _read_identity(program: str, parameters: str) -> Identity:
    text, weights = _read(program), []
    if os.path.isfile(parameters):
        tensors = parameter_file.stored_tensors(parameters)
        parts = [(tensor.offset, tensor.num_bytes) for tensor in tensors]
        weights = _core.digests_in_file(parameters, parts)
    graphs = sorted({found.decode() for found in _GRAPH_DIGEST_PATTERN.findall(text)})
    return Identity(_core.digest(b"".join([_core.digest(text), *weights])), graphs, weights)


def _identifying_stamp(path: str) -> tuple[int, ...]:
    stat = os.stat(path)
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


def use_functions_folder(program: str, parameters: str | None = None) -> None:
    """Adds the functions folder of a program that is opened to the engine's search path.

    Only files and folders that the program's owner alone can write are used, since the owner could
    have written the program as well; and only for graphs and weights of the model.

    Args:
        program: The file of the program.
        parameters: The file of its parameters; by default the file of that name beside it.
    """
    folder = functions_folder(program)
    if not folder.is_dir():
        return
    found = parameters or str(Path(program).absolute().with_suffix(PARAMETERS))
    with signals.recognized_signals():
        try:
            identity, owner = identity_of(program, found), os.stat(program).st_uid
        except (NgraphError, OSError) as error:  # reported when Paddle opens the file
            signals.raise_if_from_outside(error)
            return
    _core.add_model_folder(str(folder), owner, *identity)


def find(path: str) -> list[Path]:
    """The programs at ``path``: one file, with or without extension, or all files in a folder.

    Raises:
        NgraphError: There is no program.
    """
    given = Path(path)
    if given.is_dir():
        found = sorted(file for file in given.iterdir() if file.suffix in ENDINGS)
        if (given / OLD_PROGRAM).is_file():
            found.append(given / OLD_PROGRAM)
        # If a model exists in both formats, only the file of PIR is listed.
        found = [f for f in found if f.suffix != ".pdmodel" or f.with_suffix(".json") not in found]
        found = [file for file in found if file.suffix != ".json" or _is_program(file)]
    else:
        names = [given, *(given.with_name(given.name + ending) for ending in ENDINGS)]
        found = [file for file in names if file.is_file()][:1]
    if not found:
        raise NgraphError(f"there is no model {path}: give a .json or .pdmodel file, or its folder")
    return found


def find_only(path: str) -> Path:
    """The program at ``path``, as :func:`find` finds it, where there must be exactly one.

    Raises:
        NgraphError: There is no program, or there are several.
    """
    programs = find(path)
    if len(programs) > 1:
        names = ", ".join(map(str, programs))
        raise NgraphError(f"there are several models in {path}: give one of {names}")
    return programs[0]


def _is_program(file: Path) -> bool:
    """Whether a .json file is a program, and not the settings of one."""
    with file.open("rb") as stream:
        return b'"pir"' in stream.read(4096)


def _parameters_of(program: Program) -> dict[str, parameter_file.Shape]:
    """The shape of each parameter by name, and of optimizer state in a training program."""
    return {
        scope_name(op): tuple(op.result(0).shape)
        for op in program.global_block().ops
        if op.name() == "builtin.parameter"
        or (op.name() == "pd_op.data" and op.result(0).persistable)
    }


def _persistable_in(description: LegacyProgramDesc) -> set[str]:
    types = VarType
    variables = description.block(0).all_vars()
    return {
        variable.name()
        for variable in variables
        if variable.persistable()
        and variable.type() not in (types.FEED_MINIBATCH, types.FETCH_LIST)
    }


def last_line(error: Exception) -> str:
    """The last line of a Paddle error: the message, without the stack before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
