"""The command line of the conformance run. See the package."""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path
from typing import Any

from tests import conformance
from tests.conformance import workers
from tests.conformance.entries import DTYPES, entries
from tests.conformance.report import DOCUMENT, document, stale
from tests.conformance.results import Results, unexpected
from tests.conformance.touched import touched


def main() -> int:
    options = _options()
    if options.check:
        problems = stale(DOCUMENT.read_text())
        print("\n".join(problems) or f"{DOCUMENT} is current")
        return 1 if problems else 0
    results = Results(options.folder / "reference" if options.reference else options.folder)
    if options.fresh:
        results.clear()
    among = touched(options.touched, results.known) if options.touched else entries().keys()
    chosen = [
        (name, dtype)
        for dtype in options.dtype or DTYPES
        for name, entry in entries().items()
        if dtype in entry.dtypes and name in among and re.search(options.only, name)
    ]
    if options.touched or options.again:
        old = [task for task in chosen if task in results.known]
        results.forget([task for task in old if options.touched or unexpected(results.known[task])])
    missing = [task for task in chosen if task not in results.known]
    start, total = time.monotonic(), len(missing)

    def done(result: dict[str, Any]) -> None:
        results.add(result)
        if options.verbose or results.num_added % 100 == 0 or results.num_added == total:
            print(f"{results.num_added} of {total} in {time.monotonic() - start:.0f} s: {result['entry']}", flush=True)

    arguments = [str(options.samples), *(["--reference"] if options.reference else [])]
    workers.run(missing, arguments, options.processes, options.timeout, done)
    if options.doc:
        DOCUMENT.write_text(document(results.known))
    wrong = [text for task in chosen for text in unexpected(results.known[task])]
    print("\n".join(wrong))
    print(f"{len(chosen)} entries and dtypes, {len(wrong)} unexpected results")
    return 1 if wrong else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance", description=conformance.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--only", default="", metavar="REGEX", help="entries whose name has a match")
    parser.add_argument("--touched", metavar="REVISION", help="entries whose lowerings differ from a revision in git")
    parser.add_argument("--dtype", nargs="*", choices=DTYPES, help="columns (default: all)")
    parser.add_argument("--samples", type=int, default=3, help="samples an entry, 0 for all (default: 3)")
    parser.add_argument("--reference", action="store_true", help="the samples of PyTorch's tests against NumPy instead")
    parser.add_argument("--fresh", action="store_true", help="forget the results of earlier runs")
    parser.add_argument("--again", action="store_true", help="repeat what was unexpected in earlier runs")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one entry and dtype")
    parser.add_argument("--folder", type=Path, default=Path("build/conformance"), help="where results are kept")
    parser.add_argument("--doc", action="store_true", help="then write docs/conformance.md; needs all results")
    parser.add_argument("--check", action="store_true", help="only say whether docs/conformance.md is current")
    parser.add_argument("--verbose", action="store_true", help="name each entry as it ends")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
