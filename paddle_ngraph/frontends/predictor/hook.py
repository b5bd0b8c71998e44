"""The predictor hook: the link between Paddle Inference and the program pass.

A predictor runs on one of two Paddle predictors: the plain one with the user's configuration, and
the engine's, which is created from a copy of that configuration. The flag at creation time selects
the predictor that is returned to the user. The other one, its counterpart, is created when the flag
is switched, and its results are shared with the user's predictor, to which the user's handles
belong. Paddle's class is patched, not replaced, so the name under which a module imported it does
not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import paddle.inference  # not by names, of which some are patched

from paddle_ngraph import _core, flags, statistics
from paddle_ngraph.conversion import denylist, kernel_calls
from paddle_ngraph.errors import NgraphError, printable
from paddle_ngraph.frontends import program_id
from paddle_ngraph.frontends.executor import weight_writes
from paddle_ngraph.frontends.executor.whole_program import WholePredictor
from paddle_ngraph.frontends.predictor.onednn_choice import OneDnnChoices
from paddle_ngraph.frontends.program_desc import translation
from paddle_ngraph.frontends.saved_models import saved_model
from paddle_ngraph.frontends.saved_models.saved_model import SavedModel
from paddle_ngraph.paddle_private import replaced
from paddle_ngraph.paddle_private.names import (
    AnalysisConfig,
    DenseTensor,
    PaddleDType,
    copy_of,
    operators_compute,
)
from paddle_ngraph.paddle_private.protocols import Config, Handle, Predictor, Scope, Tensor
from paddle_ngraph.partitioning import background_compile, cost_model, program_pass
from paddle_ngraph.partitioning.analysis.aliases import OVERWRITES_SHARED
from paddle_ngraph.partitioning.analysis.block_view import changes_parameters
from paddle_ngraph.partitioning.block_report import IntervalReport
from paddle_ngraph.partitioning.report import Report
from paddle_ngraph.partitioning.whole_program import Whole
from paddle_ngraph.settings import SETTINGS
from paddle_ngraph.utils import clock, first_use, signals
from paddle_ngraph.utils.fork_safe_locks import new_lock
from paddle_ngraph.utils.measured_choice import MeasuredChoice, TimedCall
from paddle_ngraph.warning_codes import WarningCode, warn

T = TypeVar("T")

PASS = "ngraph_pass"

_NOT_CONVERTIBLE, _COST_RULE = int(_core.Reason.NOT_CONVERTIBLE), int(_core.Reason.COST_RULE)
_NOT_REWRITTEN, _CONFIGURATION = map(int, (_core.Reason.NOT_REWRITTEN, _core.Reason.CONFIGURATION))
_SAMPLES, _ONEDNN = int(_core.Reason.SAMPLES), int(_core.Reason.ONEDNN)
_WRITES_PARAMETERS, _HOOKS = int(_core.Reason.WRITES_PARAMETERS), int(_core.Reason.HOOKS)
_SHARED_MEMORY, _LOD_FEED = int(_core.Reason.SHARED_MEMORY), int(_core.Reason.LOD_FEED)
_FILES_CHANGED, _ENGINE_FAILED = map(int, (_core.Reason.FILES_CHANGED, _core.Reason.ENGINE_FAILED))

_create: Callable[[Config], Predictor] = replaced.CREATE_PREDICTOR.original
_init = replaced.INIT_PREDICTOR.original
_run = replaced.RUN_PREDICTOR.original
_clone: Callable[..., Predictor] = replaced.CLONE_PREDICTOR.original
_init_config = replaced.CREATE_CONFIG.original
_enable_custom_passes = replaced.ENABLE_PASSES.original

# Getters of a configuration for settings that the engine does not support.
_UNSUPPORTED_GETTERS = {
    "use_gpu": "it runs on a GPU",
    "use_xpu": "it runs on an XPU",
    "tensorrt_engine_enabled": "it runs on TensorRT",
    "onnxruntime_enabled": "it runs on ONNX Runtime",
    "openvino_engine_enabled": "it runs on Paddle's own OpenVINO",
    "onednn_int8_enabled": "it computes in int8",
    "shape_range_info_collected": "it collects shapes",
}
# Options in the summary of a configuration that the engine does not support; these have no getter.
_UNSUPPORTED_OPTIONS = {
    "use_cinn_compiler": "it is compiled by CINN",
    "save_optimized_model": "it saves the program that Paddle has optimized",
    "use_optimized_model": "its program is one that Paddle has optimized",
}
# Setters of unsupported settings that cannot be read.
_UNSUPPORTED_SETTERS = {
    "enable_onednn_bfloat16": "oneDNN computes in bfloat16",
    "enable_mkldnn_bfloat16": "oneDNN computes in bfloat16",
    "enable_custom_device": "it runs on a custom device",
}


_install_lock = new_lock()
_is_installed = False


def install() -> None:
    """Installs the hook, once; other threads wait until that is done."""
    global _is_installed
    if _is_installed:
        return
    with _install_lock:
        if not _is_installed:
            _install()
            _is_installed = True


def _install() -> None:
    weight_writes.install_for_predictors()
    replaced.CREATE_PREDICTOR.replace(lambda _: create_predictor)
    replaced.ENABLE_PASSES.replace(lambda _: _recording_passes)
    replaced.SET_THREADS.replace(_recording_threads)
    replaced.SET_MODEL_BUFFER.replace(_recording_buffers)
    replaced.MODEL_FROM_MEMORY.replace(_model_from_memory)
    for target in replaced.CONFIG_SETTERS:
        target.replace(partial(_recording_unsupported, reason=_UNSUPPORTED_SETTERS[target.name]))
    replaced.INIT_PREDICTOR.replace(lambda _: _init_switched)
    replaced.RUN_PREDICTOR.replace(lambda _: _run_switched)
    replaced.CLONE_PREDICTOR.replace(lambda _: _clone_switched)
    for target in replaced.FREE_MEMORY:
        target.replace(_on_both_predictors)
    for target in replaced.HOOK_OPERATORS:
        target.replace(_on_plain_predictor)
    for target in replaced.GET_HANDLES:
        target.replace(_exposing_handles)
    replaced.SET_LOD.replace(_recording_lod)
    replaced.CREATE_POOL.replace(lambda _: staticmethod(_create_pool))


def install_pool() -> None:
    """Patches the copying of results, which with the engine on uses pooled memory."""
    replaced.COPY_RESULT.replace(_copying_to_pool)


def _uninterrupted(function: Callable[..., T]) -> Callable[..., T]:
    """Has no handler of a signal but Ctrl-C run while Paddle creates or runs a predictor.

    Paddle's predictors run, and are created, one at a time.
    """

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> T:
        with signals.deferred_signals(except_ctrl_c=True):
            return function(*args, **kwargs)

    return call


# -- configurations ----------------------------------------------------------------------------


@dataclass
class _ConfigSettings:
    """Settings of a configuration that have no getter.

    Attributes:
        passes, only_passes: The arguments of ``enable_custom_passes``.
        folder: Contains the model, if it was passed in buffers.
        why_native: A reason from ``_UNSUPPORTED_SETTERS``.
        threads: The argument of ``set_cpu_math_library_num_threads``; 0: not called.
    """

    passes: list[str] = field(default_factory=list)
    only_passes: bool = False
    folder: saved_model.TemporaryFolder | None = None
    why_native: str | None = None
    threads: int = 0


_settings: WeakKeyDictionary[Config, _ConfigSettings] = WeakKeyDictionary()


def _settings_of(config: Config) -> _ConfigSettings:
    return _settings.setdefault(config, _ConfigSettings())


@wraps(_init_config)
def init_config(self: Config, *args: Any) -> None:
    """Initializes a configuration; a copy has the settings of its original."""
    _init_config(self, *args)
    if args and isinstance(args[0], AnalysisConfig) and args[0] in _settings:
        _settings[self] = copy(_settings[args[0]])


@wraps(_enable_custom_passes)
def _recording_passes(
    self: Config, passes: Sequence[str] = (), custom_pass_only: bool = False
) -> None:
    _enable_custom_passes(self, list(passes), custom_pass_only)
    settings = _settings_of(self)
    settings.passes, settings.only_passes = list(passes), custom_pass_only


def _recording_threads(original: Callable[[Config, int], None]) -> Callable[..., None]:
    @wraps(original)
    def set_cpu_math_library_num_threads(self: Config, threads: int) -> None:
        original(self, threads)
        _settings_of(self).threads = max(threads, 0)

    return set_cpu_math_library_num_threads


def _recording_buffers(original: Callable[..., None]) -> Callable[..., None]:
    """Replaces buffers by files in memory, since Paddle crashes on PIR in buffers."""

    @wraps(original)
    def set_model_buffer(
        self: Config, program: str | bytes, size: int, parameters: str | bytes, parameters_size: int
    ) -> None:
        folder = saved_model.TemporaryFolder()
        contents, weights = _bytes(program, size), _bytes(parameters, parameters_size)
        ending = ".json" if contents[:64].lstrip().startswith(b"{") else ".pdmodel"
        # A model without parameters has no file for them.
        path = folder.add_file("model.pdiparams", [weights]) if weights else ""
        self.set_model(folder.add_file("model" + ending, [contents]), path)
        _settings_of(self).folder = folder

    return set_model_buffer


def _model_from_memory(original: Callable[[Config], bool]) -> Callable[[Config], bool]:
    @wraps(original)
    def model_from_memory(self: Config) -> bool:
        return _settings.get(self, _ConfigSettings()).folder is not None or original(self)

    return model_from_memory


def _bytes(buffer: str | bytes, size: int) -> bytes:
    contents = buffer.encode() if isinstance(buffer, str) else buffer
    return contents if size == len(contents) else contents[:size]


def _recording_unsupported(original: Callable[..., Any], reason: str) -> Callable[..., Any]:
    @wraps(original)
    def set_option(self: Config, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        _settings_of(self).why_native = reason
        return result

    return set_option


def why_native(config: Config) -> str | None:
    """The reason why a configuration falls back to Paddle, or ``None``."""
    for name, reason in _UNSUPPORTED_GETTERS.items():
        if getattr(config, name)():
            return reason
    options = _options_of(config)
    for name, reason in _UNSUPPORTED_OPTIONS.items():
        if options.get(name) == "true":
            return reason
    return _settings.get(config, _ConfigSettings()).why_native


def _options_of(config: Config) -> dict[str, str]:
    """The options in the summary of a configuration, a table of two columns."""
    rows = (line.strip("|").split("|") for line in config.summary().splitlines())
    return {row[0].strip(): row[1].strip() for row in rows if len(row) == 2}


# -- Paddle or engine --------------------------------------------------------------------------


class _Obstacle(NamedTuple):
    """Why runs of a model fall back to Paddle.

    Attributes:
        reason: Number of the reason in events.
        sentence: The details, for reports and warnings.
    """

    reason: int
    sentence: str


def reason_against_engine(
    report: Report, changes_parameters: bool, has_onednn: bool
) -> _Obstacle | None:
    """The reason why a predictor should fall back to Paddle, or ``None`` if the engine pays off.

    Args:
        report: The report of the pass on the program.
        changes_parameters: Whether the program changes parameters, of which each of the two
            predictors has a copy.
        has_onednn: Whether plain Paddle would run on oneDNN: operators that fall back next to
            engine operators do not, and entering or leaving a subgraph costs a change of layout.
    """
    if changes_parameters:
        return _Obstacle(_WRITES_PARAMETERS, "it changes its parameters")
    if any(map(_samples_before_runs, report.intervals)):
        return _Obstacle(_SAMPLES, "it samples random numbers")
    if any(op.reason == OVERWRITES_SHARED for op in report.native):
        # Paddle's predictors run operators in several threads, which know one name of a memory.
        return _Obstacle(_SHARED_MEMORY, "it overwrites memory that several variables share")
    if not report.changes:
        if report.has_small_interval:
            return _Obstacle(_COST_RULE, "none of its intervals pays off")
        return _Obstacle(_NOT_CONVERTIBLE, "nothing is converted")
    count = len(report.intervals)
    if has_onednn and not cost_model.is_faster_than_onednn(
        report.ops_converted, count, report.onednn_kernels
    ):
        return _Obstacle(
            _ONEDNN,
            f"{report.ops_converted} of its {report.ops_converted + report.ops_native} operators "
            f"are converted, in {count} interval{'s' * (count != 1)}: Paddle's oneDNN is faster",
        )
    return None


def _samples_before_runs(interval: IntervalReport) -> bool:
    """Whether the engine samples random numbers, and not Paddle's kernels in loops."""
    if not interval.draws or interval.graph is None:
        return interval.draws
    operators = (op for op in interval.graph.all_ops() if not op.blocks)
    entries = ((op.type, kernel_calls.find(op), op) for op in operators)
    types = {type for type, entry, op in entries if entry is None or entry.draws(op)}
    return not types <= kernel_calls.SAMPLERS


