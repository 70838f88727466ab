# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The page of the server, as it is sent and in a real browser."""

import re
import threading

import pytest

from gpt_jax.serving.access import Access
from tests.support import browser
from tests.support.served import (
  HTTP,
  SERVED,
  Gate,
  Running,
  connect,
  expected,
  make_engine,
  received,
)

needs_chromium = pytest.mark.skipif(not browser.CHROMIUM, reason='needs Chromium')
KEY = 'a-key'
# What a browser would run if the page took texts for HTML.
HTML = '<img src=x onerror="stolen = 1"><script>stolen = 1</script>&lt;'


@pytest.fixture
def plain():
  """A model without a chat template."""
  running = Running(make_engine, served=SERVED._replace(template=None))
  yield running
  running.stop()


@pytest.fixture
def opened(tmp_path):
  """Opens pages, and closes them at the end."""
  pages = []

  def open_(api):
    page = browser.Page(api.url, str(tmp_path / str(len(pages))))
    pages.append(page)
    return page

  yield open_
  for page in pages:
    page.__exit__()


def test_the_page_asks_no_other_server(api):
  with connect(api) as connection:
    connection.sendall(b'GET /' + HTTP + b'\r\n')
    head, _, html = received(connection).decode().partition('\r\n\r\n')
  assert head.startswith('HTTP/1.1 200') and 'text/html' in head
  assert not re.search(r'https?:|//\w+\.\w', html)
  (policy,) = re.findall('content-security-policy: (.*)\r\n', head)
  assert "default-src 'none'; connect-src 'self'" in policy
  assert 'unsafe' not in policy


def texts(page):
  """What the page shows: whose text it is, and the text."""
  return page.value(
    "[...document.querySelectorAll('#text > *')].map(x => [x.dataset.role, x.textContent])"
  )


def set_(page, **values):
  for name, value in values.items():
    page.value(f"document.getElementById('{name}').value = {value!r}")


def wait_for_answer(page):
  page.wait("!document.getElementById('send').disabled")
  return page.value("document.getElementById('error').textContent")


def write(page, text):
  page.value("document.getElementById('input').focus()")
  page.type(text)
  page.press('Enter', 13)
  return wait_for_answer(page)


@pytest.mark.slow
@needs_chromium
def test_a_text_goes_on(plain, opened):
  """It is that of the server, and the next goes on from it."""
  page = opened(plain)
  page.wait("document.title === 'tiny'")
  set_(page, temperature='0', max_tokens='5')
  assert not write(page, 'ab')
  ((first, _),) = expected(['ab'], max_tokens=5)
  assert texts(page) == [['user', 'ab'], ['assistant', first]]
  assert not write(page, '')
  ((second, _),) = expected([f'ab{first}'], max_tokens=5)
  assert texts(page)[2:] == [['assistant', second]]
  assert page.value("document.getElementById('text').textContent") == (f'ab{first}{second}')
  page.value("document.getElementById('new').click()")
  assert texts(page) == []
  asked = {url.partition('/v1')[0].rstrip('/') for url in page.requests()}
  assert asked == {plain.url}
  assert not page.complaints()


@pytest.mark.slow
@needs_chromium
def test_a_chat_in_roles(api, opened):
  """The template gets all messages; and no text of theirs is HTML."""
  page = opened(api)
  page.wait("document.title === 'tiny'")
  assert page.value("document.getElementById('text').className") == 'chat'
  set_(page, temperature='0', max_tokens='3')
  page.value("document.querySelector('#system input').value = 's'")
  assert not write(page, 'a')
  ((first, _),) = expected(['s:s;u:a;a:'], max_tokens=3)
  assert not write(page, 'b')
  prompt = f's:s;u:a;a:{first};u:b;a:'
  ((second, _),) = expected([prompt], max_tokens=3)
  assert texts(page) == [['user', 'a'], ['assistant', first], ['user', 'b'], ['assistant', second]]


