"""The overlap report of a dump: `python scripts/hlo_report.py DUMP --cluster h100:8x8`.

The same as `lagom report DUMP`, as a script that can be copied beside a training job.
"""

from __future__ import annotations

import sys

from absl import app, flags

from lagom_jax import cli

_CLUSTER = flags.DEFINE_string(
    "cluster", None, "What the program runs on, such as h100:8x8."
)
_JSON = flags.DEFINE_bool("json", False, "Print JSON, see docs/reference/report.md.")
_ROWS = flags.DEFINE_string("rows", "15", "How many collectives to list, or all.")


_USAGE = (
    "usage: python scripts/hlo_report.py DUMP --cluster=h100:8x8 [--json] [--rows=N]"
)


def main(arguments: list[str]) -> int:
    missing = ""
    if len(arguments) != 2:
        missing = "name one dump: a file, a folder, or - for standard input"
    elif not _CLUSTER.value:
        missing = "name the cluster that the program runs on, as in --cluster=h100:8x8"
    if missing:
        print(f"hlo_report: {missing}\n{_USAGE}", file=sys.stderr)
        return 2
    words = ["report", arguments[1], "--cluster", _CLUSTER.value, "--rows", _ROWS.value]
    return cli.main([*words, "--json"] if _JSON.value else words)


if __name__ == "__main__":
    app.run(main)