def explain(config: Config) -> Report:
    """The report on the predictor of a ``paddle.inference.Config``.

    A model that cannot run in the engine has a report, too, which says why: one whose program
    cannot be translated, or whose files cannot be read.
    """
    saved = SavedModel.of(config)
    try:
        program = saved.as_pir(feeds_lod=False)
    except NgraphError as error:
        return _report_on_unusable(saved, printable(str(error)))
    report = program_pass.dry_run(program, folds_constants=True)
    reason = why_native(config)
    if reason is None:
        obstacle = reason_against_engine(
            report, changes_parameters(program), config.onednn_enabled()
        )
        reason = None if obstacle is None else obstacle.sentence
        if obstacle is not None and obstacle.reason == _ONEDNN:
            return _report_on_choice(config, saved, report, obstacle)
    return Report(report.blocks, report.packed, reason, _program_id(saved))


def _report_on_choice(
    config: Config, saved: SavedModel, report: Report, obstacle: _Obstacle
) -> Report:
    """The report on a model that a rule leaves to oneDNN, with what its runs have shown."""
    measured, is_engine = _onednn_choices(config, saved).report()
    reason = f"{obstacle.sentence} by its rule; measured: {measured or 'nothing yet'}"
    return Report(
        report.blocks,
        report.packed,
        None if is_engine else reason,
        _program_id(saved),
        measured=measured if is_engine else "",
    )


