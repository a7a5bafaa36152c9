"""The HTML report in a real browser: charts, tooltips, sorting, keyboard, themes, contrast.

Chromium and its driver come from the system (Debian's chromium and chromium-driver).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from end_to_end.command import SAMPLES, memcurse

if not (shutil.which("chromium") and shutil.which("chromedriver")):
    pytest.skip("chromium and chromedriver are not installed", allow_module_level=True)

from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

CONTRAST = """
const channel = (value) => {
  value /= 255;
  return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
};
const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
const ground = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const colour = numbers(getComputedStyle(at).backgroundColor);
    if (colour.length === 3 || colour[3] === 1) return colour;
  }
  return numbers(getComputedStyle(document.body).backgroundColor);
};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const low = [];
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement;
  if (!walker.currentNode.textContent.trim() || element.closest("script, style, .skip")) continue;
  if (!element.checkVisibility()) continue;
  const style = getComputedStyle(element);
  const text = numbers(element.closest("svg") ? style.fill : style.color);
  const [a, b] = [luminance(text), luminance(ground(element))].sort((x, y) => y - x);
  const ratio = (a + 0.05) / (b + 0.05);
  if (ratio < 4.5) low.push([element.tagName, walker.currentNode.textContent.trim(), ratio]);
}
return low;
"""


LRU, DENSE = (SAMPLES / f"{name}.safetensors" for name in ("lru", "dense_linear_rnn"))
CALLS: dict[str, tuple[str | Path, ...]] = {
    "inspect": (LRU, DENSE),
    "compare": (SAMPLES / "complex_diagonal_rnn.safetensors", LRU),
    "track": (SAMPLES / "run", "--no-cache", "--jobs", "1"),
}
every_page = pytest.mark.parametrize("opened", CALLS, indirect=True)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("html")
    made = {}
    for command, arguments in CALLS.items():
        made[command] = folder / f"{command}.html"
        done = memcurse(command, *arguments, "--format", "html", "--output", made[command])
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return made


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    for switch in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(switch)
    options.binary_location = str(shutil.which("chromium"))
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    with webdriver.Chrome(options=options, service=service) as driver:
        driver.set_window_size(1100, 900)
        yield driver


@pytest.fixture
def opened(browser: Any, pages: dict[str, Path], request: pytest.FixtureRequest) -> Iterator[Any]:
    """A page in the browser: of a report, unless a test asks for another command's."""
    browser.get(pages[getattr(request, "param", "inspect")].as_uri())
    yield browser
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def wait_until(browser: Any, condition: Callable[[], bool]) -> None:
    """A link is followed, and its layer drawn, some time after the click."""
    WebDriverWait(browser, 20).until(lambda _: condition())


def test_every_chart_is_drawn(opened: Any) -> None:
    charts = opened.find_elements(By.CSS_SELECTOR, "details.layer[open] .charts")
    assert len(charts) == 2
    assert len(charts[0].find_elements(By.TAG_NAME, "canvas")) == 1
    for chart in charts:
        assert len(chart.find_elements(By.TAG_NAME, "svg")) == 2
        assert len(chart.find_elements(By.CSS_SELECTOR, "svg:first-child circle.dot")) >= 64
        assert len(chart.find_elements(By.CSS_SELECTOR, "polyline.curve")) == 2
    painted = opened.execute_script(
        "const c = document.querySelector('canvas');"
        "return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some((v) => v > 0)"
    )
    assert painted


def test_a_pointer_or_arrow_keys_tell_what_an_eigenvalue_is(opened: Any) -> None:
    dot = opened.find_element(By.CSS_SELECTOR, "svg.chart circle.dot")
    tip = opened.find_element(By.ID, "tip")
    assert not tip.is_displayed()
    ActionChains(opened).move_to_element(dot).perform()
    assert tip.is_displayed()
    lines = tip.text.splitlines()
    assert [line.split(" = ")[0] for line in lines] == ["λ", "|λ|", "τ", "κ(λ)"]
    assert lines[2].endswith("steps")
    ActionChains(opened).move_to_element(opened.find_element(By.TAG_NAME, "h1")).perform()
    assert not tip.is_displayed()
    opened.execute_script("arguments[0].focus()", opened.find_element(By.CSS_SELECTOR, "svg.chart"))
    said = []
    for _ in range(2):
        ActionChains(opened).send_keys(Keys.ARROW_RIGHT).perform()
        said.append(tip.text)
    assert said[0] != said[1]
    moduli = [float(one.splitlines()[1].split(" = ")[1]) for one in said]
    assert moduli == sorted(moduli)
    ActionChains(opened).send_keys(Keys.ESCAPE).perform()
    assert not tip.is_displayed()


def test_a_head_sorts_its_table_both_ways_by_value_not_by_text(opened: Any) -> None:
    table = opened.find_element(By.ID, "r0-l0-parameters")
    heads = [one.text for one in table.find_elements(By.CSS_SELECTOR, "thead th")]
    column = heads.index("κ p99")

    def keys() -> list[float]:
        rows = table.find_elements(By.CSS_SELECTOR, "tbody tr")
        return [
            float(row.find_elements(By.CSS_SELECTOR, "th, td")[column].get_attribute("data-key"))
            for row in rows
        ]

    button = table.find_elements(By.CSS_SELECTOR, "thead button")[column]
    before = keys()
    assert len(set(before)) == 3
    button.click()
    assert keys() == sorted(before)
    button.send_keys(Keys.ENTER)
    assert keys() == sorted(before, reverse=True)
    head = table.find_elements(By.CSS_SELECTOR, "thead th")[column]
    assert head.get_attribute("aria-sort") == "descending"


