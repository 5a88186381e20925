import json
import re
from pathlib import Path

from lagom_jax.cluster import Cluster
from lagom_jax.cluster.tables import TABLES, fill_in, main

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "clusters.md"


def test_the_tables_say_what_the_records_say() -> None:
    text = DOCUMENT.read_text()
    assert set(re.findall(r"<!-- table: (\w+) -->", text)) == set(TABLES)
    assert fill_in(text) == text, (
        "run: python -m lagom_jax.cluster.tables docs/reference/clusters.md"
    )


def test_filling_in_repairs_a_stale_document(tmp_path: Path) -> None:
    path = tmp_path / "clusters.md"
    path.write_text(DOCUMENT.read_text().replace("132", "131"))
    main([str(path)])
    assert path.read_text() == DOCUMENT.read_text()


def test_the_spellings_mean_what_the_document_says() -> None:
    rows = re.findall(
        r"^\| `(\S+)` \| .*`(\S+:\d+x\d+)` \|$", DOCUMENT.read_text(), re.M
    )
    assert len(rows) == 4
    for written, canonical in rows:
        assert Cluster.parse(written).name == canonical


def test_the_example_of_a_record_is_one(tmp_path: Path) -> None:
    found = re.search(r"```json\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert found
    path = tmp_path / "lab.json"
    path.write_text(found[1])
    cluster = Cluster.parse(f"{path}:2x4")
    assert cluster.system.title == json.loads(found[1])["title"]
    assert cluster.between.bytes_per_s == 25e9 / 4