def _onednn_choices(config: Config, saved: SavedModel) -> OneDnnChoices:
    threads = _settings.get(config, _ConfigSettings()).threads
    return OneDnnChoices(f"{saved.program} {saved.file_stamp()}", threads)


def _report_on_unusable(saved: SavedModel, reason: str) -> Report:
    """The report on a model that cannot become a PIR program."""
    report = Report([])
    if not saved.is_pir:
        # Paddle raises any error for a damaged file.
        with signals.own_errors(), suppress(Exception):
            report = translation.native_report(saved.description, reason)
    return Report(report.blocks, why_native=reason, program=_program_id(saved))


def _program_id(saved: SavedModel) -> int:
    """The id in events of the predictors of a saved model."""
    return program_id.of_text(str(saved.program))


# -- predictors --------------------------------------------------------------------------------


class _Model:
    """The state that a predictor and its clones share; creates the predictors of both kinds.

    Attributes:
        obstacle: The reason why runs fall back to Paddle, if one is known.
        program_id: Id in events.
    """

    def __init__(self, config: Config) -> None:
        # A copy, since the user may change the configuration later.
        self._config: Config = AnalysisConfig(config)
        self._settings = _settings.get(self._config, _ConfigSettings())
        self._saved = SavedModel.of(config)
        self._saved.check()
        self._file_stamp = self._saved.file_stamp()
        self._lock = new_lock()
        self._counterpart: Predictor | None = None
        self._parameters = _core.SharedParameters()
        self._folder: saved_model.TemporaryFolder | None = None
        self._returned: frozenset[str] | None = None
        self._spare_engine: Predictor | None = None
        self._choices: OneDnnChoices | None = None
        self._denials = denylist.DenialWatcher([])
        self._partition = 0
        self._repartitioned: Predictor | None = None
        self.obstacle: _Obstacle | None = None
        self.program_id = _program_id(self._saved)

    @property
    def why_native(self) -> str | None:
        """The reason why runs fall back to Paddle, in words; ``None`` if none is known."""
        return None if self.obstacle is None else self.obstacle.sentence

    def wants_engine(self, is_on: bool) -> bool:
        """Whether the next run uses the engine, with this value of the flag."""
        return is_on and self.obstacle is None

    def create_engine(self, create: Callable[[Config], Predictor]) -> Predictor | None:
        """The engine's predictor, created by ``create(config)``; ``None`` where that fails.

        If the predictor should not be used, :attr:`obstacle` is the reason afterwards.
        """
        with signals.own_errors():
            try:
                with program_pass.runs_by_name(self._settings.threads) as runs:
                    predictor = create(self._engine_config())
            except Exception as error:
                # The plain predictor reports the error if the model itself is the cause.
                self.obstacle = _Obstacle(_NOT_REWRITTEN, saved_model.last_line(error))
                return None
        self._denials = denylist.DenialWatcher([graph for run in runs for graph in run.graphs])
        self.obstacle = self._reason_against_engine(runs)
        if self.obstacle is None or self.may_measure():
            self._share_parameters(runs)
            self._find_fast_path(predictor, runs)
        return predictor

    def partition(self) -> int:
        """The number of the present partition: runs deny operators that a former one converted."""
        if self._denials.has_new_denials():
            with self._lock:
                self._denials = denylist.DenialWatcher([])
                self._repartitioned = None
                self._partition += 1
        return self._partition

    def create_repartitioned(self) -> Predictor | None:
        """The engine's predictor, or another clone of it, without what runs have denied.

        ``None`` if the files have changed, or if the engine does not pay off any more.
        """
        with self._lock:
            if not self.has_its_files():
                return None
            if self._repartitioned is not None:
                return self._clone(self._repartitioned, True)
            created = self.create_engine(_create)
            self._repartitioned = created if self.obstacle is None or self.may_measure() else None
            return self._repartitioned

    def may_measure(self) -> bool:
        """Whether runs fall back since a rule prefers oneDNN, which measurements may correct."""
        return (
            self.obstacle is not None
            and self.obstacle.reason == _ONEDNN
            and not flags.get("ngraph_strict")
        )

    def keep_spare(self, engine: Predictor) -> None:
        """Keeps an engine's predictor that was created, but not returned to the user."""
        self._spare_engine = engine

    def needs_engine(self) -> bool:
        """Whether runs use the engine, or may; if not, its predictor is dropped."""
        if self._choices is None or self._choices.needs_engine():
            return True
        with self._lock:
            self._counterpart = self._spare_engine = None
        return False

    def choice_for(self, shapes: Sequence[Sequence[int]]) -> MeasuredChoice:
        """The choice between oneDNN and the engine, for inputs of these shapes."""
        if self._choices is None:
            self._choices = _onednn_choices(self._config, self._saved)
        return self._choices.of(shapes)

    def _share_parameters(self, runs: Sequence[program_pass.RunByName]) -> None:
        """Shares the parameters of the first predictor with a new one.

        Paddle reads the parameters of a PIR program again for each clone. No program that the
        engine runs changes them (:func:`reason_against_engine`).
        """
        for run in runs:
            for name in run.parameters if run.scope is not None else ():
                if (variable := run.scope.find_var(name)) is not None:
                    self._parameters.share(name, weight_writes.tensor_of(variable))

    def _find_fast_path(self, predictor: Predictor, runs: Sequence[program_pass.RunByName]) -> None:
        """Stores a fast path for a new predictor, if its program is one engine operator.

        None of Paddle's later passes changes such a program, but a pass of the user may.
        """
        if (
            self._passes[-1] == PASS
            and len(runs) == 1
            and runs[0].scope is not None
            and runs[0].whole is not None
        ):
            _fast_paths[predictor] = _FastPath(runs[0].whole, runs[0].scope)

    def parameters_among(self, results: Sequence[str]) -> frozenset[str]:
        """The names among these results of the model that are parameters.

        Without the file of the program, any of them may be one.
        """
        if self._returned is None:
            with signals.own_errors():
                try:
                    self._returned = self._saved.parameters_among(results)
                except OSError:
                    self._returned = frozenset(results)
        return self._returned

    @property
    def _passes(self) -> list[str]:
        """The names of the user's passes, and of the engine's if it is not among them."""
        passes = self._settings.passes
        return passes if PASS in passes else [*passes, PASS]

    def _engine_config(self) -> Config:
        config: Config = AnalysisConfig(self._config)
        _enable_custom_passes(config, self._passes, self._settings.only_passes)
        config.disable_onednn()
        config.enable_new_ir(True)
        config.enable_new_executor(True)
        self._folder = self._saved.configure(config)
        return config

    def _reason_against_engine(self, runs: Sequence[program_pass.RunByName]) -> _Obstacle | None:
        blocks = [block for run in runs for block in run.report.blocks]
        report = Report(blocks, sum(run.report.packed for run in runs))
        has_state = any(run.has_state for run in runs)
        return reason_against_engine(report, has_state, self._config.onednn_enabled())

    def has_its_files(self) -> bool:
        """Whether its files are unchanged: creating or cloning a predictor reads them again."""
        return self._saved.file_stamp() == self._file_stamp

    def clone(self, predictor: Predictor, engine: bool, *args: Any) -> Predictor:
        """Paddle's clone of one of the predictors; ``engine``: of the engine's.

        Paddle holds a lock while it clones, and waits for that lock while holding the GIL, which
        the pass needs under the lock. So the model's own lock serializes threads that clone.
        """
        with self._lock:
            return self._clone(predictor, engine, *args)

    def _clone(self, predictor: Predictor, engine: bool, *args: Any) -> Predictor:
        with program_pass.runs_by_name(self._settings.threads) as runs:
            clone = _clone(predictor, *args)
        # Clones of the plain predictor keep own parameters, to which a handle may write.
        if engine:
            self._share_parameters(runs)
            self._find_fast_path(clone, runs)
        return clone

    def create_counterpart(self, engine: bool) -> Predictor | None:
        """Creates a predictor by the engine, or one by Paddle alone; ``None`` if impossible."""
        with self._lock:
            if engine and self._spare_engine is not None:
                self._counterpart, self._spare_engine = self._spare_engine, None
                return self._counterpart
            if not self.has_its_files():
                # Only the user switches predictors; without a measurement, the rule remains.
                if not (engine and self.may_measure()):
                    warn(WarningCode.MODEL_CHANGED, _FILES_CHANGED_MESSAGE)
                return None
            if self._counterpart is not None:
                return self._clone(self._counterpart, engine)
            if not engine:
                self._counterpart = _create(AnalysisConfig(self._config))
            elif self.obstacle is None or self.may_measure():
                created = self.create_engine(_create)
                is_usable = self.obstacle is None or self.may_measure()
                self._counterpart = created if is_usable else None
            return self._counterpart


