"""The report in a real browser, headless: what people see and do, from a file and offline."""

from __future__ import annotations

import colorsys
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bisim_abstract import (
    Blocks,
    Certificate,
    Curve,
    TabularMDP,
    certify,
    compare_abstractions,
    verify,
    write_report,
)
from bisim_abstract._abstract.value import amount_text, share_text
from bisim_abstract._app import cluster_figures
from bisim_abstract._app.figures import widest_intervals
from bisim_abstract._app.page_parts import asset
from bisim_abstract.parts import random_mdp
from bisim_abstract.wrappers import RoomsGridEnv, extract_mdp

pytestmark = pytest.mark.slow

FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--window-size=1280,900",
]  # fmt: skip


class Page:
    """A report in the browser, and how a person would use it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(
        self, path: Path, *, width: int = 1280, height: int = 900, scheme: str = "light"
    ) -> None:
        self.resize(width, height)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        for log in ("browser", "performance"):
            self.driver.get_log(log)  # what was said before does not count
        self.driver.get(path.as_uri())
        self.settle()

    def resize(self, width: int, height: int = 900) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def run(self, code: str, *values: Any) -> Any:
        return self.driver.execute_script(code, *values)

    def settle(self) -> None:
        """Wait until what was asked for has been drawn."""
        self.driver.execute_async_script(
            "const done = arguments[0];"
            "requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 30)));"
        )

    def set_tau(self, tau: float) -> None:
        self.run(
            "const field = document.getElementById('tau'); field.value = arguments[0];"
            "field.dispatchEvent(new Event('input', {bubbles: true}));",
            repr(float(tau)),
        )

    def slide(self, position: int) -> None:
        self.run(
            "const slider = document.getElementById('tau-slider'); slider.value = arguments[0];"
            "slider.dispatchEvent(new Event('input', {bubbles: true}));",
            position,
        )
        self.settle()

    def text(self, name: str) -> str:
        return str(self.run("return document.getElementById(arguments[0]).textContent", name))

    def tau(self) -> float:
        return float(self.run("return document.documentElement.dataset.tau"))

    def state(self) -> str:
        return str(self.run("return document.getElementById('now').dataset.state"))

    def worth(self) -> str:
        return str(self.run("return document.getElementById('now').dataset.worth"))

    def counts(self) -> tuple[int, int]:
        low, high = (int(self.text(f"count-{arm}").replace(",", "")) for arm in ("lower", "upper"))
        return low, high

    def pixels(self, name: str = "map") -> str:
        return str(self.run("return document.getElementById(arguments[0]).toDataURL()", name))

    def colours(self) -> int:
        """Number of different colours on the map."""
        return int(
            self.run(
                "const c = document.getElementById('map');"
                "const d = new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width,"
                " c.height).data.buffer); return new Set(d).size;"
            )
        )

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        found = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.append(message["params"]["request"]["url"])
        return found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        pytest.fail(
            "chromium and chromedriver are needed here and were not found; install the Debian "
            "packages chromium and chromium-driver"
        )
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in [*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=chromedriver)
    driver = webdriver.Chrome(options=options, service=service)
    try:
        driver.set_script_timeout(20)
        yield Page(driver)
    finally:
        driver.quit()


Report = tuple[Path, TabularMDP, Certificate]


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> Report:
    mdp = extract_mdp("bisim_abstract/RoomsGrid-v0")
    certificate = certify(mdp, 0.9, tau="auto")
    rng = np.random.default_rng(0)
    points = certificate.labels_upper[:, None] % [5, 25] + 0.2 * rng.normal(size=(mdp.n_states, 2))
    curves = [
        Curve(name, (100, 200, 300), np.sort(rng.random((3, 3)), axis=1))
        for name in ("clusters", "raw states")
    ]
    path = write_report(
        tmp_path_factory.mktemp("rooms") / "report.html", mdp, certificate,
        verification=verify(mdp, certificate), comparison=compare_abstractions(mdp, certificate),
        curves=curves, embedding=points, commands=["make demo"], record={"seed": 0},
    )  # fmt: skip
    return path, mdp, certificate


@pytest.fixture(scope="module")
def taxi(tmp_path_factory: pytest.TempPathFactory) -> Report:
    mdp = extract_mdp("Taxi-v3")
    certificate = certify(mdp, 0.9)
    path = write_report(tmp_path_factory.mktemp("taxi") / "report.html", mdp, certificate)
    return path, mdp, certificate


@pytest.fixture(scope="module")
def abstained(tmp_path_factory: pytest.TempPathFactory) -> Report:
    mdp = random_mdp(200, seed=1)
    certificate = certify(mdp, 0.9, tau=0.15, method=Blocks(max_pairs=500))
    assert not certificate.is_certified
    path = write_report(tmp_path_factory.mktemp("random") / "report.html", mdp, certificate)
    return path, mdp, certificate


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Certified at some thresholds, worth it at few: and this is none of these."""
    mdp = extract_mdp("FrozenLake-v1", env_args={"map_name": "8x8"})
    certificate = certify(mdp, 0.9, tau=0.4)
    assert certificate.verdict.level == "poor"
    path = write_report(tmp_path_factory.mktemp("lake") / "report.html", mdp, certificate)
    return path, mdp, certificate


