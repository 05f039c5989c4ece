"""A user's own mount, by fusermount3: only for that user, with that user's rights, without the
kernel's shortcut."""

import os
import shutil
import stat
import subprocess
from pathlib import Path

import forwarded_programs as programs
import pytest
import zazen.testing

# fusermount3 wants a user that has a name.
USER = programs.NOBODY


def test_a_user_mounts_without_root(run_inside):
    if shutil.which("fusermount3") is None:
        pytest.skip("needs fusermount3 (package fuse3)")

    def test(node):
        # On most systems all users may open it. The test's mounts are its own.
        device = node.folder / "fuse"
        os.mknod(device, stat.S_IFCHR | 0o666, Path("/dev/fuse").stat().st_rdev)
        device.chmod(0o666)
        subprocess.run(["mount", "--bind", device, "/dev/fuse"], check=True)
        root = node.mount()
        (root / "secret").write_text("for root")
        (root / "secret").chmod(0o600)
        (root / "public").write_text("for all")
        mine = node.folder / "mine"
        mine.mkdir()
        os.chown(mine, USER, USER)

        program = zazen.testing.program("zazen")
        programs.as_nobody(program, "mount", mine, "--socket", node.daemon.socket)
        code = """
            set -e
            cat public > /dev/null
            ! cat secret 2> /dev/null
            ! chown 0 public 2> /dev/null
            mkdir own && echo hello > own/f && mv own/f own/g && test "$(cat own/g)" = hello
            dd if=/dev/zero of=own/big bs=1M count=20 status=none
            test "$(stat -c %s own/big)" = 20971520 && cmp -n 20971520 own/big /dev/zero
            ln own/g own/h && ln -s g own/s && test "$(cat own/s)" = hello && rm -r own
        """
        programs.as_nobody("sh", "-c", f"cd {mine} && {code}")
        # Nobody else may enter, not even root.
        with pytest.raises(PermissionError):
            os.listdir(mine)
        programs.as_nobody(program, "unmount", mine)
        assert os.listdir(mine) == []
        assert sorted(os.listdir(root)) == ["public", "secret"]
        node.unmount()

    run_inside(test)
