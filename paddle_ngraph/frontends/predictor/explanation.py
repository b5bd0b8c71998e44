"""Reports on the predictor of a configuration."""

from __future__ import annotations

from contextlib import suppress
from types import MappingProxyType

from paddle_ngraph.errors import NgraphError, printable
from paddle_ngraph.frontends import program_id
from paddle_ngraph.frontends.predictor.configuration import settings_of, why_native
from paddle_ngraph.frontends.predictor.obstacles import ONEDNN, Obstacle, reason_against_engine
from paddle_ngraph.frontends.predictor.onednn_choice import OneDnnChoices
from paddle_ngraph.frontends.program_desc import translation
from paddle_ngraph.frontends.saved_models.saved_model import SavedModel
from paddle_ngraph.paddle_private.protocols import Config
from paddle_ngraph.partitioning import program_pass
from paddle_ngraph.partitioning.analysis import static_types
from paddle_ngraph.partitioning.analysis.block_view import changes_parameters
from paddle_ngraph.partitioning.analysis.static_types import Shapes
from paddle_ngraph.partitioning.report import Report
from paddle_ngraph.utils import signals


def explain(config: Config, shapes: Shapes = MappingProxyType({})) -> Report:
    """The report on the predictor of a ``paddle.inference.Config``.

    Args:
        config: The configuration.
        shapes: The shapes of some inputs, for estimates of work.

    A model that cannot run in the engine has a report, too, which says why: one whose program
    cannot be translated, or whose files cannot be read, also such that Paddle crashes on them.
    """
    saved = SavedModel.of(config)
    try:
        saved.try_reading()
    except NgraphError as error:  # not even its operators can be listed
        return Report([], why_native=printable(str(error)), program=program_id_of(saved))
    try:
        program = saved.as_pir(feeds_lod=False)
    except NgraphError as error:
        return _report_on_unusable(saved, printable(str(error)))
    static_types.check(program, shapes)
    report = program_pass.dry_run(program, folds_constants=True, shapes=shapes)
    reason = why_native(config)
    if reason is None:
        obstacle = reason_against_engine(
            report, changes_parameters(program), config.onednn_enabled()
        )
        reason = None if obstacle is None else obstacle.sentence
        if obstacle is not None and obstacle.reason == ONEDNN:
            return _report_on_choice(config, saved, report, obstacle)
    return Report(report.blocks, report.packed, reason, program_id_of(saved))


def _report_on_choice(
    config: Config, saved: SavedModel, report: Report, obstacle: Obstacle
) -> Report:
    """The report on a model that a rule leaves to oneDNN, with what its runs have shown."""
    measured, is_engine = onednn_choices(config, saved).report()
    reason = f"{obstacle.sentence} by its rule; measured: {measured or 'nothing yet'}"
    return Report(
        report.blocks,
        report.packed,
        None if is_engine else reason,
        program_id_of(saved),
        measured=measured if is_engine else "",
    )


def onednn_choices(config: Config, saved: SavedModel) -> OneDnnChoices:
    threads = settings_of(config).threads
    return OneDnnChoices(f"{saved.program} {saved.file_stamp()}", threads)


def _report_on_unusable(saved: SavedModel, reason: str) -> Report:
    """The report on a model that cannot become a PIR program."""
    report = Report([])
    if not saved.is_pir:
        # Paddle raises any error for a damaged file.
        with signals.own_errors(), suppress(Exception):
            report = translation.native_report(saved.description, reason)
    return Report(report.blocks, why_native=reason, program=program_id_of(saved))


def program_id_of(saved: SavedModel) -> int:
    """The id in events of the predictors of a saved model."""
    return program_id.of_text(str(saved.program))