@pytest.mark.slow
@needs_chromium
def test_texts_are_no_html(plain, opened):
  page = opened(plain)
  page.wait("document.title === 'tiny'")
  set_(page, temperature='0', max_tokens='1')
  # It does not fit, and stays in the field.
  assert 'the context holds' in write(page, HTML)
  assert texts(page) == []
  assert page.value("document.getElementById('input').value") == HTML
  # As from the model.
  page.value(f"turns = []; add('assistant', {HTML!r})")
  assert texts(page) == [['assistant', HTML]]
  assert page.value("document.querySelectorAll('#text img').length") == 0
  assert page.value('typeof stolen') == 'undefined'
  # The policy refuses what would run or load all the same.
  page.value(f'document.body.insertAdjacentHTML("beforeend", {HTML!r})')
  page.wait("document.querySelector('img').complete")
  assert page.value('typeof stolen') == 'undefined'
  assert any('Content Security Policy' in x for x in page.complaints())


@pytest.mark.slow
@needs_chromium
def test_stop(plain, opened, monkeypatch):
  """The text so far stays; the server frees the row."""
  page = opened(plain)
  page.wait("document.title === 'tiny'")
  set_(page, temperature='0', max_tokens='40')
  gate, steps = Gate(plain.worker, monkeypatch), iter(range(40))
  gated, enough = plain.worker.engine.step, threading.Event()
  gate.open.set()

  def step():
    if next(steps) == 6:  # then the engine waits for the page to stop
      enough.set()
      gate.open.clear()
    return gated()

  monkeypatch.setattr(plain.worker.engine, 'step', step)
  page.value("document.getElementById('input').focus()")
  page.type('ab')
  page.press('Enter', 13)
  assert enough.wait(60)
  page.wait("(document.querySelector('.sampled')?.textContent.length ?? 0) > 2")
  page.value("document.getElementById('stop').click()")
  assert not wait_for_answer(page)
  gate.open.set()
  plain.idle()
  ((whole, _),) = expected(['ab'], max_tokens=40)
  ((_, (_, shown))) = texts(page)
  assert whole.startswith(shown) and 2 < len(shown) < len(whole)


@pytest.mark.slow
@needs_chromium
def test_an_answer_that_has_not_begun(api, opened, monkeypatch):
  """The page shows that it waits; a new chat ends the wait and leaves none."""
  gate = Gate(api.worker, monkeypatch)
  page = opened(api)
  page.wait("document.title === 'tiny'")
  assert page.value("document.getElementById('new').textContent") == 'New chat'
  set_(page, temperature='0', max_tokens='3')
  page.value("document.getElementById('input').focus()")
  page.type('ab')
  page.press('Enter', 13)
  page.wait("!!document.querySelector('#text > .sampled.waiting')")
  page.value("document.getElementById('new').click()")
  assert not wait_for_answer(page)
  assert texts(page) == []
  gate.open.set()
  api.idle()
  assert not write(page, 'ab')
  assert [role for role, _ in texts(page)] == ['user', 'assistant']
  assert not page.value("document.querySelectorAll('.waiting').length")


@pytest.mark.slow
@needs_chromium
def test_errors_are_shown(opened):
  api = Running(make_engine, access=Access(key=KEY))
  try:
    page = opened(api)
    page.wait("document.getElementById('error').textContent")
    assert 'API key' in wait_for_answer(page)
    assert not page.value("document.getElementById('key').hidden")
    page.value(f"key.value = '{KEY}'; key.dispatchEvent(new Event('change'))")
    page.wait("document.title === 'tiny'")
    set_(page, max_tokens='1000')
    assert '1000 are too many' in write(page, 'ab')
    set_(page, max_tokens='2', temperature='-1')  # the browser says why
    write(page, '')
    assert not page.value("document.getElementById('form').checkValidity()")
    assert texts(page) == []
    set_(page, temperature='0')
    assert not write(page, '')
    assert [role for role, _ in texts(page)] == ['user', 'assistant']
  finally:
    api.stop()
  assert 'still running' in write(page, 'c')