_FILES_CHANGED_MESSAGE = (
    "the files of a model have changed since its predictor was created, which therefore can be "
    "neither switched nor cloned: create another"
)


class _FastPath:
    """Runs a predictor whose program is one engine operator, without Paddle's interpreter.

    For a network of a hundred weights the interpreter takes 0.1 ms, since it describes each
    weight to the operator. The first run is Paddle's, and creates the variables of the results.
    """

    def __init__(self, whole: Whole, scope: Scope) -> None:
        self._found: tuple[Whole, Scope] | None = (whole, scope)
        self._program: WholePredictor | None = None

    def run(self) -> bool:
        """Runs the program on the inputs of the predictor's handles; returns whether it ran."""
        return self._program is not None and self._program.run()

    def bind(self) -> None:
        """Binds the program to its variables, after the first run."""
        if self._found is not None:
            found, self._found = self._found, None
            with suppress(LookupError):
                self._program = WholePredictor(*found)


_fast_paths: WeakKeyDictionary[Predictor, _FastPath] = WeakKeyDictionary()


def _run_engine(predictor: Predictor, *args: Any) -> Any:
    """``_run`` of an engine predictor, by its strategies in the order of frontends/dispatcher.py.

    The list is inlined: a pass over it would take 3 % of a run.
    """
    fast_path = None if args else _fast_paths.get(predictor)
    if fast_path is None:
        return _run(predictor, *args)
    if not fast_path.run():
        _run(predictor)
        fast_path.bind()
    return None


