import traceback
import unicodedata
import warnings

import pytest
import zazen
from sample import PATTERN

TREE = {
    "InvalidArgumentError": ValueError,
    "NotFoundError": FileNotFoundError,
    "PermissionDeniedError": PermissionError,
    "ConflictError": FileExistsError,
    "NoSpaceError": OSError,
    "UnavailableError": ConnectionError,
    "TimedOutError": TimeoutError,
    "CorruptError": OSError,
    "ProtocolError": OSError,
    "AuthenticationError": PermissionError,
    "TooLargeError": OverflowError,
    "BusyError": BlockingIOError,
    "UnsupportedError": NotImplementedError,
    "StaleError": OSError,
    "ShuttingDownError": ConnectionError,
    "IoError": OSError,
    "MpiError": RuntimeError,
    "ConfigError": ValueError,
}


def test_every_error_is_also_a_builtin():
    for code, (name, builtin) in enumerate(TREE.items(), start=1):
        error = getattr(zazen, name)
        assert issubclass(error, zazen.Error) and issubclass(error, builtin), name
        assert error.code == code and error.kind and error.__module__ == "zazen" and error.__doc__, name
    assert zazen.Error.kind is None and issubclass(zazen.ZazenWarning, UserWarning)


def test_errors_carry_errno_and_a_message(folder):
    with pytest.raises(FileNotFoundError) as caught:
        zazen.open(folder / "nowhere", direct=True)
    assert isinstance(caught.value, zazen.NotFoundError)
    assert caught.value.errno == 2 and "nowhere" in str(caught.value)
    assert zazen.InvalidArgumentError("x").errno == 22


@pytest.mark.parametrize("how", ["daemon", "nobody", "direct"])
@pytest.mark.parametrize(("bad", "says"), [("", "is empty"), ("a\0b", "NUL"), ("/sim\0", "NUL")])
def test_what_is_no_path_is_a_value_error(request, how, bad, says):
    options = {"direct": how == "direct"}
    if how == "daemon":
        options["socket"] = request.getfixturevalue("cluster").sockets[0]
    with pytest.raises(zazen.InvalidArgumentError, match=says) as caught:
        zazen.open(bad, **options)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("how", ["daemon", "direct"])
@pytest.mark.parametrize(("bad", "says"), [("", "names no file"), ("f\0{n}.bin", "NUL"), ("a\0", "NUL")])
def test_what_is_no_pattern_is_a_value_error(request, dataset, how, bad, says):
    options = {"direct": how == "direct"}
    if how == "daemon":
        options["socket"] = request.getfixturevalue("cluster").sockets[0]
    with pytest.raises(zazen.InvalidArgumentError, match=says):
        zazen.open(dataset, pattern=bad, **options)


#: Begins a line of its own, and a terminal's title.
EVIL = "x\nzazen: all is well \x1b]0;title\x07\u202e"


def is_plain(text):
    """Whether it is one line, and no terminal obeys anything in it."""
    return not any(unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp") for character in text)


def test_names_in_messages_are_not_for_the_terminal(dataset):
    """Other users choose names of folders and files."""
    folder = dataset.parent / EVIL
    raised = []
    with pytest.raises(zazen.NotFoundError) as caught:
        zazen.open(folder, direct=True)
    raised.append(caught.value)
    folder.mkdir()
    (folder / f"{EVIL}-7.bin").write_bytes(b"x")
    with zazen.open(folder, pattern=EVIL + "-{n}.bin", direct=True) as opened:
        (folder / f"{EVIL}-7.bin").unlink()
        for read in (lambda: opened.read(7), lambda: opened[7], lambda: next(opened.frames(7, 7))):
            with pytest.raises(zazen.Error) as caught:
                read()
            raised.append(caught.value)
    for error in (*raised, zazen.CorruptError(74, EVIL), zazen.MpiError(EVIL)):
        said = str(error)
        assert "zazen: all is well" in said and is_plain(said), repr(said)
        assert r"x\nzazen" in said and r"\x1b" in said.replace(r"\u{1b}", r"\x1b"), said
        assert is_plain("".join(traceback.format_exception_only(error)).removesuffix("\n"))
    # Names that are not UTF-8 are told, too.
    assert "\udcff" in str(zazen.NotFoundError(2, "a\udcff"))


def test_names_in_warnings_are_not_for_the_terminal(dataset):
    folder = dataset.parent / EVIL
    dataset.rename(folder)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        zazen.open(folder, socket=dataset.parent / "nobody\n", pattern=PATTERN).close()
    assert said and all(is_plain(str(one.message)) for one in said), said
