import numpy as np
import pytest

from reference.faces.people import held_out_people
from tests import TOP

DRAWN = TOP / "models" / "faces" / "drawn.png"


@pytest.fixture(scope="module")
def drawn():
    """Held-out people, and their drawings as they lie beside the weights."""
    if not DRAWN.exists():
        pytest.skip("the weights are in the repository, not in the package")
    image = pytest.importorskip("PIL.Image")
    sheet = np.asarray(image.open(DRAWN), np.float32) / 255
    rows, columns = sheet.shape[0] // 64, sheet.shape[1] // 64
    pictures = sheet.reshape(rows, 64, columns, 64, 3).swapaxes(1, 2).reshape(-1, 64, 64, 3)
    return held_out_people(rows * columns, seed=1), pictures


def test_drawn_people_are_read_back_right(drawn):
    from reference.faces.checker import check

    right = [right for person, picture in zip(*drawn, strict=True) for right in check(person, picture).values()]
    assert np.mean(right) > 0.98
