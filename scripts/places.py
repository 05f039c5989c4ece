"""Where cargo puts what it builds, and where a shell looks for completions: what setup.py,
install.py and deb.py all need to know."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def built(profile: str, target: str | None = None) -> Path:
    """The folder into which cargo builds with this profile, for this machine or another target."""
    return folder_of(Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")), profile, target)


def objects(profile: str, target: str | None = None) -> Path:
    """The same for the workspace of zazen-objects."""
    return folder_of(ROOT / "target/objects", profile, target)


def folder_of(folder: Path, profile: str, target: str | None) -> Path:
    """Where in its target folder cargo puts what it builds."""
    if target:
        # The glibc version behind the target's name is zig's business.
        folder /= target.rpartition("-gnu")[0] + "-gnu"
    # Cargo calls the folder of its profile `dev` by another name.
    return folder / {"dev": "debug"}.get(profile, profile)


def completions(of_distribution: bool) -> dict[str, str]:
    """Where each shell looks below a prefix: for its distribution's packages, which zsh looks for
    in a folder of their own, or for others."""
    zsh = "vendor-completions" if of_distribution else "site-functions"
    return {
        "bash": "share/bash-completion/completions/zazen",
        "zsh": f"share/zsh/{zsh}/_zazen",
        "fish": "share/fish/vendor_completions.d/zazen.fish",
    }