def run_charts(opened: Any) -> list[Any]:
    return list(opened.find_elements(By.CSS_SELECTOR, "#run svg.chart"))


@pytest.mark.parametrize("opened", ["track"], indirect=True)
def test_the_curves_of_a_run_are_drawn_above_its_verdicts(opened: Any) -> None:
    charts = run_charts(opened)
    titles = [chart.get_attribute("aria-label").partition(" of ")[0] for chart in charts]
    assert titles == ["memory in steps", "learning rates"]
    assert [len(one.find_elements(By.CSS_SELECTOR, "polyline")) for one in charts] == [1, 2]
    for chart in charts:
        bands = chart.find_elements(By.CSS_SELECTOR, "rect.band")
        verdicts = [band.get_attribute("class").split()[1] for band in bands]
        assert verdicts == ["ok", "watch"] + ["ok"] * 9
    heights = {float(band.get_attribute("height")) for band in bands}
    assert len(heights) == 2  # told apart without colour


@pytest.mark.parametrize("opened", ["track"], indirect=True)
def test_a_pointer_anywhere_over_a_chart_tells_all_curves_of_the_nearest_step(opened: Any) -> None:
    chart = run_charts(opened)[1]
    beside = chart.size["width"] // 20
    ActionChains(opened).move_to_element_with_offset(chart, beside, 0).perform()
    head, *curves = opened.find_element(By.ID, "tip").text.splitlines()
    assert head == "step 100: ok"
    assert [line.split(" = ")[0] for line in curves] == ["usable rate", "your rate"]
    assert len(chart.find_elements(By.CSS_SELECTOR, "circle.chosen")) == 2
    opened.execute_script("arguments[0].focus()", chart)
    walk = {Keys.END: 200, Keys.ARROW_RIGHT: 0, Keys.ARROW_LEFT: 200, Keys.HOME: 0}
    for key, step in walk.items():
        ActionChains(opened).send_keys(key).perform()
        assert opened.find_element(By.ID, "tip").text.startswith(f"step {step}: ")
    ActionChains(opened).send_keys(Keys.ESCAPE).perform()
    assert not opened.find_element(By.ID, "tip").is_displayed()
    assert chart.find_elements(By.CSS_SELECTOR, "circle.chosen") == []


@pytest.mark.parametrize("opened", ["track"], indirect=True)
def test_a_layer_of_a_run_is_drawn_once_it_is_opened(opened: Any) -> None:
    layer = opened.find_element(By.ID, "l1")
    assert layer.find_elements(By.CSS_SELECTOR, "svg.chart") == []
    opened.find_element(By.CSS_SELECTOR, "#layers a").click()
    wait_until(opened, lambda: len(layer.find_elements(By.CSS_SELECTOR, "svg.chart")) == 3)


@pytest.mark.parametrize("opened", ["compare"], indirect=True)
def test_a_comparison_shows_where_each_eigenvalue_went(opened: Any) -> None:
    disk, memories = opened.find_elements(By.CSS_SELECTOR, "svg.chart")
    moves = disk.find_elements(By.CSS_SELECTOR, "line.move")
    dots = disk.find_elements(By.CSS_SELECTOR, "circle.dot")
    rings = disk.find_elements(By.CSS_SELECTOR, "circle.ring")
    assert len(moves) == len(dots) == len(rings) == 64
    ActionChains(opened).move_to_element(dots[0]).perform()
    lines = opened.find_element(By.ID, "tip").text.splitlines()
    assert [line.split(" = ")[0] for line in lines] == ["λ", "|λ|", "τ"]
    assert all(" → " in line for line in lines)
    said = memories.find_element(By.XPATH, "../figcaption").text
    assert "3 with |λ| ≥ 1 or λ = 0 not drawn" in said
    assert len(memories.find_elements(By.CSS_SELECTOR, "circle.dot")) == 61


@every_page
@pytest.mark.parametrize("width", [360, 1100])
def test_nothing_is_wider_than_the_window(opened: Any, width: int) -> None:
    opened.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    try:
        assert opened.execute_script("return document.documentElement.scrollWidth") <= width
    finally:
        opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@every_page
def test_text_has_contrast_in_both_themes(opened: Any) -> None:
    opened.execute_script("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    root = "return getComputedStyle(document.body).backgroundColor"
    grounds = set()
    for _ in range(2):
        assert opened.execute_script(CONTRAST) == []
        grounds.add(opened.execute_script(root))
        opened.find_element(By.ID, "theme").click()
    assert len(grounds) == 2


@every_page
def test_everything_that_can_be_used_is_reached_by_the_tab_key(opened: Any) -> None:
    wanted = opened.execute_script(
        "return [...document.querySelectorAll('button, a[href], summary, svg.chart, canvas')]"
        ".filter((e) => e.checkVisibility()).length"
    )
    reached = set()
    for _ in range(wanted + 20):
        ActionChains(opened).send_keys(Keys.TAB).perform()
        reached.add(opened.switch_to.active_element.id)
    usable = opened.find_elements(By.CSS_SELECTOR, "button, a[href], summary, svg.chart, canvas")
    assert {one.id for one in usable if one.is_displayed()} <= reached


def test_a_link_opens_the_layer_that_it_names(opened: Any) -> None:
    layer = opened.find_element(By.CSS_SELECTOR, "details.layer")
    opened.execute_script("arguments[0].open = false", layer)
    opened.find_element(By.CSS_SELECTOR, "table a").click()
    wait_until(opened, lambda: layer.get_attribute("open") is not None)