def live(certificate: Certificate, tau: float) -> tuple[int, int]:
    """Numbers of clusters of both arms, the end of episodes not counted."""
    end = certificate.terminal_state
    lower, upper = (
        len({int(label) for s, label in enumerate(labels) if s != end})
        for labels in certificate.partitions(tau)
    )
    return lower, upper


def check_against_certificate(page: Page, certificate: Certificate, count: int = 15) -> None:
    """Counts and verdicts of the page at breaks of both arms and just beside them."""
    weights = np.unique(np.concatenate([forest.weights for forest in certificate.forests]))
    some = weights[np.unique(np.linspace(0, weights.size - 1, count).astype(np.int64))]
    ends = [t for i in certificate.certified_thresholds()[:10] for t in (i.low, i.high)]
    taus = np.concatenate([some, [0.0], [t for t in ends if np.isfinite(t)]])
    taus = np.unique(np.concatenate([taus, np.nextafter(taus, np.inf), np.nextafter(taus, 0.0)]))
    for tau in taus.tolist():
        page.set_tau(tau)
        assert page.tau() == tau
        lower, upper = certificate.partitions(tau)
        assert page.counts() == live(certificate, tau), tau
        expected = "certified" if np.array_equal(lower, upper) else "undecided"
        assert page.state() == expected, tau
        word = "Certified" if expected == "certified" else "Not certified"
        assert page.text("now-word").startswith(word), tau
        ending = (
            " (plus the terminal state)" if certificate.terminal_state is not None else "cluster"
        )
        assert page.text("now-word").removesuffix("s").endswith(ending), tau


def test_nothing_is_requested_and_nothing_goes_wrong(
    page: Page, rooms: Report, taxi: Report, lake: Report, abstained: Report
) -> None:
    for path, _, _ in (rooms, taxi, lake, abstained):
        page.open(path)
        for position in (0, 1, 300, 700, 1000):
            page.slide(position)
        assert page.complaints() == []
        others = [url for url in page.requests() if not url.startswith("data:")]
        assert others == [path.as_uri()]
        assert page.run("return performance.getEntriesByType('resource').length") == 0


def test_counts_and_verdicts_are_the_certificates(
    page: Page, rooms: Report, taxi: Report, lake: Report, abstained: Report
) -> None:
    for path, _, certificate in (rooms, taxi, lake, abstained):
        page.open(path)
        check_against_certificate(page, certificate)


def test_the_slider_tells_what_is_kept_and_lost(
    page: Page, rooms: Report, taxi: Report, lake: Report, abstained: Report
) -> None:
    seen = set()
    for path, mdp, certificate in (rooms, taxi, lake, abstained):
        page.open(path)
        points = certificate.frontier(mdp).points
        weights = np.unique(np.concatenate([forest.weights for forest in certificate.forests]))
        some = weights[np.unique(np.linspace(0, weights.size - 1, 40).astype(np.int64))]
        inner = [point.low for point in points]
        for tau in np.unique(np.concatenate([some, inner, [0.0, certificate.tau or 0.0]])).tolist():
            page.set_tau(tau)
            shown = page.text("kept"), page.text("loss"), page.worth()
            here = [point for point in points if point.low <= tau < point.high]
            if page.state() == "undecided":
                expected = ("not certified", "not certified", "none")
            elif not here:
                expected = ("not evaluated", "not evaluated", "none")
            else:
                (point,) = here
                fewer = "; clearly fewer episodes may end" if point.ends_fewer else ""
                kept = share_text(point.kept) + fewer
                is_worth = certificate.goal.is_met(point.numbers)
                is_worth = is_worth and point.n_clusters < certificate.n_live
                worth = "useful" if is_worth else "poor"
                expected = (kept, f"at most {amount_text(point.loss)}", worth)
            assert shown == expected, tau
            seen.add(expected[0] if expected[2] == "none" else expected[2])
        assert page.complaints() == []
    assert seen == {"not certified", "useful", "poor"}


