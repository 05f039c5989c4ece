"""`zazen locate` with patterns: no shell expands them, because the paths are the namespace's."""

from zazen import namespace


def test_locate_expands_patterns_of_the_namespace(run_inside):
    def test(node):
        files = namespace.Namespace(str(node.daemon.socket))
        for name in ("/run1", "/run2", "/run1/step-9.vtu.d"):
            files.mkdir(name)
        for name in ("/run1/step-2.vtu", "/run1/step-10.vtu", "/run1/.vtu", "/run2/step-1.vtu", "/run2/a*"):
            files.write_bytes(name, b"x")

        def located(*patterns: str, status: int = 0) -> list[str]:
            said = node.zazen("locate", "--socket", node.daemon.socket, *patterns, status=status)
            if status:
                return [said]
            return [line.split()[0] for line in said.splitlines() if line.startswith("/")]

        assert located("/run1/step-*.vtu") == ["/run1/step-10.vtu", "/run1/step-2.vtu"]
        assert located("/run?/*.vtu", "/run1/.vtu") == [
            "/run1/step-10.vtu",
            "/run1/step-2.vtu",
            "/run2/step-1.vtu",
            "/run1/.vtu",
        ]
        assert located("/run*/step-1.vtu") == ["/run2/step-1.vtu"]
        # What has a star in its name is named by it.
        assert located("/run2/a*") == ["/run2/a*"]
        said = located("/run1/*.txt", status=1)[0]
        assert "/run1/*.txt: no file of the namespace matches" in said

    run_inside(test)
