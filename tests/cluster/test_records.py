import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lagom_jax.cluster
from lagom_jax.cluster import Cluster
from lagom_jax.errors import ClusterError

RECORDS = Path(lagom_jax.cluster.__file__).parent / "records"
ALL_RECORDS = sorted(RECORDS.glob("*/*.json"))


def load(folder: str, name: str) -> dict[str, Any]:
    return json.loads((RECORDS / folder / f"{name}.json").read_text())


@pytest.mark.parametrize("path", ALL_RECORDS, ids=lambda path: path.stem)
def test_a_record_is_named_like_its_file(path: Path) -> None:
    assert json.loads(path.read_text())["name"] == path.stem


def test_every_gpu_and_link_record_belongs_to_a_system() -> None:
    used: dict[str, set[str]] = {"gpus": set(), "links": set()}
    for name in Cluster.names():
        system = load("systems", name)
        used["gpus"].add(system["gpu"])
        used["links"] |= {system[role] for role in ("inside", "between", "to_host")}
    for folder, names in used.items():
        assert names == {path.stem for path in (RECORDS / folder).glob("*.json")}


def test_no_two_gpus_are_the_same_device() -> None:
    gpus = [json.loads(p.read_text()) for p in (RECORDS / "gpus").glob("*.json")]
    devices = [gpu["xla_device_name"] for gpu in gpus]
    assert len(devices) == len(set(devices))


