"""``python -m bench``: measure, print tables, and say so if what was measured is not right."""

import argparse
import random
import signal
import sys
from pathlib import Path

from . import away, idle, intake, memory, pages, parked, rate, swf, telemetry, throughput
from .chaos import run as chaos


def main() -> int:
    """Run the measurement that was asked for, ``throughput`` by default. Returns the exit code."""
    options = _parser().parse_args()
    # Or servers and processes would be left.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    match options.measurement:
        case "chaos" if options.list:
            print(chaos.listing())
            return 0
        case "chaos":
            return chaos.run(
                seconds=options.seconds, seed=options.seed, lease=options.lease, only=options.only, report=options.json
            )
        case "away":
            return away.run(seconds=options.seconds)
        case "intake":
            return intake.run(seconds=options.seconds, workers=options.workers)
        case "memory":
            return memory.run(tasks=options.tasks, every=options.every)
        case "idle":
            return idle.run(events=options.events, repeat=options.repeat)
        case "pages":
            return pages.run(tasks=options.tasks)
        case "parked":
            return parked.run(entries=options.entries)
        case "rate":
            return rate.run(seconds=options.seconds)
        case "swf":
            return swf.run(options.log, limit=options.limit, every=options.every, seed=options.seed)
        case "telemetry":
            return telemetry.run(tasks=options.tasks, repeat=options.repeat)
        case "throughput":
            return throughput.run(tasks=options.tasks, repeat=options.repeat)
        case _:
            return throughput.run(tasks=throughput.TASKS, repeat=1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure postroad on embedded servers.")
    measurements = parser.add_subparsers(dest="measurement", metavar="MEASUREMENT")

    drain = measurements.add_parser("throughput", help="tasks/s and CPU, beside a ceiling, as ratios (the default)")
    drain.add_argument("--tasks", type=int, default=throughput.TASKS, help="how many are drained [%(default)s]")
    drain.add_argument("--repeat", type=int, default=1, help="how often; the median counts [%(default)s]")

    door = measurements.add_parser("intake", help="tasks accepted over HTTP, beside a bare route and plain inserts")
    door.add_argument("--seconds", type=float, default=8, help="how long each [%(default)s]")
    door.add_argument("--workers", type=int, default=1, help="also with so many processes of the intake [%(default)s]")

    seen = measurements.add_parser("telemetry", help="what metrics and traces cost, as ratios")
    seen.add_argument("--tasks", type=int, default=4_000, help="how many are drained each time [%(default)s]")
    seen.add_argument("--repeat", type=int, default=8, help="how often, in turn [%(default)s]")

    flat = measurements.add_parser("memory", help="memory of intake, relay and workers along a long run")
    flat.add_argument("--tasks", type=int, default=200_000, help="how many travel [%(default)s]")
    flat.add_argument("--every", type=int, default=10_000, help="a line each time so many have finished [%(default)s]")

    look = measurements.add_parser("pages", help="the dashboard's pages beside millions of tasks and their events")
    look.add_argument("--tasks", type=int, default=1_000_000, help="how many are made [%(default)s]")

    rest = measurements.add_parser("parked", help="Redis' slowest commands beside many parked entries")
    rest.add_argument("--entries", type=int, default=100_000, help="how many are parked [%(default)s]")

    limit = measurements.add_parser("rate", help="whether a rate holds over four processes, and is used up")
    limit.add_argument("--seconds", type=float, default=20, help="how long each time [%(default)s]")

    gone = measurements.add_parser("away", help="a stage whose service is away, and the stage beside it")
    gone.add_argument("--seconds", type=float, default=60, help="for how long, and how long before [%(default)s]")

    idle_run = measurements.add_parser("idle", help="the relay beside a transaction that is never committed")
    idle_run.add_argument("--events", type=int, default=30_000, help="how many are published each time [%(default)s]")
    idle_run.add_argument("--repeat", type=int, default=3, help="how often, with and without [%(default)s]")

    fire = measurements.add_parser("swf", help="a job log through the provisioning example, under fire")
    fire.add_argument("log", metavar="LOG", type=Path, help="in the Standard Workload Format, plain or gzip")
    fire.add_argument("--limit", metavar="N", type=int, help="the first N jobs only")
    fire.add_argument("--every", metavar="SECONDS", type=float, default=3.0, help="a fault so often [%(default)s]")
    fire.add_argument("--seed", type=int, default=1, help="of the order of the faults [%(default)s]")

    chaos_run = measurements.add_parser(
        "chaos", help="every fault that we know of, under load; how long each takes to heal"
    )
    chaos_run.add_argument("--seconds", type=float, default=600, help="how long to strike [%(default)s]")
    chaos_run.add_argument(
        "--seed", type=int, default=random.randrange(10_000), help="which faults come in which order [random]"
    )
    chaos_run.add_argument("--lease", metavar="SECONDS", type=float, default=3, help="the workers' [%(default)s]")
    chaos_run.add_argument("--only", metavar="FAULT", nargs="+", default=[], help="these alone; A+B are two at once")
    chaos_run.add_argument("--json", metavar="FILE", type=Path, help="write the report there, too")
    chaos_run.add_argument("--list", action="store_true", help="name the faults, and strike none")
    return parser


if __name__ == "__main__":
    sys.exit(main())
