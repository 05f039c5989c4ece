"""`zazen run --forward` to a namespace that the daemon's machine has mounted: the program's user
needs no mount."""

import forwarded_programs as programs
import zazen.testing


def test_a_user_reaches_the_namespace_without_a_mount_of_their_own(run_inside):
    def test(node):
        daemon, mnt = node.daemon, node.mnt
        # The test's node has neither plug-in nor export: it starts again with them.
        daemon.stop()
        daemon.arguments += ["--plugin", "posix", "--export", mnt]
        daemon.start()
        node.mount()
        (mnt / "public").write_text("public\n")
        (mnt / "private").write_text("private\n")
        (mnt / "private").chmod(0o600)

        def forwarded(script: str, *flags: str, status: int = 0) -> str:
            run = [
                zazen.testing.program("zazen"),
                "run",
                "--socket",
                daemon.socket,
                "--forward",
                f"/job={mnt}",
            ]
            return programs.as_nobody(*run, *flags, "--", "sh", "-c", script, status=status)

        # By this machine's kernel, and by calls to the daemon, as from another node.
        for number, flags in enumerate(([], ["--relay"])):
            said = forwarded(
                f"cat /job/public && echo mine > /job/mine{number} && cat /job/mine{number}", *flags
            )
            assert said == "public\nmine\n"
            assert "Permission denied" in forwarded("cat /job/private", *flags, status=1)
            made = (mnt / f"mine{number}").stat()
            assert (made.st_uid, made.st_size) == (programs.NOBODY, 5)

    run_inside(test)
