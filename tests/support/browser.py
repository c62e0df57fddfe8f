"""A real headless Chromium, driven through its own WebDriver, in as few words as the console's tests need.

async with running_browser(tmp_path) as browser:
    await browser.open(gateway.admin_url + "/console")
    await browser.until("return document.querySelector('#link').dataset.state === 'live'", "it is live")
    browser.log, browser.requested                      # what its console said, what it asked the network for
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.http_client import ask
from support.programs import free_port, program

START_S = 30.0
COMES_TRUE_S = 20.0

_CHROMIUM = (
    "--headless=new",
    "--no-sandbox",  # CI runs as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--window-size=1280,900",
)


@dataclass(slots=True)
class Browser:
    _driver: str
    _session: str

    async def open(self, url: str) -> None:
        await self._ask("POST", "/url", {"url": url})

    async def run(self, script: str, *arguments: object) -> Any:
        """What a script returns, run as the body of a function."""
        return await self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    async def text(self, selector: str) -> str:
        """What can be read in the first element that fits; fails if there is none."""
        found = await self.run("const found = document.querySelector(arguments[0]); return found && found.innerText", selector)
        assert isinstance(found, str), f"there is no {selector}"
        return found

    async def until(self, script: str, what: str, *arguments: object) -> Any:
        """What the script returns, once that is true."""
        found: Any = None
        try:
            async with asyncio.timeout(COMES_TRUE_S):
                while not (found := await self.run(script, *arguments)):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            page = await self.run("return document.body.innerText")
            raise AssertionError(f"did not come true within {COMES_TRUE_S} s: {what}\n{page}") from None
        return found

    async def press(self, *keys: str) -> None:
        """One key after the other, wherever the focus is."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        await self._ask("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    async def devtools(self, command: str, **parameters: object) -> Any:
        return await self._ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    async def look(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Be a screen of that size, that prefers light or dark."""
        await self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.devtools("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self, path: Path) -> None:
        """The whole page as a PNG."""
        shot = await self.devtools("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        await asyncio.to_thread(path.write_bytes, base64.b64decode(shot["data"]))

    async def take_log(self) -> list[str]:
        """What its console said since the last time: errors, warnings, broken policies."""
        return [entry["message"] for entry in await self._ask("POST", "/se/log", {"type": "browser"})]

    async def take_requested(self) -> list[str]:
        """The URLs that it asked for since the last time."""
        entries = await self._ask("POST", "/se/log", {"type": "performance"})
        events = [json.loads(entry["message"])["message"] for entry in entries]
        return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]

    async def _ask(self, method: str, target: str, body: object) -> Any:
        answer = await ask(self._driver, method, f"/session/{self._session}{target}", json.dumps(body).encode(), _JSON)
        value = answer.json()["value"]
        assert answer.status == 200, value
        return value


_JSON = {"content-type": "application/json"}


@asynccontextmanager
async def running_browser(folder: Path) -> AsyncIterator[Browser]:
    """With an empty profile in that folder; ended with everything it started."""
    port = free_port()
    driver = f"http://127.0.0.1:{port}"
    process = await asyncio.create_subprocess_exec(
        program("chromedriver"),
        f"--port={port}",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=(folder / "chromedriver.log").open("wb"),
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(START_S):
            while not await _is_ready(driver):
                assert process.returncode is None, (folder / "chromedriver.log").read_text()
                await asyncio.sleep(0.05)
        options = {"binary": program("chromium"), "args": [*_CHROMIUM, f"--user-data-dir={folder / 'profile'}"]}
        logging = {"browser": "ALL", "performance": "ALL"}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": logging}
        body = json.dumps({"capabilities": {"alwaysMatch": wanted}}).encode()
        async with asyncio.timeout(START_S):
            answer = await ask(driver, "POST", "/session", body, _JSON)
        assert answer.status == 200, answer
        session = answer.json()["value"]["sessionId"]
        try:
            browser = Browser(driver, session)
            await browser.open("about:blank")
            await browser.take_requested()  # of the browser's own start page
            yield browser
        finally:
            await ask(driver, "DELETE", f"/session/{session}")
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _is_ready(driver: str) -> bool:
    try:
        return (await ask(driver, "GET", "/status")).status == 200
    except OSError:
        return False
