"""Files of a git revision, read by the git that is installed: nothing is checked out."""

from __future__ import annotations

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
    return [name.decode(errors="surrogateescape") for name in listed.split(b"\0") if name]


def content(revision: str, path: str) -> bytes:
    """The bytes of a file."""
    return _git("cat-file", "blob", f"{revision}:{path}")


def _git(*arguments: str) -> bytes:
    import subprocess  # most comparisons need no git

    try:
        done = subprocess.run(["git", *arguments], capture_output=True, check=False)  # noqa: S607 - the user's git
    except OSError as error:
        raise BadInput(f"git cannot be started ({error.strerror}); name the files themselves instead") from error

    if done.returncode:
        reason = (done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"])[-1]
        raise BadInput(f"{PREFIX}{arguments[-1]}: {reason}; see what `git show {arguments[-1]}` says")

    return done.stdout
