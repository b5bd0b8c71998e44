"""``doctor``, ``info`` and ``cache``: the state of the installation."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

from paddle_ngraph import installation, library
from paddle_ngraph.commands.arguments import (
    add_dynamic,
    add_json,
    print_json,
    print_text,
    shapes_of,
)
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.version import __version__

if TYPE_CHECKING:
    from paddle_ngraph.doctor import checkup, observation


def add_doctor(commands: Any) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="check the installation and, with a model or script, find what would gain most",
        description=_doctor.__doc__,
        epilog="example: python -m paddle_ngraph doctor --shapes x=1x3x640x640 --measure ocr/det",
    )
    doctor.add_argument(
        "--measure",
        action="store_true",
        help="try each of the changes that would gain most, in a process of its own",
    )
    doctor.add_argument(
        "--shapes",
        action="append",
        default=[],
        metavar="NAME=SIZExSIZE",
        help="the shape of an input of the model (default: 2 for each dynamic dimension). May be "
        "repeated for other inputs",
    )
    add_dynamic(doctor)
    add_json(doctor)
    doctor.add_argument(
        "subject",
        nargs="?",
        metavar="MODEL|SCRIPT",
        help="a model, as for explain, or a Python script (.py)",
    )
    doctor.add_argument("args", nargs=argparse.REMAINDER, help="arguments of the script")
    doctor.set_defaults(command=_doctor)


def add_info(commands: Any) -> None:
    parser = commands.add_parser(
        "info", help="show versions and whether the engine is ready", description=_info.__doc__
    )
    parser.add_argument(
        "--settings", action="store_true", help="show the policy, too (paddle_ngraph/settings.py)"
    )
    add_json(parser)
    parser.set_defaults(command=_info)


def add_cache(commands: Any) -> None:
    parser = commands.add_parser(
        "cache",
        help="show the functions and rewritten programs on disk",
        description=_cache.__doc__,
    )
    parser.add_argument("--clear", action="store_true", help="delete them")
    add_json(parser)
    parser.set_defaults(command=_cache)


def _doctor(options: argparse.Namespace) -> int:
    """Check versions, processor, threads, settings and the disk cache, and run a self-test of two
    seconds against native Paddle. With a saved model or a script: run it, and print what ran where
    and the three changes that would gain most. The text has no names of files, hosts or users, so
    it can be attached to an issue. The exit status is 1 if there is a problem."""
    from paddle_ngraph.doctor import checkup

    output = sys.stdout
    with redirect_stdout(sys.stderr if options.json else sys.stdout):  # of a script
        found = checkup.examine(_subject(options))
        if options.measure:
            found = checkup.measured(found, _subject_arguments(options))
    if options.json:
        print(json.dumps(found.as_dict(), indent=1), file=output)
    else:
        print(found)
    return 1 if found.problems else 0


def _subject(options: argparse.Namespace) -> checkup.Subject | None:
    """Returns the function that observes the model or script of ``doctor``, if one is given."""
    if options.subject is None:
        if options.measure:
            raise NgraphError("--measure tries changes on a model or a script: give one")
        return None
    is_script = options.subject.endswith(".py")
    if not is_script and (options.args or options.dynamic):
        raise NgraphError(
            f"{options.subject} is no .py file: options come before a model, and --dynamic is for "
            "scripts"
        )
    shapes = shapes_of(options.shapes)

    def observe() -> observation.Observation:
        from paddle_ngraph.doctor import observation

        if is_script:
            return observation.observe_script(options.subject, options.args, options.dynamic)
        return observation.observe_model(options.subject, shapes)

    return observe


def _subject_arguments(options: argparse.Namespace) -> list[str]:
    """Returns the arguments by which another process observes the same subject."""
    shapes = [text for shape in options.shapes for text in ("--shapes", shape)]
    return [*shapes, options.subject, *options.args]


def _info(options: argparse.Namespace) -> int:
    """Print the versions and whether the engine is ready; the exit status is 1 if it is not."""
    reason = installation.why_unavailable()
    settings = _settings() if reason is None and options.settings else {}
    if options.json:
        packages = {
            package: {"installed": installed, "compiled_against": built}
            for package, installed, built in installation.packages()
        }
        found = {"version": __version__, "why_unavailable": reason, "packages": packages}
        print_json({**found, "settings": settings} if options.settings else found)
        return 0 if reason is None else 1
    print(f"paddle-ngraph {__version__}")
    for line in installation.versions():
        print_text(line)
    print_text("engine: ready" if reason is None else f"engine: not available. {reason}")
    for name, value in settings.items():
        print_text(f"{name} = {value!r}")
    return 0 if reason is None else 1


def _settings() -> dict[str, object]:
    library.load()
    from paddle_ngraph import flags

    return vars(flags.settings())


def _cache(options: argparse.Namespace) -> int:
    """Print the folder, number and size of the functions and rewritten programs on disk."""
    library.load()
    from paddle_ngraph import flags
    from paddle_ngraph.conversion import disk_cache

    folder = flags.get("ngraph_cache_dir")
    files = disk_cache.files() if folder else []
    size = sum(file.stat().st_size for file in files)
    if options.json:
        print_json({"folder": folder, "functions": len(files), "bytes": size})
    elif folder:
        print_text(f"{folder}: {len(files)} functions and programs, {size / 2**20:.1f} MB")
    else:
        print("FLAGS_ngraph_cache_dir is empty: nothing is stored on disk")
    if options.clear and folder:
        for file in files:
            file.unlink(missing_ok=True)
        if not options.json:
            print("deleted")
    return 0
