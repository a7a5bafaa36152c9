"""The HTML report in a real browser: charts, rates, copies, sorting, keyboard, themes, contrast.

Chromium and its driver come from the system (Debian's chromium and chromium-driver).
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from end_to_end.command import SAMPLES, memcurse
from msgspec.structs import replace
from reports.build import lru_layers

from memcurse_cli import inspect
from memcurse_cli.reports.html.report import to_html
from memcurse_cli.schema.report import NotRecurrent

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


SAMPLE_NAMES = ("lru", "dense_linear_rnn", "complex_diagonal_rnn", "gru")
LRU, DENSE, COMPLEX, GRU = (SAMPLES / f"{name}.safetensors" for name in SAMPLE_NAMES)
CALLS: dict[str, tuple[str | Path, ...]] = {
    "inspect": (LRU, DENSE, COMPLEX, GRU),
    "compare": (COMPLEX, LRU),
    "track": (SAMPLES / "run", "--no-cache", "--jobs", "1"),
}
every_page = pytest.mark.parametrize("opened", [*CALLS, "stack"], indirect=True)
the_stack = pytest.mark.parametrize("opened", ["stack"], indirect=True)
ATTENTION = ("layers.60.attention", "layers.61.attention")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("html")
    made = {}
    for command, arguments in CALLS.items():
        made[command] = folder / f"{command}.html"
        done = memcurse(command, *arguments, "--format", "html", "--output", made[command])
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    report = inspect(lru_layers(60, 8), values=True)
    others = (NotRecurrent("attention", len(ATTENTION), ATTENTION),)
    made["stack"] = folder / "stack.html"
    made["stack"].write_text(to_html([replace(report, not_recurrent=others)]))
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


@contextlib.contextmanager
def window(browser: Any, width: int) -> Iterator[None]:
    """A page in a window of this size, opened in it anew."""
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.refresh()
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def open_details(browser: Any) -> None:
    browser.execute_script(
        "document.querySelectorAll('details').forEach((d) => { d.open = true; })"
    )


def test_every_chart_is_drawn(opened: Any) -> None:
    *heroes, gated = opened.find_elements(By.CSS_SELECTOR, "[data-draw=hero]")
    assert len(gated.find_elements(By.TAG_NAME, "svg")) == 2  # nothing of it nears the rim
    for hero in heroes:
        memories, disk, rim = hero.find_elements(By.TAG_NAME, "svg")
        assert len(memories.find_elements(By.CSS_SELECTOR, "rect.column")) == 15
        assert len(memories.find_elements(By.CSS_SELECTOR, "line.horizon")) == 1
        assert len(disk.find_elements(By.CSS_SELECTOR, "circle.dot")) == 64
        assert len(rim.find_elements(By.CSS_SELECTOR, "circle.dot")) > 32
    open_details(opened)
    wait_until(opened, lambda: bool(opened.find_elements(By.CSS_SELECTOR, "rect.cell")))
    for theory in opened.find_elements(By.CSS_SELECTOR, "[data-draw=theory]")[:3]:
        assert len(theory.find_elements(By.CSS_SELECTOR, "polyline.curve")) == 2
        shades = theory.find_elements(By.CSS_SELECTOR, "rect.cell")
        assert len({shade.get_attribute("fill-opacity") for shade in shades}) > 2
    (layer, *_) = opened.find_elements(By.CSS_SELECTOR, "[data-draw=json]")
    assert '"relative_sensitivity"' in layer.text


def test_a_pointer_or_arrow_keys_tell_what_an_eigenvalue_is(opened: Any) -> None:
    dot = opened.find_element(By.CSS_SELECTOR, "svg.chart circle.dot")
    tip = opened.find_element(By.ID, "tip")
    assert not tip.is_displayed()
    ActionChains(opened).move_to_element(dot).perform()
    assert tip.is_displayed()
    lines = tip.text.splitlines()
    assert [line.split(" = ")[0] for line in lines] == ["λ", "|λ|", "memory", "sensitivity κ(λ)"]
    assert lines[2].endswith("steps")
    ActionChains(opened).move_to_element(opened.find_element(By.TAG_NAME, "h1")).perform()
    assert not tip.is_displayed()
    disk = opened.find_elements(By.CSS_SELECTOR, "svg.chart")[1]
    opened.execute_script("arguments[0].focus()", disk)
    said = []
    for _ in range(2):
        ActionChains(opened).send_keys(Keys.ARROW_RIGHT).perform()
        said.append(tip.text)
    assert said[0] != said[1]
    moduli = [float(one.splitlines()[1].split(" = ")[1]) for one in said]
    assert moduli == sorted(moduli)
    ActionChains(opened).send_keys(Keys.ESCAPE).perform()
    assert not tip.is_displayed()


def test_a_head_sorts_its_table_both_ways_by_value_and_says_what_it_means(opened: Any) -> None:
    table = opened.find_element(By.ID, "r0-groups")
    heads = [one.text for one in table.find_elements(By.CSS_SELECTOR, "thead th")]
    column = heads.index("step effect")

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
    assert "one optimizer step" in opened.find_element(By.ID, "tip").text
    assert keys() == sorted(before)
    button.send_keys(Keys.ENTER)
    assert keys() == sorted(before, reverse=True)
    head = table.find_elements(By.CSS_SELECTOR, "thead th")[column]
    assert head.get_attribute("aria-sort") == "descending"


def test_another_rate_is_judged_and_scales_step_effects_until_it_is_taken_back(opened: Any) -> None:
    part = opened.find_element(By.CSS_SELECTOR, "section[data-report='1']")
    slider, back = part.find_elements(By.CSS_SELECTOR, ".try input, .try button")
    assert not back.is_displayed()

    def said() -> list[str]:
        shown = part.find_elements(By.CSS_SELECTOR, "#r1-groups .scales, output .badge")
        return [one.text for one in shown]

    (yours,) = said()
    slider.send_keys(Keys.HOME)
    text = part.find_element(By.CSS_SELECTOR, ".bar text.yours").text
    tried, (verdict, effect) = float(text.removeprefix("tried ")), said()
    assert verdict == "ok"
    assert float(effect.split()[0]) == pytest.approx(309 * tried / 1e-3, rel=0.01)
    slider.send_keys(Keys.END)
    assert said()[0] == "cursed"
    back.click()
    assert said() == [yours] == ["309 %"]
    assert opened.switch_to.active_element == slider


def test_a_button_copies_its_command(opened: Any) -> None:
    granted = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    opened.execute_cdp_cmd("Browser.grantPermissions", granted)
    item = opened.find_element(By.CSS_SELECTOR, "#r1-title ~ ol li")
    button = item.find_element(By.TAG_NAME, "button")
    button.send_keys(Keys.ENTER)
    wait_until(opened, lambda: bool(button.text == "copied"))
    copied = opened.execute_async_script("navigator.clipboard.readText().then(arguments[0])")
    assert copied == item.find_element(By.TAG_NAME, "code").text
    assert copied.startswith("memcurse diagonalize ")


@the_stack
def test_a_bar_of_the_stack_opens_its_layer(opened: Any) -> None:
    hero = opened.find_element(By.CSS_SELECTOR, "svg.chart")
    assert len(hero.find_elements(By.CSS_SELECTOR, "rect.column")) == 62
    assert len(hero.find_elements(By.CSS_SELECTOR, "rect.attention")) == 2
    layer = opened.find_element(By.ID, "r0-l7")
    assert not layer.is_displayed()
    opened.execute_script("arguments[0].focus()", hero)
    for _ in range(8):
        ActionChains(opened).send_keys(Keys.ARROW_RIGHT).perform()
    assert opened.find_element(By.ID, "tip").text.startswith("layers.7.lru\nmemory: ")
    ActionChains(opened).send_keys(Keys.ENTER).perform()
    wait_until(opened, lambda: layer.find_elements(By.CSS_SELECTOR, "svg.chart") != [])
    assert layer.is_displayed()


@pytest.mark.parametrize("opened", ["inspect", "stack"], indirect=True)
def test_no_overview_is_longer_than_a_screen_and_the_answer_stays_on_it(opened: Any) -> None:
    with window(opened, 1280):
        open_details(opened)
        measure = "return [...document.querySelectorAll(arguments[0])].map((e) => e.offsetHeight)"
        boxes = opened.execute_script(measure, ".box")
        charts = opened.execute_script(measure, "[data-draw=hero]")
        assert max(map(sum, zip(boxes, charts, strict=True))) < 800
        assert max(opened.execute_script(measure, ".scroll")) < 800
        last = opened.find_elements(By.CSS_SELECTOR, ".report")[-1]
        opened.execute_script("arguments[0].querySelector('.layer').scrollIntoView()", last)
        box = last.find_element(By.CLASS_NAME, "box")
        assert opened.execute_script("return arguments[0].getBoundingClientRect().top", box) == 0
        assert opened.execute_script("return performance.getEntriesByType('resource')") == []


def run_charts(opened: Any) -> tuple[list[Any], dict[str, Any]]:
    """The charts of a run, and what they were drawn from."""
    data = "return JSON.parse(document.getElementById('memcurse-charts').textContent)[0]"
    charts = opened.find_elements(By.CSS_SELECTOR, "#run svg.chart")
    return list(charts), dict(opened.execute_script(data))


@pytest.mark.parametrize("opened", ["track"], indirect=True)
def test_the_curves_of_a_run_are_drawn_above_its_verdicts_and_those_of_a_layer_later(
    opened: Any,
) -> None:
    charts, data = run_charts(opened)
    panels = [one for one in data["layers"][0]["panels"] if any(map(known, one["curves"]))]
    titles = [chart.get_attribute("aria-label").partition(" over ")[0] for chart in charts]
    assert titles == [f"{panel['title']} of all layers" for panel in panels]
    for chart, panel in zip(charts, panels, strict=True):
        curves = chart.find_elements(By.CSS_SELECTOR, "path.curve")
        assert len(curves) == len(list(filter(known, panel["curves"])))
        bands = chart.find_elements(By.CSS_SELECTOR, "rect.band")
        verdicts = [band.get_attribute("class").split()[1] for band in bands]
        assert verdicts == data["verdicts"]
        heights = {band.get_attribute("height") for band in bands}
        assert len(heights) == len(set(verdicts)) == 2  # told apart without colour
    layer = opened.find_element(By.ID, "l1")
    assert layer.find_elements(By.CSS_SELECTOR, "svg.chart") == []
    opened.find_element(By.CSS_SELECTOR, "#layers a").click()
    wait_until(opened, lambda: len(layer.find_elements(By.CSS_SELECTOR, "svg.chart")) == 3)


def known(curve: dict[str, Any]) -> bool:
    return any(value is not None for value in curve["values"])


@pytest.mark.parametrize("opened", ["track"], indirect=True)
def test_a_pointer_anywhere_over_a_chart_tells_all_curves_of_the_nearest_step(opened: Any) -> None:
    (chart, *_), data = run_charts(opened)
    beside = chart.size["width"] // 20
    ActionChains(opened).move_to_element_with_offset(chart, beside, 0).perform()
    head, *curves = opened.find_element(By.ID, "tip").text.splitlines()
    names = [curve["name"] for curve in data["layers"][0]["panels"][0]["curves"]]
    assert head == f"step 100: {data['verdicts'][5]}"
    assert [line.split(" = ")[0] for line in curves] == names
    assert len(chart.find_elements(By.CSS_SELECTOR, "circle.chosen")) == len(names)
    opened.execute_script("arguments[0].focus()", chart)
    walk = {Keys.END: 200, Keys.ARROW_RIGHT: 0, Keys.ARROW_LEFT: 200, Keys.HOME: 0}
    for key, step in walk.items():
        ActionChains(opened).send_keys(key).perform()
        assert opened.find_element(By.ID, "tip").text.startswith(f"step {step}: ")
    ActionChains(opened).send_keys(Keys.ESCAPE).perform()
    assert not opened.find_element(By.ID, "tip").is_displayed()
    assert chart.find_elements(By.CSS_SELECTOR, "circle.chosen") == []


@pytest.mark.parametrize("opened", ["compare"], indirect=True)
def test_a_comparison_shows_where_each_eigenvalue_went(opened: Any) -> None:
    disk, memories = opened.find_elements(By.CSS_SELECTOR, "svg.chart")
    moves = disk.find_elements(By.CSS_SELECTOR, "line.move")
    dots = disk.find_elements(By.CSS_SELECTOR, "circle.dot")
    rings = disk.find_elements(By.CSS_SELECTOR, "circle.ring")
    assert len(moves) == len(dots) == len(rings) == 64
    ActionChains(opened).move_to_element(dots[0]).perform()
    lines = opened.find_element(By.ID, "tip").text.splitlines()
    assert [line.split(" = ")[0] for line in lines] == ["λ", "|λ|", "memory"]
    assert all(" → " in line for line in lines)
    said = memories.find_element(By.XPATH, "../figcaption").text
    assert "3 with |λ| ≥ 1 or λ = 0 not drawn" in said
    assert len(memories.find_elements(By.CSS_SELECTOR, "circle.dot")) == 61


@every_page
@pytest.mark.parametrize("width", [360, 500, 1280])
def test_nothing_is_wider_than_the_window(opened: Any, width: int) -> None:
    with window(opened, width):
        assert opened.execute_script("return document.documentElement.scrollWidth") <= width


@every_page
def test_text_has_contrast_in_both_themes(opened: Any) -> None:
    open_details(opened)
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


def test_a_name_in_the_overview_leads_to_its_part(opened: Any) -> None:
    names = opened.find_elements(By.CSS_SELECTOR, "#overview a")
    names[1].click()
    title = opened.find_element(By.ID, "r1-title")
    top = "return arguments[0].getBoundingClientRect().top"
    wait_until(opened, lambda: 0 <= opened.execute_script(top, title) < 40)
    opened.execute_script("location.hash = 'r1-l0'")
    wait_until(opened, opened.find_element(By.ID, "r1-l0").is_displayed)