def test_what_was_not_evaluated_says_so(
    page: Page, taxi: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import bisim_abstract._app.report as report

    monkeypatch.setattr(report, "MAX_VALUED", 100)
    _, mdp, certificate = taxi
    value, tau = certificate.value, certificate.tau
    assert value is not None
    assert tau is not None
    page.open(write_report(tmp_path / "report.html", mdp, certificate))
    assert page.text("kept") == share_text(value.kept)
    page.set_tau(certificate.certified_thresholds()[0].low)
    assert page.state() == "certified"
    assert (page.text("kept"), page.text("loss")) == ("not evaluated", "not evaluated")
    assert page.worth() == "none"
    page.open(write_report(tmp_path / "report.html", mdp, certificate.at(tau)))
    assert page.text("kept") == "not evaluated"
    assert page.run("return document.querySelectorAll('#frontier *').length") == 0
    assert page.complaints() == []


RING = (
    "const r = document.querySelector('#frontier .ring');"
    "return [r.getAttribute('visibility'), Number(r.getAttribute('cx')),"
    " Number(r.getAttribute('cy'))];"
)
PLACE = (
    "return [...document.querySelectorAll(arguments[0])].map((e) => {"
    " const [x, y] = e.getAttribute('transform').match(/-?[0-9.]+/g); return [+x, +y]; });"
)


def test_the_frontier_follows_the_slider(page: Page, taxi: Report, lake: Report) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By

    path, mdp, certificate = taxi
    page.open(path)
    points = certificate.frontier(mdp).points
    (star,) = page.run(PLACE, "#frontier .own")
    assert page.run(RING) == ["visible", *star]  # the own choice comes first
    others = [*page.run(PLACE, "#frontier .kept"), *page.run(PLACE, "#frontier .nothing")]
    assert len(others) == len(points) - 1
    assert len(page.run(PLACE, "#frontier .lost")) == len(points)
    places = []
    for point in points:
        page.set_tau(point.low)
        shown, x, y = page.run(RING)
        assert shown == "visible"
        assert [x, y] in [*others, star]
        places.append((x, y))
    across = [x for x, _ in places]
    assert across == sorted(across, reverse=True)  # from fine to coarse
    best, worst = points[0], min(points, key=lambda point: point.kept)
    high, low = (places[points.index(point)][1] for point in (best, worst))
    bar = page.run("return Number(document.querySelector('#frontier .keep').getAttribute('y1'))")
    assert high < bar < low
    # A click goes to the point that is nearest.
    chart = page.driver.find_element(By.CSS_SELECTOR, "#frontier svg")
    box = chart.size
    x, y = places[-1]
    move = (round(x - box["width"] / 2), round(y - box["height"] / 2))
    ActionChains(page.driver).move_to_element_with_offset(chart, *move).click().perform()
    assert points[-1].low <= page.tau()
    assert page.counts() == (1, 1)
    path, _, certificate = lake
    page.open(path)
    assert page.run("return document.querySelector('#frontier .own').matches('.poor')")
    assert page.run(RING)[0] == "visible"
    page.set_tau(0.2)
    assert page.state() == "undecided"
    assert page.run(RING)[0] == "hidden"
    assert page.complaints() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_three_colours(
    page: Page, rooms: Report, lake: Report, abstained: Report, scheme: str
) -> None:
    hues = []
    for (path, _, certificate), level in (
        (rooms, "useful"),
        (lake, "poor"),
        (abstained, "open"),
    ):
        page.open(path, scheme=scheme)
        banner, ink, first = page.run(
            "const b = document.getElementById('verdict'); const s = getComputedStyle(b);"
            "return [s.backgroundColor, s.color, b.querySelector('p').textContent];"
        )
        assert certificate.verdict.level == level
        assert first.startswith(certificate.verdict.sentence)
        # The slider's own box begins in the same colour.
        now = page.run("return getComputedStyle(document.getElementById('now')).backgroundColor")
        assert now == banner
        parts = [int(v) for v in ink[ink.index("(") + 1 : -1].split(",")[:3]]
        hues.append(colorsys.rgb_to_hsv(*(v / 255.0 for v in parts))[0] * 360.0)
    green, amber, red = hues
    assert 120.0 < green < 180.0
    assert 25.0 < amber < 50.0
    assert red > 340.0 or red < 15.0


def test_the_slider_recolours_the_map(page: Page, rooms: Report) -> None:
    path, _, certificate = rooms
    page.open(path)
    assert page.tau() == certificate.tau
    assert page.counts() == (25, 25)
    assert page.state() == "certified"
    first, cloud = page.pixels(), page.pixels("embedding")
    assert page.colours() >= 25
    page.slide(1000)
    assert page.counts() == (1, 1)
    assert page.pixels() != first
    assert page.pixels("embedding") != cloud
    assert page.colours() == 1
    page.slide(1)
    assert page.state() == "undecided"
    upper = page.pixels()
    page.run("document.querySelector('input[value=lower]').click()")
    page.settle()
    assert page.pixels() != upper
    page.run("document.querySelector('input[value=upper]').click()")
    page.set_tau(certificate.tau or 0.0)
    page.settle()
    assert page.pixels() == first  # colours depend on tau alone


def test_clusters_keep_their_colours(page: Page, taxi: Report) -> None:
    path, _, certificate = taxi
    page.open(path)
    code = (
        "const c = document.getElementById('map').getContext('2d');"
        "return Array.from(c.getImageData(3, 3, 1, 1).data);"
    )
    intervals = [i for i in certificate.certified_thresholds() if 1 < i.n_clusters < 300]
    seen = set()
    for interval in intervals:
        page.set_tau(interval.low)
        page.settle()
        labels = certificate.partitions(interval.low)[1][:500]  # without the end
        if (labels == labels[0]).sum() > 1:
            seen.add(tuple(page.run(code)))
    assert len(seen) == 1  # state 0 lends its colour to its cluster throughout


def test_keyboard_and_buttons(page: Page, rooms: Report) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    path, _, certificate = rooms
    page.open(path)
    slider = page.driver.find_element(By.ID, "tau-slider")
    before = page.tau()
    slider.send_keys(Keys.ARROW_RIGHT)
    after = page.tau()
    assert after > before
    slider.send_keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert page.tau() < after
    assert "tau" in str(slider.get_attribute("aria-valuetext"))
    slider.send_keys(Keys.HOME)
    assert page.tau() == 0.0
    assert page.state() == "undecided"
    low, high = certificate.certified_thresholds()
    page.driver.find_element(By.ID, "next").click()
    assert low.low <= page.tau() < low.high
    assert page.state() == "certified"
    page.driver.find_element(By.ID, "next").click()
    assert high.low <= page.tau()
    assert not page.driver.find_element(By.ID, "next").is_enabled()
    page.driver.find_element(By.ID, "previous").click()
    assert low.low <= page.tau() < low.high
    field = page.driver.find_element(By.ID, "tau")
    field.send_keys(Keys.CONTROL, "a", Keys.NULL, "2.5")
    assert page.tau() == 2.5
    for nonsense in ("-1", "e"):
        field.send_keys(Keys.CONTROL, "a", Keys.NULL, nonsense, Keys.TAB)
        assert page.tau() == 2.5
        assert field.get_attribute("value") == "2.5"
    assert page.complaints() == []


def test_clicks_and_tips(page: Page, rooms: Report) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By

    path, _, _ = rooms
    page.open(path)
    before = page.tau()
    profile = page.driver.find_element(By.CSS_SELECTOR, "#profile svg")
    ActionChains(page.driver).move_to_element_with_offset(profile, 40, 0).click().perform()
    assert page.tau() != before
    page.open(path)
    canvas = page.driver.find_element(By.ID, "map")
    ActionChains(page.driver).move_to_element(canvas).perform()
    page.settle()
    tip = page.driver.find_element(By.ID, "tip")
    assert tip.is_displayed()
    assert "cluster of 100 states" in tip.text
    page.run(
        "const c = document.getElementById('map'); const b = c.getBoundingClientRect();"
        "c.dispatchEvent(new PointerEvent('pointermove', {clientX: b.left + b.width * 7.5 / 50,"
        " clientY: b.top + b.height * 3.5 / 50}));"
    )
    assert "state 157" in tip.text
    page.driver.find_element(By.ID, "copy").click()
    time.sleep(0.1)
    assert page.text("copy") in ("Copied", "Press Ctrl+C")
    assert page.complaints() == []


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_no_sideways_scrolling(
    page: Page, rooms: Report, taxi: Report, lake: Report, abstained: Report, width: int
) -> None:
    for path, _, _ in (rooms, taxi, lake, abstained):
        page.open(path, width=width)
        page.run("document.querySelector('details').open = true")
        assert page.run("return document.documentElement.scrollWidth") <= width
        outside = page.run(
            "return [...document.querySelectorAll('main *')].filter((e) => {"
            " const b = e.getBoundingClientRect();"
            " return b.width && (b.left < -1 || b.right > innerWidth + 1); })"
            ".map((e) => e.tagName + '#' + e.id + '.' + e.getAttribute('class'))"
        )
        assert outside == []


def test_no_label_is_cut_off(
    page: Page, rooms: Report, taxi: Report, lake: Report, abstained: Report
) -> None:
    for path, _, _ in (rooms, taxi, lake, abstained):
        for width in (320, 390, 1280):
            page.open(path, width=width)
            cut = page.run(
                "return [...document.querySelectorAll('.plot svg')].flatMap((svg) => {"
                " const box = svg.getBoundingClientRect();"
                " return [...svg.querySelectorAll('text')].filter((t) => {"
                "  const b = t.getBoundingClientRect();"
                "  return b.left < box.left - 1 || b.right > box.right + 1 ||"
                "   b.bottom > box.bottom + 1; }).map((t) => t.textContent); })"
            )
            assert cut == []


def luminance(colour: str) -> float:
    parts = [float(v) / 255.0 for v in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable(
    page: Page, rooms: Report, lake: Report, abstained: Report, scheme: str
) -> None:
    """Every word stands out from what is behind it by 4.5 to 1, as WCAG AA asks."""
    for path, _, _ in (rooms, lake, abstained):
        page.open(path, scheme=scheme)
        is_dark = (
            luminance(page.run("return getComputedStyle(document.body).backgroundColor")) < 0.2
        )
        assert is_dark == (scheme == "dark")
        found = page.run(
            "const rows = [];"
            "for (const e of document.querySelectorAll('main *')) {"
            " const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());"
            " const box = e.getBoundingClientRect();"
            " if (!own || !box.width || e.closest(':disabled')) continue;"
            " let back = e; let paint = 'rgba(0, 0, 0, 0)';"
            " while (back && paint === 'rgba(0, 0, 0, 0)') {"
            "  paint = getComputedStyle(back).backgroundColor; back = back.parentElement; }"
            " const circle = e.closest('.node')?.querySelector('circle:not(.begin)');"
            " if (circle) paint = getComputedStyle(circle).fill;"
            " const svg = e.namespaceURI.endsWith('svg');"
            " const style = getComputedStyle(e);"
            " rows.push([svg ? style.fill : style.color, paint, e.textContent.slice(0, 40)]);"
            "} return rows;"
        )
        assert len(found) > 40
        for ink, paint, words in found:
            high, low = sorted((luminance(ink), luminance(paint)), reverse=True)
            assert (high + 0.05) / (low + 0.05) >= 4.5, (words, ink, paint)
        assert page.complaints() == []


def test_changes_of_size_and_scheme_are_followed(page: Page, rooms: Report) -> None:
    path, _, _ = rooms
    page.open(path)
    wide = page.run("return document.querySelector('#profile svg').viewBox.baseVal.width")
    page.resize(390)
    page.settle()
    narrow = page.run("return document.querySelector('#profile svg').viewBox.baseVal.width")
    assert narrow < wide
    assert page.run("return document.documentElement.scrollWidth") <= 390
    light = page.pixels()
    page.set_tau(0.001)
    page.settle()
    light = page.pixels()
    feature = {"name": "prefers-color-scheme", "value": "dark"}
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    page.settle()
    assert page.pixels() != light
    assert page.complaints() == []


def test_the_slider_is_fluid_with_as_many_states_as_are_drawn(page: Page, tmp_path: Path) -> None:
    """20,000 states and as many edges in each arm: a move takes less than two frames."""
    from bisim_abstract.wrappers import RoomsGridEnv

    mdp = RoomsGridEnv(side=140, room_size=35).to_mdp()
    certificate = certify(mdp, 0.9, tau="auto")
    path = write_report(tmp_path / "report.html", mdp, certificate)
    assert path.stat().st_size < 5_000_000
    page.open(path)
    millis = page.run(
        "const slider = document.getElementById('tau-slider'); const begin = performance.now();"
        "for (let k = 0; k < 50; k++) { slider.value = 20 * k;"
        " slider.dispatchEvent(new Event('input')); }"
        "return (performance.now() - begin) / 50;"
    )
    assert millis < 33.0
    page.settle()
    check_against_certificate(page, certificate, 5)
    assert page.complaints() == []


@pytest.mark.parametrize("n", [1, 2])
def test_the_smallest_models(page: Page, tmp_path: Path, n: int) -> None:
    mdp = TabularMDP.from_dense(np.eye(n)[:, None, :], np.arange(n, dtype=np.float64)[:, None])
    certificate = certify(mdp, 0.9, tau=0.5)
    page.open(write_report(tmp_path / "report.html", mdp, certificate), width=390)
    for position in (0, 500, 1000):
        page.slide(position)
        assert page.counts() == live(certificate, page.tau())
    assert page.run("return document.documentElement.scrollWidth") <= 390
    assert page.complaints() == []


def test_what_a_thinned_page_does_not_know_it_does_not_say(
    page: Page, taxi: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import bisim_abstract._app.report as report

    for name, value in (("MAX_DRAWN", 100), ("POSITIONS", 8), ("MAX_INTERVALS", 3)):
        monkeypatch.setattr(report, name, value)
    _, mdp, certificate = taxi
    every = certificate.certified_thresholds()
    intervals = widest_intervals(every, certificate.tau or 0.0, 3)
    assert len(intervals) == 3
    page.open(write_report(tmp_path / "report.html", mdp, certificate))
    for position in range(0, 1001, 50):
        page.slide(position)
        tau = page.tau()
        inside = [i for i in intervals if i.low <= tau < i.high]
        assert page.state() == ("certified" if inside else "unknown")
        if inside:
            assert page.counts() == (inside[0].n_clusters, inside[0].n_clusters)
        else:
            assert page.text("count-upper").startswith("about ")
    assert page.complaints() == []


def test_hostile_strings_run_nothing(page: Page, abstained: Report, tmp_path: Path) -> None:
    _, mdp, certificate = abstained
    bad = "</script><script>document.title = 'taken'</script><img src=x onerror=alert(1)>"
    curve = Curve(bad, (1, 2), np.array([[0.1, 0.2]]))
    path = write_report(
        tmp_path / "report.html", mdp.with_metadata(env=bad), certificate, title=bad,
        curves=[curve], record={bad: bad}, commands=[bad],
    )  # fmt: skip
    page.open(path, width=390)
    assert page.driver.title == bad
    assert page.run("return document.querySelector('h1').textContent") == bad
    assert bad in page.text("curves-legend")
    assert page.run("return document.images.length") == 0
    assert page.run("return document.scripts.length") == 2
    assert page.run("return document.documentElement.scrollWidth") <= 390
    assert page.complaints() == []


def test_names_of_states_under_the_pointer(
    page: Page, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from selenium.webdriver.common.by import By

    mdp = RoomsGridEnv(side=6, room_size=3).to_mdp()
    states = {"<b>row</b>": np.arange(mdp.n_states) // 6, "column": np.arange(mdp.n_states) % 6}
    mdp = mdp.with_names(states=states)
    certificate = certify(mdp, 0.9)
    folder = tmp_path_factory.mktemp("named")
    page.open(write_report(folder / "report.html", mdp, certificate))
    page.run(
        "const map = document.getElementById('map'), box = map.getBoundingClientRect();"
        "map.dispatchEvent(new PointerEvent('pointermove', {bubbles: true,"
        " clientX: box.left + box.width * 2.5 / 6, clientY: box.top + box.height * 1.5 / 6}));"
    )
    page.settle()
    tip = page.driver.find_element(By.ID, "tip").text.splitlines()
    assert tip[:2] == ["state 8", "<b>row</b>=1, column=2"]
    assert tip[2].startswith("cluster of")
    shown = page.run("return document.getElementById('tree').textContent")
    assert "(<b>row</b>=" in shown
    assert page.complaints() == []
    page.open(folder / "report.html", width=320)
    page.run("document.querySelector('details').open = true")
    assert page.run("return document.documentElement.scrollWidth") <= 320


CHOOSE = (
    "const map = document.getElementById('map'), box = map.getBoundingClientRect();"
    "const [x, y, shift] = arguments;"
    "map.dispatchEvent(new MouseEvent('click', {bubbles: true, shiftKey: shift,"
    " clientX: box.left + box.width * x, clientY: box.top + box.height * y}));"
)
ROWS = (
    "return [...document.querySelectorAll('#cluster-states tbody tr')]"
    ".map((row) => [...row.cells].map((cell) => cell.textContent));"
)


def test_a_click_lists_the_states_of_a_cluster(page: Page, rooms: Report, tmp_path: Path) -> None:
    from selenium.webdriver.common.by import By

    path, mdp, certificate = rooms
    page.open(path)
    assert not page.driver.find_element(By.ID, "cluster-list").is_displayed()
    page.run(CHOOSE, 7.5 / 50, 3.5 / 50, False)
    page.settle()
    state = 3 * 50 + 7
    members = np.flatnonzero(certificate.labels == certificate.labels[state])
    rows = page.run(ROWS)
    assert [int(row[0]) for row in rows] == members.tolist()
    assert "100 states like 0 (row=0, column=0)" in page.text("cluster-title")
    assert rows[-1][1] == mdp.state_name(int(members[-1]))
    value = certificate.value
    if value is not None:
        assert float(rows[0][2]) <= value.optimal_lower[members[0]]
    search = page.driver.find_element(By.ID, "cluster-search")
    search.send_keys("row=3 column=7")
    assert [int(row[0]) for row in page.run(ROWS)] == [state]
    assert page.text("cluster-count") == "1 of 100 states found."
    search.clear()
    # From tau on, another threshold has other members; the list follows.
    page.set_tau(0.0)
    time.sleep(0.3)
    assert [int(row[0]) for row in page.run(ROWS)] == [state]
    assert page.complaints() == []


def test_two_clusters_tell_what_keeps_them_apart(page: Page, lake: Report, rooms: Report) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select

    path, _, certificate = rooms
    page.open(path)
    page.run(CHOOSE, 5.5 / 50, 5.5 / 50, False)
    page.run(CHOOSE, 15.5 / 50, 5.5 / 50, True)
    text = page.text("separation")
    assert "proven to be in different clusters" in text
    assert "apart. They differ most under" in text
    for arm, forest in zip(("Below tau", "from tau"), certificate.forests, strict=True):
        labels = [(t, forest.labels(t)) for t in np.unique(forest.weights).tolist()]
        first = min(t for t, of in labels if of[0] == of[10])
        assert float(text.partition(arm)[2].split()[0]) == pytest.approx(first, rel=1e-3)
    page.run(CHOOSE, 4.5 / 50, 4.5 / 50, True)
    assert page.text("separation") == "Both are in the same cluster."
    # The same by lists, without a pointer.
    path, _, _ = lake
    page.open(path)
    one = Select(page.driver.find_element(By.ID, "cluster-one"))
    two = page.driver.find_element(By.ID, "cluster-two")
    assert not two.is_enabled()
    one.select_by_index(1)
    Select(two).select_by_index(2)
    assert "from tau" in page.text("separation")
    assert page.complaints() == []


def test_the_map_by_keys(page: Page, rooms: Report) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    path, _, _ = rooms
    page.open(path)
    canvas = page.driver.find_element(By.ID, "map")
    canvas.send_keys(Keys.ARROW_RIGHT)
    assert page.text("map-cursor").startswith("state 0,")
    canvas.send_keys(Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    assert page.text("map-cursor").startswith("state 51,")
    canvas.send_keys(Keys.ENTER)
    assert "100 states like 0" in page.text("cluster-title")
    canvas.send_keys(*[Keys.ARROW_RIGHT] * 10)
    canvas.send_keys(Keys.SHIFT + Keys.ENTER)
    assert "apart" in page.text("separation")
    assert page.complaints() == []


def test_the_list_as_a_file(page: Page, tmp_path: Path) -> None:
    import csv

    mdp = RoomsGridEnv(side=4, room_size=2).to_mdp()
    names = ["=1+1", "+x", "-2", "@y", 'a "b", c', "'z", *(f"s{k}" for k in range(10))]
    mdp = mdp.with_names(states=names)
    page.driver.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
    )
    page.open(write_report(tmp_path / "report.html", mdp, certify(mdp, 0.9, n_clusters=1)))
    page.run(CHOOSE, 0.5, 0.5, False)
    page.run("document.getElementById('cluster-csv').click()")
    target = tmp_path / "cluster-of-0.csv"
    for _ in range(100):
        if target.exists():
            break
        time.sleep(0.05)
    with target.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["state"]) for row in rows] == list(range(16))
    assert [row["name"] for row in rows[:6]] == [
        "'=1+1", "'+x", "-2", "'@y", 'a "b", c', "''z",
    ]  # fmt: skip
    assert page.complaints() == []


def test_the_small_model_is_a_graph(page: Page, lake: Report, rooms: Report) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import Select

    path, _, certificate = rooms
    page.open(path)
    nodes = page.driver.find_elements(By.CSS_SELECTOR, "#graph .node")
    assert len(nodes) == 25
    all_arrows = "return document.querySelectorAll('#graph .arrow').length"
    few = page.run(all_arrows)
    Select(page.driver.find_element(By.ID, "graph-action")).select_by_value("all")
    assert page.run(all_arrows) >= few
    # A circle tells what its actions do, and Enter looks into the cluster.
    page.set_tau(0.0)
    page.run("document.querySelectorAll('#graph .node')[1].focus()")
    told = page.text("graph-node")
    assert told.startswith("100 states like 10 (row=0, column=10)")
    assert all(f"{name}" in told for name in ("up", "right", "down", "left"))
    assert "back to itself" in told
    page.driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert page.tau() == certificate.tau
    assert "100 states like 10" in page.text("cluster-title")
    assert page.complaints() == []


def test_bounds_on_the_page_are_rounded_to_their_own_side(page: Page, lake: Report) -> None:
    page.open(lake[0])
    source = asset("data.js")
    numbers = source[source.index("const count =") : source.index("// How many entries")]
    rng = np.random.default_rng(0)
    values = [0.33335, 12_345.3455, 999.96, 9_999_999.5, *(10.0 ** rng.uniform(-20, 12, 500))]
    code = f"{numbers} return arguments[0].map((v) => [roundedDown(v), roundedUp(v)]);"
    for value, texts in zip(values, page.run(code, [float(v) for v in values]), strict=True):
        low, high = (float(text.replace(",", "")) for text in texts)
        assert low <= value <= high
        assert high - low <= 0.011 * value
    assert page.run(f"{numbers} return [roundedDown(0.25), roundedUp(0.25), roundedDown(0)]") == [
        "0.25", "0.25", "0",
    ]  # fmt: skip


def test_pairs_that_are_no_links_are_not_called_far(
    page: Page, lake: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select

    _, mdp, certificate = lake
    for count, said in ((1, "explained for 1 pair of clusters"), (0, "not explained on this page")):
        monkeypatch.setattr(cluster_figures, "MAX_PAIRS", count)
        page.open(write_report(tmp_path / "report.html", mdp, certificate))
        found = []
        Select(page.driver.find_element(By.ID, "cluster-one")).select_by_index(1)
        for k in range(2, certificate.n_clusters + 1):
            Select(page.driver.find_element(By.ID, "cluster-two")).select_by_index(k)
            found.append(page.text("separation"))
        untold = [text for text in found if said in text]
        assert len(untold) >= len(found) - count
        assert all("closest" not in text for text in found)
        assert all(" apart." in text for text in untold)  # what is known of it, all the same
    assert page.complaints() == []


def test_only_what_is_sure_has_all_percent(page: Page, tmp_path: Path) -> None:
    rows = np.zeros((3, 1, 3))
    rows[0, 0], rows[1, 0], rows[2, 0] = [0.9996, 0.0004, 0.0], [0.0, 0.0, 1.0], [0.5, 0.0, 0.5]
    mdp = TabularMDP.from_dense(rows, np.arange(3.0)[:, None])
    page.open(write_report(tmp_path / "report.html", mdp, certify(mdp, 0.9, tau=0.0)))
    told = []
    for k in range(3):
        page.run("document.querySelectorAll('#graph .node')[arguments[0]].focus()", k)
        told.append(page.text("graph-node"))
    assert "over 99.9% back to itself" in told[0]
    assert "under 0.1% to state 1" in told[0]
    assert "100%" not in told[0]
    assert "100% to state 2" in told[1]
    assert "50% back to itself" in told[2]
    assert page.complaints() == []
