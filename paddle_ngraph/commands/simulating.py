"""``simulate``: steps on more ranks than the machine has."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from paddle_ngraph.commands.arguments import add_json, print_json, print_text, write
from paddle_ngraph.errors import NgraphError


def add_simulate(commands: Any) -> None:
    parser = commands.add_parser(
        "simulate",
        help="predict steps of data parallelism on more ranks than this machine has",
        description=_simulate.__doc__,
        epilog="example: python -m paddle_ngraph simulate benchmarks/results/ranks_mlp.json "
        "--ranks 16 64 256 --network-gbit 25 --svg steps.svg. docs/guides/scaling.md describes "
        "profiles, and how to measure one",
    )
    parser.add_argument("profile", type=Path, help="a JSON file with the measurements")
    parser.add_argument(
        "--ranks",
        type=int,
        nargs="+",
        metavar="N",
        help="numbers of ranks (default: 8, 16, ... 4096)",
    )
    parser.add_argument(
        "--ranks-per-machine",
        type=int,
        metavar="N",
        help="ranks on each machine (default: one for each core of the profile's machine)",
    )
    parser.add_argument(
        "--network-gbit",
        type=float,
        default=10.0,
        metavar="GBIT",
        help="bandwidth between two machines, in each direction, in 10^9 bits per second "
        "(default: %(default)g)",
    )
    parser.add_argument(
        "--network-latency-us",
        type=float,
        default=50.0,
        metavar="US",
        help="latency of a message between two machines (default: %(default)g)",
    )
    parser.add_argument(
        "--spread",
        type=float,
        metavar="S",
        help="the standard deviation of the logarithm of a rank's time for a step (default: that "
        "of the profile)",
    )
    parser.add_argument(
        "--mtbf-hours",
        type=float,
        default=50000.0,
        metavar="HOURS",
        help="the mean time between failures of one rank (default: %(default)g)",
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw a picture, too")
    add_json(parser)
    parser.set_defaults(command=_simulate)


def _simulate(options: argparse.Namespace) -> int:
    """Predict the time of a training step on N ranks, from measurements on one machine: subgraphs,
    buckets of gradients, latency and bandwidth. Print first the measured steps next to their
    predictions; then, for each requested number of ranks, a ring and a hierarchical all-reduce,
    after the backward pass or overlapping with it; the time that stragglers add to the shortest of
    these; the share of computation; the best checkpoint interval, and the share of useful time with
    failures."""
    from dataclasses import replace

    from paddle_ngraph.simulation import prediction, profile
    from paddle_ngraph.simulation.collectives import SimulatedLink
    from paddle_ngraph.simulation.picture import picture

    measured = profile.read(options.profile)
    if options.spread is not None:
        if not 0 <= options.spread < 10:
            raise NgraphError(f"--spread {options.spread:g}: give a number from 0 to 10")
        measured = replace(measured, spread=options.spread)
    scenario = prediction.Scenario(
        options.ranks or prediction.RANKS,
        options.ranks_per_machine,
        SimulatedLink(options.network_latency_us, options.network_gbit / 8),
        options.mtbf_hours,
    )
    known = prediction.checked(measured)
    rows = prediction.predicted(measured, scenario)
    per_machine = scenario.cluster(measured, rows[0].ranks).per_machine
    if options.json:
        found = prediction.as_dict(measured, known, rows)
        print_json({**found, "ranks_per_machine": per_machine})
    else:
        print_text(f"{measured.name}, {measured.samples} samples a rank; {measured.processor}")
        if known:
            table = prediction.checked_table(known)
            print_text(f"\nOne machine of {measured.cores} cores:\n\n{table}")
        print_text(f"\nMachines like it, with {per_machine} ranks each:\n")
        print_text(prediction.predicted_table(rows))
    if options.svg is not None:
        write(options.svg, picture(measured, known, rows), "--svg")
    return 0
