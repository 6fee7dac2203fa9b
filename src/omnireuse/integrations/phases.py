"""Which steps the requests of a continuous batch compute, so that their computed steps fall into the same waves.

A wave of an engine is one denoising step of all running requests. The first row of a batch takes the transformer longer
than each further one, so two requests that compute in the same wave cost less than in two. Schedules are known ahead:
the computed steps of a new request move by one step to waves in which others compute. The steps of a request that is
aborted count until their waves are over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

__all__ = ["WavePlanner", "linear_cost"]

Cost = Callable[[int], float]


def linear_cost(per_wave: float = 1.0, per_row: float = 1.0, most_rows: int | None = None) -> Cost:
    """Time of one wave of the transformer, by its rows; nothing for a wave without rows.

    Args:
        per_wave: what a call of the transformer takes beside its rows, ≥ 0.
        per_row: what each row adds, in the same unit, ≥ 0.
        most_rows: rows that one call takes; more of them take further calls. None: any number.
    """

    def cost(rows: int) -> float:
        calls = 0 if not rows else 1 if most_rows is None else -(-rows // most_rows)
        return per_wave * calls + per_row * rows

    return cost


class WavePlanner:
    """The computed steps that lie ahead, by wave, of all requests that run.

    Args:
        cost: time of a wave by its rows.
        reach: by how many steps a computed step may move, ≥ 0.
        still: share of the steps, at the start of a request, that do not move, in [0, 1]. The early steps matter most
            (``python -m bench wave_quality``).
        reluctance: what moving by one step costs, in the unit of `cost`; it keeps steps where they are unless a wave is
            saved by moving.
    """

    def __init__(self, cost: Cost, *, reach: int = 1, still: float = 0.25, reluctance: float = 0.05) -> None:
        self._cost = cost
        self._reach = reach
        self._still = still
        self._reluctance = reluctance
        self._rows: Counter[int] = Counter()

    def place(self, schedule: Iterable[int], total: int, *, wave: int, rows: int = 1) -> frozenset[int]:
        """The steps that a new request computes, as many as in its schedule; the planner counts on them from now on.

        The first and the last step stay, and so does the number of steps.

        Args:
            schedule: the steps that it would compute alone.
            total: its number of steps.
            wave: of its first step.
            rows: that it brings to a wave, ≥ 1.
        """
        own = sorted(schedule)
        placed = self._cheapest(own, total, wave, rows)
        for step in placed:
            self._rows[wave + step] += rows
        return frozenset(placed)

    def finish(self, wave: int) -> None:
        """Drop what is known of the waves before this one."""
        for past in [each for each in self._rows if each < wave]:
            del self._rows[past]

    def rows(self, wave: int) -> int:
        """Rows that compute in a wave, as planned."""
        return self._rows[wave]

    def _cheapest(self, own: list[int], total: int, wave: int, rows: int) -> list[int]:
        """Dynamic programming over the computed steps in order; each goes to one of the places within reach."""
        best: dict[int, tuple[float, list[int]]] = {-1: (0.0, [])}
        for step in own:
            is_fixed = step in (0, total - 1) or step < self._still * total
            places = [step] if is_fixed else range(max(1, step - self._reach), min(total - 2, step + self._reach) + 1)
            following: dict[int, tuple[float, list[int]]] = {}
            for place in places:
                added = self._added(wave + place, rows) + self._reluctance * abs(place - step)
                before = [(price, path) for last, (price, path) in best.items() if last < place]
                if before:
                    price, path = min(before)
                    following[place] = (price + added, [*path, place])
            best = following
        return min(best.values())[1]

    def _added(self, wave: int, rows: int) -> float:
        return self._cost(self._rows[wave] + rows) - self._cost(self._rows[wave])
