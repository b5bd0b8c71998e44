"""The model of a predictor and its clones, which creates the predictors of both kinds."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from paddle_ngraph import _core, flags
from paddle_ngraph.conversion import denylist
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.frontends.executor import weight_writes
from paddle_ngraph.frontends.predictor import fast_path
from paddle_ngraph.frontends.predictor.configuration import enable_custom_passes, settings_of
from paddle_ngraph.frontends.predictor.explanation import onednn_choices, program_id_of
from paddle_ngraph.frontends.predictor.obstacles import ONEDNN, Obstacle, reason_against_engine
from paddle_ngraph.frontends.predictor.onednn_choice import OneDnnChoices
from paddle_ngraph.frontends.saved_models import saved_model
from paddle_ngraph.frontends.saved_models.saved_model import SavedModel
from paddle_ngraph.paddle_private import replaced
from paddle_ngraph.paddle_private.names import AnalysisConfig
from paddle_ngraph.paddle_private.protocols import Config, Predictor
from paddle_ngraph.partitioning import program_pass
from paddle_ngraph.partitioning.report import Report
from paddle_ngraph.utils import signals
from paddle_ngraph.utils.fork_safe_locks import new_lock
from paddle_ngraph.utils.lru_cache import LRUCache, process_cache
from paddle_ngraph.utils.measured_choice import MeasuredChoice
from paddle_ngraph.warning_codes import WarningCode, warn

PASS = "ngraph_pass"

_NOT_REWRITTEN = int(_core.Reason.NOT_REWRITTEN)

_create: Callable[[Config], Predictor] = replaced.CREATE_PREDICTOR.original
_clone: Callable[..., Predictor] = replaced.CLONE_PREDICTOR.original

FILES_CHANGED_MESSAGE = (
    "the files of a model have changed since its predictor was created, which therefore can be "
    "neither switched nor cloned: create another"
)


_obstacles: LRUCache[Hashable, Obstacle] = process_cache(
    __name__,
    "predictor_obstacles",
    "why predictors of models run natively",
    key="paths, sizes and times of the files, passes, flags, policy, converters, denylist, threads",
    bound=256,
)


class Model:
    """The state that a predictor and its clones share; creates the predictors of both kinds.

    Attributes:
        obstacle: The reason why runs fall back to Paddle, if one is known.
        program_id: Id in events.
    """

    def __init__(self, config: Config) -> None:
        # A copy, since the user may change the configuration later.
        self._config: Config = AnalysisConfig(config)
        self._settings = settings_of(self._config)
        self._saved = SavedModel.of(config)
        self._saved.check()
        self._file_stamp = self._saved.file_stamp()
        self._lock = new_lock()
        self._counterpart: Predictor | None = None
        self._parameters = _core.SharedParameters()
        self._folders: list[saved_model.TemporaryFolder] = []
        self._returned: frozenset[str] | None = None
        self._spare_engine: Predictor | None = None
        self._choices: OneDnnChoices | None = None
        self._denials = denylist.DenialWatcher([])
        self._partition = 0
        self._repartitioned: Predictor | None = None
        self.obstacle: Obstacle | None = None
        self.program_id = program_id_of(self._saved)

    @property
    def why_native(self) -> str | None:
        """The reason why runs fall back to Paddle, in words; ``None`` if none is known."""
        return None if self.obstacle is None else self.obstacle.sentence

    def wants_engine(self, is_on: bool) -> bool:
        """Whether the next run uses the engine, with this value of the flag."""
        return is_on and self.obstacle is None

    def create_engine(self, create: Callable[[Config], Predictor]) -> Predictor | None:
        """The engine's predictor, created by ``create(config)``; ``None`` where that fails.

        If the predictor should not be used, :attr:`obstacle` is the reason afterwards. A former
        model of these files may have met it: then none is created. Runs that measure create one.
        """
        self.obstacle = _obstacles.get(self._key())
        return None if self.obstacle is not None else self._create_engine(create)

    def _create_engine(self, create: Callable[[Config], Predictor]) -> Predictor | None:
        """As :meth:`create_engine`, whatever former models have met."""
        key = self._key()
        with signals.own_errors():
            try:
                config = self._engine_config()
                digest = partial(self._digest_of, config.prog_file())
                with program_pass.runs_by_name(self._settings.threads, digest) as runs:
                    predictor = create(config)
            except Exception as error:
                # The plain predictor reports the error if the model itself is the cause.
                self.obstacle = Obstacle(_NOT_REWRITTEN, saved_model.last_line(error))
                if isinstance(error, NgraphError):  # follows from the files; one of Paddle may not
                    _obstacles.put(key, self.obstacle)
                return None
        self._denials = denylist.DenialWatcher([graph for run in runs for graph in run.graphs])
        self.obstacle = self._reason_against_engine(runs)
        if self.obstacle is None or self.may_measure():
            self._share_parameters(runs)
            self._find_fast_path(predictor, runs)
        if self.obstacle is not None and runs:
            _obstacles.put(key, self.obstacle)
        return predictor

    def _digest_of(self, program: str) -> bytes | None:
        """The digest of the file that Paddle has read the engine's program from.

        ``None`` if passes of the user have changed the program before, or files have changed since.
        """
        digest = _core.digest(Path(program).read_bytes())
        return digest if self._passes[0] == PASS and self.has_its_files() else None

    def _may_use_engine(self) -> bool:
        """Whether neither this nor a former model of these files has met an obstacle for good."""
        if self.obstacle is None:
            self.obstacle = _obstacles.get(self._key())
        return self.obstacle is None or self.may_measure()

    def _key(self) -> Hashable:
        """The files, and all on which their obstacle depends."""
        settings = (*self._passes, self._settings.only_passes, self._config.onednn_enabled())
        files = (self._saved.program, self._saved.parameters, self._file_stamp)
        return *files, settings, program_pass.conditions(self._settings.threads)

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
            created = self._create_engine(_create)
            self._repartitioned = created if self.obstacle is None or self.may_measure() else None
            return self._repartitioned

    def may_measure(self) -> bool:
        """Whether runs fall back since a rule prefers oneDNN, which measurements may correct."""
        return (
            self.obstacle is not None
            and self.obstacle.reason == ONEDNN
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
            self._choices = onednn_choices(self._config, self._saved)
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
            fast_path.remember(predictor, runs[0].whole, runs[0].scope)

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
        enable_custom_passes(config, self._passes, self._settings.only_passes)
        config.disable_onednn()
        config.enable_new_ir(True)
        config.enable_new_executor(True)
        self._folders = self._saved.configure(config)
        return config

    def _reason_against_engine(self, runs: Sequence[program_pass.RunByName]) -> Obstacle | None:
        if not runs:  # because of a setting, on which no obstacle of the files depends
            return Obstacle(_NOT_REWRITTEN, "Paddle has not run the pass")
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
                    warn(WarningCode.MODEL_CHANGED, FILES_CHANGED_MESSAGE)
                return None
            if self._counterpart is not None:
                return self._clone(self._counterpart, engine)
            if not engine:
                self._counterpart = _create(AnalysisConfig(self._config))
            elif self._may_use_engine():
                created = self._create_engine(_create)
                is_usable = self.obstacle is None or self.may_measure()
                self._counterpart = created if is_usable else None
            return self._counterpart