class _PredictorSwitch:
    """Runs a predictor by Paddle or the engine, depending on ``FLAGS_use_ngraph`` at each run.

    Args:
        model: The state that the predictor shares with its clones.
        is_engine: Whether the user's predictor is the engine's.
        original: The predictor of which the user's is a clone; retained, since Paddle's clones on
            oneDNN fail without it.
    """

    def __init__(self, model: _Model, is_engine: bool, original: Predictor | None = None) -> None:
        self.model = model
        self.is_engine = is_engine
        self._original = original
        self.other: Predictor | None = None
        # The engine's predictor in place of the user's, if the partition of that is outdated.
        self._repartitioned: Predictor | None = None
        self._partition = 0
        self._cannot_switch = False
        self._inputs: list[Handle] | None = None  # the predictor's, from its first measured run on
        # Memory that the two predictors share, retained since a handle retains none: results and
        # inputs shown by the user's handles, and inputs of the counterpart.
        self._shared_outputs: list[Tensor] = []
        self._shown_inputs: list[Any] = []
        self._shared_inputs: list[Tensor] = []

    def run(self, predictor: Predictor, args: tuple[Any, ...], is_on: bool) -> Any:
        """Runs ``predictor`` once; ``args`` are those of its ``run``, ``is_on`` is the flag."""
        engine = self.model.wants_engine(is_on)
        if is_on and not engine and self.model.may_measure():
            choice = self._choice(predictor, args)
            if choice is not None:
                return self._run_measured(choice, predictor, args)
        return self._run_by(engine, predictor, args, is_on)

    def _choice(self, predictor: Predictor, args: tuple[Any, ...]) -> MeasuredChoice | None:
        """The choice for the inputs of a run; ``None`` if they tell no shapes, or have a LoD."""
        with signals.own_errors():
            try:
                if args:
                    return self.model.choice_for([tuple(tensor.shape) for tensor in args[0]])
                if _is_lod_used and _has_lod(predictor):
                    return None
                if self._inputs is None:
                    names = predictor.get_input_names()
                    self._inputs = [predictor.get_input_handle(name) for name in names]
                return self.model.choice_for([handle.shape() for handle in self._inputs])
            except Exception:  # Paddle reports what is wrong with the inputs
                return None

    def _run_measured(
        self, choice: MeasuredChoice, predictor: Predictor, args: tuple[Any, ...]
    ) -> Any:
        """Runs by oneDNN or the engine, and times the run if the choice measures."""
        # A function that is being compiled would have Paddle's plain kernels run its subgraph.
        call = choice.next_call(lambda engine: not engine or background_compile.wait(0))
        if (call.is_challenger or self.is_engine) and not self._can_switch():
            choice.give_up()
            call = TimedCall(self.is_engine, False)
        try:
            if not call.is_timed:
                return self._run_by(call.is_challenger, predictor, args, True)
            return self._run_timed(choice, call, predictor, args)
        finally:
            # In each clone, one of which has run the call that decided.
            may_drop = self.other is not None and not (self.is_engine or call.is_challenger)
            if may_drop and not self.model.needs_engine():
                self.other = None

    def _run_timed(
        self, choice: MeasuredChoice, call: TimedCall, predictor: Predictor, args: tuple[Any, ...]
    ) -> Any:
        fallbacks, start, is_measured = statistics.native_runs(), clock.now(), False
        try:
            results = self._run_by(call.is_challenger, predictor, args, True)
            seconds = clock.now() - start
            is_measured = not call.is_challenger or statistics.native_runs() == fallbacks
            return results
        finally:
            choice.end_call(call, seconds if is_measured else None)

    def _run_by(
        self, engine: bool, predictor: Predictor, args: tuple[Any, ...], is_on: bool
    ) -> Any:
        has_lod = engine and _is_lod_used and not args and _has_lod(predictor)
        engine = engine and not has_lod
        if engine != self.is_engine and not self._can_switch():
            engine = self.is_engine
        if not engine:
            reason = _LOD_FEED if has_lod else self._native_reason(is_on)
            return self._run_fallback(predictor, args, reason)
        with signals.own_errors():
            try:
                if self._partition != self.model.partition():
                    self._partition_again()
                return self._run(True, predictor, args)
            except Exception as error:
                if flags.get("ngraph_strict") or (self.is_engine and not self._can_switch()):
                    raise
                # For an error of the inputs, Paddle raises its own; if Paddle can run them, the
                # engine has failed.
                results = self._run_fallback(predictor, args, _ENGINE_FAILED)
                sentence = printable(f"the engine failed: {saved_model.last_line(error)}")
                self.model.obstacle = _Obstacle(_ENGINE_FAILED, sentence)
                message = f"a predictor runs natively now: {self.model.why_native}"
                warn(WarningCode.PREDICTOR_FAILED, message, stacklevel=3)
                return results

    def _partition_again(self) -> None:
        """Replaces the engine's predictor: Paddle runs its subgraphs with a denied operator."""
        self._partition = self.model.partition()
        if (created := self.model.create_repartitioned()) is None:
            return
        if self.is_engine:
            self._repartitioned = created
        else:
            self.other = created

    def _native_reason(self, is_on: bool) -> int | None:
        """The reason, for an event, why the engine does not run; ``None`` if the flag is off."""
        if not is_on:
            return None
        return _FILES_CHANGED if self.model.obstacle is None else self.model.obstacle.reason

    def _run_fallback(self, predictor: Predictor, args: tuple[Any, ...], reason: int | None) -> Any:
        if reason is None:
            return self._run(False, predictor, args)
        start = _core.ticks()
        try:
            return self._run(False, predictor, args)
        finally:
            _core.record_event(reason, self.model.program_id, start)

    def fall_back_permanently(self, sentence: str, predictor: Predictor) -> Predictor:
        """Makes all later runs fall back to Paddle; returns the plain predictor."""
        plain = self.native(predictor)
        self.model.obstacle = _Obstacle(_HOOKS, sentence)
        return plain

    def native(self, predictor: Predictor) -> Predictor:
        """The plain predictor.

        Raises:
            NgraphError: There is none.
        """
        if self.is_engine and not self._can_switch():
            raise NgraphError(_FILES_CHANGED_MESSAGE)
        return self._counterpart if self.is_engine else predictor

    @property
    def _counterpart(self) -> Predictor:
        """The counterpart of the user's predictor: one is the engine's, the other one Paddle's."""
        assert self.other is not None
        return self.other

    def _can_switch(self) -> bool:
        if self.other is None and not self._cannot_switch:
            self.other = self.model.create_counterpart(engine=not self.is_engine)
            self._cannot_switch = self.other is None
        return not self._cannot_switch

    def _run(self, engine: bool, predictor: Predictor, args: tuple[Any, ...]) -> Any:
        run = _run_engine if engine else _run
        if engine or engine != self.is_engine:
            args = tuple(map(_contiguous, args))
        if engine == self.is_engine and not (engine and self._repartitioned):
            results = run(predictor, *args)
            # Copies the results if the handles may show their memory, which is released after the
            # next run.
            return (
                list(map(_with_own_memory, results)) if args and self._shared_outputs else results
            )
        other = self._counterpart if engine != self.is_engine else self._repartitioned
        assert other is not None
        if args:
            try:
                results = run(other, *args)
            finally:
                self._shown_inputs = _show_inputs(predictor, other, *args) or self._shown_inputs
        else:
            inputs = _copy_inputs(predictor, other)
            if inputs is None:
                # Runs the user's predictor, which reports the error of the inputs.
                return _run(predictor)
            self._shared_inputs = inputs
            results = run(other)
        self._show_outputs(predictor, other)
        return results

    def _show_outputs(self, predictor: Predictor, other: Predictor) -> None:
        """Makes the user's handles show the results of another predictor."""
        results = predictor.get_output_names()
        # Not shared: each predictor has parameters of its own.
        parameters = self.model.parameters_among(results)
        self._shared_outputs = [
            _copy_to_variable(other.get_output_handle(theirs), predictor, ours)
            for ours, theirs in zip(results, other.get_output_names())
            if ours not in parameters
        ]


