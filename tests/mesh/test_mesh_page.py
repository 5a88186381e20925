"""The page of meshes: what it says, hostile names, and a real browser."""

import dataclasses
import re

import pytest

from lagom_jax.cluster import Cluster
from lagom_jax.mesh.candidates import Asks
from lagom_jax.mesh.choosing import choose
from lagom_jax.mesh.infeasible import infeasible
from lagom_jax.mesh.mesh_document import Offer
from lagom_jax.mesh.mesh_page import mesh_page
from lagom_jax.mesh.model_shape import published_shape
from lagom_jax.mesh.pictures import axes_words, communication_matrix
from lagom_jax.mesh.sizes import MeshSizes
from lagom_jax.units import in_seconds
from tests.report.browsers import Opened

ASKED = {"tokens": 1 << 20, "sequence": 4096, "framework": "megatron"}
HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[31m\"'&"
WAYS = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "narrow": {"viewport": {"width": 360, "height": 740}},
}


def offer(cluster="h100:8x8", model="llama-3-70b", price=None):
    advice = choose(model, cluster=cluster, **ASKED)
    why = infeasible(
        *(advice.shape, advice.cluster, advice.batch, advice.framework, Asks()),
        advice.candidates,
    )
    return Offer(advice, why, price)


@pytest.fixture(scope="module")
def best():
    return offer()


@pytest.fixture(scope="module")
def file(tmp_path_factory, best):
    path = tmp_path_factory.mktemp("page") / "mesh.html"
    path.write_text(mesh_page([best], "lagom mesh llama-3-70b"), encoding="utf-8")
    return path


def test_every_choice_is_there(best):
    page = mesh_page([best])
    for choice in best.advice.choices:
        assert axes_words(choice.sizes) in page
        assert in_seconds(choice.step_seconds) in page
    assert page.count("<svg") == 1 + min(3, len(best.advice.choices))


def test_it_names_nothing_outside(best):
    page = mesh_page([best])
    found = set(re.findall(r"https?://[^\"' <]+", page))
    assert found == {"http://www.w3.org/2000/svg"}


def test_a_name_is_data():
    shape = dataclasses.replace(published_shape("llama-3-8b"), name=HOSTILE)
    page = mesh_page([offer(model=shape)])
    assert "<img" not in page
    assert "\x1b" not in page
    assert page.count("</script>") == 1


def test_clusters_are_compared_and_those_that_do_not_fit_say_why():
    page = mesh_page([offer("h100:1x8", price=2.0), offer(price=3.0)])
    assert "No mesh fits into memory" in page
    assert "$ for a million tokens" in page
    only = mesh_page([offer("h100:1x8")], "lagom mesh llama-3-70b")
    assert "what would do" in only
    assert "<svg" not in only


def test_a_matrix_in_blocks_has_the_same_bytes(best):
    sizes = best.advice.best.sizes
    whole = communication_matrix(best.advice, sizes)
    blocks = communication_matrix(best.advice, sizes, 4)
    assert blocks.shape == (16, 16)
    assert blocks.sum() == pytest.approx(whole.sum())
    assert blocks[0, 1] == pytest.approx(whole[:4, 4:8].sum())


def test_the_matrix_of_a_large_cluster_is_small():
    advice = choose("llama-3-8b", cluster="h100:2048x8", tokens=1 << 26, sequence=2048)
    matrix = communication_matrix(advice, MeshSizes(fsdp=16384), 256)
    assert matrix.shape == (64, 64)


def test_devices_of_the_mesh_are_those_of_the_cluster(best):
    found = re.search(r"jax\.make_mesh\(\(([\d, ]+)\)", mesh_page([best]))
    assert found is not None
    product = 1
    for size in filter(None, found[1].replace(" ", "").split(",")):
        product *= int(size)
    assert product == Cluster.parse("h100:8x8").devices


@pytest.mark.parametrize("way", WAYS)
def test_it_opens_in_silence_and_axe_finds_nothing_serious(chromium, file, way):
    one = Opened(chromium, file, **WAYS[way])
    assert one.complaints == []
    assert one.requests == [file.as_uri()]
    wide = one.page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0, "it can be scrolled to the side"
    one.close()
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    one = Opened(chromium, file, bypass_csp=True, **WAYS[way])
    found = axe.Axe().run(one.page).response["violations"]
    serious = [v["id"] for v in found if v["impact"] in ("serious", "critical")]
    assert serious == [], [v["nodes"][0]["html"] for v in found]
    one.close()


def test_buttons_work_by_keyboard(chromium, file):
    one = Opened(chromium, file)
    one.page.get_by_role("button", name="Light or dark").focus()
    one.page.keyboard.press("Enter")
    assert one.page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert one.page.locator("#said").inner_text() == "Dark"
    ground = "getComputedStyle(document.querySelector('.chart .ground')).fill"
    assert one.page.evaluate(ground) == "rgb(20, 23, 27)"
    one.page.get_by_role("button", name="Copy: Compile the best ones").click()
    # The clipboard answers later than the click returns.
    one.page.locator("#said", has_text="Copied").wait_for(timeout=5000)
    one.close()
