"""The pages in a browser: what axe-core finds, whether they fit, what they ask for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ui_lake import make

import keytide as kt

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
FETCHED = ROOT / ".venv-browser"
SCREENSHOTS = Path(os.environ.get("KEYTIDE_SCREENSHOTS", ROOT / "build/ui-screenshots"))
AXE = FETCHED / "node_modules/axe-core/axe.min.js"
CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip

QUERY = "SELECT status, count(*) AS orders FROM shop.orders GROUP BY status ORDER BY status"
VIEWS = {
    "tables": "/",
    "overview": "/table/shop.orders",
    "timeline": "/table/shop.orders/timeline",
    "layout": "/table/shop.orders/layout",
    "changes": "/table/shop.orders/changes?start=20&end=22",
    "why": "/table/shop.orders/why?key=7",
    "streams": "/table/shop.orders/streams",
    "sql": "/sql",
    "plan": "/sql",
    "analysis": "/sql",
    "problem": "/sql",
    "view": "/table/shop.open_orders",
    "external": "/table/shop.payments",
    "bucket": "/table/shop.orders/layout?bucket=0",
    "actions": "/table/shop.orders/actions",
    "error": "/table/shop.none",
}
ASKED = {
    "sql": (QUERY, "run"),
    "plan": (QUERY, "explain"),
    "analysis": (QUERY, "analyze"),
    "problem": ("SELECT nothing FROM shop.orders", "run"),
}
"""What is run on pages of SQL, and by which button."""

LONG = "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE (a.range * b.range) % 7 = 3"
WIDTHS = (320, 360, 800, 1400)
SCHEMES = ("light", "dark")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = str(tmp_path_factory.mktemp("lake"))
    make(made)
    return made


@pytest.fixture(scope="module")
def address(folder: str) -> Iterator[str]:
    """A server in a process of its own, as somebody starts it."""
    command = [sys.executable, "-m", "keytide.cli.main", "ui", "-w", folder, "--port", "0",
               "--allow-changes"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.terminate()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sys.path.append(str(FETCHED / "python"))
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield opened
        opened.close()


def entered(page: Any, address: str) -> str:
    """Open the address that was printed; gives what addresses of pages begin with from then on."""
    home = address.partition("/?")[0]
    page.goto(address)
    page.wait_for_url(f"{home}/")
    return home


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_pages_are_accessible_fit_and_stay_at_home(
    browser: Any, address: str, width: int, scheme: str
) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True
    )
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    problems = list(_problems(page, address, f"{width}-{scheme}"))
    context.close()
    home = address.partition("/?")[0]
    assert [url for url in asked if not url.startswith((f"{home}/", "data:"))] == []
    assert problems == []


def _problems(page: Any, address: str, kind: str) -> Iterator[str]:
    home = entered(page, address)
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for name, path in VIEWS.items():
        page.goto(home + path)
        if name in ASKED:
            text, button = ASKED[name]
            page.fill("#text", text)
            page.click(f"button[value={button}]")
        page.wait_for_load_state("networkidle")
        page.screenshot(path=SCREENSHOTS / f"{name}-{kind}.png", full_page=True)
        sideways = page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        if sideways > 0:
            yield f"{name}: {sideways} pixels beyond the window"
        page.add_script_tag(path=AXE)
        for found in page.evaluate("axe.run()")["violations"]:
            nodes = "; ".join(str(node["target"]) for node in found["nodes"][:3])
            yield f"{name}: {found['id']}: {found['help']}: {nodes}"


def test_policy_lets_the_pages_work_and_no_script_of_another(browser: Any, address: str) -> None:
    page = browser.new_context().new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.goto(f"{entered(page, address)}/table/shop.orders")
    page.wait_for_selector("[data-load] summary")
    assert said == []
    markup = '<img src=x onerror="window.hit=1">'
    page.evaluate(f"document.body.insertAdjacentHTML('beforeend', `{markup}`)")
    page.wait_for_timeout(200)
    assert page.evaluate("window.hit") is None
    assert any("Content Security Policy" in text for text in said)


def test_commit_of_somebody_else_is_seen_unless_the_page_is_paused(
    browser: Any, address: str, folder: str
) -> None:
    page = browser.new_context().new_page()
    page.goto(f"{entered(page, address)}/table/shop.stock/timeline")
    stock = kt.connect(folder).table("shop.stock")
    row = {"sku": "S-0001", "city": "Lisboa", "stock": 1}
    page.check("#start-2")
    seen = stock.write([row]).snapshot_id
    page.wait_for_selector(f"#snapshot-{seen}.fresh", timeout=10_000)
    assert page.is_checked("#start-2")
    page.click("[data-live-pause]")
    missed = stock.write([row]).snapshot_id
    page.wait_for_timeout(3_000)
    assert page.query_selector(f"#snapshot-{missed}") is None
    page.click("[data-live-pause]")
    page.wait_for_selector(f"#snapshot-{missed}", timeout=10_000)


def test_pages_are_used_by_the_keyboard_alone(browser: Any, address: str) -> None:
    page = browser.new_context().new_page()
    page.goto(f"{entered(page, address)}/sql")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.focus("#text")
    page.keyboard.type("SELECT 1 AS one")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#answer-title")
    assert "one" in page.inner_text("main")


def test_query_is_cancelled_by_its_button(browser: Any, address: str) -> None:
    page = browser.new_context().new_page()
    page.goto(f"{entered(page, address)}/sql")
    assert page.is_hidden("[data-cancel]")
    page.fill("#text", LONG)
    # From inside: what drives the browser waits for a page that is under way.
    page.evaluate(CANCEL_LATER)
    page.click("button[value=run]")
    page.wait_for_selector(".problem-box")
    assert page.evaluate("sessionStorage.seen") == "Running for 1 s. hidden: false"
    assert "The query was cancelled. It was stopped." in page.inner_text(".problem-box")
    assert page.input_value("#text") == LONG


CANCEL_LATER = """setTimeout(() => {
    const button = document.querySelector("[data-cancel]");
    const status = document.querySelector("[data-run-status]").textContent;
    sessionStorage.seen = `${status} hidden: ${button.hidden}`;
    button.click();
}, 1700)"""


def test_rows_are_saved_and_an_export_is_cancelled(browser: Any, address: str) -> None:
    page = browser.new_context().new_page()
    page.goto(f"{entered(page, address)}/sql")
    page.fill("#text", "SELECT 1 AS one")
    with page.expect_download() as saved:
        page.click("button[value=csv]")
    assert Path(saved.value.path()).read_text() == '"one"\n1\n'
    assert page.inner_text("[data-run-status]") == "Saved as result.csv."
    page.fill("#text", LONG)
    page.click("button[value=parquet]")
    page.click("[data-cancel]")
    page.wait_for_selector("[data-run-status]:has-text('was cancelled')")
