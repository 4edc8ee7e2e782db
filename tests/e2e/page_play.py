# SPDX-License-Identifier: Apache-2.0
"""The page's playground, driven by page.py: answers of one model and of two next to each other, as a stream, with the
tokens' probabilities; a stop that frees the rows; nothing kept."""
import base64
import os
import time

ANSWERED = """return [...document.querySelectorAll('.turn.assistant')].filter((t) => t.dataset.ended)
    .map((t) => ({why: t.dataset.ended, text: t.querySelector('.plain').textContent,
                  tokens: t.querySelectorAll('.tokens span').length}))"""


ASKED = "return document.querySelectorAll('.turn.assistant').length"


def set_values(browser, **values):
    browser.run("for (const [id, value] of Object.entries(arguments[0])) { const e = document.getElementById(id);"
                " e.value = value; e.dispatchEvent(new Event('change')); }", values)


def ask(browser, question):
    set_values(browser, question=question)
    browser.run("document.getElementById('ask').requestSubmit()")


def answers(browser, count):
    browser.wait(ANSWERED.replace("return", "return (", 1) + f").length >= {count}", 60)
    return browser.run(ANSWERED)


def check_answers(browser):
    browser.wait("return document.getElementById('left').options.length >= 1")
    set_values(browser, left="tiny", right="", temperature="0", most="12", system="Answer shortly.")
    ask(browser, "What is two and two?")
    first, = answers(browser, 1)
    assert first["why"] in ("stop", "length") and 1 <= first["tokens"] <= 12, first
    title = browser.run("return document.querySelector('.tokens span').title")
    assert "%" in title and "likeliest" in title, title
    assert browser.run("return document.querySelector('.tokens span').className") in ("p0", "p1", "p2", "p3", "p4")
    # The same model twice and greedily: the same words.
    set_values(browser, right="tiny")
    ask(browser, "What is two and two?")
    left, right = answers(browser, 2)[-2:]
    assert left == right and left["text"] == first["text"], (first, left, right)
    return first


def check_schema(browser):
    """Answers fit the schema that the page is given; one that is no JSON is said to be none."""
    schema = '{"type": "object", "properties": {"sum": {"enum": [3, 4]}}, "required": ["sum"], "additionalProperties": false}'
    set_values(browser, right="", most="24", schema=schema)
    ask(browser, "What is two and two?")
    fitting = answers(browser, browser.run(ASKED))[-1]
    assert fitting["text"] in ('{"sum": 3}', '{"sum": 4}') and fitting["why"] == "stop", fitting
    set_values(browser, schema="{sum}")
    ask(browser, "What is two and two?")
    refused = answers(browser, browser.run(ASKED))[-1]
    assert "the schema is no JSON" in refused["why"] and refused["tokens"] == 0, refused
    set_values(browser, schema="")
    browser.run("document.getElementById('clear').click()")


# Stops the answer as soon as it has begun.
STOP_SOON = """const at = document.getElementById('answers');
new MutationObserver((_, self) => { if (!at.querySelector('.turn.assistant:last-child .tokens span')) return;
                                    self.disconnect(); document.getElementById('stop').click(); })
    .observe(at, {childList: true, subtree: true});
document.getElementById('ask').requestSubmit();"""


def check_stop(browser, tries=20):
    """A stopped answer ends where it is, and the page can ask again at once. An answer may be whole before the stop."""
    set_values(browser, right="", temperature="2", most="4000", system="")
    for i in range(tries):
        set_values(browser, question="Write without an end.")
        browser.run(STOP_SOON)
        stopped = answers(browser, i + 1)[-1]
        browser.wait("return document.getElementById('stop').hidden")
        if stopped["why"] == "stopped":
            break
    assert stopped["why"] == "stopped" and stopped["tokens"] >= 1, stopped
    set_values(browser, most="4")
    ask(browser, "And now?")
    assert answers(browser, i + 2)[-1]["why"] in ("stop", "length")


def check_refused(browser):
    """The server's refusal is shown as it says it."""
    set_values(browser, temperature="-1")
    browser.run("document.getElementById('temperature').removeAttribute('min')")
    ask(browser, "Too cold?")
    refused = answers(browser, browser.run(ASKED))[-1]
    assert "temperature" in refused["why"] and refused["tokens"] == 0, refused
    browser.run("document.getElementById('temperature').setAttribute('min', '0')")


def check_nothing_kept(browser):
    kept = browser.run("return JSON.stringify({...localStorage}) + JSON.stringify({...sessionStorage}) + document.cookie")
    assert "two and two" not in kept and "without an end" not in kept, kept
    browser.run("document.getElementById('clear').click()")
    assert browser.run("return document.querySelectorAll('.turn').length") == 0


def picture(browser, path):
    box = browser.run("const b = document.getElementById('play').getBoundingClientRect();"
                      "return {x: 0, y: b.y + scrollY - 16, width: innerWidth, height: b.height + 32, scale: 1}")
    shot = browser.devtools("Page.captureScreenshot", captureBeyondViewport=True, clip=box)
    with open(path, "wb") as file:
        file.write(base64.b64decode(shot["data"]))


def check_playground(browser, pictures):
    check_answers(browser)
    if pictures:
        browser.show_as(1000, "light")
        set_values(browser, right="tiny", temperature="1", most="24")
        ask(browser, "What is two and two?")
        answers(browser, 2)
        time.sleep(0.3)
        picture(browser, os.path.join(pictures, "playground.png"))
    check_schema(browser)
    check_stop(browser)
    check_refused(browser)
    check_nothing_kept(browser)
    set_values(browser, temperature="", most="256")