@pytest.mark.parametrize("name", Cluster.names())
def test_the_figures_of_a_gpu_agree_with_each_other(name: str) -> None:
    gpu = Cluster.parse(name).gpu
    dense, vector = gpu.dense_flops_per_s, gpu.vector_flops_per_s
    lanes = gpu.sm_count * gpu.fp32_lanes_per_sm
    assert vector["f32"] == pytest.approx(2 * lanes * gpu.boost_clock_hz, rel=0.02)
    assert dense["f16"] == dense["bf16"]
    # The L40S's data sheet rounds bf16 otherwise than the rest, by 1.2 %.
    assert dense["tf32"] == pytest.approx(dense["bf16"] / 2, rel=0.013)
    # Blackwell Ultra has next to no int8 and f64, and half as much fp4 again.
    ultra = gpu.compute_capability == "10.3a"
    if not ultra:
        assert dense["s8"] == pytest.approx(dense["bf16"] * 2, rel=0.013)
    if "f8" in dense:
        assert dense["f8"] == pytest.approx(dense["bf16"] * 2, rel=0.013)
    if "f4" in dense:
        assert dense["f4"] == (3 if ultra else 2) * dense["f8"]
    # Tensor cores work in powers of two a clock; data sheets round and use a clock
    # of their own for them, below the boost clock.
    per_sm_and_clock = dense["bf16"] / (2 * gpu.sm_count * gpu.boost_clock_hz)
    nearest = 2 ** round(per_sm_and_clock).bit_length()
    assert min(abs(per_sm_and_clock / n - 1) for n in (nearest, nearest // 2)) < 0.09
    assert vector["f64"] < vector["f32"]
    assert gpu.threads_per_sm % gpu.threads_per_warp == 0
    reserved = gpu.shared_memory_bytes_reserved_per_block
    optin = gpu.shared_memory_bytes_per_block_optin
    assert optin + reserved == gpu.shared_memory_bytes_per_sm


@pytest.mark.parametrize("name", Cluster.names())
def test_links_get_slower_with_distance(name: str) -> None:
    cluster = Cluster.parse(name)
    assert cluster.inside.bytes_per_s > cluster.between.bytes_per_s
    assert cluster.inside.latency_s < cluster.between.latency_s
    assert cluster.gpu.memory_bytes_per_s > cluster.inside.bytes_per_s


@pytest.mark.parametrize("name", Cluster.names())
def test_every_figure_has_its_source(name: str) -> None:
    cluster = Cluster.parse(name)
    texts = {"name", "title", "kind", "xla_device_name", "compute_capability"}
    for record in (cluster.gpu, cluster.inside, cluster.between, cluster.to_host):
        figures: set[str] = set()
        for key, value in record.as_dict().items():
            if isinstance(value, dict):
                figures |= {f"{key}.{part}" for part in value}
            elif key not in texts:
                figures.add(key)
        assert figures == set(record.sources)
        assert all(len(source) > 10 for source in record.sources.values())


@pytest.fixture
def own(tmp_path: Path) -> Callable[..., str]:
    """Writes a system, a GPU and a link of the user's own, edited by the test."""

    def write(
        edit_system: Callable[[dict[str, Any]], object] = lambda record: None,
        edit_gpu: Callable[[dict[str, Any]], object] = lambda record: None,
        edit_link: Callable[[dict[str, Any]], object] = lambda record: None,
    ) -> str:
        system = copy.deepcopy(load("systems", "h100"))
        system |= {"name": "mine", "gpu": "./gpu.json", "inside": "link.json"}
        gpu, link = load("gpus", "h100"), load("links", "nvlink4")
        edit_system(system)
        edit_gpu(gpu)
        edit_link(link)
        for name, record in (("system", system), ("gpu", gpu), ("link", link)):
            (tmp_path / f"{name}.json").write_text(json.dumps(record))
        return str(tmp_path / "system.json")

    return write


def test_a_record_of_the_user_s_own(own: Callable[..., str]) -> None:
    def more(gpu: dict[str, Any]) -> None:
        gpu["facts"]["sm_count"]["value"] = 140

    path = own(edit_gpu=more)
    cluster = Cluster.parse(f"{path}:3x8")
    assert cluster.name == f"{path}:3x8"
    assert Cluster.parse(cluster.name) == cluster
    assert cluster.gpu.sm_count == 140
    assert cluster.between == Cluster.parse("h100").between
    assert Cluster.parse(path).devices == 8


def at(*keys: str, value: object) -> Callable[[dict[str, Any]], None]:
    def edit(record: dict[str, Any]) -> None:
        for key in keys[:-1]:
            record = record[key]
        if value is None:
            del record[keys[-1]]
        else:
            record[keys[-1]] = value

    return edit


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (at("facts", "sm_count", value=None), "`facts.sm_count` is missing"),
        (at("facts", "sms", value={}), "`facts.sms` is not known; known are block"),
        (at("facts", "sm_count", value=132), "`facts.sm_count` must be a JSON object"),
        (at("facts", "sm_count", "value", value=1.5), "must be a whole number"),
        (at("facts", "sm_count", "value", value=True), "must be a whole number"),
        (at("facts", "sm_count", "value", value=0), "must be a whole number, 1 or"),
        (at("facts", "sm_count", "source", value=None), "sm_count.source` is missing"),
        (at("facts", "sm_count", "source", value="rumour"), "cuda, whitepaper, xla"),
        (at("facts", "grid_size_limit", "value", value=[1, 2]), "three whole numbers"),
        (at("facts", "dense_flops_per_s", "bf16", value=None), "bf16` is missing"),
        (at("facts", "dense_flops_per_s", "fp8", value={}), "fp8` is not known"),
        (at("sources", "xla", value=""), "`sources.xla` must say who"),
        (at("sources", "blog", value="a blog"), "is not the source of any fact"),
        (at("colour", value="green"), "`colour` is not known"),
        (
            lambda r: r["facts"].update(sm_counts=r["facts"].pop("sm_count")),
            "unknown `facts.sm_counts`; missing `facts.sm_count`",
        ),
        (at("title", value=None), "`title` is missing"),
        (at("title", value=7), "`title` must be a text"),
    ],
)
def test_a_wrong_gpu_record_is_refused(
    own: Callable[..., str], edit: Callable[[dict[str, Any]], None], says: str
) -> None:
    with pytest.raises(ClusterError) as error:
        Cluster.parse(own(edit_gpu=edit))
    assert says in str(error.value)
    assert "gpu.json" in str(error.value)


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (at("kind", value="string"), "`kind` must be one of nvlink, pcie, network"),
        (at("kind", value="network"), "`inside` must be a link of the kind `nvlink`"),
        (at("facts", "bytes_per_s", "value", value=-1), "must be a positive number"),
        (at("facts", "latency_s", "value", value=float("nan")), "positive number"),
        (at("facts", "latency_s", "value", value="1 us"), "positive number"),
        (
            at("facts", "gpus_joined", value={"value": 1, "source": "latency"}),
            "`facts.gpus_joined` must be a whole number, 2 or more",
        ),
    ],
)
def test_a_wrong_link_record_is_refused(
    own: Callable[..., str], edit: Callable[[dict[str, Any]], None], says: str
) -> None:
    with pytest.raises(ClusterError) as error:
        Cluster.parse(own(edit_link=edit))
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (at("gpu", value="h10"), "no gpu is known as 'h10'; did you mean 'h100'?"),
        (at("inside", value="./lost.json"), "lost.json: No such file"),
        (at("between", value="nvlink4"), "`between` must be a link of the kind `net"),
        (at("notes", value="text"), "`notes` must be a list of texts"),
        (at("notes", value=[1]), "`notes` must hold nothing but texts"),
    ],
)
def test_a_wrong_system_record_is_refused(
    own: Callable[..., str], edit: Callable[[dict[str, Any]], None], says: str
) -> None:
    with pytest.raises(ClusterError) as error:
        Cluster.parse(own(edit_system=edit))
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{", "is not JSON: "),
        (b"[]", "must be a JSON object"),
        (b"\xff\xfe\x00", "is not a text file"),
    ],
)
def test_a_file_that_is_no_record(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "mine.json"
    path.write_bytes(content)
    with pytest.raises(ClusterError) as error:
        Cluster.parse(str(path))
    assert says in str(error.value)
    assert str(path) in str(error.value)