# Whether some handle has been given a LoD: until then, runs do not look for one.
_is_lod_used = False


def _recording_lod(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def set_lod(self: Handle, lod: Any) -> None:
        global _is_lod_used
        original(self, lod)
        _is_lod_used = _is_lod_used or len(lod) > 0

    return set_lod


def _has_lod(predictor: Predictor) -> bool:
    """Whether an input of a predictor has a LoD, which engine operators do not pass on."""
    handles = map(predictor.get_input_handle, predictor.get_input_names())
    return any(handle.lod() for handle in handles)


# No function below calls an operator of dynamic mode: in static mode, where the functions may run,
# these operators crash.


def _with_own_memory(tensor: Any) -> Any:
    """Makes a tensor own its memory, by a copy of its data, and returns the tensor."""
    dense = tensor.get_tensor()
    if 0 not in dense.shape():
        _core.share_tensor(dense, copy_of(dense, paddle.CPUPlace()))
    return tensor


def _contiguous(tensors: Any) -> Any:
    """The input tensors of a run, with views copied to contiguous memory.

    In a predictor, some kernels of Paddle read the memory of a view without its strides, and so do
    handles.
    """
    if not isinstance(tensors, (list, tuple)):
        return tensors  # passed on unchanged: Paddle raises the error
    return list(map(_contiguous_tensor, tensors))


def _contiguous_tensor(tensor: Any) -> Any:
    if not isinstance(tensor, paddle.Tensor) or tensor.is_contiguous():
        return tensor
    with operators_compute():
        return tensor.contiguous()


def _show_inputs(predictor: Predictor, other: Predictor, tensors: Any) -> list[Any]:
    """Makes a predictor's handles show the input tensors of a run of its counterpart.

    Handles do so after a run by Paddle, too: a later run without tensors computes on them again, on
    their contents at that time.

    Returns:
        References to their memory; empty if Paddle does not accept the inputs.
    """
    names = other.get_input_names()
    if not isinstance(tensors, (list, tuple)) or len(tensors) != len(names):
        return []
    shown = []
    for name, tensor in zip(names, tensors):
        if not isinstance(tensor, paddle.Tensor):
            continue
        handle = predictor.get_input_handle(name)
        # Not shown if the handle does not support the dtype of the tensor.
        with suppress(NotImplementedError):
            handle.share_external_data(tensor)
            handle.set_lod(other.get_input_handle(name).lod())
        # This tensor retains the memory, even if the user's tensor is freed.
        shown.append(DenseTensor())
        _core.share_tensor(shown[-1], tensor.get_tensor())
    return shown


def _copy_inputs(predictor: Predictor, other: Predictor) -> list[Tensor] | None:
    """Copies the inputs of ``predictor`` to ``other``, its counterpart.

    Returns:
        The copies, which own the new memory. ``None`` if an input could not be read.
    """
    copies = []
    for name in predictor.get_input_names():
        source = predictor.get_input_handle(name)
        with signals.own_errors():
            try:
                copies.append(_copy_to_variable(source, other, name))
            except Exception:  # an input does not exist, or cannot be read
                return None
    return copies


def _copy_to_variable(source: Handle, predictor: Predictor, name: str) -> Tensor:
    """Sets a variable of ``predictor`` to a copy of ``source``, in new memory.

    The user may have references to the variable's current memory.

    Returns:
        The tensor with the memory, to be retained, since no handle retains it.
    """
    data: np.ndarray = source.copy_to_cpu()
    # For bfloat16, Paddle returns a wider array, of which the first half contains the bits.
    if source.type() == PaddleDType.BFLOAT16:
        data = data.ravel().view(np.uint16)[: data.size].reshape(data.shape)
    # Handles can copy only data of these two dtypes, not share it.
    is_byte = data.dtype in (np.int8, np.uint8)
    # An empty tensor is given one element of memory, because Paddle's branches read the first
    # element even of empty tensors.
    source_data = data if data.size > 0 else np.zeros(1, data.dtype)
    tensor = DenseTensor()
    tensor.set(
        np.zeros(source_data.shape, "float32") if is_byte else source_data, paddle.CPUPlace()
    )
    # Also for outputs: output handles have no methods that write.
    target = predictor.get_input_handle(name)
    target.share_external_data(tensor)
    if is_byte:
        target.copy_from_cpu(source_data)
    if data.size == 0:
        target.reshape(list(data.shape))
    target.set_lod(source.lod())
    return tensor


_switches: WeakKeyDictionary[Predictor, _PredictorSwitch] = WeakKeyDictionary()
# Predictors whose configuration the engine does not support, with their ids in events.
_unsupported: WeakKeyDictionary[Predictor, int] = WeakKeyDictionary()


def _switched(
    predictor: Predictor, model: _Model, is_engine: bool, original: Predictor | None = None
) -> Predictor:
    _switches[predictor] = _PredictorSwitch(model, is_engine, original)
    return predictor


@wraps(_create)
@_uninterrupted
def create_predictor(*args: Any, **kwargs: Any) -> Predictor:
    """Creates predictors by Paddle's function, which follow the flag at each run."""
    model = _model_of(args)
    if model is None:
        unsupported = _create(*args, **kwargs)
        _record_unsupported(unsupported, args)
        return unsupported
    if model.wants_engine(_is_on()):
        predictor = model.create_engine(_create)
        if predictor is not None and model.obstacle is None:
            return _switched(predictor, model, True)
        if predictor is not None and model.may_measure():
            model.keep_spare(predictor)
    return _switched(_create(*args), model, False)


@wraps(_init)
@_uninterrupted
def _init_switched(self: Predictor, *args: Any, **kwargs: Any) -> None:
    model = _model_of(args)
    if model is None:
        _init(self, *args, **kwargs)
        _record_unsupported(self, args)
        return

    def into_self(config: Config) -> Predictor:
        _init(self, config)
        return self

    # The user's object is initialized only once: if its predictor is the engine's, and the engine
    # does not pay off, the counterpart runs instead.
    is_engine = model.wants_engine(_is_on()) and model.create_engine(into_self) is self
    if not is_engine:
        _init(self, *args)
    _switched(self, model, is_engine)


def _is_on() -> bool:
    return bool(flags.get("use_ngraph"))


def _model_of(args: tuple[Any, ...]) -> _Model | None:
    """The model of a configuration that may use the engine, or ``None``."""
    if len(args) != 1 or not isinstance(args[0], AnalysisConfig):
        return None
    saved = SavedModel.of(args[0])
    # Paddle's predictor runs the engine operators of the model, whether the flag is on or off.
    if saved.has_engines:
        saved.check()
        first_use.begin()
        saved_model.use_functions_folder(saved.program, saved.parameters)
        return None
    if why_native(args[0]) is not None:
        return None
    return _Model(args[0])


def _record_unsupported(predictor: Predictor, args: tuple[Any, ...]) -> None:
    """Records a predictor that Paddle runs because of its configuration, for events of its runs."""
    if len(args) == 1 and isinstance(args[0], AnalysisConfig):
        saved = SavedModel.of(args[0])
        if not saved.has_engines:
            _unsupported[predictor] = _program_id(saved)


@wraps(_run)
@_uninterrupted
def _run_switched(self: Predictor, *args: Any, **named: Any) -> Any:
    switch = _switches.get(self)
    if switch is None or named.keys() - {"inputs"} or (args and named):
        if self in _unsupported and _is_on():
            return _run_unsupported(self, args, named)
        return _run(self, *args, **named)  # passed on unchanged: Paddle raises the error
    return switch.run(self, args or tuple(named.values()), _is_on())


def _run_unsupported(predictor: Predictor, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    start = _core.ticks()
    try:
        return _run(predictor, *args, **named)
    finally:
        _core.record_event(_CONFIGURATION, _unsupported[predictor], start)


@wraps(_clone)
@_uninterrupted
def _clone_switched(self: Predictor, *args: Any) -> Predictor:
    switch = _switches.get(self)
    if switch is None:
        clone = _clone(self, *args)
        if self in _unsupported:
            _unsupported[clone] = _unsupported[self]
        return clone
    if switch.is_engine and not switch.model.has_its_files():
        raise NgraphError(_FILES_CHANGED_MESSAGE)
    clone = switch.model.clone(self, switch.is_engine, *args)
    return _switched(clone, switch.model, switch.is_engine, original=self)


def _on_both_predictors(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def act(self: Predictor, *args: Any) -> Any:
        switch = _switches.get(self)
        if switch is not None and switch.other is not None:
            original(switch.other, *args)
        return original(self, *args)

    return act


def _on_plain_predictor(original: Callable[..., Any]) -> Callable[..., Any]:
    """Registers hooks on single operators with the plain predictor, which runs from then on."""

    @wraps(original)
    def register(self: Predictor, *args: Any) -> Any:
        switch = _switches.get(self)
        if switch is not None:
            self = switch.fall_back_permanently("its operators have hooks", self)
        return original(self, *args)

    return register


_feeds_and_results: WeakKeyDictionary[Any, frozenset[str]] = WeakKeyDictionary()


def _exposing_handles(original: Callable[..., Handle]) -> Callable[..., Handle]:
    """Tracks handles that can write to parameters during their lifetime.

    These are the handles of variables other than inputs and outputs, and of outputs that are
    parameters. The two predictors have separate parameters, and so has each of Paddle's clones.
    Such a handle belongs to the plain predictor, which runs from then on. A model that was saved
    with engine operators has no plain predictor: while the handle lives, the model reads its
    weights in each run.
    """

    @wraps(original)
    def get_handle(self: Predictor, name: str) -> Handle:
        switch = _switches.get(self)
        names = _feeds_and_results.get(self)
        if names is None:
            results = self.get_output_names()
            returned = frozenset() if switch is None else switch.model.parameters_among(results)
            names = frozenset((*self.get_input_names(), *results)) - returned
            _feeds_and_results[self] = names
        if name in names:
            return original(self, name)
        handle = original(self if switch is None else switch.native(self), name)
        if switch is not None:
            switch.fall_back_permanently("a handle of one of its variables is in use", self)
        weight_writes.may_write_during_lifetime(handle)
        return handle

    return get_handle


def _copying_to_pool(original: Callable[[Handle], np.ndarray]) -> Callable[..., np.ndarray]:
    """Copies large results to the engine's pooled memory; the user owns the copy, as in Paddle."""

    @wraps(original)
    def copy_to_cpu(self: Handle) -> np.ndarray:
        if flags.get("use_ngraph"):
            size = SETTINGS.min_pooled_result_bytes // 4
            copy: np.ndarray | None = _core.copy_from_handle(self, size, PaddleDType.FLOAT32)
            if copy is not None:
                return copy
        return original(self)

    return copy_to_cpu


def _create_pool(cls: type, *args: Any, **kwargs: Any) -> PredictorPool:
    """``__new__`` of Paddle's class, which stays itself under all names that refer to it."""
    return PredictorPool(*args, **kwargs)


class PredictorPool:
    """Predictors that share parameters, in place of those of Paddle's class of this name."""

    def __init__(self, config: Config, size: int) -> None:
        if size < 1:
            raise ValueError(f"a predictor pool has at least one predictor, not {size}")
        first = create_predictor(config)
        self._predictors = [first, *(first.clone() for _ in range(size - 1))]

    def retrieve(self, index: int) -> Predictor:
        """The predictor at an index of the pool."""
        if not 0 <= index < len(self._predictors):
            raise ValueError(f"the pool has {len(self._predictors)} predictors: none is {index}")
        return self._predictors[index]
