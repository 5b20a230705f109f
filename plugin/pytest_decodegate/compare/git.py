"""Files of a git revision, read by the git that is installed: nothing is checked out."""

from __future__ import annotations

import tempfile

from ..baseline.reader import MOST_BYTES
from ..errors import BadInput

PREFIX = "git:"


def split(argument: str) -> tuple[str, str]:
    """Revision and path of "git:REV:PATH"; raises BadInput where one is missing."""
    revision, colon, path = argument.removeprefix(PREFIX).partition(":")
    # A revision that starts with a dash would be an option of git.
    if not (revision and colon and path) or revision.startswith("-"):
        raise BadInput(
            f"{argument!r} is not git:REV:PATH; write for example git:main:baselines, with the path as "
            "`git show REV:PATH` takes it: from the top of the repository, or ./ from here"
        )

    return revision, path


def is_folder(revision: str, path: str) -> bool:
    """Whether the path is a folder in that revision; raises BadInput where git knows no such thing."""
    return _git("cat-file", "-t", f"{revision}:{path}").strip() == b"tree"


def files(revision: str, path: str) -> list[str]:
    """All files below a folder, relative to it."""
    listed = _git("ls-tree", "-r", "-z", "--name-only", "--full-tree", f"{revision}:{path}")
    if len(listed) > MOST_BYTES:
        raise BadInput(f"{PREFIX}{revision}:{path}: holds too many files to be a folder of baselines; name that one")

    return [name.decode(errors="surrogateescape") for name in listed.split(b"\0") if name]


def content(revision: str, path: str) -> bytes:
    """The bytes of a file; of one that is too large for a baseline as many as `parse` needs to refuse it."""
    return _git("cat-file", "blob", f"{revision}:{path}")


def _git(*arguments: str) -> bytes:
    """What git writes, at most a byte more than a baseline may have; it is ended there."""
    import subprocess  # most comparisons need no git

    try:
        with (
            tempfile.TemporaryFile() as said,
            subprocess.Popen(["git", *arguments], stdout=subprocess.PIPE, stderr=said) as git,  # noqa: S607 - the user's
        ):
            assert git.stdout is not None
            written = git.stdout.read(MOST_BYTES + 1)
            if len(written) > MOST_BYTES:
                git.kill()
                return written

            code = git.wait()
            said.seek(0)
            reasons = said.read(10_000).decode(errors="replace").strip().splitlines()
    except OSError as error:
        raise BadInput(f"git cannot be started ({error.strerror}); name the files themselves instead") from error

    if code:
        reason = reasons[-1] if reasons else "no reason given"
        raise BadInput(f"{PREFIX}{arguments[-1]}: {reason}; see what `git show {arguments[-1]}` says")

    return written
