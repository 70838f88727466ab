# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The page at `/`, on which people write with the model: `page.html`.

It asks the endpoints as any client does, and needs no other server. The browser
is told to run nothing but its one script, whatever a model writes.
"""

import base64
import hashlib
import importlib.resources
import re

from starlette.responses import HTMLResponse


def response() -> HTMLResponse:
  """The page, the same for every model."""
  text = importlib.resources.files('gpt_jax.serving').joinpath('page.html')
  html = text.read_text(encoding='utf-8')
  policy = (
    "default-src 'none'",
    "connect-src 'self'",
    'img-src data:',
    *(f'{kind}-src {_hash(kind, html)}' for kind in ('script', 'style')),
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
  )
  headers = {
    'Content-Security-Policy': '; '.join(policy),
    'Cache-Control': 'no-cache',
    'Referrer-Policy': 'no-referrer',
    'X-Content-Type-Options': 'nosniff',
  }
  return HTMLResponse(html, headers=headers)


def _hash(kind: str, html: str) -> str:
  """How a policy names the one script or style of the page."""
  (inside,) = re.findall(rf'<{kind}>(.*?)</{kind}>', html, re.DOTALL)
  digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
  return f"'sha256-{digest}'"
