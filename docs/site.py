# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What `make docs` adds to these pages: README.md in front, and launch/.

Links are written for a reader of the repository; here those between folders
are turned to where the pages lie in the site. Flags in code stay whole where a
line wraps, as browsers break lines after hyphens.
"""

import pathlib
import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = pathlib.Path(__file__).parents[1]
OUTSIDE = ('README.md', 'AGENTS.md', 'CONTRIBUTING.md', 'launch/README.md', 'launch/BEAM.md')
_LINK = re.compile(r'\]\(([^)\s]+)\)')
_CODE = re.compile(r'<code>.*?</code>', re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
  """Adds the pages that lie outside docs/."""
  for path in OUTSIDE:
    text = (ROOT / path).read_text(encoding='utf-8')
    files.append(File.generated(config, path, content=text))
  return files


def on_page_markdown(markdown: str, page, **_: object) -> str:
  """The page with its links turned to the site."""
  folder = pathlib.PurePosixPath(page.file.src_uri).parent
  here = ROOT / ('' if page.file.src_uri in OUTSIDE else 'docs') / folder
  up = '../' * len(folder.parts)

  def turned(match: re.Match[str]) -> str:
    link, _, anchor = match[1].partition('#')
    if ':' in link or not link:
      return match[0]
    target = (here / link).resolve().relative_to(ROOT).as_posix()
    target = up + target.removeprefix('docs/')
    return f']({target}{"#" * bool(anchor)}{anchor})'

  return _LINK.sub(turned, markdown)


def on_page_content(html: str, **_: object) -> str:
  """The page with its flags marked; site.css keeps them whole."""

  def marked(match: re.Match[str]) -> str:
    return re.sub(r'--[a-z][\w.]*', r'<span class="flag">\g<0></span>', match[0])

  return _CODE.sub(marked, html)
