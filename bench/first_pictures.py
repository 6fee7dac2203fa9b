"""How long a user waits for each of the first pictures, some of which tuning measures, beside calls without reuse.

    python -m bench first_pictures

Time of each of the first ten calls after `enable` with an empty cache folder, divided by the median of plain calls that
are made before them. It is the processor's time on one thread, also for tuning's own limit, so that other programs do
not change it. Each draw begins anew with other prompts.
"""

from __future__ import annotations

import statistics
import time
from unittest import mock

from rich.console import Console

from bench._common import new_parser, new_table, no_warnings, write_record
from bench._player import STEPS, Player
from reference.case import FACES, IMAGES

PICTURES = 10


def draw(case: str, seed: int) -> list[float]:
    """Time of each of the first pictures over that of a plain one."""
    player = Player({"case": case, "guided": True}, PICTURES, seed=seed)

    def seconds(number: int) -> float:
        started = time.process_time()
        player.run([number])
        return time.process_time() - started

    seconds(0)  # the first call of all allocates
    plain = statistics.median([seconds(number) for number in range(5)])
    with mock.patch("omnireuse.tuning.entry.monotonic", time.process_time), player.tuned(()):
        return [round(seconds(number) / plain, 3) for number in range(PICTURES)]


def main(options: list[str] | None = None) -> None:
    """Measure each case, print the table and write the record."""
    parser = new_parser("first_pictures", __doc__)
    parser.add_argument("--draws", type=int, default=3, help="draws of first pictures (default: %(default)s)")
    given = parser.parse_args(options)
    columns = [*map(str, range(1, PICTURES + 1)), "longest", "all"]
    table = new_table("time of each picture over the usual", "", *columns)
    record: dict[str, list[list[float]]] = {}
    with no_warnings():
        for case in (FACES.name, IMAGES.name):
            draws = record[case] = [draw(case, 700 + 100 * number) for number in range(given.draws)]
            shown = [*zip(*draws, strict=True), [max(each) for each in draws], [sum(each) for each in draws]]
            table.add_row(case, *(f"{statistics.median(c):.1f} ({min(c):.1f} to {max(c):.1f})" for c in shown))
    Console(width=250).print(table)
    write_record({"steps": STEPS, "times": record}, given.out, "first_pictures")


if __name__ == "__main__":
    main()
