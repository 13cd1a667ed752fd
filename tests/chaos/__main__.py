"""Run the scenarios and print what they found; exit code 1 on any violation or missing fault."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from tests.chaos import oracle
from tests.chaos.lab import Lab, Report


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--large", action="store_true", help="the large sizes")
    parser.add_argument("--seed", type=int, default=None, help="default: the time")
    parser.add_argument("--only", action="append", help="a scenario's name; may be repeated")
    parser.add_argument("--minutes", type=float, default=None, help="length of the soak")
    parser.add_argument(
        "--mutations", action="store_true", help="show that planted bugs are caught"
    )
    parser.add_argument("--keep", type=Path, default=None, help="work here and keep what failed")
    asked = parser.parse_args(arguments)
    seed = int(time.time()) % 1_000_000 if asked.seed is None else asked.seed
    from tests.chaos import mutations, scenarios

    known = list(mutations.MUTATIONS if asked.mutations else scenarios.SCENARIOS)
    names = asked.only or known
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"there is no {unknown[0]}; there are {', '.join(known)}")
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="chaos-") as made:
        folder = asked.keep or Path(made)
        if asked.mutations:
            return mutations.score(folder, seed, asked.only)
        return _all(names, folder, seed, asked)


def _all(names: list[str], folder: Path, seed: int, asked: argparse.Namespace) -> int:
    reports = [run(name, folder, seed, large=asked.large, minutes=asked.minutes) for name in names]
    total = Counter(dict.fromkeys(oracle.CHECKS, 0))
    delivered: Counter[str] = Counter()
    for report in reports:
        total.update({check: len(texts) for check, texts in report.violations.items()})
        delivered.update(report.delivered)
    missing = {name: n for report in reports for name, n in report.undelivered().items()}
    print("\ndelivered faults:", ", ".join(f"{p} {n}" for p, n in sorted(delivered.items())))
    print("violations:", ", ".join(f"{check} {n}" for check, n in sorted(total.items())))
    print("faults not delivered:", missing or "none")
    print(
        f"n {sum(r.trials for r in reports)}, seed {seed}, "
        f"graph versions {sum(r.versions for r in reports)}, {sum(r.seconds for r in reports):.0f} s"
    )
    return 0 if all(report.clean() for report in reports) else 1


def run(
    name: str,
    folder: Path,
    seed: int,
    *,
    large: bool = False,
    minutes: float | None = None,
    mutation: str | None = None,
    quiet: bool = False,
) -> Report:
    """Run one scenario and print its line."""
    from tests.chaos import scenarios

    lab = Lab(name, folder / name, seed, large=large, mutation=mutation)
    lab.minutes = minutes
    began = time.monotonic()
    try:
        scenarios.SCENARIOS[name](lab)
    except Exception:
        lab.report.add("scenario", traceback.format_exc())
    lab.report.seconds = time.monotonic() - began
    if not quiet:
        show(lab.report)
    return lab.report


def show(report: Report) -> None:
    """Print a scenario's line, its numbers, and what was violated."""
    state = "ok" if report.clean() else "FAILED"
    print(f"{report.name:24} {state:6} n {report.trials:4} {report.seconds:6.1f} s", flush=True)
    for text in report.numbers:
        print(f"    {text}")
    for check, texts in sorted(report.violations.items()):
        for text in texts[:12]:
            print(f"    {check}: {text}")
        if len(texts) > 12:
            print(f"    {check}: … {len(texts)} in all")
    for point, count in sorted(report.undelivered().items()):
        print(f"    not delivered: {point} {count}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
