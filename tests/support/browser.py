# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A page in headless Chromium, driven through its DevTools protocol."""

import itertools
import json
import os
import shutil
import subprocess
import time
from typing import Any

CHROMIUM = shutil.which('chromium') or shutil.which('google-chrome')
FLAGS = ('--headless', '--no-sandbox', '--disable-gpu')


class Page:
  """An open page; use it in a `with`."""

  def __init__(self, url: str, folder: str):
    """Opens it; `folder` is for the browser's profile."""
    assert CHROMIUM is not None
    self._numbers = itertools.count(1)
    self.events: list[dict[str, Any]] = []
    # The browser reads commands from file 3 and writes answers to file 4.
    theirs_in, self._out = os.pipe()
    self._in, theirs_out = os.pipe()
    command = [
      CHROMIUM,
      *FLAGS,
      '--remote-debugging-pipe',
      '--no-first-run',
      f'--user-data-dir={folder}',
    ]
    self._process = subprocess.Popen(
      ['bash', '-c', f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', 'bash', *command],
      pass_fds=(theirs_in, theirs_out),
      stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    self._held = b''
    self._session: str | None = None
    target = self._call('Target.createTarget', url='about:blank')['targetId']
    self._session = self._call('Target.attachToTarget', targetId=target, flatten=True)['sessionId']
    for domain in ('Page', 'Runtime', 'Log', 'Network'):
      self._call(f'{domain}.enable')
    self._call('Page.navigate', url=url)
    self.wait("document.readyState === 'complete'")

  def __enter__(self) -> 'Page':
    return self

  def __exit__(self, *_: object) -> None:
    self._process.kill()
    self._process.wait()
    os.close(self._in)
    os.close(self._out)

  def value(self, script: str) -> Any:
    """The value of an expression on the page."""
    answer = self._call('Runtime.evaluate', expression=script, returnByValue=True)
    assert 'exceptionDetails' not in answer, answer
    return answer['result'].get('value')

  def wait(self, script: str) -> None:
    """Waits until an expression is true."""
    end = time.monotonic() + 60
    while not self.value(script):
      assert time.monotonic() < end, script
      time.sleep(0.02)

  def type(self, text: str) -> None:
    """Types into the field with the focus."""
    self._call('Input.insertText', text=text)

  def press(self, key: str, code: int) -> None:
    """Presses a key."""
    about = {'key': key, 'code': key, 'windowsVirtualKeyCode': code}
    about['text'] = '\r' if key == 'Enter' else ''
    self._call('Input.dispatchKeyEvent', type='keyDown', **about)
    self._call('Input.dispatchKeyEvent', type='keyUp', **about)

  def requests(self) -> list[str]:
    """The URLs that it has asked for."""
    self.value('0')  # reads the events before the answer
    return [
      event['params']['request']['url']
      for event in self.events
      if event['method'] == 'Network.requestWillBeSent'
    ]

  def complaints(self) -> list[str]:
    """What its console shows: errors, and what its policy refused."""
    self.value('0')
    logged = [e for e in self.events if e['method'] == 'Log.entryAdded']
    thrown = [e for e in self.events if e['method'].endswith('exceptionThrown')]
    return [e['params']['entry']['text'] for e in logged] + [
      str(e['params']['exceptionDetails']) for e in thrown
    ]

  def _call(self, method: str, **params: Any) -> dict[str, Any]:
    number = next(self._numbers)
    message: dict[str, Any] = {'id': number, 'method': method, 'params': params}
    if self._session:
      message['sessionId'] = self._session
    os.write(self._out, json.dumps(message).encode() + b'\0')
    while True:
      found = self._message()
      if found.get('id') == number:
        assert 'error' not in found, found
        return found['result']
      if 'method' in found:
        self.events.append(found)

  def _message(self) -> dict[str, Any]:
    while b'\0' not in self._held:
      data = os.read(self._in, 65536)
      assert data, 'the browser has ended'
      self._held += data
    message, _, self._held = self._held.partition(b'\0')
    return json.loads(message)
