from __future__ import annotations

import io

from rich.console import Console

from reference.demo.table import demo_table
from tests.helpers.comparisons import gallery


def test_a_terminal_of_eighty_columns_holds_the_table() -> None:
    (made,) = gallery().cases
    target = io.StringIO()
    Console(file=target, width=80).print(demo_table(made))
    lines = [line.rstrip() for line in target.getvalue().splitlines()]
    assert lines[0] == "shapes-flux: 28 steps, guidance 5, 3 prompts"
    assert len(lines) == 3 + len(made.points) + 2
    assert " ".join(" ".join(lines[-2:]).split()) == (
        "PSNR and SSIM are to the full run; the gain is in PSNR over plain fewer steps, as many as computed."
    )
    assert "…" not in target.getvalue()
    rows = {line.split("  ")[0]: line.split() for line in lines[2:-2] if not line.startswith(" ")}
    assert rows["omnireuse"][1:] == ["12.0", "2.33×", "45.0", "dB", "+10.0", "dB", "0.9700", "89%"]
    assert rows["TeaCache 0.2"][-4:] == ["−1.4", "dB", "0.9700", "89%"], "a cache below its floor shows it"
