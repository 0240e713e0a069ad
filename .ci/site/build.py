"""Build the searchable site of all documents into build/site; a broken link is an error.

The pages link to each other, and to source files, by their place in the repository. So they are copied into
build/site-pages at the same places, with the source files that they link to, and MkDocs checks every link there.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
STAGE: Final = ROOT / "build/site-pages"
PAGES: Final = ("*.md", "docs/**/*", "helm/bkheal/README.md")
_LINK: Final = re.compile(r"\]\(([^)#\s]+)")


def main() -> int:
    """Build the site; the exit code of MkDocs."""
    shutil.rmtree(STAGE, ignore_errors=True)
    pages = [path for pattern in PAGES for path in ROOT.glob(pattern) if path.is_file()]
    for page in pages:
        copy(page)
    for page in pages:
        if page.suffix == ".md":
            for link in _LINK.findall(page.read_text()):
                target = (page.parent / link).resolve()
                if "://" not in link and target.is_file() and target.is_relative_to(ROOT):
                    copy(target)
    command = [sys.executable, "-m", "mkdocs", "build", "--clean", "--config-file", ".ci/site/mkdocs.yml"]
    done = subprocess.run(command, cwd=ROOT, check=False)
    if not done.returncode:
        print(  # noqa: T201  what the program is for
            f"open {ROOT / 'build/site/index.html'}"
        )
    return done.returncode


def copy(path: Path) -> None:
    """Copy one file of the repository to the same place below the stage."""
    staged = STAGE / path.relative_to(ROOT)
    staged.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, staged)


if __name__ == "__main__":
    sys.exit(main())
